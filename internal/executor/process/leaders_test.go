//go:build lofamo_failpoint

package process_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/account"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/executor/process/slurmtest"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// more is the number of kills with Slurm and power behind the process, and of pauses at each step. pause is the length
// of a pause: a thousand times the gap between the last token check and the act.
var (
	more  = flag.Int("process.more", 1, "kills with each target behind the process, and pauses, at each step of an attempt")
	pause = flag.Duration("process.pause", 50*time.Millisecond, "how long a pause lasts")
)

// behind is a target behind the process, with a record of the acts on it.
type behind struct {
	bench
	// job returns an attempt at a step of the response with that ID.
	job func(token uint64, id string, attempt int) executor.Job
	// tokens returns the tokens of all acts, in order, or a 0 for each act if the target does not show them.
	tokens func(t *testing.T) []uint64
	// looked is the outcome of an attempt that rechecks, or, if a recheck is impossible, of one that a person has
	// restarted.
	looked response.Outcome
	again  bool // a recheck is impossible, and a person restarts the step
}

// targets are the targets of the process.
var targets = map[string]func(t *testing.T, b bench) behind{"command": commandBehind, "slurm": slurmBehind, "power": powerBehind}

func commandBehind(_ *testing.T, b bench) behind {
	return behind{b, job, func(t *testing.T) []uint64 { return numbers(t, `(?m) (\d+)$`, b.acts(t)) }, response.Succeeded, true}
}

// slurmBehind is a real controller. The script records every change before it is made.
func slurmBehind(t *testing.T, b bench) behind {
	c := slurmtest.Start(t)
	t.Cleanup(c.Close)
	asked, scontrol := filepath.Join(b.Dir, "asked"), filepath.Join(b.Dir, "scontrol")
	must(t, slurmtest.Script(scontrol, "#!/bin/sh\nif [ \"$1\" = update ]; then echo \"$*\" >> "+asked+"; fi\nexec "+c.Scontrol+" \"$@\"\n"))
	b.Config.Slurm = &process.SlurmConfig{Scontrol: scontrol, Conf: c.Conf}
	nodes := map[string]string{} // by response
	return behind{b, func(token uint64, id string, attempt int) executor.Job {
		j := processtest.Job(response.SlurmDrain, token, id, 0, attempt, map[string]string{"reason": "disk"})
		if nodes[id] == "" {
			nodes[id] = fmt.Sprintf("n%d", len(nodes)%20+1)
			c.Idle(t, nodes[id], "new")
		}
		j.Target.Node = fault.NodeID(nodes[id])
		return j
	}, func(t *testing.T) []uint64 {
		out, err := os.ReadFile(asked)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return numbers(t, `@(\d+) #`, string(out))
	}, response.Succeeded, false}
}

func powerBehind(t *testing.T, b bench) behind {
	e := powertest.New(t)
	b.Config.Power = process.PowerConfig{Enabled: true, Nodes: map[fault.NodeID]process.BMC{"n1": {
		Method: "redfish", Address: e.URL, System: powertest.System, Username: "root", PasswordFile: filepath.Join(e.Dir,
			"password"), CAFile: filepath.Join(e.Dir, "ca.pem"),
	}}}
	return behind{b, func(token uint64, id string, attempt int) executor.Job {
		return processtest.Job(response.PowerReset, token, id, 0, attempt, map[string]string{"method": "redfish"})
	}, func(*testing.T) []uint64 { return make([]uint64, len(e.CarriedOut())) }, response.NotKnown, false}
}

func numbers(t *testing.T, pattern, text string) []uint64 {
	t.Helper()
	var out []uint64
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		must(t, err)
		out = append(out, n)
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// next returns the next leader's attempt, after it has found the first one begun.
func (b behind) next(token uint64, id string) executor.Job {
	j := b.job(token, id, 2)
	j.Recheck = !b.again
	return j
}

// table lists a test's requests, their outcomes and reasons.
type table struct{ account.Account }

// note records the result of an attempt; whose describes it.
func (a *table) note(j executor.Job, whose string, r executor.Result) {
	e := account.Entry{Asked: string(j.Kind) + ", " + whose}
	switch r.Outcome {
	case response.Succeeded:
		e.Became = "done"
	case response.StaleToken:
		e.Became, e.Why = "refused", "a higher token was seen"
	case response.Unchanged:
		e.Became, e.Why = "refused", "it never began: nothing is changed"
	case response.NotKnown:
		e.Became, e.Why = "not known", "one was begun: the next one looks for it, where that can be done, else a boot or a person settles it"
	default:
		e.Became, e.Why = "in part", r.Detail
	}
	a.Note(e)
}

// wantTokens checks the number of acts and, if the target shows them, their tokens.
func (b behind) wantTokens(t *testing.T, want []uint64) {
	t.Helper()
	got := b.tokens(t)
	if shown := !slices.Equal(got, make([]uint64, len(got))); len(got) != len(want) || shown && !slices.Equal(got, want) {
		t.Errorf("acts under the tokens %v, want %v", got, want)
	}
}

// TestKilledBefore kills the process at every step of an attempt with Slurm and with power behind it. Nothing happens
// twice, and the next attempt finds the effect if the target allows a recheck.
func TestKilledBefore(t *testing.T) {
	var killed atomic.Int64
	var told table
	t.Run("all", func(t *testing.T) {
		for name, make := range targets {
			if name == "command" { // covered by TestKilledAtEveryStep
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := make(t, newBench(t))
				for round, i := 0, 0; round < *more; round++ {
					for _, tc := range steps {
						i++
						token, id := uint64(10*i), fmt.Sprintf("r%d", i)
						acts := b.tokens(t)
						first := b.job(token, id, 1)
						c := b.spawn(t, failpoint.Order{Point: tc.point, Action: failpoint.Crash.String(), Skip: tc.skip})
						x := b.Supervisor(t, b.Config.Listen)
						b.await(t, token)
						got := doAside(t, x, first)
						c.gone(t)
						killed.Add(1)
						c = b.spawn(t)
						r := <-got
						want(t, r, tc.outcome, "")
						told.note(first, "its process killed", r)
						if tc.happens {
							acts = append(acts, token)
						}
						b.wantTokens(t, acts)
						next := b.next(token+1, id)
						outcome := b.looked
						if tc.outcome == response.Unchanged { // then the engine does not request a recheck
							next.Recheck, outcome = false, response.Succeeded
						}
						r = processtest.Do(t, x, next)
						want(t, r, outcome, "")
						told.note(next, "the next attempt", r)
						if !tc.happens && outcome == response.Succeeded {
							acts = append(acts, token+1)
						}
						want(t, processtest.Do(t, x, b.job(token, id, 3)), response.StaleToken, "")
						b.wantTokens(t, acts)
						c.kill(t)
					}
				}
			})
		}
	})
	t.Logf("killed %d times with Slurm and power behind it, at %d steps:\n%s", killed.Load(), len(steps), &told)
}

// TestPausedAtEveryStep pauses an old leader's attempt at each of its steps, alone and with the whole process, while
// the next leader's attempt arrives. Each is made at most once, and the old one never after the new one. If the process
// keeps running and has seen the new token, no act happens under the old one, except between the last token check and
// the act.
func TestPausedAtEveryStep(t *testing.T) {
	var paused atomic.Int64
	var told table
	t.Run("all", func(t *testing.T) {
		for name, make := range targets {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := make(t, newBench(t))
				for round, i := 0, 0; round < *more; round++ {
					for step := range steps {
						for _, whole := range []bool{false, true} {
							i++
							b.paused(t, step, whole, uint64(10*i), fmt.Sprintf("r%d", i), &told)
							paused.Add(1)
						}
					}
				}
			})
		}
	})
	t.Logf("paused %d times for %s or more, at %d steps of an attempt and of the process:\n%s", paused.Load(), *pause, len(steps), &told)
}

// paused is one round: it pauses the whole process or one attempt.
func (b behind) paused(t *testing.T, step int, whole bool, token uint64, id string, told *table) {
	t.Helper()
	tc := steps[step]
	at := fmt.Sprintf("paused at %s-%d, the whole process: %t", tc.point, tc.skip, whole)
	acts := b.tokens(t)
	first, second := b.job(token, id, 1), b.next(token+1, id)
	g := newGate(t)
	order := g.Order(tc.point, tc.skip)
	if whole {
		order = failpoint.Order{Point: tc.point, Action: failpoint.Stop.String(), Skip: tc.skip}
	}
	c := b.spawn(t, order)
	p := newProxy(t, b.Config.Listen)
	x, y := b.Supervisor(t, b.Config.Listen), b.Supervisor(t, p.addr())
	b.await(t, token)
	connected := b.job(token, "connected", 1)
	connected.Cluster = "another"
	want(t, processtest.Do(t, y, connected), response.Unchanged, "cluster: given")

	old := doAside(t, x, first)
	goOn := func() { must(t, c.cmd.Process.Signal(syscall.SIGCONT)) }
	// The ledger cannot be written while another write is in progress. Then the process may not have recorded the new
	// token before the old attempt continues.
	seen := !whole && tc.point != failpoint.FileWritten && tc.point != failpoint.FileRenamed
	if whole {
		if stopped, err := failpoint.Stopped(c.cmd.Process.Pid); err != nil || !stopped {
			t.Fatalf("%s: it does not stand still: %v", at, err)
		}
		b.spawn(t).gone(t) // no other process takes its place meanwhile
	} else {
		goOn = reached(t, g)
	}
	if seen {
		notice := b.job(token+1, "notice-"+id, 1)
		notice.Parameters, notice.Target.Node = map[string]string{"command": "none"}, "ALL"
		want(t, processtest.Do(t, y, notice), response.Unchanged, "")
	}
	passed := p.passed.Load()
	next := doAside(t, y, second)
	for deadline := time.Now().Add(time.Minute); p.passed.Load() == passed; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: the next leader's attempt does not come", at)
		}
	}
	time.Sleep(*pause)
	goOn()
	a, n := <-old, <-next
	told.note(first, "of a leader before", a)
	told.note(second, "of the next leader", n)
	mine := b.tokens(t)[len(acts):]
	happened := a.Outcome == response.Succeeded
	switch {
	case !happened && a.Outcome != response.StaleToken:
		t.Errorf("%s: the old leader's attempt: %+v", at, a)
	case seen && happened != (tc.happens || tc.point == failpoint.ExecutorFenced):
		t.Errorf("%s, and the new token seen: the old leader's attempt: %+v", at, a)
	}
	if n.Outcome != b.looked {
		t.Errorf("%s: the next leader's attempt: %+v", at, n)
	}
	if happened {
		acts = append(acts, token)
	}
	if b.looked == response.Succeeded && (b.again || !happened) {
		acts = append(acts, token+1)
	}
	want(t, processtest.Do(t, x, b.job(token, id, 3)), response.StaleToken, "")
	b.wantTokens(t, acts)
	if t.Failed() {
		t.Fatalf("%s: %v; %+v; %+v", at, mine, a, n)
	}
	c.kill(t)
}

// TestLeaderKilledAndPaused kills and pauses the leading supervisor at each of its steps at the process, and another
// one takes over. The first leader's attempt is made at most once, and not after the other's.
func TestLeaderKilledAndPaused(t *testing.T) {
	t.Parallel()
	b := commandBehind(t, newBench(t))
	b.Start(t)
	n := 0
	for range *more {
		for _, action := range []failpoint.Action{failpoint.Crash, failpoint.Stop} {
			for _, p := range []failpoint.Point{failpoint.CallSending, failpoint.CallSent, failpoint.CallEnded} {
				n++
				at := fmt.Sprintf("%s at %s", action, p)
				token, id := uint64(10*n), fmt.Sprintf("r%d", n)
				acts := b.tokens(t)
				l := leading{b.Config.Listen, b.Certificate(t, pki.RoleSupervisor), b.job(token, id, 1), t.TempDir()}
				c := b.spawnLeader(t, l, failpoint.Order{Point: p, Action: action.String()})
				if action == failpoint.Crash {
					c.gone(t)
				} else if stopped, err := failpoint.Stopped(c.cmd.Process.Pid); err != nil || !stopped {
					t.Fatalf("%s: it does not stand still: %v", at, err)
				}
				want(t, processtest.Do(t, b.Supervisor(t, b.Config.Listen), b.job(token+1, id, 2)), response.Succeeded, "")
				if action == failpoint.Stop {
					time.Sleep(*pause)
					must(t, c.cmd.Process.Signal(syscall.SIGCONT))
					c.gone(t)
				}
				got := b.tokens(t)[len(acts):]
				before := slices.Equal(got, []uint64{token, token + 1})
				if !before && !slices.Equal(got, []uint64{token + 1}) || p == failpoint.CallSending && before || p == failpoint.CallEnded && !before {
					t.Errorf("%s: acts under the tokens %v, of %d and %d", at, got, token, token+1)
				}
				if said := c.said.String(); action == failpoint.Stop && p == failpoint.CallSending &&
					!strings.Contains(said, fmt.Sprint("outcome ", response.StaleToken)) {
					t.Errorf("%s: %q", at, said)
				}
			}
		}
	}
	t.Logf("leaders killed or paused %d times", n)
}

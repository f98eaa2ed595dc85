//go:build lofamo_failpoint

package process_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// rounds is the number of kills at each step, while the ledger grows.
var rounds = flag.Int("process.rounds", 3, "kills at each step of an attempt")

// child is a separate process that runs until it is killed.
type child struct {
	cmd  *exec.Cmd
	done chan error
	said *bytes.Buffer // stdout; read it after the end of the process
}

// spawn starts the process with armed failpoints.
func (b bench) spawn(t *testing.T, orders ...failpoint.Order) child {
	t.Helper()
	armAtStart(t, b.Config.StateDir, "executor", orders...)
	js, err := json.Marshal(b.Config)
	if err == nil {
		err = os.WriteFile(filepath.Join(b.Dir, "config.json"), js, 0o600) // JSON is valid YAML
	}
	if err != nil {
		t.Fatal(err)
	}
	return start(t, asProcess+"="+filepath.Join(b.Dir, "config.json"))
}

// spawnLeader starts a supervisor.
func (b bench) spawnLeader(t *testing.T, l leading, orders ...failpoint.Order) child {
	t.Helper()
	armAtStart(t, l.Dir, "leader", orders...)
	js, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, asLeader+"="+string(js))
}

func armAtStart(t *testing.T, dir, who string, orders ...failpoint.Order) {
	t.Helper()
	if len(orders) == 0 {
		return
	}
	js, err := json.Marshal(orders)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, failpoint.File(who)), js, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// start starts this test binary in another role.
func start(t *testing.T, as string) child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := child{exec.Command(self), make(chan error, 1), &bytes.Buffer{}}
	c.cmd.Env = append(os.Environ(), as)
	c.cmd.Stderr, c.cmd.Stdout = t.Output(), c.said
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

func (c child) kill(t *testing.T) {
	t.Helper()
	_ = c.cmd.Process.Kill()
	c.gone(t)
}

func (c child) gone(t *testing.T) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		t.Fatal("the process is not gone")
	}
}

// steps are the points of an attempt at which the process is killed or paused.
var steps = []struct {
	point   failpoint.Point
	skip    int              // hits to skip: the write at the start, and that of the intent
	happens bool             // whether the act takes effect if the process is killed there
	outcome response.Outcome // the caller's result after the killed process is back
}{
	{failpoint.ExecutorAdmitted, 0, false, response.Unchanged},
	{failpoint.FileWritten, 1, false, response.Unchanged},
	{failpoint.FileRenamed, 1, false, response.NotKnown},
	{failpoint.ExecutorIntended, 0, false, response.NotKnown},
	{failpoint.ExecutorFenced, 0, false, response.NotKnown},
	{failpoint.ExecutorActed, 0, true, response.NotKnown},
	{failpoint.FileWritten, 2, true, response.NotKnown},
	{failpoint.FileRenamed, 2, true, response.Succeeded},
	{failpoint.ExecutorEnded, 0, true, response.Succeeded},
}

// TestKilledAtEveryStep kills the process at every step of an attempt and restarts it. The attempt happens at most
// once, and its reported outcome is true. The outcome is unknown only between the durable intent and the durable end.
// The next leader's attempt does not repeat a finished act, and a lower token is refused.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, tc := range steps {
		t.Run(fmt.Sprintf("%s-%d", tc.point, tc.skip), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			happened := ""
			for round := range *rounds {
				token, id := uint64(10+2*round), fmt.Sprintf("r%d", round)
				c := b.spawn(t, failpoint.Order{Point: tc.point, Action: failpoint.Crash.String(), Skip: tc.skip})
				x := b.Supervisor(t, b.Config.Listen)
				b.await(t, token)
				got := doAside(t, x, job(token, id, 1))
				c.gone(t)
				if tc.happens {
					happened += fmt.Sprintf("%s 0 1 %d\n", id, token)
				}
				c = b.spawn(t)
				want(t, <-got, tc.outcome, "")
				b.wantActs(t, happened)
				// The same attempt again has the same answer and no effect.
				want(t, processtest.Do(t, x, job(token, id, 1)), tc.outcome, "")
				b.wantActs(t, happened)
				// The next leader makes its own attempt; the previous leader is refused from then on.
				want(t, processtest.Do(t, x, job(token+1, id, 2)), response.Succeeded, "")
				happened += fmt.Sprintf("%s 0 2 %d\n", id, token+1)
				want(t, processtest.Do(t, x, job(token, id, 3)), response.StaleToken, "")
				want(t, processtest.Do(t, x, job(token+1, id, 1)), response.NotKnown, "has been seen")
				b.wantActs(t, happened)
				c.kill(t)
			}
		})
	}
}

// TestKilledAtItsStart kills the process while it writes the interrupted attempts. The ledger loses nothing.
func TestKilledAtItsStart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.spawn(t, failpoint.Order{Point: failpoint.ExecutorIntended, Action: failpoint.Crash.String()})
	b.await(t, 5)
	got := doAside(t, b.Supervisor(t, b.Config.Listen), job(5, "r", 1))
	c.gone(t)
	for _, p := range []failpoint.Point{failpoint.FileWritten, failpoint.FileRenamed} {
		b.spawn(t, failpoint.Order{Point: p, Action: failpoint.Crash.String()}).gone(t)
	}
	b.spawn(t)
	want(t, <-got, response.NotKnown, "while it was under way")
	want(t, processtest.Do(t, b.Supervisor(t, b.Config.Listen), job(4, "r", 2)), response.StaleToken, "")
	b.wantActs(t, "")
}

// TestWindow documents the remaining gap: a higher token that arrives after the executor's last token check, and before
// its act, does not stop the act. This is the only way to an effect under a token that the process knows to be old. The
// new leader's attempts at the same step still come after it.
func TestWindow(t *testing.T) {
	t.Parallel()
	b, g := newBench(t), newGate(t)
	b.spawn(t, g.Order(failpoint.ExecutorFenced, 0))
	x := b.Supervisor(t, b.Config.Listen)
	b.await(t, 5)
	first := doAside(t, x, job(5, "r", 1))
	release := reached(t, g)
	want(t, processtest.Do(t, x, job(6, "other", 1)), response.Succeeded, "")
	want(t, processtest.Do(t, x, job(5, "more", 1)), response.StaleToken, "has seen 6")
	next := doAside(t, x, job(6, "r", 2))
	b.wantActs(t, "other 0 1 6\n")
	release()
	want(t, <-first, response.Succeeded, "")
	want(t, <-next, response.Succeeded, "")
	b.wantActs(t, "other 0 1 6\nr 0 1 5\nr 0 2 6\n")
}

func newGate(t *testing.T) *failpoint.Gate {
	t.Helper()
	g, err := failpoint.NewGate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// reached waits until a point blocks at a gate.
func reached(t *testing.T, g *failpoint.Gate) (release func()) {
	t.Helper()
	_, release, err := g.Reached(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

// await waits until the process serves, with a request that it refuses before it writes anything.
func (b bench) await(t *testing.T, token uint64) {
	t.Helper()
	x := b.Supervisor(t, b.Config.Listen)
	j := job(token, "await", 1)
	j.Cluster = "another"
	for deadline := time.Now().Add(time.Minute); !strings.Contains(processtest.Do(t, x, j).Detail,
		"cluster: given"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the process does not serve")
		}
	}
}

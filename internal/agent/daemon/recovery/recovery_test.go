package recovery

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/testing/golden"
)

// TestScenarios runs the scenarios of testdata: a half and its daemon in virtual time. A scenario is a list of
// commands. The output of a run follows it, between "----" and an empty line.
//
//	config misses=1 budget=5 window=60s leave=false
//	daemon start | kill | close | late DURATION   late: it does not run for this time
//	half writes | stops | blocks | spins | starves PERCENT   starves: it gets this share of a processor, and wants more
//	half ends signal N | code N
//	half takes DURATION                 to its first word; never: it writes none
//	program ends signal N | code N | fails | lacks | runs   any started program; lacks: it ends for a shortage
//	other serves | ends                 a process that cannot be adopted
//	file readable | unreadable
//	ask | prove | wrong WORDS
//	causes                              print the count of each cause
//	run DURATION                        and print what happens
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		w := &world{
			cfg:  Config{Half: fault.HalfDNP, TRead: 50 * time.Millisecond, Misses: 1, StartWithin: 5 * time.Second, Budget: 5, Window: time.Minute},
			does: "writes", takes: 30 * time.Millisecond, readable: true,
		}
		return golden.Blocks(t, text, "----", func(args []string) ([]string, error) {
			w.log = nil
			err := w.command(args)
			return w.log, err
		})
	})
}

type world struct {
	cfg     Config
	now     time.Duration
	m       *Machine
	history *halfcore.RecoveryHistory
	wake    time.Duration
	notRun  time.Duration // the daemon does not run until then

	pid      int // 0: none
	pids     int
	does     string
	share    int // percent of a processor
	born     time.Duration
	takes    time.Duration // 0: never
	stores   uint32
	stored   time.Duration // the last time
	ran      time.Duration
	readable bool
	program  *halfcore.Cause // how any started program ends at once
	other    bool            // another process serves the half
	log      []string
}

const step = 5 * time.Millisecond

func at(d time.Duration) time.Time { return time.Unix(1000, 0).Add(d) }

func (w *world) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%7s %s", w.now, fmt.Sprintf(format, args...)))
}

func (w *world) command(f []string) error {
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	var err error
	switch f[0] {
	case "config":
		return w.config(f[1:])
	case "daemon":
		return w.daemon(arg(1), arg(2))
	case "half":
		return w.half(arg(1), arg(2), arg(3))
	case "program":
		w.program, err = nil, nil
		switch arg(1) {
		case "ends":
			w.program, err = cause(arg(2), arg(3))
		case "fails":
			w.program = &halfcore.Cause{Kind: halfcore.NotStarted, Detail: "exec: no such file"}
		case "lacks":
			w.program = &halfcore.Cause{Kind: halfcore.NotStarted, Detail: "a shortage"}
		}
		return err
	case "other":
		w.other = arg(1) == "serves"
	case "file":
		w.readable = arg(1) == "readable"
	case "causes":
		for _, k := range halfcore.CauseKinds() {
			if n := w.m.Record().Count(k); n > 0 {
				w.say("%s: %d", k, n)
			}
		}
	case "ask":
		w.step(Asked{})
	case "wrong":
		w.step(Wrong{strings.Join(f[1:], " ")})
	case "prove":
		w.step(Proven{})
	case "run":
		d, err := time.ParseDuration(arg(1))
		w.run(w.now + d)
		return err
	default:
		return errors.New("unknown command")
	}
	return nil
}

func (w *world) config(args []string) (err error) {
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "misses":
			w.cfg.Misses, err = strconv.Atoi(v)
		case "budget":
			w.cfg.Budget, err = strconv.Atoi(v)
		case "window":
			w.cfg.Window, err = time.ParseDuration(v)
		case "leave":
			w.cfg.Leave = v == "true"
		default:
			err = errors.New("unknown key " + k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) daemon(verb, arg string) (err error) {
	switch verb {
	case "start":
		w.m = New(w.cfg, at(w.now), int64(w.now), w.history, w.pid != 0 || w.other)
		switch {
		case w.pid != 0:
			w.step(Began{PID: w.pid, Stores: w.stores, Adopted: true})
		case w.other:
			w.step(Served{})
		default:
			w.wake = w.now
		}
	case "kill":
		w.m = nil
	case "close":
		w.pid = 0
		w.step(Closed{})
		w.m = nil
	case "late":
		var d time.Duration
		d, err = time.ParseDuration(arg)
		w.notRun = w.now + d
	default:
		err = errors.New("unknown verb")
	}
	return err
}

func (w *world) half(verb, arg, more string) (err error) {
	switch verb {
	case "writes", "stops", "blocks", "spins":
		w.does, w.share = verb, 100
	case "starves":
		w.does = verb
		w.share, err = strconv.Atoi(arg)
	case "takes":
		w.takes = 0
		if arg != "never" {
			w.takes, err = time.ParseDuration(arg)
		}
	case "ends":
		c, err := cause(arg, more)
		if err != nil {
			return err
		}
		w.end(*c)
	default:
		err = errors.New("unknown verb")
	}
	return err
}

func cause(kind, n string) (*halfcore.Cause, error) {
	code, err := strconv.Atoi(n)
	k := halfcore.Exited
	if kind == "signal" {
		k = halfcore.Killed
	}
	return &halfcore.Cause{Kind: k, Code: code}, err
}

func (w *world) end(c halfcore.Cause) {
	w.pid = 0
	if w.m != nil {
		w.step(Ended{c})
	}
}

// step gives the machine an event and carries out its output.
func (w *world) step(ev Event) {
	out := w.m.Step(at(w.now), ev)
	if out.Start && w.other {
		w.step(Served{})
		return
	}
	w.wake = out.Wake.Sub(at(0))
	r := w.m.Record()
	if out.Kill {
		w.say("kill: %s", r.Last.Cause)
	}
	if out.Announce > 0 {
		w.say("announce: back within %s", out.Announce)
	}
	if out.Recovered {
		l := r.Last
		w.say("recovered from %q, attempt %d: gone %s, started %s, serving %s", l.Cause, l.Attempt, l.Gone, l.Started, l.Serving)
	}
	if out.Tell {
		h := w.m.History()
		w.history = &h
		why := ""
		if r.Reason != "" {
			why = "; " + r.Reason
		}
		w.say("%s, %d of %d restarts, %d in all%s", r.State, r.Restarts, r.Budget, r.Total, why)
	}
	switch {
	case out.Kill:
		w.end(halfcore.Cause{Kind: halfcore.Killed, Code: 9})
	case out.Start && w.program != nil:
		w.now += step
		if w.program.Detail != "exec: no such file" {
			w.step(Began{PID: 1, Stores: w.stores})
			w.now += step
		}
		w.end(*w.program)
	case out.Start:
		w.pids++
		w.pid, w.born, w.does, w.share, w.ran = w.pids, w.now, "writes", 100, 0
		w.step(Began{PID: w.pid, Stores: w.stores})
	}
}

func (w *world) run(end time.Duration) {
	for ; w.now < end; w.now += step {
		w.live()
		if w.m != nil && w.now >= w.wake && w.now >= w.notRun {
			w.step(Look{Stores: w.stores, Readable: w.readable, Process: Process{
				Ran: w.ran, Waits: w.does == "spins" || w.does == "starves", Stopped: w.does == "stops",
			}})
		}
	}
}

// live simulates one step of the half.
func (w *world) live() {
	if w.pid == 0 {
		return
	}
	switch w.does {
	case "writes":
		w.ran += step / 100
		if w.takes > 0 && w.now-w.born >= w.takes && w.now-w.stored >= 25*time.Millisecond {
			w.stores++
			w.stored = w.now
		}
	case "spins", "starves":
		w.ran += step * time.Duration(w.share) / 100
	}
}

// The formula, as a table.
func TestHangBound(t *testing.T) {
	for _, tc := range []struct {
		tRead  time.Duration
		misses int
		want   time.Duration
	}{
		{50 * time.Millisecond, 1, 300 * time.Millisecond},
		{16 * time.Millisecond, 1, 96 * time.Millisecond},
		{500 * time.Millisecond, 2, 3500 * time.Millisecond},
		{50 * time.Millisecond, 0, 250 * time.Millisecond},
	} {
		if got := halfcore.HangBound(tc.tRead, tc.misses); got != tc.want {
			t.Errorf("HangBound(%s, %d) = %s: want %s", tc.tRead, tc.misses, got, tc.want)
		}
	}
}

// A hang of any sort is found within the bound, at any moment, with looks late by at most half a period.
func TestHangsAreFoundWithinBound(t *testing.T) {
	for _, does := range []string{"stops", "blocks", "spins"} {
		for phase := range 20 {
			for _, late := range []time.Duration{0, 10 * time.Millisecond, 25 * time.Millisecond} {
				w := &world{
					cfg: Config{Half: fault.HalfHost, TRead: 50 * time.Millisecond, Misses: 1, StartWithin: 5 * time.Second, Budget: 5,
						Window: time.Minute},
					does: "writes", takes: 30 * time.Millisecond, readable: true,
				}
				_ = w.daemon("start", "")
				w.run(time.Second + time.Duration(phase)*step)
				w.does, w.log = does, nil
				last := w.stored
				for w.now-last < time.Second && len(w.log) == 0 {
					w.run(w.wake)
					w.notRun = w.wake + late
					w.run(w.notRun + step)
				}
				bound := halfcore.HangBound(w.cfg.TRead, w.cfg.Misses)
				if took := w.m.detected.Sub(at(last)); len(w.log) == 0 || took > bound {
					t.Errorf("%s, phase %d, looks %s late: found after %s: want %s at most\n%s", does, phase, late, took, bound, strings.Join(w.log, "\n"))
				}
			}
		}
	}
}

func TestBackoff(t *testing.T) {
	for failures, want := range []time.Duration{0, MinBackoff, 2 * MinBackoff, 4 * MinBackoff} {
		if got := Backoff(failures); got != want {
			t.Errorf("Backoff(%d) = %s: want %s", failures, got, want)
		}
	}
	if got := Backoff(1000); got != MaxBackoff {
		t.Errorf("Backoff(1000) = %s: want %s", got, MaxBackoff)
	}
}

// TestPauseBeforeServedIsKnownDoesNotPanic: the daemon may pause for longer than the window between its decision to start a half and
// the finding that another process serves it. The restart that was counted has then left the window already.
func TestPauseBeforeServedIsKnownDoesNotPanic(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Minute} {
		m := New(Config{Half: fault.HalfDNP, TRead: 50 * time.Millisecond, Misses: 1, StartWithin: 5 * time.Second, Budget: 5,
			Window: time.Second}, at(0), 0, nil, false)
		m.Step(at(0), Look{})
		m.Step(at(0), Began{PID: 1})
		if out := m.Step(at(step), Ended{Cause: halfcore.Cause{Kind: halfcore.Exited, Code: 1}}); !out.Start {
			t.Fatalf("%+v: want a restart", out)
		}
		m.Step(at(step+pause), Served{})
		if r := m.Record(); r.State != halfcore.Running || r.Restarts != 0 || r.Total != 0 {
			t.Errorf("pause %s: %+v: want a running half and no restart", pause, r)
		}
	}
}

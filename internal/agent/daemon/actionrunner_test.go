package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/config"
)

const actionBound = time.Minute

// actionWorld is a state directory, a recorded sysfs of a machine, and a runner.
type actionWorld struct {
	t     *testing.T
	dir   string
	sysfs string
	cfg   ActionRunnerConfig
	*ActionRunner
	end context.CancelFunc
	n   int
}

func newActionWorld(t *testing.T, edit func(*ActionRunnerConfig)) *actionWorld {
	t.Helper()
	w := &actionWorld{t: t, dir: t.TempDir(), sysfs: t.TempDir()}
	if err := os.CopyFS(w.sysfs, os.DirFS("testdata/sysfs")); err != nil {
		t.Fatal(err)
	}
	w.cfg = ActionRunnerConfig{
		Node: "n0", StateDir: w.dir, Sysfs: w.sysfs, Log: slog.New(slog.DiscardHandler), Env: os.Environ(),
		Allowed: config.ResponsesConfig{RestartHalf: true, LimitFrequency: true, Eureka: true},
	}
	if edit != nil {
		edit(&w.cfg)
	}
	w.begin()
	t.Cleanup(func() { w.stop() })
	return w
}

// begin replaces the runner, as after a restart of the daemon.
func (w *actionWorld) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	w.ActionRunner, w.end = NewActionRunner(ctx, w.cfg), cancel
	if err := w.Begin(fault.HalfHost); err != nil {
		w.t.Fatal(err)
	}
}

func (w *actionWorld) stop() {
	w.end()
	w.Wait()
}

// order returns the next order, with the ledger's name.
func (w *actionWorld) order(kind string, parameters map[string]string) *actions.Order {
	w.t.Helper()
	w.n++
	o := &actions.Order{Attempt: actions.Attempt{Response: fmt.Sprintf("r5-%d", w.n), Attempt: 1}, Token: 5, Kind: kind,
		Parameters: parameters, TimeoutMS: 30_000, Ask: true, Target: "n0/memory"}
	s := w.Ask(o)
	if s.Ledger == 0 {
		w.t.Fatalf("%+v", s)
	}
	o.Ask, o.Ledger = false, s.Ledger
	return o
}

// make runs an order, and returns its final status.
func (w *actionWorld) make(o *actions.Order) actions.Status {
	w.t.Helper()
	s := w.Ask(o)
	for end := time.Now().Add(actionBound); s.State == actions.UnderWay; s = w.Ask(o) {
		if time.Now().After(end) {
			w.t.Fatalf("%s has not ended", o.Attempt)
		}
		w.Wait()
	}
	return s
}

func (w *actionWorld) want(s actions.Status, state actions.State, detail string) {
	w.t.Helper()
	if s.State != state || !strings.Contains(s.Detail, detail) {
		w.t.Errorf("%s %q: want %s, %q", s.State, s.Detail, state, detail)
	}
}

func (w *actionWorld) limit(policy string) string {
	b, err := os.ReadFile(filepath.Join(w.sysfs, "devices/system/cpu/cpufreq", policy, "scaling_max_freq"))
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func nextOrder(o *actions.Order, undo bool) *actions.Order {
	c := *o
	c.Attempt.Attempt++
	c.Undo = undo
	return &c
}

// A limit is set in percent of what each policy can do. The undo restores the former value. The limit outlives the
// runner.
func TestFrequencyLimitIsUndoneAndOutlivesRunner(t *testing.T) {
	w := newActionWorld(t, nil)
	o := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	w.want(w.make(o), actions.Done, "2 of 2 limited to 50 %")
	if w.limit("policy0") != "2400000" || w.limit("policy4") != "1800000" {
		t.Errorf("%s, %s", w.limit("policy0"), w.limit("policy4"))
	}
	w.stop()
	w.begin()
	if err := os.WriteFile(filepath.Join(w.sysfs, "devices/system/cpu/cpufreq/policy4/scaling_max_freq"), []byte("1000000\n"),
		0o600); err != nil {
		t.Fatal(err) // another party sets it
	}
	undo := nextOrder(o, true)
	w.cfg.Allowed = config.ResponsesConfig{}
	w.stop()
	w.begin() // no longer allowed: the undo works all the same
	w.want(w.make(undo), actions.Done, "1 put back, 1 left")
	if w.limit("policy0") != "4800000" || w.limit("policy4") != "1000000" {
		t.Errorf("%s, %s", w.limit("policy0"), w.limit("policy4"))
	}
	refused := w.Ask(nextOrder(undo, false))
	w.want(refused, actions.Unchanged, "does not allow node.limit-frequency")
	if refused.Ledger != o.Ledger {
		t.Errorf("%+v: want the ledger's name: without it nobody believes this of an order", refused)
	}
	w.want(w.Ask(o), actions.Done, "2 of 2 limited") // made while it was allowed
	o.Ask, o.Attempt.Attempt = true, 9
	w.want(w.Ask(o), actions.Unchanged, "enables no actions: see the key `responses`")
}

func TestFrequencyRefused(t *testing.T) {
	w := newActionWorld(t, func(c *ActionRunnerConfig) { c.Allowed.LowestFrequency = 60 })
	for _, percent := range []string{"59", "101", "", "half"} {
		w.want(w.make(w.order(actions.KindLimitFrequency, map[string]string{"percent": percent})), actions.Unchanged, "allows 60 to 100")
	}
	if err := os.RemoveAll(filepath.Join(w.sysfs, "devices")); err != nil {
		t.Fatal(err)
	}
	w.want(w.make(w.order(actions.KindLimitFrequency, map[string]string{"percent": "60"})), actions.Unchanged, "no cpufreq policy")
	w.want(w.make(w.order("power.reset", nil)), actions.Unchanged, "does not allow power.reset")
}

// An attempt is made once, however often and by whichever leader it is ordered. A lower token begins none, even after a
// restart.
func TestAttemptIsMadeOnce(t *testing.T) {
	restarts := 0
	w := newActionWorld(t, func(c *ActionRunnerConfig) {
		c.Restart = func(context.Context, fault.Half, string, func(string) error) actions.Result {
			restarts++
			return actions.Result{State: actions.Done, Detail: "restarted"}
		}
	})
	o := w.order(actions.KindRestartHalf, map[string]string{"half": "host"})
	w.want(w.make(o), actions.Done, "restarted")
	w.want(w.make(o), actions.Done, "restarted")
	w.stop()
	w.begin()
	w.want(w.make(o), actions.Done, "restarted")
	higher := nextOrder(o, false)
	higher.Token = 6
	w.want(w.make(higher), actions.Done, "restarted")
	w.stop()
	w.begin()
	stale := nextOrder(higher, false)
	stale.Token = 5
	w.want(w.make(stale), actions.Stale, "6 has been seen")
	copied := nextOrder(higher, false)
	copied.Ledger++
	w.want(w.make(copied), actions.Unchanged, "earlier ledger")
	if restarts != 2 {
		t.Errorf("%d restarts", restarts)
	}
}

// No act begins from an order that was held up on its way, or by this node's own disk. A sender that still wants the
// act orders it again, naming the answer it gets.
func TestDelayedOrderBeginsNoAct(t *testing.T) {
	restarts := 0
	w := newActionWorld(t, func(c *ActionRunnerConfig) {
		c.Restart = func(context.Context, fault.Half, string, func(string) error) actions.Result {
			restarts++
			return actions.Result{State: actions.Done, Detail: "restarted"}
		}
	})
	late := uint64(actions.FreshFor.Milliseconds()) + 1
	o := w.order(actions.KindRestartHalf, map[string]string{"half": "host"})
	of := func(fresh uint64) *actions.Order { c := *o; c.Fresh = fresh; return &c }
	now := w.clock()
	w.want(w.Ask(of(now-late)), actions.None, "held up")
	w.want(w.Ask(of(now+late)), actions.None, "held up") // of another boot, whose clock was ahead
	w.stop()
	w.begin() // another process has the same clock
	s := w.Ask(of(w.clock() - late))
	w.want(s, actions.None, "held up")
	if next := w.clock(); s.Fresh < now || s.Fresh > next {
		t.Errorf("fresh: %d, want %d to %d", s.Fresh, now, next)
	}
	w.clock = func() uint64 { return s.Fresh } // no time passes, however busy this machine is
	w.want(w.make(of(s.Fresh)), actions.Done, "restarted")
	w.want(w.make(of(now-late)), actions.Done, "restarted") // the outcome of an attempt is known at any time
	old := w.order(actions.KindRestartHalf, map[string]string{"half": "host"})
	w.want(w.make(old), actions.Done, "restarted") // of a supervisor of an earlier version, which names no answer
	hung := w.order(actions.KindRestartHalf, map[string]string{"half": "host"})
	clock, ahead := w.clock, atomic.Uint64{}
	w.clock = func() uint64 { return clock() + ahead.Load() }
	hung.Fresh = w.clock()
	w.at = func() { ahead.Store(late) } // the disk takes so long to store it
	w.want(w.Ask(hung), actions.UnderWay, "")
	w.Wait()
	w.want(w.Ask(hung), actions.Unchanged, "the order was delayed")
	if restarts != 2 {
		t.Errorf("%d restarts", restarts)
	}
}

// A leader's term is a fence wherever it came from, and is stored.
func TestTermFencesWhereverItCameFrom(t *testing.T) {
	w := newActionWorld(t, nil)
	o := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	o.Heard = 6
	w.want(w.Ask(o), actions.Stale, "6 has been seen")
	w.stop()
	w.begin()
	o.Heard = 0
	w.want(w.Ask(o), actions.Stale, "6 has been seen")
	o.Ask, o.Heard = true, 8
	if s := w.Ask(o); s.Token != 8 {
		t.Errorf("%+v", s)
	}
	o.Ask, o.Token, o.Heard = false, 7, 0
	w.want(w.Ask(o), actions.Stale, "8 has been seen")
	if w.limit("policy0") != "4800000" {
		t.Error("done all the same")
	}
	// A store that starts empty (docs/responses-node.md): a half that knows an earlier term makes a new ledger refuse
	// too, until the half restarts.
	ask := func(heard uint64) actions.Status {
		t.Helper()
		if err := os.Remove(filepath.Join(w.dir, actions.File)); err != nil {
			t.Fatal(err)
		}
		o.Ask, o.Heard = true, heard
		s := w.Ask(o)
		o.Ask, o.Ledger = false, s.Ledger
		return s
	}
	if s := ask(8); s.Token != 8 {
		t.Errorf("%+v", s)
	}
	w.want(w.Ask(o), actions.Stale, "8 has been seen")
	if s := ask(0); s.Token != 7 {
		t.Errorf("%+v", s)
	}
	w.want(w.make(o), actions.Done, "2 of 2 limited")
}

// While an act runs, no other of its kind may begin. After the daemon ends, the outcome of a running act is not known,
// and the next attempt gets its note.
func TestRunningActBlocksItsKindAndEndsUnknown(t *testing.T) {
	begun, release := make(chan string, 1), make(chan struct{})
	w := newActionWorld(t, func(c *ActionRunnerConfig) {
		c.Restart = func(ctx context.Context, _ fault.Half, earlier string, note func(string) error) actions.Result {
			if err := note("process 7"); err != nil {
				t.Error(err)
			}
			begun <- earlier
			select {
			case <-ctx.Done():
				return actions.Result{State: actions.Partly, Detail: "ended"}
			case <-release:
			}
			return actions.Result{State: actions.Done, Detail: "well"}
		}
	})
	o := w.order(actions.KindRestartHalf, map[string]string{"half": "host"})
	w.want(w.Ask(o), actions.UnderWay, "")
	<-begun
	w.want(w.Ask(w.order(actions.KindRestartHalf, map[string]string{"half": "host"})), actions.Unchanged,
		"another act of kind node.restart-half is under way")
	b, err := os.ReadFile(filepath.Join(w.dir, actions.File)) // the file that a killed daemon would leave
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	w.stop()
	if err := os.WriteFile(filepath.Join(w.dir, actions.File), b, 0o600); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.want(w.Ask(o), actions.NotKnown, "daemon ended")
	again := nextOrder(o, false)
	again.Recheck = true
	w.want(w.make(again), actions.Done, "well")
	if earlier := <-begun; earlier != "process 7" {
		t.Errorf("what was noted: %q", earlier)
	}
}

// With an unreadable ledger nothing is done.
func TestUnreadableLedgerStopsAllActs(t *testing.T) {
	w := newActionWorld(t, nil)
	o := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	if err := os.WriteFile(filepath.Join(w.dir, actions.File), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.want(w.Ask(o), actions.None, "until somebody removes it")
	if w.limit("policy0") != "4800000" {
		t.Error("done all the same")
	}
	if err := os.Remove(filepath.Join(w.dir, actions.File)); err != nil {
		t.Fatal(err)
	}
	w.want(w.Ask(o), actions.Unchanged, "earlier ledger") // a new ledger
}

// The exit code of a program decides the result. It runs without a shell, gets its context from the environment, and is
// killed when it does not end.
func TestCheckExitCodeDecidesResult(t *testing.T) {
	dir := t.TempDir()
	checks := map[string]struct {
		body   string
		state  actions.State
		detail string
	}{
		"well":    {`echo "$LOFAMO_NODE $LOFAMO_TARGET $LOFAMO_RESPONSE $LOFAMO_ATTEMPT $1"`, actions.Done, "well: n0 n0/memory r5-"},
		"ill":     {"echo broken; exit 1", actions.Unchanged, "ill reports a fault: broken"},
		"changed": {"echo reset it; exit 2", actions.Partly, "has changed something: reset it"},
		"odd":     {"exit 7", actions.NotKnown, "exit status 7"},
		"slow":    {"sleep 1000", actions.NotKnown, "slow has not ended in time"},
		"loud":    {"yes | head -c 1000000; exit 0", actions.Done, "loud: y"},
	}
	w := newActionWorld(t, func(c *ActionRunnerConfig) {
		for name, check := range checks {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+check.body+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			limit := config.Duration(actionBound)
			if name == "slow" {
				limit = config.Duration(100 * time.Millisecond)
			}
			c.Allowed.Checks = append(c.Allowed.Checks, config.ResponseCheck{Name: name, Command: []string{path, "$HOME;x"}, Timeout: limit})
		}
		c.Allowed.Checks = append(c.Allowed.Checks, config.ResponseCheck{Name: "absent", Command: []string{filepath.Join(dir, "absent")}})
	})
	for name, check := range checks {
		s := w.make(w.order(actions.KindCheck, map[string]string{"script": name}))
		w.want(s, check.state, check.detail)
		if name == "well" && !strings.HasSuffix(s.Detail, "1 $HOME;x") {
			t.Errorf("a shell has had it: %q", s.Detail)
		}
	}
	w.want(w.make(w.order(actions.KindCheck, map[string]string{"script": "absent"})), actions.Unchanged, "cannot be run")
	w.want(w.make(w.order(actions.KindCheck, map[string]string{"script": "other"})), actions.Unchanged, "none of that name")
}

// A half sends its order by the socket, and carries out its own acts itself, once.
func TestOrderBySocketIsCarriedOutOnce(t *testing.T) {
	w := newActionWorld(t, nil)
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		l, err := net.Listen("unix", filepath.Join(w.dir, actions.Socket(h)))
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: w.Handler(h), ReadHeaderTimeout: actionBound}
		var wg sync.WaitGroup
		wg.Go(func() { _ = srv.Serve(l) })
		t.Cleanup(func() { _ = srv.Close(); wg.Wait() })
	}
	tell := func(o *actions.Order) actions.Status {
		t.Helper()
		s, err := half.TellAction(t.Context(), w.dir, o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	o := w.order(actions.KindEureka, map[string]string{"text": "x"})
	if s := tell(o); s.State != actions.UnderWay || !s.Yours {
		t.Errorf("%+v", s)
	}
	if s := tell(o); s.State != actions.UnderWay || s.Yours {
		t.Errorf("again: %+v", s)
	}
	if err := half.EndedActions(t.Context(), w.dir, actions.Ended{Attempt: o.Attempt, State: actions.Done, Detail: "6 links"}); err != nil {
		t.Fatal(err)
	}
	w.want(tell(o), actions.Done, "6 links")
	dnp := w.order(actions.KindRestartHalf, map[string]string{"half": "dnp"})
	w.want(tell(dnp), actions.UnderWay, "")
	w.Wait()
	w.want(tell(dnp), actions.Unchanged, "cannot be made") // this world restarts nothing
	if _, err := half.TellAction(t.Context(), t.TempDir(), o); err == nil || !strings.Contains(err.Error(), "no process runs actions") {
		t.Errorf("%v", err)
	}
}

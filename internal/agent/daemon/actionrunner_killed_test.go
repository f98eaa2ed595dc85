package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/actions"
)

// actionSnapshot is the state that a killed daemon leaves: its files, and those of the kernel.
type actionSnapshot struct{ state, sysfs string }

// take copies a snapshot.
func (w *actionWorld) take(of actionSnapshot) actionSnapshot {
	w.t.Helper()
	w.n++
	dir := filepath.Join(w.t.TempDir(), strconv.Itoa(w.n))
	s := actionSnapshot{filepath.Join(dir, "state"), filepath.Join(dir, "sysfs")}
	for from, to := range map[string]string{of.state: s.state, of.sysfs: s.sysfs} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			w.t.Fatal(err)
		}
	}
	return s
}

// from starts a runner on a snapshot. It calls at for each step at which the runner could be killed.
func (w *actionWorld) from(s actionSnapshot, at func(actionSnapshot)) {
	w.t.Helper()
	w.stop()
	w.dir, w.sysfs, w.cfg.StateDir, w.cfg.Sysfs = s.state, s.sysfs, s.state, s.sysfs
	w.begin()
	if at != nil {
		w.at = func() { at(w.take(s)) }
	}
}

// A daemon may be killed at any step of an act, and again at any step of the next attempt, of the same leader or of
// another one. The attempt after that succeeds, and the undo leaves everything as it was.
func TestActSurvivesKillAtAnyStep(t *testing.T) {
	w := newActionWorld(t, nil)
	first := w.order(actions.KindLimitFrequency, map[string]string{"percent": "50"})
	begun := w.take(actionSnapshot{w.dir, w.sysfs})
	// all returns the states that daemons leave which are killed at each step of an order, starting from a snapshot.
	all := func(of actionSnapshot, o *actions.Order) (out []actionSnapshot) {
		t.Helper()
		w.from(w.take(of), func(s actionSnapshot) { out = append(out, s) })
		if s := w.make(o); s.State != actions.Done {
			t.Fatalf("%s: %+v", o.Attempt, s)
		}
		return append(out, w.take(actionSnapshot{w.dir, w.sysfs}))
	}
	again := func(o *actions.Order, token uint64, undo bool) *actions.Order {
		c := nextOrder(o, undo)
		c.Token, c.Recheck = token, true
		return c
	}
	second, undo := again(first, 6, false), again(again(first, 6, false), 6, true)
	runs := 0
	for i, one := range all(begun, first) {
		for j, two := range all(one, second) {
			threes := []actionSnapshot{two}
			if (i+j)%7 == 0 { // it costs a second for each hundred
				threes = all(two, undo)
			}
			for k, three := range threes {
				runs++
				where := fmt.Sprintf("killed at %d, %d and %d", i, j, k)
				w.from(w.take(three), nil)
				if s := w.make(first); s.State == actions.UnderWay || s.State == actions.None || s.State == actions.Stale {
					t.Fatalf("%s: the first attempt: %+v", where, s)
				}
				late := again(undo, 5, false)
				if s := w.make(late); s.State != actions.Stale {
					t.Fatalf("%s: an attempt of the first leader: %+v", where, s)
				}
				last := again(undo, 6, true)
				if s := w.make(last); s.State != actions.Done {
					t.Fatalf("%s: %+v", where, s)
				}
				if w.limit("policy0") != "4800000" || w.limit("policy4") != "3600000" {
					t.Fatalf("%s: left at %s and %s", where, w.limit("policy0"), w.limit("policy4"))
				}
			}
		}
	}
	if runs < 40 {
		t.Errorf("%d runs: the steps are not told", runs)
	}
}

// A half is restarted once, wherever the daemon that restarts it is killed.
func TestHalfRestartsOnceWhereverDaemonIsKilled(t *testing.T) {
	type half struct{ pid int }
	var now half
	w := newActionWorld(t, nil)
	restart := func(at *func()) func(context.Context, fault.Half, string, func(string) error) actions.Result {
		return func(_ context.Context, _ fault.Half, earlier string, note func(string) error) actions.Result {
			if was, err := strconv.Atoi(earlier); err == nil && was != now.pid {
				return actions.Result{State: actions.Done, Detail: "it was"}
			}
			if err := note(strconv.Itoa(now.pid)); err != nil {
				return actions.Result{State: actions.Unchanged, Detail: err.Error()}
			}
			if *at != nil {
				(*at)()
			}
			now.pid++
			return actions.Result{State: actions.Done, Detail: "it is"}
		}
	}
	var at func()
	w.cfg.Restart = restart(&at)
	w.stop()
	w.begin()
	first := w.order(actions.KindRestartHalf, map[string]string{"half": "dnp"})
	begun := w.take(actionSnapshot{w.dir, w.sysfs})
	type left struct {
		actionSnapshot
		half
	}
	var lefts []left
	w.from(w.take(begun), nil)
	note := func() { lefts = append(lefts, left{w.take(actionSnapshot{w.dir, w.sysfs}), now}) }
	w.at, at = note, note
	if s := w.make(first); s.State != actions.Done || now.pid != 1 {
		t.Fatalf("%+v, %+v", s, now)
	}
	if len(lefts) < 4 {
		t.Fatalf("%d steps", len(lefts))
	}
	at = nil
	for i, l := range lefts {
		now = l.half
		w.from(l.actionSnapshot, nil)
		if err := w.Begin(fault.HalfDNP); err != nil { // the daemon of that half
			t.Fatal(err)
		}
		second := nextOrder(first, false)
		second.Token, second.Recheck = 6, true
		if s := w.make(second); s.State != actions.Done || now.pid != 1 {
			t.Errorf("killed at %d: %+v, restarted %d times", i, s, now.pid)
		}
	}
}

package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// processStub is an executor process in memory.
type processStub struct {
	mu       sync.Mutex
	batch    controller.Batch
	err      error
	calls    int
	warned   int
	suspects []fault.NodeID
	told     []response.OutsideChanged
}

func (p *processStub) fetch(_ context.Context, suspects []fault.NodeID, _ string, _ uint64) (controller.Batch, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	p.suspects = suspects
	return p.batch, p.err
}

func (p *processStub) tell(ev response.OutsideChanged) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, ev)
}

func (p *processStub) warn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.warned++
}

// last returns the number of events so far, and the last one.
func (p *processStub) last() (int, response.OutsideChanged) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.told) == 0 {
		return 0, response.OutsideChanged{}
	}
	return len(p.told), p.told[len(p.told)-1]
}

func (p *processStub) set(b controller.Batch, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.batch, p.err = b, err
}

func answer(version uint64, f controller.Finding) controller.Reading {
	now := time.Now()
	return controller.Reading{Node: "n01", Answer: controller.Answer{Finding: f, Log: []string{"PSU 1 has lost its input"}},
		At: now, Since: now,
		HealthSince: now, Last: controller.On, LastAt: now.Add(-time.Minute), Version: version}
}

// TestLeaderFollowsControllers: it names its suspects, tells policies the changes, makes the readings void after a minute without the
// process, tells all again when the process is back, and ends with none known.
func TestLeaderFollowsControllers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := view.NewBuilder(view.NamesOf(ring(3, 0)), time.Now())
		for _, id := range []fault.NodeID{"n00", "n01", "n02"} {
			e, ok := b.Map(1).Find(id)
			if !ok {
				t.Fatalf("%s is missing", id)
			}
			if e.Status.State = fault.Normal; id == "n01" {
				e.Status.State = fault.Failed
			}
			b.Set(e)
		}
		p := &processStub{batch: controller.Batch{Run: "r", Configured: 3, Readings: []controller.Reading{answer(1, controller.Off)}}}
		w := &witnesses{fetch: p.fetch, tell: p.tell, warn: p.warn, logger: slog.New(slog.DiscardHandler),
			read: func(context.Context) (view.Map, error) { return b.Map(1), nil }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.lead(ctx)
		synctest.Wait()
		n, ev := p.last()
		if n != 1 || !ev.All || ev.Nodes["n01"][0].Status != "True" || !slices.Equal(p.suspects, []fault.NodeID{"n01"}) {
			t.Errorf("%d events, %+v, suspects %v: want n01 off", n, ev, p.suspects)
		}
		if c := w.node("n01", time.Now()); c.GetFinding() != lofamov1.ControllerFinding_POWERED_OFF || len(c.GetLog()) != 1 {
			t.Errorf("%v", c)
		}
		if c := w.node("n02", time.Now()); c != nil {
			t.Errorf("a node without a reading: %v", c)
		}
		p.set(controller.Batch{Run: "r", Configured: 3, Readings: []controller.Reading{answer(2, controller.Silent)}}, nil)
		time.Sleep(controllersEvery) // of the test's own clock
		synctest.Wait()
		if n, ev := p.last(); n != 2 || ev.All || ev.Nodes["n01"][3].Status != "True" {
			t.Errorf("%d events, %+v: want a power feed suspected", n, ev)
		}
		if !slices.ContainsFunc(w.notes("n01", time.Now()), func(s string) bool { return strings.HasPrefix(s, "hint, not a verdict") }) {
			t.Errorf("%q: want the hint", w.notes("n01", time.Now()))
		}
		p.set(controller.Batch{}, errors.New("no process"))
		time.Sleep(controllersPatience / 2)
		synctest.Wait()
		if n, _ := p.last(); n != 2 {
			t.Errorf("%d events: want patience", n)
		}
		time.Sleep(controllersPatience)
		synctest.Wait()
		if n, ev := p.last(); n != 3 || !ev.Unknown || ev.Source != response.FromControllers {
			t.Errorf("%d events, %+v: want them void, once", n, ev)
		}
		p.set(controller.Batch{Run: "r", Configured: 3}, nil)
		time.Sleep(controllersEvery)
		synctest.Wait()
		if n, ev := p.last(); n != 4 || !ev.All || len(ev.Nodes["n01"]) == 0 {
			t.Errorf("%d events, %+v: want all again", n, ev)
		}
		cancel()
		synctest.Wait()
		if n, ev := p.last(); n != 5 || !ev.Unknown || w.node("n01", time.Now()) != nil {
			t.Errorf("%d events, %+v: want nothing known after the lead", n, ev)
		}
	})
}

// TestIdleProcessGetsFewCalls: a process without controllers, or of an earlier version, gets one call a minute.
func TestIdleProcessGetsFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := view.NewBuilder(view.NamesOf(ring(3, 0)), time.Now())
		p := &processStub{}
		w := &witnesses{fetch: p.fetch, tell: p.tell, warn: p.warn, logger: slog.New(slog.DiscardHandler),
			read: func(context.Context) (view.Map, error) { return b.Map(1), nil }}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.lead(ctx)
		time.Sleep(time.Hour)
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.calls < 59 || p.calls > 61 {
			t.Errorf("%d calls in an hour: want 60", p.calls)
		}
		if p.warned != 1 || !w.none.Load() {
			t.Errorf("%d warnings in an hour, none %t: want one, because there are no controllers", p.warned, w.none.Load())
		}
	})
}

// TestSuspectsTakeTurns: with more than a call may name, each has its turn.
func TestSuspectsTakeTurns(t *testing.T) {
	t.Parallel()
	n := 2*executor.MaxSuspects + 100
	m := view.NewBuilder(view.NamesOf(ring(n, 0)), time.Unix(1000, 0)).Map(1)
	seen := map[fault.NodeID]int{}
	skip := 0
	for range 3 {
		var some []fault.NodeID
		some, skip = suspectsOf(m, skip)
		if len(some) > executor.MaxSuspects {
			t.Errorf("%d suspects in one call", len(some))
		}
		for _, id := range some {
			seen[id]++
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d had their turn", len(seen), n)
	}
	if got := len(quietIn(m)); got != n {
		t.Errorf("%d of %d nodes without a report are quiet", got, n)
	}
}

package dnpcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/torus"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// work counts the periodic work of a DNP half.
type work struct {
	heartbeats, broadcasts int // frames: pings, and echoes of the neighbour's pings
	tests                  uint64
}

// workOf runs a half at a share of a core until its level is reached, and then counts for 40 s.
func workOf(t *testing.T, share float64, want halfcore.BudgetLevel) (sum work) {
	t.Helper()
	p := newPair(t, testing2s, testing2s)
	m := p.halves[0]
	m.budget = halfcore.NewBudget(10, m.cfg.Periods.SensorPeriod, p.now)
	p.spoil = func(half int, f torus.Frame) []torus.Frame {
		switch {
		case half != 0:
		case f.Type == torus.TypeHeartbeat:
			sum.heartbeats++
		case f.Type == torus.TypeEureka:
			sum.broadcasts++
		}
		return []torus.Frame{f}
	}
	tests := func() uint64 {
		for _, r := range m.SelfTest().Results(p.now) {
			if r.Module.Kind == selftest.Register {
				return r.Tests
			}
		}
		t.Fatal("no test of the register path")
		return 0
	}
	var before uint64
	for second := range 50 {
		if second == 10 {
			if l := m.Budget().Level(); l != want {
				t.Fatalf("level %d after 10 s at %v of a core: want %d", l, share, want)
			}
			sum, before = work{}, tests()
		}
		p.step(0, Readings{})
		p.step(0, Spent{Total: time.Duration(share * float64(second) * float64(time.Second))})
		p.run(time.Second)
	}
	sum.tests = tests() - before
	return sum
}

// TestHalfOverBudgetKeepsItsHeartbeats: at level 3, a DNP half sends its heartbeats as often as before, and fewer pings and
// self-tests.
func TestHalfOverBudgetKeepsItsHeartbeats(t *testing.T) {
	quiet, busy := workOf(t, 0.02, halfcore.BudgetKept), workOf(t, 0.9, halfcore.BudgetSensors)
	if d := busy.heartbeats - quiet.heartbeats; quiet.heartbeats == 0 || d < -quiet.heartbeats/100 || d > quiet.heartbeats/100 {
		t.Errorf("%+v within the budget, %+v over it: want as many heartbeats", quiet, busy)
	}
	if busy.broadcasts >= quiet.broadcasts*3/4 || busy.tests > quiet.tests/3 || busy.tests == 0 {
		t.Errorf("%+v within the budget, %+v over it: want fewer pings, and a quarter of the tests", quiet, busy)
	}
}

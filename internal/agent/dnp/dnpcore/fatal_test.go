package dnpcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

func TestUnusableRegistersBreakTheCore(t *testing.T) {
	w := newWorld(t, "2x1x1", "0,0,0")
	core := func() watchdog.Health { return w.m.word.Core }
	for i := range fatalUnreads {
		if core() == watchdog.HealthBroken {
			t.Fatalf("broken after %d failed reads: want %d", i, fatalUnreads)
		}
		w.step(Host{Unreadable: true})
	}
	if core() != watchdog.HealthBroken {
		t.Errorf("core %s after %d failed reads: want broken", core(), fatalUnreads)
	}
	w.step(Host{})
	if core() != watchdog.HealthSick { // the exception is held for some time
		t.Errorf("core %s after a good read: want sick", core())
	}
}

func TestRegistersThatAlterWordsBreakTheCore(t *testing.T) {
	p := newPair(t, testing2s, testing2s)
	p.busy(10 * time.Second)
	p.flips = true
	p.busy(20 * time.Second)
	if r := p.result(0, "register path"); r.State != selftest.Failed || r.Fault != selftest.Altered || p.core(0) != watchdog.HealthBroken {
		t.Errorf("core %s, register path %+v: want broken", p.core(0), r)
	}
	p.flips = false
	p.busy(20 * time.Second)
	if p.core(0) != watchdog.HealthNormal {
		t.Errorf("core %s after the tests pass again: want normal", p.core(0))
	}
}

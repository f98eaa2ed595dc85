package dnpcore

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// A half that resumes writes its known state into the registers at once, continues the numbers on its links, and
// requests a handshake only where it has no session.
func TestResumedHalfContinuesItsNumbers(t *testing.T) {
	w := newWorld(t, "2x2x2", "0,0,0")
	w.peer(grid.XPlus).in = false // broken by silence
	w.peer(grid.YPlus).status.HostDead = true
	w.run(time.Second)
	cfg := w.cfg
	cfg.Resume.Outbox = servicenet.OutboxSnapshot{Epoch: 7, Seq: 40}
	for _, d := range cfg.Topo.Links {
		if d != grid.ZMinus {
			cfg.Resume.Links[d.Index()], cfg.Resume.Has[d.Index()] = w.m.LinkSnapshot(d), true
		}
	}
	m, err := New(cfg, w.now, 7)
	if err != nil {
		t.Fatal(err)
	}
	if n := m.Numbers(); n.Epoch != 7 || n.Seq != 40 {
		t.Errorf("%+v", n)
	}
	out := m.Step(w.now, Tick{})
	was, is := w.m.word, out.DNP
	was.Valid, is.Valid = true, true
	if !out.WriteDNP || is != was || is.Links[grid.XPlus.Index()] != watchdog.HealthBroken || !is.NeighbourHostFailed[grid.YPlus.Index()] {
		t.Errorf("word %+v, was %+v", is, was)
	}
	numbers := map[grid.Direction]uint64{}
	for _, f := range out.Frames {
		numbers[f.Dir] = max(numbers[f.Dir], f.Frame.Seq)
	}
	for _, d := range cfg.Topo.Links {
		before := w.m.LinkSnapshot(d)
		switch after := m.LinkSnapshot(d); {
		case d == grid.ZMinus:
			if numbers[d] != 0 || after.TxSession != 0 {
				t.Errorf("%s: frame %d without a session: %+v", d, numbers[d], after)
			}
		case numbers[d] != before.TxSeq+1 || after.TxSeq != numbers[d] || after.TxSession != before.TxSession || after.High != before.High:
			t.Errorf("%s: frame %d after %d: %+v", d, numbers[d], before.TxSeq, after)
		}
	}
	if len(out.Redial) == 0 {
		t.Error("no handshake is asked for where there is no session")
	}
	for _, d := range out.Redial {
		if d != grid.ZMinus && d != grid.XPlus {
			t.Errorf("a handshake is asked for on %s", d)
		}
	}
	if d := m.links[grid.XPlus.Index()].detail; !d.Silent || d.State() != torus.LinkBroken {
		t.Errorf("%s", d)
	}
}

// A half that has just started does not know whether the host half lives. The neighbours would withdraw a true accusation if it called
// the host valid.
func TestRestartedHalfCallsNoHostValidThatItHasNotSeenAlive(t *testing.T) {
	valid := func(w *world) (valid, dead bool) {
		for _, p := range w.peers {
			valid, dead = valid || w.hostKnown[p.dir], dead || w.hostDead[p.dir]
		}
		return valid, dead
	}
	w := newWorld(t, "3x1x1", "0,0,0")
	w.hostAlive = false
	w.run(200 * time.Millisecond)
	if _, dead := valid(w); !dead {
		t.Fatal("the host half is not called dead")
	}
	clear(w.hostKnown)
	w.restart()
	w.run(watchdog.DefaultGrace - 500*time.Millisecond)
	if valid, dead := valid(w); valid || dead {
		t.Errorf("within the grace: valid %t, dead %t; want neither", valid, dead)
	}
	w.run(time.Second)
	if _, dead := valid(w); !dead {
		t.Error("after the grace the host half is not called dead")
	}

	w.hostAlive = true
	w.run(200 * time.Millisecond)
	clear(w.hostKnown)
	w.restart()
	w.run(2*w.cfg.Periods.TRead + w.cfg.Periods.TWrite)
	if valid, dead := valid(w); !valid || dead {
		t.Errorf("over a live host: valid %t, dead %t", valid, dead)
	}
}

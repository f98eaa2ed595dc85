package cluster

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
)

func TestLinksWaitForNeighboursThatAreStartedLast(t *testing.T) {
	if p := withLinkGrace(nil, 8, 2); p != nil {
		t.Errorf("8 nodes: %+v: want the preset's", p)
	}
	off := config.Duration(time.Minute)
	given := &config.PeriodsOverride{LinkHoldOff: &off}
	p := withLinkGrace(given, 64, 2)
	if p.LinkGrace == nil || p.LinkGrace.D() != 32*time.Second || p.LinkHoldOff != &off || given.LinkGrace != nil {
		t.Errorf("64 nodes: %+v, given %+v: want 32s", p, given)
	}
	given.LinkGrace = &off
	if p := withLinkGrace(given, 64, 2); p.LinkGrace != &off {
		t.Errorf("a grace was given: %+v", p)
	}
	// The last node must start within the grace of the first one.
	for _, cores := range []int{1, 2, 4, 64} {
		if grace := withLinkGrace(nil, 27, cores).LinkGrace.D(); grace < 27*startWork/time.Duration(cores) {
			t.Errorf("%d cores: a grace of %s for 27 nodes, whose starts take %s", cores, grace, 27*startWork/time.Duration(cores))
		}
	}
}

// TestPacerStartsNodesAsTheyAreHeard plays a start in which every node is heard some rounds after it began.
func TestPacerStartsNodesAsTheyAreHeard(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPacer(now)
	p.window, p.gap = 4, 0
	const nodes, slow = 27, 10 // rounds of 50 ms until a node is heard
	began := map[int]int{}
	started, heard, most, rounds := 0, 0, 0, 0
	for ; heard < nodes; rounds++ {
		for range min(p.room(now, started, heard), nodes-started) {
			began[started] = rounds
			started++
		}
		most = max(most, started-heard)
		now = now.Add(50 * time.Millisecond)
		for n := heard; n < started && rounds-began[n] >= slow; n++ {
			heard++
		}
		if rounds > 10_000 {
			t.Fatalf("%d of %d nodes started", started, nodes)
		}
	}
	if most != 4 {
		t.Errorf("%d nodes were starting at once: want 4", most)
	}
	if want := nodes/4*(slow+1) + slow + 2; rounds > want {
		t.Errorf("the start took %d rounds: want at most %d", rounds, want)
	}
}

// TestPacerGoesOnWithoutNodesThatAreNeverHeard also checks that it goes on one by one only.
func TestPacerGoesOnWithoutNodesThatAreNeverHeard(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPacer(now)
	p.window, p.gap = 4, 0
	started := 0
	for range 100 {
		free := p.room(now, started, 0)
		if started >= 4 && free > 1 {
			t.Fatalf("%d started, none heard: room for %d more: want 1", started, free)
		}
		started += free
		now = now.Add(startPatience / 10)
	}
	if started < 4+100/11 || started > 4+100/10 {
		t.Errorf("%d started in %v: want one each %v after the first four", started, 10*startPatience, startPatience)
	}
	// They are heard late: they do not make room a second time.
	if free := p.room(now, started, started); free != 4 {
		t.Errorf("all are heard: room for %d: want 4", free)
	}
}

// TestPacerSpreadsStartsOnAFastMachine starts nodes that are heard at once.
func TestPacerSpreadsStartsOnAFastMachine(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPacer(now)
	p.window, p.gap = 4, 300*time.Millisecond
	const nodes = 64
	started := 0
	begun := now
	for ; started < nodes; now = now.Add(50 * time.Millisecond) {
		started += p.room(now, started, started)
		if most := 4 + int(now.Sub(begun)/p.gap); started > most {
			t.Fatalf("%d nodes started after %v: want at most %d", started, now.Sub(begun), most)
		}
	}
	if took := now.Sub(begun); took > (nodes-4)*p.gap+time.Second {
		t.Errorf("%d nodes took %v", nodes, took)
	}
}

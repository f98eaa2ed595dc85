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
	if p.LinkGrace == nil || p.LinkGrace.D() != 38400*time.Millisecond || p.LinkHoldOff != &off || given.LinkGrace != nil {
		t.Errorf("64 nodes: %+v, given %+v: want 38.4s", p, given)
	}
	given.LinkGrace = &off
	if p := withLinkGrace(given, 64, 2); p.LinkGrace != &off {
		t.Errorf("a grace was given: %+v", p)
	}
	p = withLinkGrace(nil, 2000, 1)
	periods, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	periods.LinkGrace = p.LinkGrace.D()
	if err := periods.Validate(); err != nil || periods.LinkGrace != config.MaxLinkGrace {
		t.Errorf("2,000 nodes on one core: %v, %v; want the largest that is allowed, %v", periods.LinkGrace, err, config.MaxLinkGrace)
	}
}

// TestLastNodeStartsWithinGraceOfFirst plays starts at the pace of the gaps alone.
func TestLastNodeStartsWithinGraceOfFirst(t *testing.T) {
	for _, preset := range config.PresetNames() {
		for _, cores := range []int{1, 2, 4, 64} {
			for nodes := 2; nodes <= 200; nodes++ {
				now := time.Unix(1000, 0)
				p := newPacer(now, startsPerCPU*cores, startGap(steadyCost(preset, nodes), nodes, cores))
				for started := 0; started < nodes; now = now.Add(10 * time.Millisecond) {
					started += p.room(now, started, started)
				}
				grace := minLinkGrace
				if o := withLinkGrace(nil, nodes, cores); o != nil {
					grace = o.LinkGrace.D()
				}
				if took := now.Sub(time.Unix(1000, 0)); took > grace {
					t.Errorf("%s, %d nodes on %d cores: the starts take %s, longer than a grace of %s", preset, nodes, cores, took, grace)
				}
			}
		}
	}
}

// TestStartCostsLittleMoreThanSteadyState adds up the cost of running and of starting nodes.
func TestStartCostsLittleMoreThanSteadyState(t *testing.T) {
	const cores = 2
	for _, c := range []struct {
		nodes       int
		least, most time.Duration // of all gaps
	}{{27, 0, 13 * time.Second}, {64, 20 * time.Second, 30 * time.Second}} {
		steady := steadyCost(config.PresetRelaxed, c.nodes)
		gap := startGap(steady, c.nodes, cores)
		var took time.Duration
		for i := startsPerCPU * cores; i < c.nodes; i++ {
			took += gap(i)
			cost := steady*float64(i)/float64(c.nodes) + 100*float64(costOfStart(c.nodes))/float64(gap(i))
			if gap(i) < longestGap && cost > startShare*steady*1.01 {
				t.Errorf("node %d of %d starts %s after the last one, which costs %.0f %% of a core: want at most %.2f × %.0f", i, c.nodes,
					gap(i), cost, startShare, steady)
			}
		}
		if took < c.least || took > c.most {
			t.Errorf("the gaps between %d starts take %s: want %s to %s", c.nodes, took, c.least, c.most)
		}
	}
}

// noGap is for pacers that are open from the beginning.
func noGap(int) time.Duration { return time.Hour }

// TestPacerStartsNodesAsTheyAreHeard simulates a start in which every node reports some rounds after it began.
func TestPacerStartsNodesAsTheyAreHeard(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPacer(now, 4, noGap)
	p.opened = 1000
	const nodes, slow = 27, 10 // rounds of 50 ms from a node's start to its first report
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

// TestPacerContinuesWithoutSilentNodes also checks that it then starts only one node at a time.
func TestPacerContinuesWithoutSilentNodes(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPacer(now, 4, noGap)
	p.opened = 1000
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
	// These nodes reported late: they do not make room a second time.
	if free := p.room(now, started, started); free != 4 {
		t.Errorf("all are heard: room for %d: want 4", free)
	}
}

// TestPacerSpreadsStartsOnFastMachine starts nodes that report at once.
func TestPacerSpreadsStartsOnFastMachine(t *testing.T) {
	now := time.Unix(1000, 0)
	gap := 300 * time.Millisecond
	p := newPacer(now, 4, func(int) time.Duration { return gap })
	const nodes = 64
	started := 0
	begun := now
	for ; started < nodes; now = now.Add(50 * time.Millisecond) {
		started += p.room(now, started, started)
		if most := 4 + int(now.Sub(begun)/gap); started > most {
			t.Fatalf("%d nodes started after %v: want at most %d", started, now.Sub(begun), most)
		}
	}
	if took := now.Sub(begun); took > (nodes-4)*gap+time.Second {
		t.Errorf("%d nodes took %v", nodes, took)
	}
}

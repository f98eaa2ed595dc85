package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
)

const (
	// startsPerCPU is the number of nodes per processor that may start at once. Their halves run with real-time
	// priority: more of them would keep the supervisors from answering the nodes that already run.
	startsPerCPU = 2
	// startWork is the least mean time between two starts on one processor.
	startWork = 600 * time.Millisecond
	// longestGap is the longest time between two starts on any machine.
	longestGap = 850 * time.Millisecond
	// startCost is the processor time of one start in a cluster of up to startNodes nodes: its own processes, its
	// neighbours and the supervisors. Each further node of the cluster adds startEach, up to mostStartCost, because the
	// supervisors' part grows with the map: 190 ms were measured with 64 nodes.
	startCost     = 145 * time.Millisecond
	startNodes    = 27
	startEach     = 2500 * time.Microsecond
	mostStartCost = 240 * time.Millisecond
	// startShare is the largest cost of the whole start, as a multiple of the steady cost of all nodes.
	startShare = 1.54
	// startPatience is how long a pacer waits for a node to reach the supervisors.
	startPatience = 2 * time.Second
)

// pacer spreads the start of many nodes. It waits for the machine, not for time: a node has started when its report
// reaches the supervisors, and then the next one may begin. A node that fails to reach them within startPatience gives
// up its slot. On a fast machine the gaps between starts keep the cost of the start near that of the steady state.
type pacer struct {
	window int                       // number of nodes that may start at once, at least 1
	gap    func(i int) time.Duration // time between the starts of nodes i-1 and i at the shortest
	opened int                       // nodes that may have started by now, by the gaps alone
	next   time.Time                 // when opened grows
	gone   int                       // nodes that gave up their slot
	heard  int
	moved  time.Time // last time that a node started, reported or gave up its slot
}

func newPacer(now time.Time, window int, gap func(i int) time.Duration) *pacer {
	return &pacer{window: window, gap: gap, opened: window, next: now.Add(gap(window)), moved: now}
}

// startGap returns the time between the starts of nodes i-1 and i of a cluster whose steady cost is given, in % of a
// core. The nodes that already run use more and more of the budget, so the gaps grow.
func startGap(steady float64, nodes, cores int) func(i int) time.Duration {
	cost := costOfStart(nodes)
	return func(i int) time.Duration {
		room := steady / 100 * (startShare - float64(min(i, nodes))/float64(nodes))
		return min(max(time.Duration(float64(cost)/room), startWork/time.Duration(cores)), longestGap)
	}
}

// costOfStart returns the processor time of one start in a cluster of so many nodes.
func costOfStart(nodes int) time.Duration {
	return min(startCost+startEach*time.Duration(max(0, nodes-startNodes)), mostStartCost)
}

// room returns the number of nodes that may start now, given the numbers of started nodes and of nodes that have
// reported.
func (p *pacer) room(now time.Time, started, heard int) int {
	if heard > p.heard {
		p.gone = max(0, p.gone-(heard-p.heard)) // nodes that gave up their slot may still report late
		p.heard, p.moved = heard, now
	}
	free := p.window - (started - p.heard - p.gone)
	if free <= 0 && now.Sub(p.moved) >= startPatience {
		p.gone, p.moved, free = p.gone+1, now, free+1
	}
	for !now.Before(p.next) {
		p.opened++
		p.next = p.next.Add(p.gap(p.opened))
	}
	free = min(free, p.opened-started)
	if free > 0 {
		p.moved = now
	}
	return max(free, 0)
}

const (
	minLinkGrace = 5 * time.Second
	// graceForNode is several times the time that a slow machine needs to start one node.
	graceForNode = 600 * time.Millisecond
)

// withLinkGrace lets the links of a large cluster wait for neighbours that start last, because a node that has not
// started has not failed. It is at most config.MaxLinkGrace. A value in the given periods stays.
func withLinkGrace(p *config.PeriodsOverride, nodes, cores int) *config.PeriodsOverride {
	each := max(graceForNode, startWork*3/2/time.Duration(cores)) // longer than the pacer takes
	grace := config.Duration(min(time.Duration(nodes)*each, config.MaxLinkGrace))
	if grace <= config.Duration(minLinkGrace) || p != nil && p.LinkGrace != nil {
		return p
	}
	var out config.PeriodsOverride
	if p != nil {
		out = *p
	}
	out.LinkGrace = &grace
	return &out
}

// startNodes starts the daemons of all nodes, at the pace that the machine allows.
func (c *Cluster) startNodes(ctx context.Context, p *Progress, progress func(Progress)) error {
	clients, err := c.judges()
	defer func() {
		for _, cl := range clients {
			_ = cl.Close()
		}
	}()
	if err != nil {
		return err
	}
	all, started := len(c.info.All()), 0
	cores := runtime.NumCPU()
	pace := newPacer(time.Now(), startsPerCPU*cores, startGap(steadyCost(c.info.Preset, all), all, cores))
	heard, asked := 0, time.Time{}
	err = c.poll(ctx, pollEvery, func() (bool, error) {
		room := min(pace.room(time.Now(), started, heard), all-started)
		for range room {
			if err := c.startNode(started); err != nil {
				return true, err
			}
			started++
			p.Started = min(started, p.Nodes)
			report(progress, *p)
		}
		if room > 0 {
			if err := c.save(); err != nil || started == all {
				return true, err
			}
		}
		if time.Since(asked) < 2*c.pollNodes() {
			return false, nil
		}
		asked = time.Now()
		now := 0
		for _, cl := range clients {
			resp, err := cl.ListNodes(ctx, &lofamov1.ListNodesRequest{})
			if err != nil {
				return false, err
			}
			now += heardNodes(resp.GetNodes())
		}
		heard = now
		return false, errors.New("the supervisors answer")
	})
	if err != nil {
		return fmt.Errorf("start the nodes: %d of %d are started: %w", started, all, err)
	}
	return nil
}

// heardNodes returns the number of nodes that have reported since the supervisors started.
func heardNodes(nodes []*lofamov1.Node) int {
	n := 0
	for _, node := range nodes {
		if !node.GetSpare() && node.GetAge() != nil {
			n++
		}
	}
	return n
}

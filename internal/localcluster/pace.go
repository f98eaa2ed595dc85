package localcluster

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
	// startsPerCPU is how many nodes may be starting at once for each processor. Their halves run in real time:
	// more of them would keep the supervisors from answering those that run already.
	startsPerCPU = 2
	// startPatience is how long a pacer waits for a node that does not get through.
	startPatience = 2 * time.Second
)

// pacer spreads the start of many nodes. It waits for the machine, not for time: a node is through its start when
// the supervisors have heard it, and then the next one may begin. A node that does not get through within
// startPatience, for it cannot be heard, gives its place up.
type pacer struct {
	window int // nodes that may be starting at once, at least 1
	gone   int // nodes that gave their place up
	heard  int
	moved  time.Time // when a node was last started, heard or given up
}

func newPacer(now time.Time) *pacer {
	return &pacer{window: startsPerCPU * runtime.NumCPU(), moved: now}
}

// room returns how many nodes may be started now, when so many were started and so many of them heard.
func (p *pacer) room(now time.Time, started, heard int) int {
	if heard > p.heard {
		p.gone = max(0, p.gone-(heard-p.heard)) // those that gave their place up may come late
		p.heard, p.moved = heard, now
	}
	free := p.window - (started - p.heard - p.gone)
	if free <= 0 && now.Sub(p.moved) >= startPatience {
		p.gone, p.moved, free = p.gone+1, now, free+1
	}
	if free > 0 {
		p.moved = now
	}
	return max(free, 0)
}

const (
	minLinkGrace = 5 * time.Second
	// graceForNode is what a slow machine takes to start one node, several times over.
	graceForNode = 500 * time.Millisecond
)

// withLinkGrace lets the links of a large cluster wait for neighbours that are started last: one that has not begun
// has not failed. What the periods say of it already stands.
func withLinkGrace(p *config.PeriodsOverride, nodes int) *config.PeriodsOverride {
	grace := config.Duration(time.Duration(nodes) * graceForNode)
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

// startNodes starts the daemons of all nodes, as many at once as the machine bears.
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
	pace := newPacer(time.Now())
	heard := 0
	err = c.poll(ctx, func() (bool, error) {
		for range min(pace.room(time.Now(), started, heard), all-started) {
			if err := c.startNode(started); err != nil {
				return true, err
			}
			started++
			p.Started = min(started, p.Nodes)
			report(progress, *p)
		}
		if err := c.save(); err != nil || started == all {
			return true, err
		}
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

// heardNodes counts the nodes that have spoken since the supervisors began.
func heardNodes(nodes []*lofamov1.Node) int {
	n := 0
	for _, node := range nodes {
		if !node.GetSpare() && node.GetAge() != nil {
			n++
		}
	}
	return n
}

package supervisor_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// mappedBy returns the mapper's evidence about a half of a node, and the mapper.
func mappedBy(n *lofamov1.Node, component string) (by string, e *lofamov1.Evidence) {
	for _, c := range n.GetComponents() {
		for _, e := range c.GetEvidence() {
			if c.GetName() == component && e.GetKind() == view.KindMapped {
				return strings.TrimSuffix(e.GetObserver(), "/dnp"), e
			}
		}
	}
	return "", nil
}

// TestSilentNodesAreMappedByNeighbours: two nodes of a ring of five report. Each maps its neighbour, and one of the
// found nodes maps the last. The map shows the findings beside UNKNOWN, and drops them when the node reports.
func TestSilentNodesAreMappedByNeighbours(t *testing.T) {
	t.Parallel()
	misses := 25 // a busy machine may keep the agents that speak from it for seconds
	c := supervisortest.New(t, supervisortest.Options{Dims: "5x1x1", Preset: config.PresetFast, Configure: func(cfg *config.Supervisor) {
		cfg.Periods = &config.PeriodsOverride{DigestMisses: &misses}
	}})
	start(t, c.Configs[0])
	c.AwaitLeader(t, 0)
	periods, err := c.Configs[0].Timing()
	if err != nil {
		t.Fatal(err)
	}
	good, bad, unknown := lofamov1.MapKnowledge_MAP_GOOD, lofamov1.MapKnowledge_MAP_BAD, lofamov1.MapKnowledge_MAP_UNKNOWN
	sees := func(mapper string, reached uint32, host lofamov1.MapKnowledge) {
		c.Agents[fault.NodeID(mapper)].AnswerMapping(func(o *lofamov1.MapOrder) (out []*lofamov1.MappedNode) {
			for _, r := range o.GetRegion() {
				n := &lofamov1.MappedNode{Rank: r, Dnp: unknown, Host: unknown}
				if r == reached {
					n.Dnp, n.Host, n.LinksGood, n.RoundTripUs = good, host, 3, 700
				}
				out = append(out, n)
			}
			return out
		})
	}
	sees("n0-0-0", 4, good)
	sees("n1-0-0", 2, bad)
	sees("n2-0-0", 3, unknown)
	sees("n4-0-0", 3, unknown)
	for _, id := range []fault.NodeID{"n2-0-0", "n3-0-0", "n4-0-0"} {
		c.Agents[id].Kill(fault.HalfHost, fault.HalfDNP) // they do not answer challenges
	}
	var back atomic.Bool
	stop := c.Speak(t, periods.DigestPeriod/2, c.Configs[0].Report, func(id fault.NodeID) bool {
		return id == "n0-0-0" || id == "n1-0-0" || id == "n4-0-0" && back.Load()
	})
	defer stop()
	client := c.Client(t, c.Configs[0].GRPC)
	get := func(x int) *lofamov1.Node {
		n, err := client.GetNode(t.Context(), &lofamov1.GetNodeRequest{Node: grid.Coord{X: x}.String()})
		if err != nil {
			return nil
		}
		return n
	}
	supervisortest.Eventually(t, "all are mapped", func() bool {
		for _, x := range []int{2, 3, 4} {
			if by, _ := mappedBy(get(x), "dnp"); by == "" {
				return false
			}
		}
		return true
	})
	for x, want := range map[int]struct {
		by, detail string
		host       lofamov1.State
	}{
		2: {"n1-0-0", "DNP half answers, and has found its host half dead", lofamov1.State_FAILED},
		3: {"n2-0-0", "reached by n2-0-0 through the torus: DNP half answers, host half does not", lofamov1.State_UNKNOWN},
		4: {"n0-0-0", "DNP half and host half answer", lofamov1.State_NORMAL},
	} {
		n := get(x)
		by, dnp := mappedBy(n, "dnp")
		_, host := mappedBy(n, "host")
		if by != want.by || n.GetState() != lofamov1.State_UNKNOWN || dnp.GetState() != lofamov1.State_NORMAL || host.GetState() != want.host ||
			!strings.Contains(dnp.GetDetail(), want.detail) {
			t.Errorf("node %d is %s: dnp %v, host %v: want %+v", x, n.GetState(), dnp, host, want)
		}
		resp, err := client.Explain(t.Context(), &lofamov1.ExplainRequest{Node: n.GetId(), Component: "node"})
		if err != nil || !strings.Contains(strings.Join(resp.GetBecause(), "\n"), want.detail) {
			t.Errorf("explained by %v, %v: want %q", resp.GetBecause(), err, want.detail)
		}
	}
	supervisortest.Eventually(t, "the metrics to say so", func() bool {
		page := scrape(t, c.Configs[0].HTTP)
		return strings.Contains(page, `lofamo_mapped_nodes{found="both-halves"} 1`+"\n"+`lofamo_mapped_nodes{found="dnp-alone"} 2`+"\n"+
			`lofamo_mapped_nodes{found="not-reached"} 0`+"\n") &&
			!strings.Contains(page, "lofamo_mappings_total 0\n") && !strings.Contains(page, "lofamo_map_orders_total 0\n")
	})
	if by, _ := mappedBy(get(0), "dnp"); by != "" {
		t.Errorf("a node that is heard is said to be mapped by %s", by)
	}
	c.Agents["n4-0-0"].Revive(fault.HalfHost, fault.HalfDNP)
	back.Store(true)
	supervisortest.Eventually(t, "who speaks is mapped no more", func() bool {
		n := get(4)
		by, _ := mappedBy(n, "dnp")
		return n.GetState() == lofamov1.State_NORMAL && by == ""
	})
}

// TestRegionsMaskOwnEndOfBorderLink: the supervisors of either region mask and restore a link between two regions, at their own end
// alone.
func TestRegionsMaskOwnEndOfBorderLink(t *testing.T) {
	t.Parallel()
	r := supervisortest.NewRegions(t, supervisortest.Options{Dims: "4x1x1"}, 1, "west", "east")
	startAll(t, r.Region["west"]...)
	west := r.Reconfigure(t, r.Region["west"][0].GRPC)
	set := func(node, direction string, masked bool) (err error) {
		supervisortest.Eventually(t, "a leader", func() bool {
			_, err = west.SetMask(t.Context(), &lofamov1.SetMaskRequest{
				Links: []*lofamov1.LinkName{{Node: node, Direction: direction}}, Masked: masked, Reason: "flaky",
			})
			return status.Code(err) != codes.Unavailable
		})
		return err
	}
	for _, tc := range []struct{ node, direction, text string }{
		{"n2-0-0", "X-", "of region east: name the link by its end in this region"},
		{"2,0,0", "X-", "of region east: name the link by its end in this region"},
	} {
		err := set(tc.node, tc.direction, true)
		if err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s %s: %v: want %q", tc.node, tc.direction, err, tc.text)
		}
	}
	if err := set("n1-0-0", "X+", false); err == nil || !strings.Contains(err.Error(), "region east") {
		t.Errorf("what is not masked here: %v: want the other region's name", err)
	}
	// The lower end of the first is ours; that of the second belongs to the other region: 3,0,0 X+ leads to 0,0,0.
	for agent, link := range map[fault.NodeID]struct {
		direction string
		mask      uint32
	}{"n1-0-0": {"X+", 0x3e}, "n0-0-0": {"X-", 0x3d}} {
		if err := set(string(agent), link.direction, true); err != nil {
			t.Fatal(err)
		}
		supervisortest.Eventually(t, "our end has it, and the other one is not waited for", func() bool {
			list, err := west.ListMasks(t.Context(), &lofamov1.ListMasksRequest{})
			return err == nil && len(list.GetMasks()) == 1 && len(list.GetMasks()[0].GetWaiting()) == 0 &&
				list.GetMasks()[0].GetNode() != "" && list.GetMasks()[0].GetPeer() != "" && r.Agents[agent].Mask().GetMask() == link.mask
		})
		for id, a := range r.Agents {
			if m := a.Mask(); id != agent && m != nil && m.GetMask() != 0x3f {
				t.Errorf("%s was ordered %v", id, m)
			}
		}
		if err := set(string(agent), link.direction, false); err != nil {
			t.Fatal(err)
		}
		supervisortest.Eventually(t, "it is restored", func() bool { return r.Agents[agent].Mask().GetMask() == 0x3f })
	}
}

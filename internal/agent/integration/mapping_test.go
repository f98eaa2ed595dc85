package integration

import (
	"net/netip"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Real halves: a supervisor that reaches only one of three nodes orders it to map the others. One of them has no host
// half, and its DNP half reports so. Then the discovered node maps further: its order arrives through the first node,
// and its findings return the same way.
func TestMappingByDelegation(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 4, Y: 1, Z: 1}, checkedMemory)
	one, two := grid.Coord{X: 1}, grid.Coord{X: 2}
	n.start(at0, fault.HalfHost)
	n.start(at0, fault.HalfDNP)
	n.start(one, fault.HalfDNP)
	n.start(two, fault.HalfHost)
	n.start(two, fault.HalfDNP)
	n.super.awaitState(host0, "n0-0-0", fault.Link(grid.XPlus), fault.Normal, fault.KindSelf)
	n.super.awaitState(fault.Origin{Node: "n2-0-0", Half: fault.HalfHost}, "n2-0-0", fault.Link(grid.XMinus), fault.Normal, fault.KindSelf)
	mapped := func(count uint64, node string, path fault.Path, region ...uint32) map[uint32]*lofamov1.MappedNode {
		t.Helper()
		msg := &lofamov1.Message{Body: &lofamov1.Message_MapOrder{MapOrder: &lofamov1.MapOrder{
			Number: &lofamov1.OrderNumber{Term: 7, Count: count}, Node: node, Region: region, ReplyTo: n.super.net.LocalAddr().String(),
		}}}
		var out map[uint32]*lofamov1.MappedNode
		n.super.awaitAsking("what "+node+" found", func() bool {
			for _, f := range n.super.mapped {
				if f.GetNumber().GetCount() == count && f.GetNode() == node {
					out = map[uint32]*lofamov1.MappedNode{}
					for _, m := range f.GetNodes() {
						out[m.GetRank()] = m
					}
					return true
				}
			}
			return false
		}, func() {
			n.super.send(netip.MustParseAddrPort(n.cfgs[at0].Service.Listen), fault.NodeID(node), path, msg)
		})
		return out
	}
	good, unknown := lofamov1.MapKnowledge_MAP_GOOD, lofamov1.MapKnowledge_MAP_UNKNOWN
	// On a busy machine a half may be late with all its answers. Like a supervisor, the test maps unknown nodes again.
	count := uint64(1)
	found := mapped(count, "n0-0-0", fault.PathDirect, 1)
	for count < 6 && (found[1].GetDnp() != good || found[1].GetLinksGood()&2 == 0) {
		count++
		found = mapped(count, "n0-0-0", fault.PathDirect, 1)
	}
	// To its DNP half, a host half that never ran is not dead: the DNP half waits for the first start.
	if f := found[1]; f.GetDnp() != good || f.GetHost() == good || f.GetLinksGood()&2 == 0 || f.GetRoundTripUs() == 0 {
		t.Errorf("n1-0-0 was found %v", f)
	}
	for last := count + 5; count < last && (found[2].GetDnp() != good || found[2].GetHost() != good); {
		count++
		found = mapped(count, "n1-0-0", fault.PathTorus, 2, 3)
	}
	if f := found[2]; f.GetDnp() != good || f.GetHost() != good {
		t.Errorf("n2-0-0 was found %v", f)
	}
	if f := found[3]; f.GetDnp() != unknown || f.GetHost() != unknown {
		t.Errorf("n3-0-0, which is not there, was found %v", f)
	}
}

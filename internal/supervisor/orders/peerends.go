package orders

import (
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// ownEnds returns a status without ends of links if a node that has enrolled states ends that are not its own. Nobody but the node names
// them, and its neighbours send to them. Operators name the addresses of other nodes.
func (k *peers) ownEnds(n topology.Node, st *lofamov1.PeerStatus) *lofamov1.PeerStatus {
	if !n.Proved {
		return st
	}
	for _, end := range st.GetEnds() {
		if err := k.checkEnd(n, end.GetAddress()); err != nil {
			if k.foreign[n.ID] != err.Error() {
				k.foreign[n.ID] = err.Error()
				k.cfg.Logger.Warn("ends of links are not the node's: ignored", "node", string(n.ID), "err", err)
			}
			st = proto.CloneOf(st)
			st.Ends, st.Configured = nil, nil
			return st
		}
	}
	delete(k.foreign, n.ID)
	return st
}

// checkEnd returns an error if an end of a link is not at an address that the node has proved, or is an address that another party has.
func (k *peers) checkEnd(n topology.Node, text string) error {
	end, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil //nolint:nilerr // an end without an address has no link
	}
	end = netip.AddrPortFrom(end.Addr().Unmap(), end.Port())
	if !slices.ContainsFunc(n.Service, func(a netip.AddrPort) bool { return a.Addr().Unmap() == end.Addr() }) {
		return fmt.Errorf("end %s: want an address that the node has proved, one of %v", end, n.Service)
	}
	if of, taken := k.cfg.Own()[end]; taken {
		return fmt.Errorf("end %s: it is %s of a supervisor", end, of)
	}
	topo := k.cfg.Names.Topology()
	if owner, taken := topo.Owner(end); taken {
		return fmt.Errorf("end %s: it is the service address of node %s", end, owner)
	}
	for id, r := range k.records {
		if id != n.ID && slices.ContainsFunc(r.GetEnds(), func(p *lofamov1.Peer) bool { return p.GetAddress() == end.String() }) &&
			k.at(topo, id, end.Addr()) {
			return fmt.Errorf("end %s: it is one of node %s", end, id)
		}
	}
	return nil
}

// at reports whether a node may have ends at an IP. A node that has lost its address has none there any more.
func (k *peers) at(topo *topology.Topology, id fault.NodeID, ip netip.Addr) bool {
	n, listed := topo.Node(id)
	return listed && (!n.Proved || slices.ContainsFunc(n.Service, func(a netip.AddrPort) bool { return a.Addr().Unmap() == ip }))
}

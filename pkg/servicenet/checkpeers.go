package servicenet

import (
	"net/netip"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maxAddress bounds an address of a link's end, in bytes: that of IPv6 with a zone.
const maxAddress = 64

func checkPeerOrder(m *lofamov1.PeerOrder) error {
	return firstError(
		checkID("peer_order.node", m.GetNode()),
		atLeastOne("peer_order.number", m.GetNumber()),
		checkPeers("peer_order.peers", m.GetPeers(), true),
		checkPlace("peer_order.coord", m.GetCoord()),
		checkTorus(m.GetTorus()),
	)
}

func checkTorus(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if n := len(b); n > grid.MaxEncoding {
		return refuse(RefusedField, "peer_order.torus: given %d bytes: want at most %d", n, grid.MaxEncoding)
	}
	if _, err := grid.FromBinary(b); err != nil {
		return refuse(RefusedField, "peer_order.torus: %w", err)
	}
	return nil
}

// checkPeerStatus accepts boot epoch 0: a spare whose halves do not run has none.
func checkPeerStatus(m *lofamov1.PeerStatus) error {
	if e := m.GetEpoch(); e > uint64(MaxEpoch) {
		return refuse(RefusedField, "peer_status.epoch: given %d: want 0 to %d", e, uint64(MaxEpoch))
	}
	return firstError(
		checkID("peer_status.node", m.GetNode()),
		checkPeers("peer_status.peers", m.GetPeers(), true),
		checkPeers("peer_status.ends", m.GetEnds(), false),
		checkPeers("peer_status.configured", m.GetConfigured(), true),
		checkPlace("peer_status.coord", m.GetCoord()),
		checkTorusName(m.GetTorus()),
	)
}

// checkPeers checks the ends of links: each direction once, and with a name where they are others'.
func checkPeers(field string, peers []*lofamov1.Peer, named bool) error {
	if n := len(peers); n > grid.NumDirections {
		return refuse(RefusedField, "%s: given %d: want at most %d", field, n, grid.NumDirections)
	}
	var seen [grid.NumDirections]bool
	for _, p := range peers {
		if d := p.GetDirection(); d < 1 || d > grid.NumDirections || seen[d-1] {
			return refuse(RefusedField, "%s.direction: given %d: want 1 to %d, each once", field, d, grid.NumDirections)
		}
		seen[p.GetDirection()-1] = true
		if a := p.GetAddress(); a != "" {
			if ap, err := netip.ParseAddrPort(a); err != nil || ap.Port() == 0 || ap.Addr().IsUnspecified() || len(a) > maxAddress {
				return refuse(RefusedField, `%s.address: given %q: want "ip:port" of one host, port 1 to 65535`, field, a)
			}
		}
		if named {
			if err := checkID(field+".node", p.GetNode()); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkPlace(field, coord string) error {
	if coord == "" {
		return nil
	}
	if _, err := grid.ParseCoord(coord); err != nil {
		return refuse(RefusedField, "%s: %w", field, err)
	}
	return nil
}

func checkTorusName(name string) error {
	if n := len(name); n > grid.MaxShort {
		return refuse(RefusedField, "peer_status.torus: given %d bytes: want at most %d", n, grid.MaxShort)
	}
	return nil
}

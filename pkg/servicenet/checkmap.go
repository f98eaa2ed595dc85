package servicenet

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Bounds of a mapping order and of its findings. A message of findings is at most MaxReportSize bytes, so that it
// fits a datagram also relayed.
const (
	MaxMapRegion = 128 // nodes of an order
	MaxMapParts  = 32  // messages that the findings come in
	MaxMapNodes  = 7   // in one of them
	maxRank      = 1<<31 - 1
)

func checkMapOrder(o *lofamov1.MapOrder) error {
	if n := len(o.GetRegion()); n < 1 || n > MaxMapRegion {
		return refuse(RefusedField, "map_order.region: given %d nodes: want 1 to %d", n, MaxMapRegion)
	}
	for i, r := range o.GetRegion() {
		if r > maxRank || i > 0 && r <= o.GetRegion()[i-1] {
			return refuse(RefusedField, "map_order.region: given %d: want ranks of at most %d, ascending", r, maxRank)
		}
	}
	return firstError(
		checkNumber("map_order.number", o.GetNumber()),
		checkID("map_order.node", o.GetNode()),
		checkAddress("map_order.reply_to", o.GetReplyTo()),
	)
}

func checkMapFindings(f *lofamov1.MapFindings) error {
	if e := f.GetEpoch(); e == 0 || e > uint64(MaxEpoch) {
		return refuse(RefusedField, "map_findings.epoch: given %d: want 1 to %d", e, uint64(MaxEpoch))
	}
	if p, n := f.GetPart(), f.GetParts(); n < 1 || n > MaxMapParts || p >= n {
		return refuse(RefusedField, "map_findings.part: given %d of %d: want one of 1 to %d, from 0", p, n, MaxMapParts)
	}
	if n := len(f.GetNodes()); n > MaxMapNodes {
		return refuse(RefusedField, "map_findings.nodes: given %d: want at most %d", n, MaxMapNodes)
	}
	for i, n := range f.GetNodes() {
		if err := checkMapped(n); err != nil {
			return err
		}
		if i > 0 && n.GetRank() <= f.GetNodes()[i-1].GetRank() {
			return refuse(RefusedField, "map_findings.nodes.rank: given %d: want them ascending", n.GetRank())
		}
	}
	return firstError(
		checkNumber("map_findings.number", f.GetNumber()),
		checkID("map_findings.node", f.GetNode()),
		checkText("map_findings.error", f.GetError()),
	)
}

func checkMapped(n *lofamov1.MappedNode) error {
	known := func(k lofamov1.MapKnowledge) bool {
		return k >= lofamov1.MapKnowledge_MAP_UNKNOWN && k <= lofamov1.MapKnowledge_MAP_BAD
	}
	switch {
	case n.GetRank() > maxRank:
		return refuse(RefusedField, "map_findings.nodes.rank: given %d: want at most %d", n.GetRank(), maxRank)
	case !known(n.GetDnp()):
		return refuse(RefusedField, "map_findings.nodes.dnp: given %d: want 1 to 3", n.GetDnp())
	case !known(n.GetHost()):
		return refuse(RefusedField, "map_findings.nodes.host: given %d: want 1 to 3", n.GetHost())
	case n.GetLinksGood() > maxLinkMask:
		return refuse(RefusedField, "map_findings.nodes.links_good: given %d: want at most %d", n.GetLinksGood(), maxLinkMask)
	case n.GetLinksBad() > maxLinkMask || n.GetLinksBad()&n.GetLinksGood() != 0:
		return refuse(RefusedField, "map_findings.nodes.links_bad: given %d: want at most %d, and none of links_good", n.GetLinksBad(),
			maxLinkMask)
	case n.GetRoundTripUs() > maxTripUs:
		return refuse(RefusedField, "map_findings.nodes.round_trip_us: given %d: want at most %d", n.GetRoundTripUs(), maxTripUs)
	}
	return nil
}

package servicenet

import (
	"math"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits of Told and Interest, so that each fits a datagram.
const (
	MaxToldNodes     = 24 // in one message
	MaxToldParts     = 64
	MaxToldFaults    = fault.NumComponents
	MaxToldGroups    = 4
	MaxInterestNodes = 32 // in one message
	MaxInterestParts = 32
	// MaxInterest bounds the nodes in a half's interest.
	MaxInterest = MaxInterestNodes * MaxInterestParts
)

func checkTold(t *lofamov1.Told) error {
	if n := len(t.GetNodes()); n > MaxToldNodes {
		return refuse(RefusedField, "told.nodes: given %d: want at most %d", n, MaxToldNodes)
	}
	for _, n := range t.GetNodes() {
		if err := checkToldNode(n); err != nil {
			return err
		}
	}
	if t.GetSince() >= t.GetRevision() && t.GetSince() > 0 {
		return refuse(RefusedField, "told.since: given %d: want less than the revision, %d", t.GetSince(), t.GetRevision())
	}
	return firstError(checkID("told.node", t.GetNode()), checkPart("told", t.GetPart(), t.GetParts(), MaxToldParts))
}

func checkPart(name string, part, parts uint32, limit uint32) error {
	if parts < 1 || parts > limit {
		return refuse(RefusedField, "%s.parts: given %d: want 1 to %d", name, parts, limit)
	}
	if part >= parts {
		return refuse(RefusedField, "%s.part: given %d: want 0 to %d", name, part, parts-1)
	}
	return nil
}

func checkToldNode(n *lofamov1.ToldNode) error {
	if k := len(n.GetFaults()); k > MaxToldFaults {
		return refuse(RefusedField, "told.nodes.faults: given %d: want at most %d", k, MaxToldFaults)
	}
	if k := len(n.GetGroups()); k > MaxToldGroups {
		return refuse(RefusedField, "told.nodes.groups: given %d: want at most %d", k, MaxToldGroups)
	}
	for _, g := range n.GetGroups() {
		if err := checkText("told.nodes.groups", g); err != nil {
			return err
		}
	}
	for _, f := range n.GetFaults() {
		if c := f.GetComponent(); c > math.MaxUint8 || !fault.Component(c).Valid() {
			return refuse(RefusedField, "told.nodes.faults.component: given %d: want 1 to %d", c, fault.NumComponents-1)
		}
		if err := checkState("told.nodes.faults.state", f.GetState()); err != nil {
			return err
		}
	}
	return firstError(checkID("told.nodes.id", n.GetId()), checkState("told.nodes.state", n.GetState()))
}

func checkState(name string, s lofamov1.State) error {
	if s < lofamov1.State_UNKNOWN || s > lofamov1.State_FAILED {
		return refuse(RefusedField, "%s: given %d: want %d to %d", name, s, lofamov1.State_UNKNOWN, lofamov1.State_FAILED)
	}
	return nil
}

func checkInterest(i *lofamov1.Interest) error {
	if n := len(i.GetNodes()); n > MaxInterestNodes {
		return refuse(RefusedField, "interest.nodes: given %d: want at most %d", n, MaxInterestNodes)
	}
	for _, id := range i.GetNodes() {
		if err := checkID("interest.nodes", id); err != nil {
			return err
		}
	}
	return firstError(
		checkID("interest.node", i.GetNode()), atLeastOne("interest.epoch", i.GetEpoch()), atLeastOne("interest.serial", uint64(i.GetSerial())),
		checkPart("interest", i.GetPart(), i.GetParts(), MaxInterestParts),
	)
}

package servicenet

import (
	"math"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits of FaultUpdate and Interest, so that each fits a datagram.
const (
	MaxUpdateNodes   = 24 // in one message
	MaxUpdateParts   = 64
	MaxUpdateFaults  = fault.NumComponents
	MaxUpdateGroups  = 4
	MaxInterestNodes = 32 // in one message
	MaxInterestParts = 32
	// MaxInterest bounds the nodes in a half's interest.
	MaxInterest = MaxInterestNodes * MaxInterestParts
)

func checkFaultUpdate(t *lofamov1.FaultUpdate) error {
	if n := len(t.GetNodes()); n > MaxUpdateNodes {
		return refuse(RefusedField, "fault_update.nodes: given %d: want at most %d", n, MaxUpdateNodes)
	}
	for _, n := range t.GetNodes() {
		if err := checkNodeView(n); err != nil {
			return err
		}
	}
	if t.GetSince() >= t.GetRevision() && t.GetSince() > 0 {
		return refuse(RefusedField, "fault_update.since: given %d: want less than the revision, %d", t.GetSince(), t.GetRevision())
	}
	return firstError(checkID("fault_update.node", t.GetNode()), checkPart("fault_update", t.GetPart(), t.GetParts(), MaxUpdateParts))
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

func checkNodeView(n *lofamov1.NodeView) error {
	if k := len(n.GetFaults()); k > MaxUpdateFaults {
		return refuse(RefusedField, "fault_update.nodes.faults: given %d: want at most %d", k, MaxUpdateFaults)
	}
	if k := len(n.GetGroups()); k > MaxUpdateGroups {
		return refuse(RefusedField, "fault_update.nodes.groups: given %d: want at most %d", k, MaxUpdateGroups)
	}
	for _, g := range n.GetGroups() {
		if err := checkText("fault_update.nodes.groups", g); err != nil {
			return err
		}
	}
	for _, f := range n.GetFaults() {
		if c := f.GetComponent(); c > math.MaxUint8 || !fault.Component(c).Valid() {
			return refuse(RefusedField, "fault_update.nodes.faults.component: given %d: want 1 to %d", c, fault.NumComponents-1)
		}
		if err := checkState("fault_update.nodes.faults.state", f.GetState()); err != nil {
			return err
		}
	}
	return firstError(checkID("fault_update.nodes.id", n.GetId()), checkState("fault_update.nodes.state", n.GetState()))
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

package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestPartialDigestWithdrawsNothing: each part of a digest in several parts contains only some of the half's
// statements. Only a whole digest withdraws the statements that it omits.
func TestPartialDigestWithdrawsNothing(t *testing.T) {
	v := &voice{half: fault.HalfHost}
	clock := newClock(time.Unix(0, 0))
	index := func(fault.NodeID) (int, bool) { return -1, true }
	take := func(seq fault.Seq, digest, partial bool, components ...fault.Component) {
		d := fault.Delivery{Path: fault.PathDirect, Report: fault.Report{
			ID: fault.ReportID{Origin: fault.Origin{Node: "a", Half: fault.HalfHost}, Epoch: 1, Seq: seq}, Digest: digest, Partial: partial,
		}}
		for _, c := range components {
			d.Report.Observations = append(d.Report.Observations,
				fault.Observation{Node: "a", Component: c, State: fault.Failed, Kind: fault.KindSelf})
		}
		v.take(arrival{Delivery: d, clock: clock, now: time.Unix(int64(seq), 0), changed: func(slot) {}}, index)
	}
	known := func(c fault.Component) bool { _, _, ok := v.last(ownSlot(c)); return ok }

	take(1, true, true, fault.ComponentMemory)
	take(2, true, true, fault.ComponentPower)
	if !known(fault.ComponentMemory) || !known(fault.ComponentPower) {
		t.Error("a part of a digest withdrew what another part states")
	}
	take(3, true, false, fault.ComponentPower)
	if known(fault.ComponentMemory) || !known(fault.ComponentPower) {
		t.Error("a whole digest did not withdraw just what it does not mention")
	}
}

package integration

import (
	"net/netip"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/storage"
)

// A mask is on disk before the supervisors learn of the change, and the DNP half resumes from that file.
func TestMaskIsKept(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 3, Y: 1, Z: 1}, checkedMemory)
	n.start(at0, fault.HalfHost)
	n.start(at0, fault.HalfDNP)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	var st *lofamov1.MaskStatus
	told := func(number uint64) func() bool {
		return func() bool { st = n.super.mask; return st.GetNumber() == number }
	}
	masked := chanmask.All
	for number, d := range []grid.Direction{grid.XPlus, grid.XMinus} {
		masked = masked.With(d, false)
		o := &lofamov1.MaskOrder{Node: "n0-0-0", Number: uint64(number + 1), Mask: uint32(masked)}
		n.super.awaitAsking("the status of a mask", told(o.GetNumber()), func() {
			n.super.send(netip.MustParseAddrPort(n.cfgs[at0].Service.Listen), "n0-0-0", fault.PathDirect,
				&lofamov1.Message{Body: &lofamov1.Message_MaskOrder{MaskOrder: o}})
		})
		if st.GetOrdered() != o.GetMask() || st.GetInForce() != o.GetMask() || st.GetLost() {
			t.Errorf("%v", st)
		}
		kept, err := storage.MaskOrders().Load(n.cfgs[at0].StateDir)
		if want := (chanmask.State{Own: chanmask.All, Ordered: masked, Number: o.GetNumber()}); err != nil || kept != want {
			t.Errorf("told and not kept: %+v, %v", kept, err)
		}
	}
	n.halt(at0, fault.HalfDNP)
	n.super.mu.Lock()
	n.super.mask = nil
	n.super.mu.Unlock()
	n.start(at0, fault.HalfDNP)
	if n.super.awaitThat("the status of the mask after a restart", told(2)); st.GetInForce() != uint32(masked) {
		t.Errorf("after a restart: %v", st)
	}
}

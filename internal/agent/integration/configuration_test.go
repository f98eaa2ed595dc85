package integration

import (
	"net/netip"
	"path/filepath"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// A node that starts when the supervisors cannot be reached gets its configuration, and by it its channel mask, from a
// neighbour (seed 003 §4.4.1).
func TestConfigurationFromNeighbour(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 3, Y: 1, Z: 1}, nil)
	n.start(at0, fault.HalfHost)
	n.start(at0, fault.HalfDNP)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	masked := chanmask.All.Without(grid.XPlus)
	c := &lofamov1.TorusConfiguration{
		Number: 7, Dims: n.dims.String(), DelayUs: 5000, Absent: []uint32{2},
		Masks: []*lofamov1.TorusMask{{Rank: 1, Mask: uint32(masked)}}, Parts: 1,
	}
	var configured *lofamov1.ConfigurationStatus
	has := func() bool { configured = n.super.configured; return configured.GetNumber() == 7 }
	n.super.awaitAsking("n0-0-0 has the configuration", has, func() {
		n.super.send(netip.MustParseAddrPort(n.cfgs[at0].Service.Listen), "n0-0-0", fault.PathDirect,
			&lofamov1.Message{Body: &lofamov1.Message_TorusConfiguration{TorusConfiguration: c}})
	})
	if configured.GetNode() != "n0-0-0" {
		t.Errorf("%v", configured)
	}
	n.super.close()
	n.start(at1, fault.HalfDNP)
	n.start(at1, fault.HalfHost)
	f := n.awaitFile(filepath.Join(n.cfgs[at1].StateDir, half.RegisterFile))
	defer func() { _ = f.Close() }()
	agenttest.Await(n.t, "the mask", func() bool {
		v, err := f.Load(watchdog.AddrChannelMask)
		return err == nil && v == uint32(masked)
	})
	agenttest.Await(n.t, "the mask on disk", func() bool {
		kept, err := storage.MaskOrders().Load(n.cfgs[at1].StateDir)
		return err == nil && kept == (chanmask.State{Own: chanmask.All, Ordered: masked, Number: 7})
	})
}

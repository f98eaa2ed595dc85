package integration

import (
	"net/netip"
	"path/filepath"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/netnstest"
)

// A host half whose service interfaces are not there when it starts runs all the same, for its torus may
// work, and takes them into use when they come.
func TestInterfacesMissingAtStart(t *testing.T) {
	if !netnstest.Inside(t) {
		return
	}
	const first, second = "10.77.0.1", "10.77.0.2"
	at := func(addr string) string {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), freeport.Addr(t).Port()).String()
	}
	key := filepath.Join(t.TempDir(), "gossip.key")
	if err := pki.NewGossipKey(key); err != nil {
		t.Fatal(err)
	}
	n := newTestNet(t, pair, func(c *config.Agent) {
		if c.Node != "n0-0-0" {
			return
		}
		c.Service.Listen = at(first)
		c.Service.GossipListen = at(first)
		c.Service.GossipKeyFile = key
		c.Service.Alternates = []config.ServiceAddr{{Listen: at(second), Interface: "svc1"}}
	})
	n.start(at0, fault.HalfHost)
	n.awaitStatus(at0, "a half without a service network", func(s local.Status) bool {
		return s.Host.State == "RUNNING" && len(s.Delivery.GetRails()) > 1 &&
			s.Delivery.GetRails()[0].GetDown() && s.Delivery.GetRails()[1].GetDown()
	})
	netnstest.IP(t, "link add svc1 type veth peer name far1")
	netnstest.IP(t, "link set svc1 up")
	netnstest.IP(t, "link set far1 up")
	netnstest.IP(t, "addr add "+second+"/32 dev svc1")
	netnstest.IP(t, "addr add "+first+"/32 dev lo")
	n.awaitStatus(at0, "both interfaces up, and reports by the one that leads to a supervisor", func(s local.Status) bool {
		return s.Delivery.GetState() != lofamov1.PathState_REESTABLISHING && s.Delivery.GetPrimary() == "service>sup-0" &&
			!s.Delivery.GetRails()[0].GetDown() && !s.Delivery.GetRails()[1].GetDown()
	})
	n.super.await("a report by it", func(s said) bool { return s.by == host0 && s.path == fault.PathDirect })
}

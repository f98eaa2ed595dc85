package supervisor

import (
	"net/netip"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A supervisor runs where the configuration says, or else where its addresses are. One that is not at a node's
// service address may still run on that node, at another of its addresses: its node is unknown.
func TestWhereSupervisorsAre(t *testing.T) {
	at := func(addrs ...string) (out []netip.AddrPort) {
		for _, a := range addrs {
			out = append(out, netip.MustParseAddrPort(a))
		}
		return out
	}
	top := topology.New(grid.Dims{X: 3, Y: 1, Z: 1}, []topology.Node{{ID: "a", Service: at("10.0.0.1:7000", "10.0.1.1:7000")},
		{ID: "b", Service: at("10.0.0.2:7000", "10.0.9.9:7000"), Coord: grid.Coord{X: 1}},
		{ID: "c", Coord: grid.Coord{X: 2}, Service: at("10.0.0.3:7000", "10.0.9.9:7001")}}, nil, 1)
	said := config.SupervisorResponses{SupervisorNodes: map[string]string{"s2": "b", "s3": config.NoNode, "s4": "gone"}}
	all := config.SupervisorResponses{SupervisorNodes: map[string]string{"*": config.NoNode, "s1": "c"}}
	for _, tc := range []struct {
		what         string
		c            config.SupervisorResponses
		id           string
		report, grpc string
		node         fault.NodeID
		unknown      bool
	}{
		{"by its report address", config.SupervisorResponses{}, "s1", "10.0.1.1:7001", "192.168.0.1:7002", "a", false},
		{"by its grpc address", config.SupervisorResponses{}, "s1", "192.168.0.1:7001", "10.0.0.2:7002", "b", false},
		{"on a network of its own", config.SupervisorResponses{}, "s1", "192.168.0.1:7001", "192.168.0.1:7002", "", true},
		{"on an address of two nodes", config.SupervisorResponses{}, "s1", "10.0.9.9:7009", "", "", true},
		{"on any address", config.SupervisorResponses{}, "s1", "0.0.0.0:7001", "host:7002", "", true},
		{"as is said", said, "s2", "10.0.0.1:7001", "", "b", false},
		{"on none, as is said", said, "s3", "10.0.0.1:7001", "", "", false},
		{"on one that there is not", said, "s4", "10.0.0.1:7001", "", "", true},
		{"of which nothing is said", said, "s1", "10.0.0.1:7001", "", "a", false},
		{"as all others", all, "s9", "10.0.0.1:7001", "", "", false},
		{"not as all others", all, "s1", "10.0.0.1:7001", "", "c", false},
	} {
		node, unknown := whereIs(top, tc.c, &lofamov1.Supervisor{Id: tc.id, ReportAddress: tc.report, Address: tc.grpc})
		if node != tc.node || unknown != tc.unknown {
			t.Errorf("%s: %q, unknown %t: want %q, %t", tc.what, node, unknown, tc.node, tc.unknown)
		}
	}
}

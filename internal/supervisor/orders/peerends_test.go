package orders

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A node that has enrolled has links at its proved IPs alone, and at ports that nobody else has there.
func TestEnrolledNodeStatesOnlyItsOwnEnds(t *testing.T) {
	t.Parallel()
	at := func(texts ...string) (out []netip.AddrPort) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddrPort(text))
		}
		return out
	}
	n := topology.Node{ID: "n", Proved: true, Spare: true, Service: at("10.0.0.1:7100")}
	other := topology.Node{ID: "other", Proved: true, Spare: true, Service: at("10.0.0.1:8100")}
	lost := topology.Node{ID: "lost", Proved: true, Spare: true}
	listed := topology.Node{ID: "listed", Spare: true}
	ends := func(text string) []*lofamov1.Peer {
		return []*lofamov1.Peer{{Direction: uint32(grid.XPlus), Address: "10.0.0.1:7110"}, {Direction: uint32(grid.XMinus), Address: text}}
	}
	k := &peers{
		cfg: &Config{
			Names: view.NamesOf(topology.New(grid.Dims{}, []topology.Node{n, other, lost, listed}, nil, 1)),
			Own: func() map[netip.AddrPort]string {
				return map[netip.AddrPort]string{at("10.0.0.1:7945")[0]: "the report address"}
			},
			Logger: slog.New(slog.DiscardHandler),
		},
		records: peerRecords{
			"other": {Node: "other", Ends: ends("10.0.0.1:8110")[1:]},
			"lost":  {Node: "lost", Ends: ends("10.0.0.1:7112")[1:]},
		},
		foreign: make(map[fault.NodeID]string),
	}
	for text, why := range map[string]string{
		"10.0.0.1:7111": "", "10.0.0.1:7112": "", // a node that has lost the address had the last one
		"10.0.0.2:7111": "has proved", "127.0.0.1:7111": "has proved", "10.0.0.1:7945": "of a supervisor",
		"10.0.0.1:8100": "of node other", "10.0.0.1:7100": "of node n", "10.0.0.1:8110": "of node other",
	} {
		st := k.ownEnds(n, &lofamov1.PeerStatus{Node: "n", Ends: ends(text)})
		if (len(st.GetEnds()) == 2) != (why == "") || !strings.Contains(k.foreign["n"], why) {
			t.Errorf("%s: %v, because %q: want it to count %v, %q", text, st.GetEnds(), k.foreign["n"], why == "", why)
		}
	}
	if st := k.ownEnds(listed, &lofamov1.PeerStatus{Node: "listed", Ends: ends("10.9.0.1:7111")}); len(st.GetEnds()) != 2 {
		t.Error("an operator has named this node: want its ends to count")
	}
}

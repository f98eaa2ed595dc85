package config

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

func TestWindowNamesBadFields(t *testing.T) {
	for _, tc := range []struct {
		w    WindowConfig
		want []string // none: good
	}{
		{WindowConfig{}, nil},
		{WindowConfig{Listen: "192.0.2.1:7960", Peer: "192.0.2.2:7960"}, nil},
		{WindowConfig{Listen: "192.0.2.1:7960"}, []string{"window.peer"}},
		{WindowConfig{Peer: "192.0.2.1:7960"}, []string{"window.listen"}},
		{WindowConfig{Listen: "card:7960", Peer: "0.0.0.0:7960"}, []string{"window.listen", "card:7960", "window.peer", "0.0.0.0"}},
		{WindowConfig{Listen: "192.0.2.1:7960", Peer: "[2001:db8::2]:7960"}, []string{"window.peer", "family", "192.0.2.1:7960"}},
		{WindowConfig{Listen: "192.0.2.1:7960", Peer: "192.0.2.1:7960"}, []string{"window.peer", "another address"}},
		{WindowConfig{Interface: "a/b"}, []string{"window.interface", "a/b"}},
	} {
		p := &problems{}
		Agent{Window: tc.w, TLS: AgentTLS{DNPCert: "dnp.pem", DNPKey: "dnp.key", HostCert: "host.pem", HostKey: "host.key"}}.validateHalves(p)
		err := p.err()
		if len(tc.want) == 0 && err != nil {
			t.Errorf("%+v: %v", tc.w, err)
		}
		for _, w := range tc.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v: want %q", tc.w, err, w)
			}
		}
	}
}

// TestSpareHasNoWindow: a spare's daemon looks for a place for both halves.
func TestSpareHasNoWindow(t *testing.T) {
	p := &problems{}
	window := WindowConfig{Listen: "192.0.2.1:7960", Peer: "192.0.2.2:7960"}
	Agent{Spare: true, Window: window, TLS: AgentTLS{HostCert: "host.pem", HostKey: "host.key"}}.
		validateHalves(p)
	if err := p.err(); err == nil || !strings.Contains(err.Error(), "spare") || !strings.Contains(err.Error(), "window") {
		t.Errorf("%v", err)
	}
}

func TestHalvesHere(t *testing.T) {
	both, window := []fault.Half{fault.HalfHost, fault.HalfDNP}, WindowConfig{Listen: "192.0.2.1:1"}
	for _, tc := range []struct {
		a    Agent
		want []fault.Half
	}{
		{Agent{}, both},
		{Agent{TLS: AgentTLS{HostCert: "host.pem"}}, both}, // the DNP half's is missing, which is an error
		{Agent{Window: window, TLS: AgentTLS{HostCert: "host.pem", DNPKey: "dnp.key"}}, both},
		{Agent{Window: window, TLS: AgentTLS{HostKey: "host.key"}}, both[:1]},
		{Agent{Window: window, TLS: AgentTLS{DNPCert: "dnp.pem"}}, both[1:]},
	} {
		if got := tc.a.HalvesHere(); !slices.Equal(got, tc.want) {
			t.Errorf("%+v: %v, want %v", tc.a.TLS, got, tc.want)
		}
	}
}

// TestDNPHalfReceivesOwnHostsLines: with a window, the DNP half expects netconsole lines from its own host alone, over the window's
// network. Where its listener would receive nothing, the field is refused. The host half expects its neighbours.
func TestDNPHalfReceivesOwnHostsLines(t *testing.T) {
	window := WindowConfig{Listen: "192.0.2.2:7960", Peer: "192.0.2.1:7960"}
	card := AgentTLS{DNPCert: "dnp.pem", DNPKey: "dnp.key"}
	senders := map[string]fault.NodeID{"192.0.2.1": "n1"}
	for _, tc := range []struct {
		tls  AgentTLS
		n    NetconsoleConfig
		want string // empty: good
	}{
		{card, NetconsoleConfig{}, ""},
		{card, NetconsoleConfig{Listen: "192.0.2.2:6666"}, ""},
		{card, NetconsoleConfig{Listen: "[::ffff:192.0.2.2]:6666"}, ""},
		{card, NetconsoleConfig{Listen: "10.7.0.1:6666"}, "netconsole.listen: given 10.7.0.1:6666: want the IP of window.listen (192.0.2.2)"},
		{card, NetconsoleConfig{Listen: "0.0.0.0:6666"}, "netconsole.listen: given 0.0.0.0:6666: want the IP of window.listen (192.0.2.2)"},
		{card, NetconsoleConfig{Listen: window.Listen},
			"netconsole.listen: given 192.0.2.2:7960: want an address other than that of window.listen"},
		{card, NetconsoleConfig{Listen: "192.0.2.2:6666", Senders: senders}, "netconsole.senders: given 1: want none, because the DNP half " +
			"expects its own host's lines, from window.peer (192.0.2.1:7960)"},
		{AgentTLS{HostCert: "host.pem", HostKey: "host.key"}, NetconsoleConfig{Listen: "10.7.0.1:6666", Senders: senders}, ""},
	} {
		p := &problems{}
		a := Agent{Node: "n1", Window: window, TLS: tc.tls, Netconsole: tc.n}
		a.validateHalves(p)
		a.validateNetconsole(p)
		if err := p.err(); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%+v: %v: want %q", tc.n, err, tc.want)
		}
	}
	a := Agent{Node: "n1-0-0", Coord: "1,0,0", Dims: "3x1x1", Window: window, Links: map[string]LinkAddr{"X+": {Peer: "10.7.0.2:7101"}},
		Netconsole: NetconsoleConfig{Senders: map[string]fault.NodeID{"10.8.0.9": "n9"}}}
	for h, want := range map[fault.Half]map[netip.Addr]fault.NodeID{
		fault.HalfDNP:  {netip.MustParseAddr("192.0.2.1"): "n1-0-0"},
		fault.HalfHost: {netip.MustParseAddr("10.7.0.2"): "n2-0-0", netip.MustParseAddr("10.8.0.9"): "n9"},
	} {
		if got := a.NetconsoleSenders(h); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", h, got, want)
		}
	}
}

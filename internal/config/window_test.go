package config

import (
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

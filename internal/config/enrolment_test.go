package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestJoinConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := func() Agent {
		a := DefaultAgent()
		a.Node = "n1"
		a.Join = JoinConfig{Supervisors: []string{"10.0.0.1:7944", "s2.example.org:7944", "[fd00::1]:7944"}, TokenFile: "/token"}
		return a
	}
	if err := good().ValidateJoin(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Agent){
		"join.supervisors: given 0":     func(a *Agent) { a.Join.Supervisors = nil },
		"join.supervisors[0]":           func(a *Agent) { a.Join.Supervisors = []string{"10.0.0.1"} },
		"join.supervisors[1]":           func(a *Agent) { a.Join.Supervisors[1] = "fd00::1:7944" },
		"given 2:":                      func(a *Agent) { a.Join.ServiceAccountTokenFile = "/t" },
		"join.ca":                       func(a *Agent) { a.Join.TokenFile, a.Join.ServiceAccountTokenFile = "", "/t" },
		"join.cert, join.key":           func(a *Agent) { a.Join.TokenFile, a.Join.Cert, a.Join.CA = "", "/c", "/ca" },
		"join.address":                  func(a *Agent) { a.Join.Address = "0.0.0.0" },
		"join.ports.links: given 65531": func(a *Agent) { a.Join.Ports.Links = 65531 },
		"join.ports.gossip: given 7100": func(a *Agent) { a.Join.Ports.Gossip = 7100 },
		"join.labels":                   func(a *Agent) { a.Join.Labels = map[string]string{"a b": "c"} },
		"dims: given a value":           func(a *Agent) { a.Dims = "2x2x2" },
		"node:":                         func(a *Agent) { a.Node = "a/b" },
		"mtu: given 9:":                 func(a *Agent) { a.MTU = 9 },
		"routing: given x":              func(a *Agent) { a.Routing = "x" },
		"service.spoolBytes: given 5":   func(a *Agent) { a.Service.SpoolBytes = 5 },
		"service.listen: given x":       func(a *Agent) { a.Service.Listen = "x" },
		"join.address: given 192.168.1.5: want with service.listen, the IP of": func(a *Agent) {
			a.Join.Address, a.Service.Listen = "192.168.1.5", "10.0.0.5:7100"
			a.Service.Alternates = []ServiceAddr{{Listen: "10.1.0.5:7100"}}
		},
		"join.address: given nothing: want with": func(a *Agent) { a.Service.Listen = "10.0.0.5:7100" },
		"selfTest.interval: given 1h":            func(a *Agent) { a.SelfTest.Interval = Duration(time.Hour) },
		"jobs.mode":                              func(a *Agent) { a.Jobs.Mode = "x" },
		"window: given a value":                  func(a *Agent) { a.Window.Listen = "10.0.0.1:1" },
	} {
		a := good()
		change(&a)
		if err := a.ValidateJoin(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: want one with %q", err, want)
		}
	}
	for _, address := range []string{"10.0.0.5", "192.168.1.5"} { // links at either service address
		a := good()
		a.Join.Address, a.Service.Listen, a.Service.Alternates = address, "10.0.0.5:7100", []ServiceAddr{{Listen: "192.168.1.5:7100"}}
		if err := a.ValidateJoin(); err != nil {
			t.Errorf("links at %s: %v", address, err)
		}
	}
}

// What a node learns and its own settings make a valid configuration of a spare.
func TestJoinedConfigurationIsValid(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"10.0.0.7", "fd00::7"} {
		a := DefaultAgent()
		a.Node, a.Join = "mine", JoinConfig{Supervisors: []string{"x:1"}, TokenFile: "/t", Ports: JoinPorts{Links: 9000}}
		a.StateDir = "/state"
		ip := netip.MustParseAddr(address)
		at := func(port uint16) string { return netip.AddrPortFrom(ip.Next(), port).String() }
		got := a.With(Joined{
			Cluster: "c", Node: "n1", Preset: PresetFast, Supervisors: []SupervisorAddr{{ID: "s1", Report: at(7945)}}, Gossip: []string{at(7948)},
			GossipKeys: "/g", Address: ip, TLS: AgentTLS{CA: "/ca", HostCert: "/hc", HostKey: "/hk", DNPCert: "/dc", DNPKey: "/dk"},
		})
		if err := got.Validate(); err != nil {
			t.Error(err)
		}
		z := netip.AddrPortFrom(ip, 9005).String()
		if got.Join.Given() || got.Links["Z-"].Local != z || got.StateDir != "/state" || !got.Spare || got.Node != "n1" {
			t.Errorf("joined: %+v: want a spare with Z- at %s", got, z)
		}
	}
}

func TestEnrolmentConfigNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]EnrolmentConfig{
		"nothing without renewal":                  {Listen: "10.0.0.1:7944"},
		"enrolment.kubernetes.audience":            {Kubernetes: EnrolmentKubernetes{ServiceAccounts: []string{"a/b"}}},
		"enrolment.kubernetes.serviceAccounts[0]":  {Kubernetes: EnrolmentKubernetes{Audience: "x", ServiceAccounts: []string{"b"}}},
		"enrolment.kubernetes.forgetNodes":         {Kubernetes: EnrolmentKubernetes{ForgetNodes: true}},
		"enrolment.certificates.ca, enrolment":     {Certificates: EnrolmentCertificates{CA: "/ca"}},
		"enrolment.certificates.uri: given spiffe": {Certificates: EnrolmentCertificates{CA: "/ca", URI: "spiffe://x/node"}},
		"enrolment.forgetAfter: given 1m:":         {ForgetAfter: Duration(60e9)},
	} {
		p := &problems{}
		c.validate(p, false)
		if err := p.err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: want one with %q", err, want)
		}
	}
	x := EnrolmentCertificates{CA: "/ca", URI: "spiffe://x/lofamo/{node}/agent"}
	for uri, want := range map[string]string{
		"spiffe://x/lofamo/n1/agent": "n1", "spiffe://x/lofamo/n1/agent/": "", "spiffe://x/lofamo/a/b/agent": "", "spiffe://x/lofamo//agent": "",
		"spiffe://y/lofamo/n1/agent": "", "spiffe://x/lofamo/agent": "",
	} {
		if got, ok := x.NodeOf(uri); ok != (want != "") || ok && string(got) != want {
			t.Errorf("node of %s is %q, %v: want %q", uri, got, ok, want)
		}
	}
}

func TestEnrolmentPortHasDefault(t *testing.T) {
	for address, want := range map[string]string{
		"head": "head:7944", "10.0.0.1": "10.0.0.1:7944", "fd00::1": "[fd00::1]:7944", "[fd00::1]": "[fd00::1]:7944",
		"fe80::1%eth0": "[fe80::1%eth0]:7944", "head:1": "head:1", "10.0.0.1:1": "10.0.0.1:1", "[fd00::1]:1": "[fd00::1]:1", "": "",
		"head:": "head:", "fd00::1:x": "fd00::1:x", "[head": "[head",
	} {
		if got := WithEnrolmentPort(address); got != want {
			t.Errorf("WithEnrolmentPort(%q) = %q, want %q", address, got, want)
		}
	}
}

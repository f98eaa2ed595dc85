package cluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// plan is a plan for a 2x1x1 torus with one supervisor and two service networks.
func plan() *Addresses {
	a := &Addresses{Supervisors: []SupervisorAddresses{{
		GRPC: "10.1.0.1:9000", HTTP: "10.1.0.1:9001", EtcdPeer: "10.1.0.1:9002", EtcdClient: "10.1.0.1:9003",
		Gossip: "10.2.0.1:9001", Report: []string{"10.2.0.1:9000", "10.4.0.1:9000"},
	}}}
	for r := range 2 {
		a.Nodes = append(a.Nodes, NodeAddresses{
			Service: []config.ServiceAddr{
				{Listen: fmt.Sprintf("10.2.1.%d:9000", r), Interface: "svc0"}, {Listen: fmt.Sprintf("10.4.1.%d:9000", r), Interface: "svc1"},
			},
			Gossip: fmt.Sprintf("10.2.1.%d:9001", r),
			Links: map[grid.Direction]LinkAddress{
				grid.XPlus:  {Listen: fmt.Sprintf("10.3.0.%d:9000", r), Interface: "tx+"},
				grid.XMinus: {Listen: fmt.Sprintf("10.3.0.%d:9000", 3-r), Interface: "tx-"},
			},
		})
	}
	return a
}

func TestAddressesAsGiven(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, ServiceInterfaces: 2, Addresses: plan()})
	n := c.info.Nodes[1]
	cfg, err := config.LoadAgent(filepath.Join(c.nodeDir(n.ID), "agent.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := config.LinkAddr{Local: "10.3.0.1:9000", Peer: "10.3.0.3:9000", PeerNode: "n0-0-0", Interface: "tx+"}
	if got := cfg.Links["X+"]; got != want {
		t.Errorf("link X+ %v, want %v", got, want)
	}
	if s := cfg.Service; s.Listen != "10.2.1.1:9000" || s.GossipListen != "10.2.1.1:9001" || s.Interface != "svc0" ||
		!slices.Equal(s.GossipJoin, []string{"10.2.0.1:9001"}) {
		t.Errorf("service %+v", s)
	}
	if got, want := cfg.Service.Alternates, plan().Nodes[1].Service[1:]; !slices.Equal(got, want) {
		t.Errorf("further service interfaces %v, want %v", got, want)
	}
	if want := []config.SupervisorAddr{{ID: "sup-0", Report: "10.2.0.1:9000", Alternates: []string{"10.4.0.1:9000"}}}; !reflect.DeepEqual(
		cfg.Supervisors, want) {
		t.Errorf("supervisors %v, want %v", cfg.Supervisors, want)
	}
	if cfg.Sensors.ServiceInterface != "svc0" || n.Interface != "svc0" {
		t.Errorf("sensors watch %q, the node has %q", cfg.Sensors.ServiceInterface, n.Interface)
	}
	sup := c.info.Supervisors[0]
	if sup.GRPC != "10.1.0.1:9000" || sup.Report != "10.2.0.1:9000" {
		t.Errorf("supervisor %+v", sup)
	}
	b, err := os.ReadFile(c.PKI(sup.ID + ".pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	ips := []net.IP{net.IPv4(10, 1, 0, 1), net.IPv4(10, 2, 0, 1), net.IPv4(10, 4, 0, 1)}
	if !slices.EqualFunc(cert.IPAddresses, ips, net.IP.Equal) {
		t.Errorf("the certificate is for %v, want %v", cert.IPAddresses, ips)
	}
	if err := c.freePorts(); err != nil {
		t.Errorf("given addresses are looked for on this machine: %v", err)
	}
}

func TestRealInterfaceIsSeenAndNotPretended(t *testing.T) {
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, ServiceInterfaces: 2, Addresses: plan()})
	if _, err := os.Stat(filepath.Join(c.nodeDir("n0-0-0"), "sys/class/net/lo/carrier")); err != nil {
		t.Errorf("the sensors do not see the machine's interfaces: %v", err)
	}
	_, err := c.Inject(context.Background(), "n0-0-0", faultOf(t, "sensor carrier 0"))
	if err == nil || !strings.Contains(err.Error(), "real interface svc0") {
		t.Errorf("a real carrier pretended away: %v", err)
	}
	if err := c.resetSensor(c.info.Nodes[0], ""); err != nil {
		t.Errorf("heal: %v", err)
	}
}

func TestInvalidAddressesAreRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Addresses)
		want   string
	}{
		{"supervisors", func(a *Addresses) { a.Supervisors = nil }, "given those of 0 supervisors: want 1"},
		{"nodes", func(a *Addresses) { a.Nodes = a.Nodes[:1] }, "given those of 1 node: want 2"},
		{"links", func(a *Addresses) { delete(a.Nodes[1].Links, grid.XMinus) }, "node of rank 1: no link X-"},
		{"report addresses", func(a *Addresses) { a.Supervisors[0].Report = a.Supervisors[0].Report[:1] },
			"supervisor 0: given 1 report addresses: want 2"},
		{"service interfaces", func(a *Addresses) { a.Nodes[1].Service = nil }, "node of rank 1: given 0 service interfaces: want 2"},
		{"supervisor's address", func(a *Addresses) { a.Supervisors[0].Report[1] = "here" }, `"here": want ip:port`},
		{"node's address", func(a *Addresses) { a.Nodes[0].Service[0].Listen = "there" }, "nodes[0].service: given there"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := plan()
			tc.change(a)
			_, err := Create(Options{Dir: filepath.Join(shortTempDir(t), "c"), Dims: dims(t, "2"), Supervisors: 1, ServiceInterfaces: 2,
				Addresses: a})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCommandWrapsProgram(t *testing.T) {
	dir := shortTempDir(t)
	for _, name := range []string{agentProgram, supervisorProgram} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var member string
	var wrapped []string
	c := create(t, Options{Dims: dims(t, "2"), Supervisors: 1, BinDir: dir, Command: func(m string, argv []string) []string {
		member, wrapped = m, argv
		return append([]string{"/bin/sh", "-c", `echo "$@"`, "sh"}, argv...)
	}})
	c.exited = make(chan Exit, 1)
	if err := c.startNode(1); err != nil {
		t.Fatal(err)
	}
	if e := <-c.exited; e.Err != nil || e.Name != "node n1-0-0" {
		t.Errorf("ended as %q: %v", e.Name, e.Err)
	}
	b, err := os.ReadFile(filepath.Join(c.nodeDir("n1-0-0"), "run.log"))
	if err != nil {
		t.Fatal(err)
	}
	if member != "n1-0-0" || wrapped[0] != filepath.Join(dir, agentProgram) || strings.TrimSpace(string(b)) != strings.Join(wrapped, " ") {
		t.Errorf("member %q, command %q, run as %q", member, wrapped, b)
	}
}

package integration

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

var (
	at0   = grid.Coord{}
	at1   = grid.Coord{X: 1}
	host0 = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}
	dnp0  = fault.Origin{Node: "n0-0-0", Half: fault.HalfDNP}
	host1 = fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}
)

func (n *testNet) awaitHealthy() {
	n.t.Helper()
	for rank := range n.dims.Nodes() {
		id := fault.DefaultNodeID(n.dims.At(rank))
		o := fault.Origin{Node: id, Half: fault.HalfHost}
		n.super.awaitState(o, id, fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
		for _, d := range n.dims.Links() {
			n.super.awaitState(o, id, fault.Link(d), fault.Normal, fault.KindSelf)
		}
	}
}

// When the DNP half dies, its host reports it, and the neighbour reports silence. When it comes back, both report
// that as well.
func TestDeadDNPHalfIsReported(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, checkedMemory)
	n.startAll()
	n.awaitHealthy()
	n.super.forget()
	n.halt(at0, fault.HalfDNP)
	s := n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
	if s.path != fault.PathDirect || s.obs.Age <= 0 {
		t.Errorf("%s, age %s: want DIRECT and an age", s, s.obs.Age)
	}
	for _, d := range n.dims.Links() {
		n.super.awaitState(host1, "n1-0-0", fault.Link(d), fault.Failed, fault.KindSilence)
	}
	n.super.forget()
	n.start(at0, fault.HalfDNP)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	n.super.awaitState(host1, "n1-0-0", fault.Link(grid.XPlus), fault.Normal, fault.KindSelf)
}

// When the host half dies, its DNP half reports it through the neighbour, which also reports it from its own
// registers. Both withdraw the report when the host is back.
func TestDeadHostHalfIsReported(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, nil)
	n.startAll()
	n.awaitHealthy()
	n.super.forget()
	n.halt(at0, fault.HalfHost)
	s := n.super.awaitState(dnp0, "n0-0-0", fault.ComponentHost, fault.Failed, fault.KindWatchdog)
	if s.path != fault.PathTorus || len(s.hops) < 2 || s.hops[len(s.hops)-1].Node != "n1-0-0" {
		t.Errorf("%s, hops %v: want TORUS through n1-0-0", s, s.hops)
	}
	n.super.awaitState(host1, "n0-0-0", fault.ComponentHost, fault.Failed, fault.KindDescriptor)
	// While the host is dead the DNP half reports for the node.
	n.super.awaitState(dnp0, "n0-0-0", fault.Link(grid.XPlus), fault.Normal, fault.KindSelf)
	n.super.forget()
	n.start(at0, fault.HalfHost)
	n.super.awaitState(dnp0, "n0-0-0", fault.ComponentHost, fault.Normal, fault.KindWatchdog)
	n.super.awaitState(host1, "n0-0-0", fault.ComponentHost, fault.Normal, fault.KindDescriptor)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentHost, fault.Normal, fault.KindSelf)
}

// A challenge to either half is answered by whichever way it comes, as long as that half lives.
func TestChallengeIsAnsweredOnEveryPath(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, nil)
	n.startAll()
	n.awaitHealthy()
	ask := func(half lofamov1.Half, to grid.Coord, path fault.Path) fault.Origin {
		addr := netip.MustParseAddrPort(n.cfgs[to].Service.Listen)
		return n.super.awaitOneAnswer(func(nonce string) {
			c := &lofamov1.Challenge{Nonce: []byte(nonce), Node: "n0-0-0", Half: half, ReplyTo: n.super.net.LocalAddr().String()}
			n.super.send(addr, "n0-0-0", path, &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: c}})
		})
	}
	for _, tc := range []struct {
		half lofamov1.Half
		to   grid.Coord
		path fault.Path
		want fault.Origin
	}{
		{lofamov1.Half_HALF_HOST, at0, fault.PathDirect, host0},
		{lofamov1.Half_HALF_UNSPECIFIED, at0, fault.PathDirect, host0},
		{lofamov1.Half_HALF_DNP, at0, fault.PathDirect, dnp0},
		{lofamov1.Half_HALF_HOST, at1, fault.PathTorus, host0},
		{lofamov1.Half_HALF_DNP, at1, fault.PathTorus, dnp0},
	} {
		if got := ask(tc.half, tc.to, tc.path); got != tc.want {
			t.Errorf("challenge to %s by %s answered by %s, want %s", tc.half, tc.path, got, tc.want)
		}
	}
	n.halt(at0, fault.HalfHost)
	if got := ask(lofamov1.Half_HALF_UNSPECIFIED, at1, fault.PathTorus); got != dnp0 {
		t.Errorf("with the host dead: answered by %s", got)
	}
}

// Both halves believe words written into the registers from outside, as in the paper. The host half reports the
// content of the DNP word. The DNP half sends the content of the host word to the neighbours, and they put it into
// their own registers.
func TestHalvesBelieveRegistersWrittenOutside(t *testing.T) {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, nil)
	n.start(at0, fault.HalfHost)
	n.start(at1, fault.HalfHost)
	n.start(at1, fault.HalfDNP)
	pokeDNP := newPoker(t, filepath.Join(n.cfgs[at0].StateDir, half.RegisterFile))
	pokeDNP.dnp(linkBroken(grid.XPlus))
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	n.super.await("link X+ broken", func(s said) bool {
		return s.by == host0 && s.obs.Component == fault.Link(grid.XPlus) && s.obs.State == fault.Failed
	})
	pokeDNP.dnp(neighbourHostDead(grid.XMinus))
	n.super.awaitState(host0, "n1-0-0", fault.ComponentHost, fault.Failed, fault.KindDescriptor)
	pokeDNP.stop()
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog)

	n.halt(at0, fault.HalfHost)
	pokeHost := newPoker(t, filepath.Join(n.cfgs[at0].StateDir, half.RegisterFile))
	pokeHost.host(memoryBroken())
	n.start(at0, fault.HalfDNP)
	n.super.awaitState(host1, "n0-0-0", fault.ComponentMemory, fault.Failed, fault.KindDescriptor)
	n.super.forget()
	pokeHost.stop()
	s := n.super.awaitState(host1, "n0-0-0", fault.ComponentHost, fault.Failed, fault.KindDescriptor)
	if s.obs.Detail != "last known cause: memory broken" {
		t.Errorf("a host that died with a cause: detail %q", s.obs.Detail)
	}
}

// If the register file is truncated or unlinked, neither half dies, both recreate it, and the watchdogs work on.
func TestRegisterFileIsMended(t *testing.T) {
	for name, harm := range map[string]func(string) error{
		"truncated": func(p string) error { return os.Truncate(p, 0) },
		"unlinked":  os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, nil)
			n.startAll()
			n.awaitHealthy()
			path := filepath.Join(n.cfgs[at0].StateDir, half.RegisterFile)
			if err := harm(path); err != nil {
				t.Fatal(err)
			}
			f := n.awaitFile(path)
			defer func() { _ = f.Close() }()
			// Both halves write into the new page.
			agenttest.Await(n.t, "the DNP word", func() bool { _, raw, err := f.LoadDNP(); return err == nil && raw != 0 })
			agenttest.Await(n.t, "the host word", func() bool { _, raw, err := f.LoadHost(); return err == nil && raw != 0 })
			n.super.forget()
			n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
			n.halt(at0, fault.HalfDNP)
			n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
		})
	}
}

func (n *testNet) awaitFile(path string) *regfile.File {
	n.t.Helper()
	var f *regfile.File
	agenttest.Await(n.t, "a register file at "+path, func() bool {
		var err error
		f, err = regfile.OpenReadOnly(path)
		return err == nil
	})
	return f
}

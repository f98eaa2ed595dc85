package integration

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// newWindowNet makes two nodes, of which the first has a state directory for each half and a window between them.
func newWindowNet(t *testing.T) *testNet {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, func(c *config.Agent) { c.Injection = true })
	host, dnp := n.cfgs[at0], n.cfgs[at0]
	dnp.StateDir = n.path("dnp0")
	if err := os.Mkdir(dnp.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	a, b := freeport.Addr(t).String(), freeport.Addr(t).String()
	host.Window = config.WindowConfig{Listen: a, Peer: b}
	dnp.Window = config.WindowConfig{Listen: b, Peer: a}
	host.TLS.DNPCert, host.TLS.DNPKey, dnp.TLS.HostCert, dnp.TLS.HostKey = "", "", "", ""
	n.cfgs[at0] = host
	n.apart = map[fault.Origin]config.Agent{dnp0: dnp}
	return n
}

// cutWindow cuts the window at both ends, or joins it.
func (n *testNet) cutWindow(cut bool) {
	n.t.Helper()
	body := `{"cut":false}`
	if cut {
		body = `{"cut":true}`
	}
	n.postTo(filepath.Join(n.cfgs[at0].StateDir, half.HostInjectSock), "/window", body)
	n.postTo(filepath.Join(n.apart[dnp0].StateDir, half.DNPInjectSock), "/window", body)
}

func (n *testNet) awaitWindow() {
	n.t.Helper()
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentBus, fault.Normal, fault.KindSelf)
	for _, d := range n.dims.Links() {
		n.super.awaitState(host0, "n0-0-0", fault.Link(d), fault.Normal, fault.KindSelf)
	}
}

// TestHalvesWithoutSharedDirectory: the registers, the messages and the watchdogs of two halves work through a window.
func TestHalvesWithoutSharedDirectory(t *testing.T) {
	n := newWindowNet(t)
	n.startAll()
	n.awaitWindow()
	s := n.awaitStatus(at0, "a window", func(s local.Status) bool { return s.Window != nil && s.Window.State == "alive" && s.DNP.Epoch != 0 })
	if s.Platform != config.PlatformSharedKernel || s.Window.Statements == 0 || s.Window.Sessions == 0 {
		t.Errorf("status: platform %s, window %+v", s.Platform, s.Window)
	}
	// A challenge to the DNP half by its host half, and the answer, are messages of the mailbox.
	n.awaitDNPAnswers()
	n.super.forget()

	n.halt(at0, fault.HalfDNP)
	f := n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
	if !f.obs.Ended {
		t.Errorf("%s: the kernel's refusals are not reported", f)
	}
	if got := n.awaitStatus(at0, "refusals", func(s local.Status) bool { return s.Window.State == "refused" }); got.Window.Refusals == 0 {
		t.Errorf("%+v", got.Window)
	}
	n.super.noneOf(t, fault.ComponentBus, fault.Failed)
	n.super.forget()
	n.start(at0, fault.HalfDNP)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
	n.super.forget()

	n.halt(at0, fault.HalfHost)
	f = n.super.awaitState(dnp0, "n0-0-0", fault.ComponentHost, fault.Failed, fault.KindWatchdog)
	if !f.obs.Ended || f.path != fault.PathTorus {
		t.Errorf("%s", f)
	}
	n.super.noneOf(t, fault.ComponentBus, fault.Failed)
	n.super.forget()
	n.start(at0, fault.HalfHost)
	n.super.awaitState(dnp0, "n0-0-0", fault.ComponentHost, fault.Normal, fault.KindWatchdog)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentHost, fault.Normal, fault.KindSelf)
}

// TestCutWindowIsSilence: both halves state a silent bus, each in the report that accuses the other half, and neither is
// taken for ended.
func TestCutWindowIsSilence(t *testing.T) {
	n := newWindowNet(t)
	n.startAll()
	n.awaitWindow()
	n.super.forget()
	n.cutWindow(true)
	for _, by := range []fault.Origin{host0, dnp0} {
		s := n.super.awaitState(by, "n0-0-0", fault.ComponentBus, fault.Failed, fault.KindSilence)
		if s.obs.Age <= 0 || s.obs.Age > 5*time.Second || s.obs.Detail != "window silent" {
			t.Errorf("%s, age %s", s, s.obs.Age)
		}
	}
	if s := n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog); s.obs.Ended {
		t.Errorf("%s: ended", s)
	}
	n.super.forget()
	n.cutWindow(false)
	for _, by := range []fault.Origin{host0, dnp0} {
		n.super.awaitState(by, "n0-0-0", fault.ComponentBus, fault.Normal, fault.KindSelf)
	}
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Normal, fault.KindWatchdog)
}

// TestPlaceOfOtherHalfIsTaken: with a window, no second DNP half may use the host half's state directory.
func TestPlaceOfOtherHalfIsTaken(t *testing.T) {
	n := newWindowNet(t)
	n.start(at0, fault.HalfHost)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentBus, fault.Failed, fault.KindSilence) // nobody at the other end
	cfg := n.cfgs[at0]
	cfg.Window = config.WindowConfig{}
	cfg.TLS.DNPCert, cfg.TLS.DNPKey = n.apart[dnp0].TLS.DNPCert, n.apart[dnp0].TLS.DNPKey
	n.refuses(cfg, fault.HalfDNP, "second agent on the same register file")
}

func (n *testNet) awaitDNPAnswers() {
	n.t.Helper()
	got := n.super.awaitOneAnswer(func(nonce string) {
		c := &lofamov1.Challenge{Nonce: []byte(nonce), Node: "n0-0-0", Half: lofamov1.Half_HALF_DNP, ReplyTo: n.super.net.LocalAddr().String()}
		to, m := netip.MustParseAddrPort(n.cfgs[at0].Service.Listen), &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: c}}
		n.super.send(to, "n0-0-0", fault.PathDirect, m)
	})
	if got != dnp0 {
		n.t.Errorf("the challenge is answered by %s", got)
	}
}

// noneOf fails if a half of the first node has stated the component so.
func (f *fakeSupervisor) noneOf(t *testing.T, c fault.Component, s fault.State) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.heard {
		if h.obs.Node == "n0-0-0" && h.obs.Component == c && h.obs.State == s {
			t.Errorf("%s", h)
		}
	}
}

// refuses runs a half, which must end at once with an error.
func (n *testNet) refuses(cfg config.Agent, h fault.Half, want string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), bound)
	defer cancel()
	run := host.Run
	if h == fault.HalfDNP {
		run = dnp.Run
	}
	if err := run(ctx, cfg, half.SchedulingDefault, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
		n.t.Errorf("error %v: want %q", err, want)
	}
}

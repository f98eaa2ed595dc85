package integration

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/dnp"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// newWindowNet makes two nodes, of which the first has a state directory for each half and a window between them.
func newWindowNet(t *testing.T, edits ...func(*config.Agent)) *testNet {
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, func(c *config.Agent) {
		c.Injection = true
		for _, edit := range edits {
			edit(c)
		}
	})
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

// awaitSettledDNP waits until the changes of the DNP half's start are too old for the report of its host's death. That report also has the
// changes from up to a read period before the last valid word, and they would leave less room for the last words of the host's kernel.
func (n *testNet) awaitSettledDNP() {
	n.t.Helper()
	written := func(s local.Status) bool { return s.Window != nil && s.Window.State == "alive" }
	from := n.awaitStatus(at0, "the window", written).Window.Statements
	n.awaitStatus(at0, "words of the DNP half", func(s local.Status) bool { return written(s) && s.Window.Statements >= from+10 })
}

// TestHalvesWithoutSharedDirectory: the registers, the messages and the watchdogs of two halves work through a window.
func TestHalvesWithoutSharedDirectory(t *testing.T) {
	n := newWindowNet(t, func(c *config.Agent) { // even on a busy machine, a refusal comes before the verdict
		write, read := config.Duration(50*time.Millisecond), config.Duration(2*time.Second)
		c.Periods = &config.PeriodsOverride{TWrite: &write, TRead: &read}
	})
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

// TestDNPHalfReceivesLastWordsOfItsHost: netconsole lines from the host's address come to the supervisors with the report of the host's
// death, through the torus. Lines from other addresses do not.
func TestDNPHalfReceivesLastWordsOfItsHost(t *testing.T) {
	n := newWindowNet(t)
	card := n.apart[dnp0]
	card.Netconsole.Listen = freeport.Addr(t).String()
	n.apart[dnp0] = card
	n.startAll()
	n.awaitWindow()
	const line = "Kernel panic - not syncing: Fatal exception in interrupt"
	host := netip.MustParseAddrPort(card.Window.Peer).Addr()
	send := func(from netip.Addr, text string) {
		t.Helper()
		d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
		c, err := d.DialContext(t.Context(), "udp", card.Netconsole.Listen)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	n.awaitSettledDNP()
	n.super.forget()
	n.cutWindow(true) // the host's kernel falls silent
	send(host.Next(), "[ 1.0] Kernel panic - not syncing: stranger\n")
	send(host, "[ 812.004711] "+line+"\n[ 812.004733] Call Trace:\n")
	var words *lofamov1.LastWords
	n.super.awaitThat("the last words of the host's kernel", func() bool {
		words = n.super.words[dnp0]
		return words != nil
	})
	if words.GetNode() != "n0-0-0" || words.GetFrom() != host.String() || words.GetEnd() != lofamov1.BootEnd_BOOT_PANIC ||
		words.GetLine() != line || words.GetSerial() == 0 {
		t.Errorf("%v", words)
	}
	n.super.awaitState(dnp0, "n0-0-0", fault.ComponentHost, fault.Failed, fault.KindWatchdog)
	n.super.awaitState(dnp0, "n0-0-0", fault.ComponentBus, fault.Failed, fault.KindSilence)
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

// TestBothEndsAreDNPHalves: the end on the host's kernel runs the DNP half by mistake. After its grace the DNP half does not know the
// state of the host half. It calls neither the host nor the bus FAILED, and the reports of its own parts go out. Then the host half
// takes its place.
func TestBothEndsAreDNPHalves(t *testing.T) {
	n := newWindowNet(t)
	n.start(grid.Coord{X: 1}, fault.HalfHost)
	n.start(grid.Coord{X: 1}, fault.HalfDNP)
	wrong := n.apart[dnp0]
	wrong.StateDir, wrong.Window, wrong.Links = n.path("wrong"), n.cfgs[at0].Window, map[string]config.LinkAddr{}
	for d := range n.apart[dnp0].Links { // its neighbours accept links from the card's machine alone
		wrong.Links[d] = config.LinkAddr{Local: freeport.Addr(t).String(), Peer: freeport.Addr(t).String()}
	}
	if err := os.Mkdir(wrong.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- dnp.Run(ctx, wrong, half.SchedulingDefault, slog.New(slog.DiscardHandler)) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	defer stop()
	n.start(at0, fault.HalfDNP)
	n.super.awaitState(dnp0, "n0-0-0", fault.ComponentHost, fault.Unknown, fault.KindWatchdog)
	n.super.awaitState(dnp0, "n0-0-0", fault.Link(grid.XPlus), fault.Normal, fault.KindSelf)
	n.super.noneOf(t, fault.ComponentHost, fault.Failed)
	n.super.noneOf(t, fault.ComponentBus, fault.Failed)
	stop()
	n.start(at0, fault.HalfHost)
	n.awaitWindow()
}

// TestSecondHostHalfDisturbsNobody: a second process with the host half's certificate gets a session with the DNP half, and the first
// one keeps the window.
func TestSecondHostHalfDisturbsNobody(t *testing.T) {
	n := newWindowNet(t, func(c *config.Agent) { // a lease that outlasts the pauses of a busy machine
		write, read := config.Duration(50*time.Millisecond), config.Duration(2*time.Second)
		c.Periods = &config.PeriodsOverride{TWrite: &write, TRead: &read}
	})
	n.startAll()
	n.awaitWindow()
	alive := func(s local.Status) bool { return s.Window.State == "alive" && s.Window.Statements > 0 }
	before := n.awaitStatus(at0, "the window", alive).Window
	second := n.cfgs[at0]
	second.StateDir, second.Service.Listen = n.path("second"), freeport.Addr(t).String()
	second.Service.GossipListen, second.HTTP = "", ""
	second.Window.Listen = freeport.Addr(t).String()
	if err := os.Mkdir(second.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- host.Run(ctx, second, half.SchedulingDefault, slog.New(slog.DiscardHandler)) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for range 2 { // the second process asks again for a session, as it hears nothing
		var sessions uint64
		agenttest.Await(t, "a session of the second process", func() bool {
			s, err := local.AskStatus(context.Background(), second.StateDir)
			was := sessions
			if err == nil && s.Window != nil {
				sessions = s.Window.Sessions
			}
			return sessions > was
		})
		from := n.awaitStatus(at0, "the window", func(s local.Status) bool { return s.Window != nil }).Window.Statements
		got := n.awaitStatus(at0, "statements of the DNP half", func(s local.Status) bool { return s.Window.Statements > from+20 })
		if w := got.Window; w.Sessions != before.Sessions || w.OldSession > before.OldSession {
			t.Fatalf("the holder had %d sessions, and now %d; frames of other sessions: %d", before.Sessions, w.Sessions, w.OldSession)
		}
	}
}

// TestResponseRestartsHalfOfOtherKernel: an order to restart the DNP half reaches the daemon on that half's kernel, directly and
// through the torus. If that half is dead, the order is refused, and the refusal says where to restart it.
func TestResponseRestartsHalfOfOtherKernel(t *testing.T) {
	n := newWindowNet(t, func(c *config.Agent) { c.Responses.RestartHalf = true })
	n.startAll()
	n.awaitWindow()
	n.serveDoerOf(n.apart[dnp0], fault.HalfDNP, func(_ context.Context, h fault.Half, _ string, _ func(string) error) actions.Result {
		return actions.Result{State: actions.Done, Detail: h.String() + " restarted"}
	})
	order := func(response string) *lofamov1.ActOrder {
		return &lofamov1.ActOrder{Token: 5, Response: response, Attempt: 1, Kind: actions.KindRestartHalf,
			Parameters: []*lofamov1.ActParameter{{Name: "half", Value: "dnp"}}}
	}
	for i, path := range []fault.Path{fault.PathDirect, fault.PathTorus} {
		via := []grid.Coord{at0, {X: 1}}[i]
		if st := n.act(at0, via, path, order(fmt.Sprintf("r6-%d", i))); st.GetState() != lofamov1.ActState_ACT_DONE ||
			st.GetDetail() != "dnp restarted" || st.GetHalf() != lofamov1.Half_HALF_DNP {
			t.Errorf("path %s: %v", path, st)
		}
	}
	n.super.forget()
	n.halt(at0, fault.HalfDNP)
	n.super.awaitState(host0, "n0-0-0", fault.ComponentDNP, fault.Failed, fault.KindWatchdog)
	o := order("r7-1")
	o.Node, o.ReplyTo, o.Ask, o.TimeoutMs = "n0-0-0", n.super.net.LocalAddr().String(), true, 30_000
	var st *lofamov1.ActStatus
	n.super.awaitAsking("a refusal", func() bool { st = n.super.acts["n0-0-0r7-11"]; return st != nil }, func() {
		n.super.send(netip.MustParseAddrPort(n.cfgs[at0].Service.Listen), "n0-0-0", fault.PathDirect,
			&lofamov1.Message{Body: &lofamov1.Message_ActOrder{ActOrder: o}})
	})
	if st.GetState() != lofamov1.ActState_ACT_UNCHANGED || !strings.Contains(st.GetDetail(), "the dnp half has another kernel") {
		t.Errorf("%v", st)
	}
}

// TestRestartIsAnnouncedThroughWindow: the host half reports the notice of the DNP half's daemon on the other kernel once, and then its
// end. It ignores notices that are malformed or too long.
func TestRestartIsAnnouncedThroughWindow(t *testing.T) {
	n := newWindowNet(t)
	n.startAll()
	n.awaitWindow()
	tell := func(payload []byte) {
		t.Helper()
		if err := mailbox.Tell(n.apart[dnp0].StateDir, fault.HalfHost, mailbox.Message{Type: mailbox.Restart, Payload: payload}); err != nil {
			t.Fatal(err)
		}
	}
	announced := func(within time.Duration, count int) {
		t.Helper()
		n.super.awaitThat("a restart notice", func() bool { return len(n.super.restarts) >= count })
		n.super.mu.Lock()
		defer n.super.mu.Unlock()
		if got := n.super.restarts; len(got) != count || got[count-1] != (fault.RestartNotice{Half: fault.HalfDNP, Within: within}) {
			t.Errorf("%v", got)
		}
	}
	tell([]byte{1, 2, 3})
	tell(half.AppendRestart(nil, fault.MaxRestart+time.Second))
	for range 3 {
		tell(half.AppendRestart(nil, 20*time.Second))
	}
	announced(20*time.Second, 1)
	agenttest.Await(t, "the end of the restart", func() bool {
		tell(half.AppendRestart(nil, 0))
		n.super.mu.Lock()
		defer n.super.mu.Unlock()
		return len(n.super.restarts) == 2
	})
	announced(0, 2)
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

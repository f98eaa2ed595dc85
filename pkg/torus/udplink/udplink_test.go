package udplink

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/attempts"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/testing/freeport"
)

func TestHeartbeatsUnderSession(t *testing.T) {
	a, b := pairOf(t)
	a.misses, b.misses = 500, 500
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()
	a.until("told of b", func(o torus.LinkOutput, _ torus.LinkStats) bool {
		return o.Peer == torus.PeerStatus{DNP: 0xd, Host: uint32(grid.XMinus), Answers: true, Epoch: 1}
	})
	if of, at := a.sessionIDs(), b.sessionIDs(); len(of) == 0 || !slices.Contains(at, of[0]) {
		t.Errorf("sessions %x and %x", of, at)
	}
}

func TestOneWayBlockIsSeenFromBothEnds(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()

	a.link.SetFaults(LinkFaults{BlockOut: true})
	b.until("silent", func(o torus.LinkOutput, _ torus.LinkStats) bool {
		return o.State == torus.LinkBroken && o.Detail.Silent
	})
	a.until("unheard", func(o torus.LinkOutput, _ torus.LinkStats) bool {
		return o.State == torus.LinkBroken && o.Detail.Handshake && o.Detail.Rx == torus.LinkNormal
	})
	if a.link.Stats().FaultedOut == 0 {
		t.Error("injected faults were not counted")
	}
	a.link.SetFaults(LinkFaults{})
	a.untilNormal()
	b.untilNormal()

	a.link.SetFaults(LinkFaults{BlockIn: true})
	a.until("silent", func(o torus.LinkOutput, _ torus.LinkStats) bool { return o.Detail.Silent })
	a.untilLog(func(line string) bool { return strings.Contains(line, errBlocked.Error()) })
	a.link.SetFaults(LinkFaults{})
	a.untilNormal()
}

func TestCorruptionMakesReceiverCallLinkSick(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()
	b.link.SetFaults(LinkFaults{CorruptIn: 0.3})
	b.until("sick", func(o torus.LinkOutput, s torus.LinkStats) bool {
		return o.State == torus.LinkSick && s.CRC >= 5 && s.MAC == 0
	})
	a.until("normal", func(o torus.LinkOutput, _ torus.LinkStats) bool { return o.State == torus.LinkNormal })
	b.link.SetFaults(LinkFaults{})
	b.untilNormal()
}

func TestForgeriesAndStrangers(t *testing.T) {
	a, b := pairOf(t)
	a.misses, b.misses = 500, 500
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()

	ids := b.sessionIDs()
	id := ids[len(ids)-1]
	forger := torus.NewSession(id, [torus.KeySize]byte{1}, [torus.KeySize]byte{2})
	for seq := uint64(1000); seq < 1010; seq++ {
		f := torus.Frame{Type: torus.TypeHeartbeat, Direction: grid.XPlus, Dst: grid.Coord{X: 1}, Session: id, Seq: seq, Epoch: 9}
		wire, err := f.Append(nil, forger)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.link.Send(wire); err != nil {
			t.Fatal(err)
		}
	}
	b.until("aware of ten forgeries, and unmoved", func(o torus.LinkOutput, s torus.LinkStats) bool {
		return s.MAC == 10 && s.CRC == 0 && o.State == torus.LinkNormal && o.Peer.Epoch == 1
	})

	stranger, err := net.Dial("udp4", b.link.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	for range 10 {
		if _, err := stranger.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	b.until("rid of ten strangers", func(o torus.LinkOutput, s torus.LinkStats) bool {
		return b.link.Stats().Dropped == 10 && s.Malformed == 0 && o.State == torus.LinkNormal
	})
}

func TestWrongCertificateIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(a, b *node)
		log    string // at b
	}{
		{"another node's", func(a, _ *node) { a.cfg.TLS = a.ca.config("c") }, `want "a"`},
		{"by another authority", func(a, b *node) {
			foreign := newAuthority(t).config("a")
			foreign.RootCAs = b.cfg.TLS.RootCAs
			a.cfg.TLS = foreign
		}, "unknown authority"},
		{"none", func(a, _ *node) {
			a.cfg.TLS = a.cfg.TLS.Clone()
			a.cfg.TLS.GetClientCertificate = noCertificate
		}, "didn't provide a certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := pairOf(t)
			tc.change(a, b)
			b.start()
			a.start()
			b.untilLog(func(line string) bool { return strings.Contains(line, "accept") && strings.Contains(line, tc.log) })
			a.untilLog(func(line string) bool { return strings.Contains(line, "handshake failed") })
			if s := b.link.Stats(); s.Handshakes != 0 || s.HandshakeFailures == 0 {
				t.Errorf("%+v", s)
			}
			if s := a.link.Stats(); s.Handshakes != 0 {
				t.Errorf("the refused end has a session: %+v", s)
			}
		})
	}
	t.Run("acceptor's", func(t *testing.T) {
		a, b := pairOf(t)
		a.cfg.VerifyPeer = only("somebody else")
		b.start()
		a.start()
		a.untilLog(func(line string) bool { return strings.Contains(line, `want "somebody else"`) })
		b.untilLog(func(line string) bool { return strings.Contains(line, "handshake failed") })
		if s := b.link.Stats(); s.Handshakes != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestRedialAfterRestart(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()
	for _, restarted := range []*node{b, a} {
		other := a
		if restarted == a {
			other = b
		}
		restarted.stop()
		other.until("silent", func(o torus.LinkOutput, _ torus.LinkStats) bool { return o.Detail.Silent })
		restarted.start()
		restarted.untilNormal()
		other.until("normal, with the new epoch", func(o torus.LinkOutput, _ torus.LinkStats) bool {
			return o.State == torus.LinkNormal && o.Peer.Epoch == 2
		})
	}
}

// TestRekeyIsUnnoticedByMachine: the link's state machine does not notice a new session on a link that works. Since the
// computer may be busy, the test passes if one of several links shows this.
func TestRekeyIsUnnoticedByMachine(t *testing.T) {
	attempts.One(t, 5, "a link gets no verdict while it has new sessions", func() bool { return unnoticedRekeys(t) })
}

// unnoticedRekeys reports whether a link had five sessions without a verdict.
func unnoticedRekeys(t *testing.T) bool {
	t.Helper()
	a, b := pairOf(t)
	a.cfg.Rekey = 100 * time.Millisecond
	b.start()
	a.start()
	defer func() { a.stop(); b.stop() }()
	b.untilNormal()
	unnoticed := true
	b.until("given five sessions", func(o torus.LinkOutput, _ torus.LinkStats) bool {
		if o.Changed && o.State != torus.LinkNormal {
			t.Logf("became %s", o.Detail)
			unnoticed = false
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		return !unnoticed || len(b.ids) >= 5
	})
	return unnoticed
}

// TestRedialsBeforeSessionAreOne: a shell calls Redial with every tick until it has a session. That makes one
// session, not two.
func TestRedialsBeforeSessionAreOne(t *testing.T) {
	a, b := pairOf(t)
	a.misses, b.misses = 500, 500
	b.start()
	asked := make(chan struct{})
	verify := a.cfg.VerifyPeer
	a.cfg.VerifyPeer = func(c *x509.Certificate) error {
		<-asked
		return verify(c)
	}
	a.start()
	a.link.Redial()
	close(asked)
	a.untilNormal()
	a.untilLog(func(line string) bool { return strings.Contains(line, "established") })
	sleep(t.Context(), settle+2*minBackoff) // time for an unwanted event
	if n := a.link.Stats().Handshakes; n != 1 {
		t.Errorf("%d handshakes, want 1", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() { // the link may take the first request for one from before the session
		for ctx.Err() == nil {
			a.link.Redial()
			sleep(ctx, settle)
		}
	})
	a.untilLog(func(line string) bool { return strings.Contains(line, "established") })
	cancel()
	asking.Wait()
}

// TestResumedLinkMakesNoSessionUntilRekey: a link that resumes a session makes none until Redial, or until Rekey has passed.
func TestResumedLinkMakesNoSessionUntilRekey(t *testing.T) {
	const rest = 300 * time.Millisecond
	for name, ask := range map[string]func(*Link){"asked": (*Link).Redial, "rekey": nil} {
		a, b := pairOf(t)
		a.cfg.Resumed, a.cfg.Rekey = true, time.Hour
		if ask == nil {
			a.cfg.SessionAge = time.Hour - rest
		}
		begin := time.Now()
		la, _ := wires(t, a.cfg, b.cfg, make(sink, 1), make(sink, 1))
		sleep(t.Context(), 100*time.Millisecond) // time for an unwanted event
		if n := la.Stats().Handshakes; n != 0 && (ask != nil || time.Since(begin) < rest) {
			t.Errorf("%s: %d handshakes before that", name, n)
		}
		if ask != nil {
			ask(la)
		}
		for end := time.Now().Add(bound); la.Stats().Handshakes == 0; sleep(t.Context(), time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: no handshake", name)
			}
		}
	}
}

// TestStalledHandshakeDelaysNoOther: a silent connection is closed after helloTime, and delays no other.
func TestStalledHandshakeDelaysNoOther(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	for range acceptBurst {
		c, err := from(a.cfg.Local.Addr()).Dial("tcp4", b.link.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	a.start()
	a.untilNormal()
	b.until("rid of all that say nothing", func(torus.LinkOutput, torus.LinkStats) bool { return b.link.Stats().Refused >= acceptBurst })
}

func TestTakenPort(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	again := b.cfg
	if _, err := Listen(again); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "UDP "+again.Local.String()) {
		t.Errorf("UDP port taken: %v", err)
	}
	taken, err := net.Listen("tcp4", a.cfg.Local.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cfg := a.cfg
	cfg.Dialer = false
	if _, err := Listen(cfg); !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "TCP "+cfg.Local.String()) {
		t.Errorf("TCP port taken: %v", err)
	}
	l, err := Listen(a.cfg) // the failure above has freed the UDP port
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
}

func TestInterface(t *testing.T) {
	a, b := pairOf(t)
	a.cfg.Interface = "nosuchif0"
	// Old kernels refuse it without CAP_NET_RAW.
	_, err := Listen(a.cfg)
	if !errors.Is(err, ErrAbsent) && !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "nosuchif0") {
		t.Errorf("an interface that does not exist: %v", err)
	}
	if _, err := Bind(netip.MustParseAddrPort("[fe80::1%nosuchif0]:0"), ""); !errors.Is(err, ErrAbsent) {
		t.Errorf("an address in a zone that does not exist: %v", err)
	}
	a.cfg.Interface, b.cfg.Interface = "lo", "lo"
	l, err := Listen(a.cfg)
	if errors.Is(err, os.ErrPermission) {
		requirements.Missing(t, "binding to an interface is not permitted here: SO_BINDTODEVICE untested")
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	b.start()
	a.start()
	a.untilNormal()
}

// A socket that was given is closed even if the configuration is refused.
func TestRefusedConfigClosesSocket(t *testing.T) {
	a, _ := pairOf(t)
	for _, tt := range []struct {
		name  string
		spoil func(*Config)
	}{
		{"invalid", func(c *Config) { c.Rekey = -1 }},
		{"a peer in a zone that is not there", func(c *Config) {
			c.Local, c.Peer = netip.MustParseAddrPort("[::1]:0"), netip.MustParseAddrPort("[fe80::1%nosuchif0]:9")
		}},
	} {
		s, err := Bind(netip.MustParseAddrPort("127.0.0.1:0"), "")
		if err != nil {
			t.Fatal(err)
		}
		cfg := a.cfg
		cfg.Socket = s
		tt.spoil(&cfg)
		if _, err := Listen(cfg); err == nil {
			t.Errorf("%s: not refused", tt.name)
		}
		if err := s.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: the socket was left open: %v", tt.name, err)
		}
	}
}

// A link refuses a socket on another interface than its own.
func TestSocketOfOtherInterfaceIsRefused(t *testing.T) {
	a, _ := pairOf(t)
	for _, tt := range []struct{ was, is, want string }{
		{"", "lo", "bound to no interface: want lo"},
		{"lo", "", "bound to interface lo: want no interface"},
		{"lo", "lo", ""},
	} {
		s, err := Bind(netip.MustParseAddrPort("127.0.0.1:0"), tt.was)
		if err != nil {
			t.Fatal(err)
		}
		cfg := a.cfg
		cfg.Socket, cfg.Local, cfg.Interface = s, s.LocalAddr().(*net.UDPAddr).AddrPort(), tt.is
		l, err := Listen(cfg)
		switch {
		case err == nil && tt.want == "":
			_ = l.Close()
		case err == nil || tt.want == "" || !strings.Contains(err.Error(), tt.want):
			t.Errorf("socket of %q for interface %q: %v: want %q", tt.was, tt.is, err, tt.want)
		}
		if err := s.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("socket of %q for interface %q: left open: %v", tt.was, tt.is, err)
		}
	}
}

func TestConfigNamesAllBadFields(t *testing.T) {
	_, err := Listen(Config{
		Dir: 7, Local: netip.MustParseAddrPort("[::1]:0"), Peer: netip.MustParseAddrPort("127.0.0.1:0"), MTU: 75, Rekey: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"Dir 7: want 1 to 6", "Peer 127.0.0.1:0", "same family", "MTU 75: want 76 to 8224", "Rekey",
		"VerifyPeer nil", "Logger nil", "TLS nil"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	a, b := pairOf(t)
	a.cfg.TLS = a.cfg.TLS.Clone()
	a.cfg.TLS.Certificates = nil
	if _, err := Listen(a.cfg); err == nil || !strings.Contains(err.Error(), "without certificate") {
		t.Errorf("no certificate: %v", err)
	}
	b.cfg.TLS = b.cfg.TLS.Clone()
	b.cfg.TLS.ClientAuth = 0
	if _, err := Listen(b.cfg); err == nil || !strings.Contains(err.Error(), "ClientAuth") {
		t.Errorf("an acceptor that takes anybody: %v", err)
	}
}

func TestPacer(t *testing.T) {
	start := time.Unix(1000, 0)
	var p pacer
	for i, tc := range []struct{ at, want time.Duration }{
		{0, 0}, // the first at once
		{0, 50 * time.Millisecond},
		{60 * time.Millisecond, 90 * time.Millisecond},   // 100 after the one at 50
		{400 * time.Millisecond, 0},                      // 200 after the one at 150 have passed
		{400 * time.Millisecond, 400 * time.Millisecond}, // doubled all the same
		{800 * time.Millisecond, 800 * time.Millisecond},
		{1600 * time.Millisecond, time.Second}, // no more than that
		{2600 * time.Millisecond, time.Second},
		{7 * time.Second, 0}, // quiet for long: begin again
		{7 * time.Second, 50 * time.Millisecond},
	} {
		if got := p.attempt(start.Add(tc.at)); got != tc.want {
			t.Errorf("attempt %d at %v waits %v, want %v", i+1, tc.at, got, tc.want)
		}
	}
}

func TestExporterContextNamesLink(t *testing.T) {
	got := exporterContext(grid.Coord{X: 1, Y: 2, Z: 0x304}, grid.Coord{X: 5}, grid.YPlus)
	if want := []byte{0, 1, 0, 2, 3, 4, 0, 5, 0, 0, 0, 0, 3}; !bytes.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
}

// sink gives packets to a channel.
type sink chan []byte

func (s sink) OnPacket(_ grid.Direction, b []byte) {
	select {
	case s <- bytes.Clone(b):
	default:
	}
}
func (s sink) OnSession(grid.Direction, *torus.Session) {}
func (s sink) OnRefused(grid.Direction)                 {}

// wires runs both ends without machines, for tests of packets.
func wires(t testing.TB, a, b Config, ha, hb Handler) (la, lb *Link) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	links := [2]*Link{}
	for i, cfg := range []Config{a, b} {
		cfg.Logger = slog.New(slog.DiscardHandler)
		l, err := Listen(cfg)
		if err != nil {
			t.Fatal(err)
		}
		links[i] = l
		go func() { done <- l.Run(ctx, []Handler{ha, hb}[i]) }()
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
	return links[0], links[1]
}

// TestLongPacketGoesInPieces: no datagram of a link is longer than every path takes.
func TestLongPacketGoesInPieces(t *testing.T) {
	na, nb := pairOf(t)
	got := make(sink, 4)
	a, b := wires(t, na.cfg, nb.cfg, make(sink), got)
	long := bytes.Repeat([]byte{7}, torus.DefaultMaxFrame)
	if err := a.Send(long); err != nil {
		t.Fatal(err)
	}
	if p := <-got; !bytes.Equal(p, long) {
		t.Errorf("%d bytes arrived: want %d", len(p), len(long))
	}
	if sent, arrived := a.Stats().TxPackets, b.Stats().RxPackets; sent < 2 || arrived < 2 {
		t.Errorf("%d datagrams were sent and %d arrived: want two pieces at least", sent, arrived)
	}
}

func TestSendRefusesWhatIsTooLong(t *testing.T) {
	na, nb := pairOf(t)
	got := make(sink, 4)
	a, _ := wires(t, na.cfg, nb.cfg, make(sink), got)
	if err := a.Send(make([]byte, torus.DefaultMaxFrame+1)); err == nil || !strings.Contains(err.Error(), "1472") {
		t.Errorf("a packet over the MTU: %v", err)
	}
}

// signal reports that a packet came, without allocating.
type signal chan struct{}

func (s signal) OnPacket(grid.Direction, []byte) {
	select {
	case s <- struct{}{}:
	default:
	}
}
func (s signal) OnSession(grid.Direction, *torus.Session) {}
func (s signal) OnRefused(grid.Direction)                 {}

func TestPacketsDoNotAllocate(t *testing.T) {
	na, nb := pairOf(t)
	got := make(signal, 1)
	a, _ := wires(t, na.cfg, nb.cfg, make(signal), got)
	b := make([]byte, torus.HeartbeatSize)
	deadline := time.After(bound)
	pass := func() {
		if err := a.Send(b); err != nil {
			t.Fatal(err)
		}
		select {
		case <-got:
		case <-deadline:
			t.Fatal("a packet was lost on the way over loopback")
		}
	}
	pass()
	// The handshake of the start may still be going on beside: then try again.
	var n float64
	for range 20 {
		if n = testing.AllocsPerRun(200, pass); n == 0 {
			return
		}
	}
	t.Errorf("%v allocations a packet sent and received, want none", n)
}

func BenchmarkPacket(b *testing.B) {
	na, nb := pairOf(b)
	got := make(signal, 1)
	link, _ := wires(b, na.cfg, nb.cfg, make(signal), got)
	packet := make([]byte, torus.HeartbeatSize)
	b.ReportAllocs()
	for b.Loop() {
		if err := link.Send(packet); err != nil {
			b.Fatal(err)
		}
		<-got
	}
}

// TestFloodMakesReaderRest: a flood that forges the peer's address does not keep the reader busy without a pause.
func TestFloodMakesReaderRest(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	stranger, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(a.cfg.Local), net.UDPAddrFromAddrPort(b.link.LocalAddr()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	for end := time.Now().Add(bound); b.link.Stats().Rests == 0; {
		if time.Now().After(end) {
			t.Fatalf("no rest within %s of flood: %+v", bound, b.link.Stats())
		}
		for range 100 {
			_, _ = stranger.Write(make([]byte, 100)) // dropped where the buffer is full
		}
	}
}

// TestFloodOfStrangersDoesNotSilenceLink sends a link's end 40,000 small packets in a second, as fast as the machine
// can send them: it loses no frame of its peer, and is NORMAL afterwards.
func TestFloodOfStrangersDoesNotSilenceLink(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()
	var lost uint64
	b.until("told", func(_ torus.LinkOutput, s torus.LinkStats) bool { lost = s.Lost; return true })
	stranger, err := net.Dial("udp4", b.link.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close() }()
	const packets = 80_000
	begin, tick := time.Now(), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for sent := 0; sent < packets; {
		<-tick.C
		for due := min(packets, int(40*time.Since(begin).Milliseconds())); sent < due; sent++ {
			_, _ = stranger.Write([]byte("stranger"))
		}
	}
	took, st := time.Since(begin), b.link.Stats()
	b.untilNormal() // on a busy machine the peer may send nothing for a while, which loses no frame
	b.until("told", func(_ torus.LinkOutput, s torus.LinkStats) bool {
		t.Logf("%d packets of a stranger in %s: %d lost frames, %d rests, %d dropped by the kernel", packets, took, s.Lost-lost, st.Rests,
			st.Dropped)
		if s.Lost != lost {
			t.Errorf("the link lost %d frames", s.Lost-lost)
		}
		return true
	})
	if st.Dropped < packets || st.Rests > 0 {
		t.Errorf("the kernel dropped %d of %d packets of a stranger, and the reader rested %d times: want none to reach it", st.Dropped,
			packets, st.Rests)
	}
}

// A link changes to another peer while it runs: the former peer is a stranger from then on, and the new one must prove its identity.
func TestLinkMovesToAnotherPeerWhileItRuns(t *testing.T) {
	a, b := pairOf(t)
	b.start()
	a.start()
	a.untilNormal()
	b.untilNormal()
	c := &node{t: t, ca: a.ca, logs: make(logs, 64), cfg: b.cfg}
	c.cfg.Local, c.cfg.TLS, c.cfg.Logger, c.cfg.Rand = freeport.Addr(t), a.ca.config("c"), slog.New(c.logs), nil
	c.start()
	if err := a.link.SetPeer(a.cfg.Dst, c.cfg.Local, only("c")); err != nil || a.link.PeerAddr() != c.cfg.Local {
		t.Fatalf("%v, peer %s", err, a.link.PeerAddr())
	}
	a.link.Redial()
	c.untilNormal()
	a.untilNormal()
	b.until("silent", func(o torus.LinkOutput, _ torus.LinkStats) bool { return o.Detail.Silent })
	a.until("passed over b", func(torus.LinkOutput, torus.LinkStats) bool { return a.link.Stats().Dropped > 0 })

	err := a.link.SetPeer(a.cfg.Dst, netip.AddrPortFrom(netip.IPv6Loopback(), 1), only("c"))
	if err == nil || a.link.PeerAddr() != c.cfg.Local {
		t.Errorf("an address of another family: %v", err)
	}
	if err := a.link.SetPeer(a.cfg.Dst, b.cfg.Local, only("c")); err != nil {
		t.Fatal(err)
	}
	a.link.Redial()
	a.untilLog(func(line string) bool { return strings.Contains(line, `certificate of "b": want "c"`) })
}

// ignored is a handler that does nothing.
type ignored struct{}

func (ignored) OnPacket(grid.Direction, []byte)          {}
func (ignored) OnSession(grid.Direction, *torus.Session) {}
func (ignored) OnRefused(grid.Direction)                 {}

// A handshake that ends after another peer was set gives no keys.
func TestHandshakeWithFormerPeerGivesNoKeys(t *testing.T) {
	a, b := pairOf(t)
	l, err := Listen(a.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	with, s := l.remote.Load(), torus.NewSession(7, [torus.KeySize]byte{1}, [torus.KeySize]byte{2})
	l.established(ignored{}, with, s)
	if l.Outdated(s) {
		t.Error("outdated under the same peer")
	}
	if err := l.SetPeer(b.cfg.Dst, b.cfg.Peer, only("c")); err != nil {
		t.Fatal(err)
	}
	if !l.Outdated(s) {
		t.Error("a session with the peer of before")
	}
	next := torus.NewSession(8, [torus.KeySize]byte{3}, [torus.KeySize]byte{4})
	l.established(ignored{}, l.remote.Load(), next)
	if l.Outdated(next) {
		t.Error("a session with the new peer is outdated")
	}
}

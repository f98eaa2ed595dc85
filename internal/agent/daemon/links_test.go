package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
	"github.com/lofamo/lofamo/pkg/watchdog"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// The daemon takes over an inherited socket only if it belongs to the link.
func TestDaemonTakesOnlySocketsOfItsLink(t *testing.T) {
	conn, err := udplink.Bind(netip.MustParseAddrPort("127.0.0.1:0"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	fd := duplicate(conn)
	f := os.NewFile(uintptr(fd), "link")
	defer func() { _ = f.Close() }()
	local := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	set := func(dir grid.Direction, fd int) {
		t.Setenv(half.LinksEnv, dir.String()+"="+netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(fd)).String()[len("0.0.0.0:"):])
	}
	set(grid.XPlus, fd)
	for range 2 { // the descriptor stays
		got := half.Inherited(grid.XPlus, local, "")
		if got == nil || got.LocalAddr().String() != local.String() {
			t.Fatalf("%v", got)
		}
		if err := got.Close(); err != nil {
			t.Fatal(err)
		}
	}
	other := netip.AddrPortFrom(local.Addr(), local.Port()^1)
	if half.Inherited(grid.XMinus, local, "") != nil || half.Inherited(grid.XPlus, other, "") != nil {
		t.Error("another link's socket, or one of another address, is taken")
	}
	if half.Inherited(grid.XPlus, local, "lo") != nil {
		t.Error("a socket without an interface is taken for a link with one")
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	set(grid.XPlus, int(file.Fd()))
	if half.Inherited(grid.XPlus, local, "") != nil {
		t.Error("what is no socket is taken")
	}
}

// A word with flipped bits is not announced.
func TestFlippedWordsAreNotAnnounced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	open := func(h fault.Half) *regfile.File {
		f, err := regfile.Open(path, h)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	host, dnp := open(fault.HalfHost), open(fault.HalfDNP)
	hostWord, dnpWord := watchdog.HostWord{Valid: true, Memory: watchdog.HealthSick}, watchdog.DNPWord{Valid: true}
	dnpWord.Links[0] = watchdog.HealthBroken
	if err := errors.Join(host.StoreHost(hostWord), dnp.StoreDNP(dnpWord)); err != nil {
		t.Fatal(err)
	}
	check := func(wantDNP, wantHost uint32) {
		t.Helper()
		if d, h := watchdogWords(host); d != wantDNP || h != wantHost {
			t.Errorf("DNP word 0x%x, host word 0x%x: want 0x%x and 0x%x", d, h, wantDNP, wantHost)
		}
	}
	check(dnpWord.Encode(), hostWord.Encode())
	agenttest.FlipWord(t, path, watchdog.AddrHostWatchdog)
	check(dnpWord.Encode(), 0)
	agenttest.FlipWord(t, path, watchdog.AddrDNPWatchdog)
	check(0, 0)
}

// The daemon announces the host half as dead if it is left or given up, or has not served for long enough to be found
// dead by its word. It does not while it does not know whether the half runs, nor while the half is restarted at once.
func TestHostIsCalledDead(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.StateDir = t.TempDir()
	d := &daemon{cfg: RunConfig{Agent: cfg}, periods: config.Periods{TRead: 50 * time.Millisecond, ReadMisses: 1},
		log: slog.New(slog.DiscardHandler)}
	for _, tc := range []struct {
		name  string
		begun bool
		was   []halfcore.RecoveryState
		after time.Duration
		dead  bool
	}{
		{"not looked at yet", false, nil, time.Hour, false},
		{"begins to be looked at", false, []halfcore.RecoveryState{halfcore.Starting}, time.Hour, false},
		{"adopted", true, []halfcore.RecoveryState{halfcore.Running}, time.Hour, false},
		{"killed just now", true, []halfcore.RecoveryState{halfcore.Running, halfcore.Restarting}, 100 * time.Millisecond, false},
		{"killed, and not back", true, []halfcore.RecoveryState{halfcore.Running, halfcore.Restarting, halfcore.Restarting},
			5 * time.Second, true},
		{"back", true, []halfcore.RecoveryState{halfcore.Running, halfcore.Restarting, halfcore.Running}, time.Hour, false},
		{"killed a second time", true, []halfcore.RecoveryState{halfcore.Restarting, halfcore.Running, halfcore.Restarting},
			100 * time.Millisecond, false},
		{"given up", true, []halfcore.RecoveryState{halfcore.Running, halfcore.Restarting, halfcore.GivenUp}, 0, true},
		{"left", true, []halfcore.RecoveryState{halfcore.Running, halfcore.Stopped}, 0, true},
	} {
		c := newChild(d, fault.HalfHost)
		c.begun, c.machine = tc.begun, recovery.New(recovery.Config{Half: fault.HalfHost}, time.Now(), half.Monotonic(), nil, false)
		for _, s := range tc.was {
			c.publish(halfcore.RecoveryRecord{Half: fault.HalfHost, State: s})
		}
		now := half.Monotonic()
		if c.silent != 0 {
			now = c.silent
		}
		if got := c.dead(now + int64(tc.after)); got != tc.dead {
			t.Errorf("%s: dead is %t", tc.name, got)
		}
	}
}

// A daemon that starts with a half that was given up knows so.
func TestGivenUpHalfIsKnownFromStart(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.StateDir = t.TempDir()
	d := &daemon{cfg: RunConfig{Agent: cfg}, periods: config.Periods{TRead: 50 * time.Millisecond, ReadMisses: 1},
		log: slog.New(slog.DiscardHandler)}
	err := d.writeHistory(fault.HalfHost, halfcore.RecoveryHistory{Record: halfcore.RecoveryRecord{Half: fault.HalfHost,
		State: halfcore.GivenUp, Total: 5, Last: &halfcore.Recovery{Cause: halfcore.Cause{Kind: halfcore.Exited}, At: half.Monotonic()}},
		RestartsAgo: make([]time.Duration, cfg.Recovery.Restarts)})
	if err != nil {
		t.Fatal(err)
	}
	c := newChild(d, fault.HalfHost)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.lookAfterUntil(ctx) }()
	agenttest.Await(t, "the host half is called dead", func() bool { return c.dead(0) })
	if r := c.status().Recovery; r.State != halfcore.GivenUp || r.Total != 5 {
		t.Errorf("%+v", r)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The daemon announces a restart by the links that have a session, with numbers that follow the half's and are stored
// before use.
func TestRestartIsAnnounced(t *testing.T) {
	dir := t.TempDir()
	hear, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hear.Close() }()
	cfg := config.DefaultAgent()
	cfg.Node, cfg.Coord, cfg.Dims, cfg.StateDir = "n0-0-0", "0,0,0", "2x1x1", dir
	cfg.Links = map[string]config.LinkAddr{
		"X+": {Local: "127.0.0.1:0", Peer: hear.LocalAddr().String()}, "X-": {Local: "127.0.0.1:0", Peer: hear.LocalAddr().String()},
	}
	boot, err := storage.BootID()
	if err != nil {
		t.Fatal(err)
	}
	id := storage.CopyIdentity{Node: cfg.Node, Half: fault.HalfDNP, Boot: boot}
	path := filepath.Join(dir, "dnp.backup")
	l := newLinks(cfg, slog.New(slog.DiscardHandler))
	l.open()
	defer l.close()
	if err := l.announce(nil, time.Second, 1, false); err == nil {
		t.Error("announced without a copy")
	}
	half, err := storage.OpenCopy(path, id)
	if err != nil {
		t.Fatal(err)
	}
	session := storage.Session{ID: 7, Tx: [torus.KeySize]byte{1}, Rx: [torus.KeySize]byte{2}}
	counters := torus.LinkSnapshot{TxSession: 7, TxSeq: 100, Started: true, RxSession: 7, High: 55, Rx: torus.LinkNormal, Tx: torus.LinkNormal}
	if err := half.StoreSession(grid.XPlus, session); err != nil {
		t.Fatal(err)
	}
	if err := half.StoreCounters(grid.XPlus, &counters); err != nil {
		t.Fatal(err)
	}
	if err := half.StoreNumbers(storage.Numbers{OutboxSnapshot: servicenet.OutboxSnapshot{Epoch: 7}}); err != nil {
		t.Fatal(err)
	}
	if err := l.announce(nil, time.Second, 1, false); err == nil {
		t.Error("announced while the half has its copy")
	}
	if err := half.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.announce(nil, 1500*time.Millisecond, 2, true); err != nil {
		t.Fatal(err)
	}
	peer := torus.NewSession(7, session.Rx, session.Tx)
	var keys torus.Keyring
	keys.Add(time.Now(), peer)
	// The neighbour knows the half in that epoch; the register page is gone.
	at := grid.Coord{X: 1}
	heard := torus.NewLink(torus.LinkConfig{
		Dir: grid.XMinus, Src: at, Period: 25 * time.Millisecond, Misses: 2, SickRatio: 0.05, ClearRatio: 0.01, Window: 100, MinErrors: 3,
		HoldOff: time.Second,
	}, time.Now())
	heard.Step(time.Now(), torus.SessionStarted{ID: 7})
	heard.Step(time.Now(), torus.FrameReceived{Frame: torus.Frame{Type: torus.TypeHeartbeat, Direction: grid.XPlus, Dst: at, Session: 7,
		Epoch: 7, Seq: 100}})
	buf := make([]byte, 2000)
	for i := range announcements {
		if err := hear.SetReadDeadline(time.Now().Add(checkBound)); err != nil {
			t.Fatal(err)
		}
		n, err := hear.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		f, err := torus.Decode(buf[:n], torus.DefaultMaxFrame, &keys)
		if err != nil {
			t.Fatal(err)
		}
		r, err := torus.DecodeRestarting(f.Payload)
		if err != nil || r != (torus.Restarting{Back: 1500 * time.Millisecond, Attempt: 2}) {
			t.Errorf("%+v, %v", r, err)
		}
		if f.Type != torus.TypeRestarting || f.Flags != torus.FlagRestart|torus.FlagHostDead || f.Seq != 101+uint64(i) || f.Ack != 55 ||
			f.Direction != grid.XPlus || f.Dst != (grid.Coord{X: 1}) {
			t.Errorf("frame %d: %+v", i, f)
		}
		if out := heard.Step(time.Now(), torus.FrameReceived{Frame: f}); !out.Accepted || !heard.Detail().Restarting {
			t.Errorf("frame %d of epoch %d: accepted %t, link %s", i, f.Epoch, out.Accepted, heard.Detail())
		}
	}
	half, err = storage.OpenCopy(path, id)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = half.Close() }()
	if c, _, ok := half.Link(grid.XPlus); !ok || c.TxSeq != 100+announcements {
		t.Errorf("the half would go on from %d: want %d", c.TxSeq, 100+announcements)
	}
}

// The daemon's announcement goes to the half's peers: those of the supervisors' order, or else the configured ones.
func TestRestartIsAnnouncedToOrderedPeers(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.Coord, cfg.Dims, cfg.StateDir = "0,0,0", "3x1x1", t.TempDir()
	cfg.Links = map[string]config.LinkAddr{"X+": {Local: "127.0.0.1:1", Peer: "127.0.0.1:2"},
		"X-": {Local: "127.0.0.1:3", Peer: "127.0.0.1:4"}}
	l := newLinks(cfg, slog.New(slog.DiscardHandler))
	to := func() map[grid.Direction]string {
		out := map[grid.Direction]string{}
		l.each(func(dir grid.Direction, _, peer netip.AddrPort) { out[dir] = peer.String() })
		return out
	}
	if got := to(); !reflect.DeepEqual(got, map[grid.Direction]string{grid.XPlus: "127.0.0.1:2", grid.XMinus: "127.0.0.1:4"}) {
		t.Errorf("as configured: %v", got)
	}
	word := peers.State{Number: 3}
	word.Peers[grid.XPlus.Index()] = peers.Peer{Node: "spare-0", Address: netip.MustParseAddrPort("127.0.0.1:9")}
	if err := storage.PeerOrders().Save(cfg.StateDir, word); err != nil {
		t.Fatal(err)
	}
	if got := to(); !reflect.DeepEqual(got, map[grid.Direction]string{grid.XPlus: "127.0.0.1:9", grid.XMinus: "127.0.0.1:4"}) {
		t.Errorf("as told: %v", got)
	}
}

// When the half starts again, the daemon's socket of a link follows the address and interface in the configuration. A socket that fits
// stays open, because packets may wait in it.
func TestLinkSocketFollowsConfiguration(t *testing.T) {
	cfg := config.DefaultAgent()
	cfg.Node, cfg.Coord, cfg.Dims, cfg.StateDir = "n0-0-0", "0,0,0", "2x1x1", t.TempDir()
	local, elsewhere := freeport.Addr(t), freeport.Addr(t)
	set := func(local netip.AddrPort, iface string) config.Agent {
		cfg.Links = map[string]config.LinkAddr{"X+": {Local: local.String(), Peer: freeport.Addr(t).String(), Interface: iface}}
		return cfg
	}
	l := newLinks(set(local, ""), slog.New(slog.DiscardHandler))
	defer l.close()
	l.open()
	at := &l.sockets[grid.XPlus.Index()]
	if !half.BoundTo(*at, local, "") {
		t.Fatal("no socket")
	}
	for _, tc := range []struct {
		local netip.AddrPort
		iface string
		kept  bool
	}{{local, "", true}, {local, "lo", false}, {local, "lo", true}, {local, "", false}, {elsewhere, "", false}, {elsewhere, "lo", false}} {
		l.take(set(tc.local, tc.iface))
		if kept := *at >= 0; kept != tc.kept {
			t.Errorf("%s at interface %q: socket kept %t, want %t", tc.local, tc.iface, kept, tc.kept)
		}
		l.open()
		if !half.BoundTo(*at, tc.local, tc.iface) {
			t.Errorf("%s at interface %q: the daemon's socket is bound to something else", tc.local, tc.iface)
		}
	}
	cfg.Links = nil
	if l.take(cfg); *at >= 0 {
		t.Error("the socket of a removed link is open")
	}
}

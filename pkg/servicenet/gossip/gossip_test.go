package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Main(m.Run)) }

// quick makes memberlist notice a dead member within a second or two.
var quick = Timing{
	ProbeInterval:    50 * time.Millisecond,
	ProbeTimeout:     30 * time.Millisecond,
	GossipInterval:   10 * time.Millisecond,
	PushPullInterval: time.Second,
	RejoinInterval:   200 * time.Millisecond,
}

// calm is quick, but does not declare a member dead that stalls for seconds on a busy machine.
var calm = Timing{
	ProbeInterval:    5 * time.Second,
	ProbeTimeout:     2 * time.Second,
	GossipInterval:   quick.GossipInterval,
	PushPullInterval: quick.PushPullInterval,
	RejoinInterval:   quick.RejoinInterval,
}

func key(b byte) []byte { return bytes.Repeat([]byte{b}, KeySize) }

type member struct {
	*Net
	events     chan Event
	broadcasts chan string
}

func start(t *testing.T, name string, k []byte, join ...*member) *member {
	t.Helper()
	return startKeys(t, name, [][]byte{k}, calm, join...)
}

// startQuick is start with timing quick, so that a member's death is noticed soon.
func startQuick(t *testing.T, name string, join ...*member) *member {
	t.Helper()
	return startKeys(t, name, [][]byte{key(1)}, quick, join...)
}

// startKeys starts a member with several keys, the first of which encrypts.
func startKeys(t *testing.T, name string, keys [][]byte, timing Timing, join ...*member) *member {
	t.Helper()
	return startConfig(t, Config{Name: name, Key: keys[0], Further: keys[1:], Timing: timing}, join...)
}

// startConfig starts a member of the given name, keys, timing and callback OnHeard. It joins by the addresses in cfg.Join as well.
func startConfig(t *testing.T, cfg Config, join ...*member) *member {
	t.Helper()
	m := &member{events: make(chan Event, 256), broadcasts: make(chan string, 256)}
	cfg.Bind, cfg.Logger = freeport.Addr(t).String(), slog.New(slog.DiscardHandler)
	cfg.Meta = Meta{Role: RoleNode, ID: cfg.Name, Coord: "0,0,0", ReportAddr: "127.0.0.1:7000"}
	cfg.OnMember = func(e Event) { m.events <- e }
	cfg.OnBroadcast = func(b []byte) { m.broadcasts <- string(b) }
	for _, j := range join {
		cfg.Join = append(cfg.Join, j.Addr().String())
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.Net = n
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// untilAny waits for an event of the kind, and skips any others before it.
func (m *member) untilAny(t *testing.T, k EventKind) Event {
	t.Helper()
	timeout := time.After(bound)
	for {
		select {
		case e := <-m.events:
			if e.Kind == k {
				return e
			}
		case <-timeout:
			t.Fatalf("%s saw no %s", m.cfg.Name, k)
		}
	}
}

func (m *member) until(t *testing.T, k EventKind, name string) Event {
	t.Helper()
	for {
		if e := m.untilAny(t, k); e.Member.Name == name {
			return e
		}
	}
}

func (m *member) broadcast(t *testing.T) string {
	t.Helper()
	select {
	case b := <-m.broadcasts:
		return b
	case <-time.After(bound):
		t.Fatalf("%s received no broadcast", m.cfg.Name)
		return ""
	}
}

func three(t *testing.T, timing Timing) (a, b, c *member) {
	t.Helper()
	keys := [][]byte{key(1)}
	a = startKeys(t, "a", keys, timing)
	b = startKeys(t, "b", keys, timing, a)
	c = startKeys(t, "c", keys, timing, a)
	for _, m := range []*member{a, b, c} {
		for joined := map[string]bool{}; len(joined) < 2; {
			joined[m.untilAny(t, EventJoin).Member.Name] = true
		}
	}
	return a, b, c
}

func TestJoinMetaBroadcastLeave(t *testing.T) {
	a, b, c := three(t, calm)
	var names []string
	for _, m := range c.Members() {
		names = append(names, m.Name)
		if m.Meta.ID != m.Name || m.Meta.Role != RoleNode || m.Meta.ReportAddr != "127.0.0.1:7000" {
			t.Errorf("metadata of %s: %+v", m.Name, m.Meta)
		}
	}
	if fmt.Sprint(names) != "[a b c]" {
		t.Errorf("members %v", names)
	}

	meta := Meta{Role: RoleSupervisor, ID: "s0", ReportAddr: "127.0.0.1:8000", Leader: true}
	if err := b.UpdateMeta(meta); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{a, c} {
		if e := m.until(t, EventUpdate, "b"); e.Member.Meta != meta {
			t.Errorf("%s sees %+v", m.cfg.Name, e.Member.Meta)
		}
	}

	// As large as a datagram of the direct rail may be.
	big := strings.Repeat("x", servicenet.MaxDatagram)
	if err := a.Broadcast([]byte(big)); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{b, c} {
		if got := m.broadcast(t); got != big {
			t.Errorf("%s got %d bytes", m.cfg.Name, len(got))
		}
	}
	// A second one, behind which no copy of the first may come.
	if err := a.Broadcast([]byte("second")); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*member{b, c} {
		if got := m.broadcast(t); got != "second" {
			t.Errorf("%s got %.20q: want each broadcast once", m.cfg.Name, got)
		}
		if s := m.Stats(); s.Received != 2 {
			t.Errorf("%s: %+v", m.cfg.Name, s)
		}
	}
	if len(a.broadcasts) != 0 {
		t.Error("a heard itself")
	}

	if err := c.Leave(bound); err != nil {
		t.Fatal(err)
	}
	a.until(t, EventLeave, "c")
	b.until(t, EventLeave, "c")
}

func TestBlockIsSeenAsFailureAndHeals(t *testing.T) {
	a, b, c := three(t, quick)
	c.Block(true)
	a.until(t, EventFail, "c")
	b.until(t, EventFail, "c")
	if _, err := c.transport.DialTimeout(a.Addr().String(), time.Second); err == nil {
		t.Error("a blocked member dials")
	}
	c.Block(false)
	a.until(t, EventJoin, "c")
	b.until(t, EventJoin, "c")
}

func TestWrongKeyIsRefused(t *testing.T) {
	a := start(t, "a", key(1))
	b := start(t, "b", key(2), a)
	if _, err := b.list.Join([]string{a.Addr().String()}); err == nil {
		t.Error("joined with a wrong key")
	}
	if len(a.Members()) != 1 || len(b.Members()) != 1 {
		t.Errorf("members %v and %v", a.Members(), b.Members())
	}
}

// TestKeyIsChanged has at every step of a change a member that has gone on to it beside one that has not: each hears
// the other.
func TestKeyIsChanged(t *testing.T) {
	one, two := key(1), key(2)
	for _, tc := range []struct {
		step        string
		before, now [][]byte
	}{
		{"add", [][]byte{one}, [][]byte{one, two}},
		{"use", [][]byte{one, two}, [][]byte{two, one}},
		{"remove", [][]byte{two, one}, [][]byte{two}},
	} {
		t.Run(tc.step, func(t *testing.T) {
			a := startKeys(t, "a", tc.before, calm)
			b := startKeys(t, "b", tc.now, calm, a)
			a.until(t, EventJoin, "b")
			b.until(t, EventJoin, "a")
		})
	}
}

func TestRejoinAfterBothForgot(t *testing.T) {
	a := startQuick(t, "a")
	b := startQuick(t, "b", a)
	a.until(t, EventJoin, "b")
	addr := a.Addr().String()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b.until(t, EventFail, "a")
	again, err := New(Config{Name: "a", Bind: addr, Key: key(1), Meta: Meta{Role: RoleNode, ID: "a"},
		Logger: slog.New(slog.DiscardHandler), Timing: quick})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}()
	b.until(t, EventJoin, "a")
}

func TestBroadcastIsLimited(t *testing.T) {
	a := start(t, "a", key(1))
	var limited int
	for i := range 10 * ownBurst {
		if err := a.Broadcast(fmt.Appendf(nil, "%d", i)); errors.Is(err, ErrRateLimited) {
			limited++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	s := a.Stats()
	if limited == 0 || s.RateLimited != uint64(limited) || s.Broadcast+s.RateLimited != 10*ownBurst {
		t.Errorf("%d limited, stats %+v", limited, s)
	}
	for range 2 * queueSize {
		a.enqueue([]byte("x"))
	}
	if n := a.queue.NumQueued(); n > queueSize {
		t.Errorf("%d queued, want at most %d", n, queueSize)
	}
	if a.Stats().Pruned == 0 {
		t.Error("pruning is not counted")
	}
	for _, size := range []int{0, servicenet.MaxDatagram + 1} {
		if err := a.Broadcast(make([]byte, size)); err == nil || !strings.Contains(err.Error(), fmt.Sprint(size)) {
			t.Errorf("broadcast of %d bytes: %v", size, err)
		}
	}
}

func TestSlowReceiverDropsAndCounts(t *testing.T) {
	gate := make(chan struct{}) // holds the delivery goroutine in its callback
	in := make(chan struct{})
	cfg := Config{Name: "b", Bind: "127.0.0.1:0", Key: key(1), Meta: Meta{Role: RoleSupervisor, ID: "s0"},
		Logger: slog.New(slog.DiscardHandler), OnBroadcast: func([]byte) { in <- struct{}{}; <-gate }, Timing: quick}
	net, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range receiveQueue + 10 {
		(*delegate)(net).NotifyMsg(fmt.Appendf(nil, "%d", i))
		if i == 0 {
			<-in
		}
	}
	if s := net.Stats(); s.ReceiveDropped != 9 || s.Received != receiveQueue+10 {
		t.Errorf("stats %+v", s)
	}
	go func() {
		for range in {
		}
	}()
	close(gate)
	if err := net.Close(); err != nil {
		t.Fatal(err)
	}
	close(in)
}

// TestStreamsAreBounded: strangers without the key cannot make a member hold memory for any number of
// streams, and when they are gone others can join.
func TestStreamsAreBounded(t *testing.T) {
	a := start(t, "a", key(1))
	for range maxStreams + 8 {
		c, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	deadline := time.Now().Add(bound)
	for a.Stats().StreamsRefused == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams are open and none was refused", maxStreams+8)
		}
		time.Sleep(time.Millisecond)
	}
	b := start(t, "b", key(1), a) // memberlist gives up the idle ones after streamTimeout
	b.until(t, EventJoin, "a")
}

// TestStrangersStreamsKeepNobodyOut: a stranger takes all places for streams, and takes each one that it loses again.
// A member at another address joins.
func TestStrangersStreamsKeepNobodyOut(t *testing.T) {
	a := startConfig(t, Config{Name: "a", Key: key(1), Timing: calm, MaxPackets: 500, Strangers: 200})
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	ctx, cancel := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	defer strangers.Wait()
	defer cancel()
	for range 2 * maxStreams {
		strangers.Go(func() {
			for ctx.Err() == nil {
				c, err := dialer.DialContext(ctx, "tcp", a.Addr().String())
				if err != nil {
					continue
				}
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = c.Read(make([]byte, 1)) // until it is closed
				stop()
				_ = c.Close()
			}
		})
	}
	deadline := time.Now().Add(bound)
	for a.Stats().StreamsRefused == 0 {
		if time.Now().After(deadline) {
			t.Fatal("a stranger does not take all places: this test shows nothing")
		}
		time.Sleep(time.Millisecond)
	}
	b := start(t, "b", key(1), a)
	b.until(t, EventJoin, "a")
}

// remote is a stream of an address, which need not be this machine's.
type remote struct {
	net.Conn
	from   netip.Addr
	closed bool
}

func (r *remote) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.from, 1000))
}
func (r *remote) Close() error { r.closed = true; return nil }

// TestStreamsOfOneSubnetCountTogether: a host that takes a new address of its IPv6 /64 for each stream does not evict
// another host's stream.
func TestStreamsOfOneSubnetCountTogether(t *testing.T) {
	for _, member := range []string{"192.0.2.7", "2001:db8:0:1::7"} {
		tr := &transport{}
		stranger := netip.MustParseAddr("2001:db8::1")
		open := func(n int) {
			for range n {
				tr.place(&remote{from: stranger})
				stranger = stranger.Next()
			}
		}
		open(maxStreams)
		m := &remote{from: netip.MustParseAddr(member)}
		tr.place(m)
		open(2 * maxStreams)
		if m.closed || len(tr.open) != maxStreams {
			t.Errorf("member at %s: closed: %t, %d streams are open: want an open one among %d", member, m.closed, len(tr.open), maxStreams)
		}
	}
}

// TestStrangerInSubnetReplacesItsOwnStreams puts the members and a stranger into one /64.
func TestStrangerInSubnetReplacesItsOwnStreams(t *testing.T) {
	tr := &transport{}
	var members []*remote
	for addr := netip.MustParseAddr("2001:db8::100"); len(members) < 8; addr = addr.Next() {
		m := &remote{from: addr}
		tr.place(m)
		members = append(members, m)
	}
	stranger := netip.MustParseAddr("2001:db8::1")
	for range 3 * maxStreams {
		tr.place(&remote{from: stranger})
	}
	for _, m := range members {
		if m.closed {
			t.Errorf("the stream of member %s was closed", m.from)
		}
	}
}

// TestRefusedMemberIsShutOut refuses c at a and b: a broadcast of c reaches neither, c leaves the pool and its
// announcements do not bring it back, while a and b go on. When c is no longer refused, it comes back.
func TestRefusedMemberIsShutOut(t *testing.T) {
	a, b, c := three(t, quick)
	a.Refuse([]string{"c"})
	b.Refuse([]string{"c"})
	if err := c.Broadcast([]byte("of a revoked member")); err != nil {
		t.Fatal(err)
	}
	a.until(t, EventFail, "c")
	b.until(t, EventFail, "c")
	if err := (*delegate)(a.Net).NotifyAlive(&memberlist.Node{Name: "c"}); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("an announcement of c: %v: want an error that says revoked", err)
	}
	if _, err := c.list.Join([]string{a.Addr().String()}); err == nil &&
		slices.ContainsFunc(a.Members(), func(m Member) bool { return m.Name == "c" }) {
		t.Error("c joined again")
	}
	if err := a.Broadcast([]byte("of a")); err != nil {
		t.Fatal(err)
	}
	if got := b.broadcast(t); got != "of a" { // the first that b hears
		t.Errorf("b heard %q: want only the broadcast of a", got)
	}
	select {
	case got := <-a.broadcasts:
		t.Errorf("a heard %q of a member that it refuses", got)
	default:
	}
	a.Refuse(nil)
	b.Refuse(nil)
	a.until(t, EventJoin, "c")
}

// A member that was shut out has left its address to another one, for example to a new machine: packets from there are read again.
func TestAddressOfRefusedMemberServesAnother(t *testing.T) {
	a, b := start(t, "a", key(1)), start(t, "b", key(1))
	if _, err := a.list.Join([]string{b.Addr().String()}); err != nil {
		t.Fatal(err)
	}
	a.until(t, EventJoin, "b")
	a.Refuse([]string{"b"})
	if !a.transport.refuses(b.Addr()) {
		t.Error("packets of the refused member are read")
	}
	at := net.UDPAddrFromAddrPort(b.Addr())
	(*delegate)(a.Net).NotifyJoin(&memberlist.Node{Name: "c", Addr: at.IP, Port: uint16(at.Port)})
	if a.transport.refuses(b.Addr()) {
		t.Error("packets from the address of member c are dropped")
	}
	a.Refuse([]string{"b", "d"})
	if a.transport.refuses(b.Addr()) {
		t.Error("after another refusal, packets from the address of member c are dropped")
	}
}

// One round of joining reaches the living member of a list, although the others, which it may ask first, are dead.
func TestDeadAddressesDoNotKeepMemberOut(t *testing.T) {
	a, b := start(t, "a", key(1)), start(t, "b", key(1))
	list := []string{a.Addr().String()}
	for range 50 { // the order is random: the living one is hardly ever the first
		list = append(list, freeport.Addr(t).String())
	}
	one := &Net{cfg: Config{Join: list, Logger: slog.New(slog.DiscardHandler)}, list: b.list}
	one.join(t.Context())
	if !slices.ContainsFunc(b.Members(), func(m Member) bool { return m.Name == "a" }) {
		t.Errorf("b knows %v: want a among them", b.Members())
	}
}

// TestPausedMembersDoNotHoldUpJoin: two configured members accept streams but never answer, like paused processes. A new member must
// join the living member a before its exchanges with the paused ones time out. Six new members try, because each one asks
// the configured members in a random order.
func TestPausedMembersDoNotHoldUpJoin(t *testing.T) {
	a := start(t, "a", key(1))
	for i := range 6 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			cfg := Config{Name: fmt.Sprint("b", i), Key: key(1), Timing: a.cfg.Timing}
			ended := make(chan struct{}, 64)
			for range 2 {
				cfg.Join = append(cfg.Join, pausedMember(t, ended))
			}
			b := startConfig(t, cfg, a)
			b.until(t, EventJoin, "a")
			select {
			case <-ended:
				t.Error("the new member gave up on a paused one before it joined a")
			default:
			}
		})
	}
}

// pausedMember returns an address that accepts streams and never answers. It sends to ended when the other
// end gives up a stream.
func pausedMember(t *testing.T, ended chan<- struct{}) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
				ended <- struct{}{}
			}()
		}
	}()
	return l.Addr().String()
}

// TestAdvertisedAddress: a member that listens on all addresses advertises the one by which others reach it, and
// starts no process to find it, as memberlist would.
func TestAdvertisedAddress(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	if err := os.WriteFile(filepath.Join(dir, "ip"), []byte("#!/bin/sh\n: > "+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	a := start(t, "a", key(1))
	n, err := New(Config{
		Name: "b", Bind: "0.0.0.0:0", Key: key(1), Meta: Meta{Role: RoleNode, ID: "b", Coord: "0,0,0", ReportAddr: "127.0.0.1:7000"},
		Join: []string{a.Addr().String()}, Logger: slog.New(slog.DiscardHandler), Timing: quick,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	if e := a.until(t, EventJoin, "b"); e.Member.Addr.Addr() != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("b is known at %s", e.Member.Addr)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("`ip` was run")
	}
	for _, tc := range []struct {
		bind string
		join []string
		want string // empty: any specific address
	}{
		{"192.0.2.1", nil, "192.0.2.1"},
		{"0.0.0.0", []string{"127.0.0.1:1"}, "127.0.0.1"},
		{"0.0.0.0", []string{"[::1]:1", "127.0.0.1:1"}, "127.0.0.1"},
		{"::", []string{"127.0.0.1:1"}, "127.0.0.1"},
		{"0.0.0.0", nil, ""},
	} {
		got, err := advertised(netip.MustParseAddr(tc.bind), tc.join)
		if err != nil && tc.want == "" {
			continue // a machine without a network
		}
		if err != nil || tc.want != "" && got.String() != tc.want || got.IsUnspecified() {
			t.Errorf("%s, %v: %s, %v; want %s", tc.bind, tc.join, got, err, tc.want)
		}
	}
}

func TestNewNamesBadField(t *testing.T) {
	good := Config{Name: "x", Bind: "127.0.0.1:0", Key: key(1), Meta: Meta{Role: RoleNode, ID: "x"}, Logger: slog.New(slog.DiscardHandler)}
	for want, f := range map[string]func(*Config){
		"name":             func(c *Config) { c.Name = "" },
		"bind":             func(c *Config) { c.Bind = "localhost" },
		"join":             func(c *Config) { c.Join = []string{"nowhere"} },
		"key":              func(c *Config) { c.Key = key(1)[1:] },
		"further[1]":       func(c *Config) { c.Further = [][]byte{key(2), key(3)[1:]} },
		"logger":           func(c *Config) { c.Logger = nil },
		"meta.role":        func(c *Config) { c.Meta.Role = "king" },
		"meta.id":          func(c *Config) { c.Meta.ID = "X Y" },
		"meta.coord":       func(c *Config) { c.Meta.Coord = "up" },
		"meta.report_addr": func(c *Config) { c.Meta.ReportAddr = "here" },
	} {
		c := good
		f(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a refusal naming %s, got %v", want, err)
		}
	}
	a := start(t, "a", key(1))
	c := good
	c.Bind = a.Addr().String()
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "another process uses") || !strings.Contains(err.Error(), c.Bind) {
		t.Errorf("taken port: %v", err)
	}
	// UDP only.
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	c.Bind = u.LocalAddr().String()
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "another process uses") {
		t.Errorf("taken UDP port: %v", err)
	}
}

// A packet that a member sends to itself comes back to it alone, by its socket, and is no sign of another member.
func TestPacketToSelfIsNoSignOfOthers(t *testing.T) {
	back := make(chan []byte, 10)
	heard := make(chan struct{}, 10)
	n, err := New(Config{
		Name: "a", Bind: "127.0.0.1:0", Key: key(1), Meta: Meta{Role: RoleNode, ID: "a"}, Logger: slog.New(slog.DiscardHandler),
		OnLoop: func(b []byte) { back <- b }, OnHeard: func(time.Time) { heard <- struct{}{} },
		OnBroadcast: func(b []byte) { t.Errorf("broadcast %q", b) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	for _, size := range []int{1, 1000} {
		b := bytes.Repeat([]byte{7}, size)
		if err := n.Loop(b); err != nil {
			t.Fatal(err)
		}
		if got := <-back; !bytes.Equal(got, b) {
			t.Errorf("%d bytes came back as %x", size, got)
		}
	}
	if len(heard) > 0 || n.Blocked() {
		t.Errorf("heard %d, blocked %t", len(heard), n.Blocked())
	}
	if n.Block(true); !n.Blocked() {
		t.Error("not blocked")
	}
	if err := n.Loop(make([]byte, servicenet.MaxDatagram)); err == nil {
		t.Error("a probe longer than a datagram goes")
	}
}

// TestConcurrentAnnouncementsDoNotRace fails only under the race detector. A supervisor that stops may still announce its lost lead while
// it leaves. A host half sends itself probes at any time.
func TestConcurrentAnnouncementsDoNotRace(t *testing.T) {
	a := start(t, "a", key(1))
	var using sync.WaitGroup
	for _, use := range []func() error{
		func() error { return a.announce(time.Second) },
		func() error { return a.announce(time.Second) },
		func() error { return a.Loop([]byte("x")) },
	} {
		using.Go(func() {
			for range 1000 {
				if err := use(); err != nil && !errors.Is(err, servicenet.ErrBusy) {
					t.Error(err)
				}
			}
		})
	}
	using.Wait()
}

// TestCloseWaitsForCallback: the owner of a closed member frees the data that its callbacks use.
func TestCloseWaitsForCallback(t *testing.T) {
	called, finish := make(chan struct{}), make(chan struct{})
	n, err := New(Config{
		Name: "a", Bind: "127.0.0.1:0", Key: key(1), Meta: Meta{Role: RoleNode, ID: "a"}, Logger: slog.New(slog.DiscardHandler),
		OnLoop: func([]byte) { close(called); <-finish },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Loop([]byte("x")); err != nil {
		t.Fatal(err)
	}
	<-called
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-closed:
		t.Error("closed while a callback runs")
	case <-time.After(50 * time.Millisecond): // Close takes less if it does not wait
	}
	close(finish)
	<-closed
	(*delegate)(n).NotifyMsg(append(loopMark[:], 'x')) // memberlist may still handle a packet: a second call of OnLoop would panic
}

func TestClosedMemberRefuses(t *testing.T) {
	a := start(t, "a", key(1))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{a.Broadcast([]byte("x")), a.UpdateMeta(a.cfg.Meta), a.Leave(time.Second)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
	}
}

func TestDecodeMetaRefusals(t *testing.T) {
	for _, bad := range []string{"", "{", `{"r":"king","i":"x"}`, `{"r":"node","i":"\u001b"}`, `{"r":"node","i":"x","a":"y"}`,
		`{"r":"node","i":"` + strings.Repeat("x", 600) + `"}`} {
		if m, err := decodeMeta([]byte(bad)); err == nil || m != (wireMeta{}) {
			t.Errorf("%.40q: %+v, %v", bad, m, err)
		}
	}
	if m, err := decodeMeta([]byte(`{"r":"node","i":"x","later":1}`)); err != nil || m.ID != "x" {
		t.Errorf("unknown field: %+v, %v", m, err)
	}
	if _, err := (wireMeta{Meta: Meta{ID: strings.Repeat("x", 600)}}).encode(); err == nil {
		t.Error("encoded more than memberlist takes")
	}
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add([]byte(`{"r":"node","i":"n0-0-0","c":"0,0,0","a":"127.0.0.1:7000"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMeta(b); err == nil && m.Validate() != nil {
			t.Errorf("accepted %+v", m)
		}
	})
}

func TestRememberedIsBounded(t *testing.T) {
	r := newRemembered(8)
	for i := range 100 {
		b := fmt.Appendf(nil, "%d", i)
		if !r.add(b) || r.add(b) {
			t.Fatal("a new one is old or an old one is new")
		}
		if len(r.now)+len(r.past) > 8 {
			t.Fatalf("%d remembered", len(r.now)+len(r.past))
		}
	}
}

func TestEventLogDropsOldest(t *testing.T) {
	l := newEventLog(2)
	for _, n := range []string{"a", "b", "c"} {
		l.add(Event{EventJoin, Member{Name: n}})
	}
	if len(l.waiting) != 2 || l.waiting[0].Member.Name != "b" || l.droppedCount() != 1 {
		t.Errorf("%+v, %d dropped", l.waiting, l.droppedCount())
	}
	if EventKind(0).String() != "EventKind(0)" || EventFail.String() != "FAIL" {
		t.Error("names")
	}
}

func TestMemberlistLogKeepsItsLevels(t *testing.T) {
	var out bytes.Buffer
	w := newLogWriter(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for line, level := range map[string]string{
		"[DEBUG] memberlist: Stream connection\n": "DEBUG", "[WARN] memberlist: Refuting\n": "WARN",
		"[ERR] memberlist: Failed\n": "WARN", "[INFO] memberlist: Suspect\n": "INFO", "no tag": "INFO"} {
		out.Reset()
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
		if s := out.String(); !strings.Contains(s, "level="+level) || strings.Contains(s, "memberlist:") || !strings.Contains(s, "gossip: ") {
			t.Errorf("%q gave %q", line, s)
		}
	}
	out.Reset()
	for range 1000 {
		_, _ = w.Write([]byte("[WARN] memberlist: again"))
	}
	if n := strings.Count(out.String(), "\n"); n > logBurst+5 {
		t.Errorf("%d lines written", n)
	}
	if w.skipped.Load() < 900 {
		t.Errorf("%d lines counted as skipped", w.skipped.Load())
	}
}

func TestLogPrintsMetadataAsText(t *testing.T) {
	for line, want := range map[string]string{
		"[WARN] memberlist: Refuting an alive message for 'n' (127.0.0.1:1) meta:([123 34 125] VS []), vsn:([1 5 2] VS [1 5 3])": "Refuting an " +
			"alive message for 'n' (127.0.0.1:1) meta:(\"{\\\"}\" VS \"\"), vsn:([1 5 2] VS [1 5 3])",
		"[WARN] memberlist: meta:([999] VS [1": "meta:([999] VS [1",
		"[WARN] memberlist: meta:([999])":      "meta:([999])",
	} {
		if _, got := parseLine([]byte(line)); got != want {
			t.Errorf("%s\n gave %s\n want %s", line, got, want)
		}
	}
}

// TestEveryValidIDIsValidName: every id that is valid elsewhere is valid here.
func TestEveryValidIDIsValidName(t *testing.T) {
	for id, good := range map[string]bool{"n1-0-1": true, "GPU_7.rack-A": true, "": false, "n/0": false, "n 0": false} {
		if err := (Meta{Role: RoleNode, ID: id}).Validate(); (err == nil) != good {
			t.Errorf("%q: %v", id, err)
		}
	}
}

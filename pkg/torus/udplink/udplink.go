// Package udplink carries the frames of one torus link over one UDP flow, and makes its session
// keys by a TLS 1.3 handshake on the same address and port over TCP.
//
// It moves packets and proves the peer's identity. It does not decode frames, keep heartbeats or judge the link
// (pkg/torus), nor decide which neighbours are allowed (Config.VerifyPeer). TLS is used for the handshake only: its
// exporter (RFC 5705, RFC 8446 §7.5) gives both ends the keys of a torus.Session, and the connection is closed. One
// end of each link dials, the other accepts:
//
//	dialer                         acceptor
//	   ├── TLS 1.3, both certificates ──┤
//	   │◄───────────── ready ───────────┤   the acceptor has verified the dialer
//	   ├───────────── commit ──────────►│   both go over to the new session
//
// The dialer sends in the new session from its commit on. The acceptor takes the first authentic frame of that session
// for the commit if the commit is lost or late.
//
// The kernel drops packets from any address but the peer's (pkg/udpguard). LinkFaults drops, damages,
// doubles, delays or blocks packets, for tests and fault injection.
package udplink

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/pieces"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/udpguard"
)

// DefaultRekey is Config.Rekey where that is 0: how long a revoked certificate can live on in a
// session.
const DefaultRekey = time.Hour

// receiveBuffer is the socket's, in bytes: some fifty heartbeats. Packets that came while the reader was stopped are
// old; a large buffer would only keep more of these.
const receiveBuffer = 64 << 10

// The packets that a link reads in a second, from any sender, are limited to several times the rate of heartbeats and
// relayed messages. Beyond it and the burst reading rests: see udpguard.Pace.
const (
	packetRate  = 10_000
	packetBurst = 1000
)

// Config configures a link. Dir, Src, Dst, Local, Peer, TLS, VerifyPeer and Logger are required.
type Config struct {
	Dir      grid.Direction // the way out of this node
	Src, Dst grid.Coord     // this node and the neighbour; the session keys are bound to both

	Local, Peer netip.AddrPort // UDP flow, and TCP for the handshake; port 0 of Local picks one
	Interface   string         // bind to this interface (SO_BINDTODEVICE); empty: any
	Dialer      bool           // this end dials; by convention the one whose Dir is positive
	// Socket is a UDP socket that is bound to Local, and to Interface, already (see Bind). Listen closes and refuses a socket with another
	// binding. The Link closes an accepted one. nil: Listen opens one.
	Socket *net.UDPConn
	// Resumed: there is a session, of an earlier process, and of age SessionAge. None is made until one is requested,
	// or Rekey has passed.
	Resumed    bool
	SessionAge time.Duration

	// TLS is the configuration of a client for the dialer, of a server that demands client certificates for the
	// other. Both check the peer's chain; VerifyPeer checks whether it is the DNP half of the neighbour.
	TLS        *tls.Config
	VerifyPeer func(*x509.Certificate) error
	Rekey      time.Duration // time between handshakes of a link that works; 0: DefaultRekey

	MTU    int        // largest packet in bytes; 0: torus.DefaultMaxFrame
	Rand   *rand.Rand // of injected faults; nil: seeded by the system
	Logger *slog.Logger
}

// Handler receives the events of a link. Its methods are called from the link's own goroutines and must not block.
type Handler interface {
	// OnPacket gets a packet from the peer's address, one byte longer than the MTU if it was cut.
	// The slice is valid during the call only. Calls do not overlap.
	OnPacket(dir grid.Direction, b []byte)
	// OnSession gets the keys of a new session. Calls do not overlap.
	OnSession(dir grid.Direction, s *torus.Session)
	// OnRefused says that the peer's kernel refused a packet of this link: no socket is bound to the peer's address.
	// It quoted that packet. It comes at most once for each packet.
	OnRefused(dir grid.Direction)
}

// Stats are counters since Listen.
type Stats struct {
	RxPackets, TxPackets uint64
	Strangers            uint64 // packets from other addresses that waited in the socket before the kernel filtered it, dropped unread
	Dropped              uint64 // packets that the kernel dropped: from other addresses, or for lack of buffer space
	RxErrors, TxErrors   uint64 // errors of the socket; a full send buffer is a TxError
	Handshakes           uint64 // sessions made
	HandshakeFailures    uint64 // handshakes that failed, for any reason
	Rests                uint64 // made because more came than is read in a second
	Refused              uint64 // connections closed unread: from strangers, too many, too fast, or without a ClientHello
	Others               uint64 // connections from the peer's address, but not from its own port
	FaultedIn            uint64 // packets that injected faults dropped or damaged
	FaultedOut           uint64
}

type counters struct {
	rx, tx, strangers, rxErrors, txErrors, handshakes, failures, refused, others, rests, faultedIn, faultedOut atomic.Uint64
}

// Link is one end of one link. Send, Redial, SetFaults and Stats may be called by any goroutine.
type Link struct {
	cfg    Config
	local  netip.AddrPort
	log    *slog.Logger
	udp    *net.UDPConn
	tcp    *net.TCPListener // nil for the dialer
	doors  *udpguard.Guard  // of tcp: see listen
	redial chan struct{}
	pace   *udpguard.Pace // of packets read
	warn   *rate.Limiter  // of warnings
	began  time.Time
	count  counters

	remote  atomic.Pointer[remote]
	made    atomic.Pointer[handshaken]
	faults  atomic.Pointer[LinkFaults]
	randMu  sync.Mutex
	rand    *rand.Rand
	delayed chan delayedPacket

	drops    dropCount
	reserved int // the dialer's TCP socket that holds its port; -1: none

	quiet quiet // heartbeats without news

	offers    offers
	sessionMu sync.Mutex // OnSession calls one after the other
	closeOnce sync.Once

	sendMu sync.Mutex
	raw    syscall.RawConn
	quotes quotes
	joiner *pieces.Joiner // receive uses it
	errors chan struct{}  // wakes watchErrors
	out    []byte         // the packet that sendFn sends
	to     *rawAddr
	outErr error
	sendFn func(fd uintptr) bool // made once, so that a send does not allocate
}

// Listen opens the link's sockets. Nothing is received or dialled before Run. It fails with ErrAbsent if the interface or an address does
// not exist.
func Listen(cfg Config) (*Link, error) {
	if cfg.MTU == 0 {
		cfg.MTU = torus.DefaultMaxFrame
	}
	if cfg.Rekey == 0 {
		cfg.Rekey = DefaultRekey
	}
	cfg.Local, cfg.Peer = unmap(cfg.Local), unmap(cfg.Peer)
	if err := cfg.validate(); err != nil {
		cfg.closeSocket()
		return nil, err
	}
	r, err := cfg.remote(cfg.Peer, cfg.VerifyPeer)
	if err != nil {
		cfg.closeSocket()
		return nil, err
	}
	l := &Link{
		cfg: cfg, log: cfg.Logger.With("link", cfg.Dir.String()),
		redial: make(chan struct{}, 1), errors: make(chan struct{}, 1), delayed: make(chan delayedPacket, maxDelayed),
		pace: udpguard.NewPace(packetRate, packetBurst, udpguard.FloodRest),
		warn: rate.NewLimiter(rate.Every(warnEvery), 1), reserved: -1,
		rand: cfg.Rand, began: time.Now(), joiner: pieces.NewJoiner(keepPieces),
	}
	l.remote.Store(r)
	if l.rand == nil {
		l.rand = systemSeeded()
	}
	if err := l.open(); err != nil {
		_ = l.Close()
		if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
			err = fmt.Errorf("%w: %w", ErrAbsent, err)
		}
		return nil, err
	}
	return l, nil
}

// keepPieces is the number of packets whose pieces a link keeps: those of one packet come within microseconds.
const keepPieces = 8

// ErrAbsent reports that the machine does not have the interface or the local address of a link at present.
var ErrAbsent = errors.New("no such interface or local address")

func (c Config) closeSocket() {
	if c.Socket != nil {
		_ = c.Socket.Close()
	}
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func systemSeeded() *rand.Rand {
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // never fails (crypto/rand)
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:]), binary.LittleEndian.Uint64(seed[8:])))
}

func (c Config) validate() error {
	var errs []error
	check := func(ok bool, field string, given any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("link %s: %s %v: want %s", c.Dir, field, given, want))
		}
	}
	check(c.Dir.Valid(), "Dir", uint8(c.Dir), "1 to 6")
	check(c.Local.IsValid(), "Local", c.Local, "an address and a port")
	check(c.Peer.IsValid() && c.Peer.Port() != 0, "Peer", c.Peer, "an address and a port")
	check(c.Local.Addr().Is4() == c.Peer.Addr().Is4(), "Local", c.Local, fmt.Sprintf("an address of the same family as Peer (%s)", c.Peer))
	check(c.MTU >= torus.HeartbeatSize && c.MTU <= torus.MaxFrame, "MTU", c.MTU, fmt.Sprintf("%d to %d", torus.HeartbeatSize, torus.MaxFrame))
	check(c.Rekey > 0, "Rekey", c.Rekey, "more than 0")
	check(c.VerifyPeer != nil, "VerifyPeer", "nil", "a function")
	check(c.Logger != nil, "Logger", "nil", "a logger")
	check(c.TLS != nil, "TLS", "nil", "a configuration")
	if c.TLS != nil {
		check(len(c.TLS.Certificates) > 0 || c.TLS.GetCertificate != nil || c.TLS.GetClientCertificate != nil || c.TLS.GetConfigForClient != nil,
			"TLS", "without certificate", "one of our own")
		check(c.Dialer || c.TLS.ClientAuth >= tls.RequireAnyClientCert || c.TLS.GetConfigForClient != nil,
			"TLS.ClientAuth", c.TLS.ClientAuth, "a client certificate demanded")
	}
	return errors.Join(errs...)
}

func (l *Link) open() error {
	family := "6"
	if l.cfg.Local.Addr().Is4() {
		family = "4"
	}
	err := l.bind()
	if err != nil {
		return err
	}
	if l.raw, err = l.udp.SyscallConn(); err != nil {
		return fmt.Errorf("link %s: UDP %s: %w", l.cfg.Dir, l.local, err)
	}
	l.drops.before, _ = drops(l.raw)
	if !l.cfg.Dialer { // first, because what follows may log: the caller may try again each second
		if err := l.listen("tcp" + family); err != nil {
			return fmt.Errorf("link %s: listen on TCP %s for handshakes: %w", l.cfg.Dir, l.local, err)
		}
	}
	l.filter(l.raw, l.cfg.Peer)
	l.quiet.open(l)
	l.reportErrors(true)
	l.sendFn = func(fd uintptr) bool {
		for range sendTries {
			l.outErr = sendTo(fd, l.out, l.to)
			if l.outErr == nil {
				break
			}
			l.look()
			if !fromICMP(l.outErr) {
				break
			}
		}
		return true
	}
	if l.cfg.Dialer {
		l.reserve()
	}
	return nil
}

// BindTo returns the socket control that binds to an interface, and nil for none.
func BindTo(iface string) func(network, address string, c syscall.RawConn) error {
	if iface == "" {
		return nil
	}
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), iface) }); cerr != nil {
			return cerr
		}
		if err != nil {
			return fmt.Errorf("bind to interface %s: %w", iface, err)
		}
		return nil
	}
}

// Sockaddr returns an address in the form for system calls. It fails with ErrAbsent if the machine has no interface of the zone's name.
func Sockaddr(a netip.AddrPort) (unix.Sockaddr, error) {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, nil
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	if zone := a.Addr().Zone(); zone != "" {
		ifc, err := net.InterfaceByName(zone)
		index, noNumber := strconv.ParseUint(zone, 10, 32)
		switch {
		case err == nil:
			sa.ZoneId = uint32(ifc.Index)
		case noNumber == nil:
			sa.ZoneId = uint32(index)
		default:
			return nil, fmt.Errorf("%w: %w", ErrAbsent, err)
		}
	}
	return sa, nil
}

// LocalAddr returns the address that the link listens on, with the port that was picked.
func (l *Link) LocalAddr() netip.AddrPort { return l.local }

// Stats returns the counters.
func (l *Link) Stats() Stats {
	c := &l.count
	return Stats{
		RxPackets: c.rx.Load(), TxPackets: c.tx.Load(), Strangers: c.strangers.Load(), Dropped: l.dropped(),
		RxErrors: c.rxErrors.Load(), TxErrors: c.txErrors.Load(),
		Handshakes: c.handshakes.Load(), HandshakeFailures: c.failures.Load(), Refused: c.refused.Load(), Others: c.others.Load(),
		Rests:     c.rests.Load(),
		FaultedIn: c.faultedIn.Load(), FaultedOut: c.faultedOut.Load(),
	}
}

// Close frees the addresses. Run does it at its end; a link that is never run needs it.
func (l *Link) Close() error {
	var err error
	l.closeOnce.Do(func() {
		if l.udp != nil {
			err = l.udp.Close()
		}
		if l.tcp != nil {
			l.doors.Close()
			err = errors.Join(err, l.tcp.Close())
		}
		if l.reserved >= 0 {
			err = errors.Join(err, unix.Close(l.reserved))
		}
		l.quiet.close()
	})
	if err != nil {
		return fmt.Errorf("link %s: close: %w", l.cfg.Dir, err)
	}
	return nil
}

// Run receives, makes sessions and sends packets that injected faults delayed, until ctx ends. It returns after its
// goroutines, with the addresses free again. Call it once.
func (l *Link) Run(ctx context.Context, h Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { l.receive(ctx, h) })
	wg.Go(func() { l.sendDelayed(ctx) })
	wg.Go(func() { l.watchErrors(ctx, h) })
	wg.Go(l.watchQuiet)
	if l.cfg.Dialer {
		wg.Go(func() { l.keepDialling(ctx, h) })
	} else {
		wg.Go(func() { l.accept(ctx, h) })
	}
	<-ctx.Done()
	err := l.Close()
	wg.Wait()
	return err
}

// receive reads until the socket is closed. It handles packets inside the callback of RawConn.Read, so the goroutine
// enters the Go runtime's poller only when the socket is empty, not before each packet.
func (l *Link) receive(ctx context.Context, h Handler) {
	in := newBatch(l.cfg.MTU + 1)
	failed := false
	read := func(fd uintptr) (over bool) {
		for ctx.Err() == nil {
			n, errno := in.read(fd)
			switch errno {
			case 0:
				for i := range n {
					l.take(h, in, i)
				}
			case unix.EAGAIN:
				return false
			default:
				l.look()
				if !fromICMP(errno) { // else of a packet sent: see watchErrors
					failed = true
					return true
				}
			}
		}
		return true
	}
	for ctx.Err() == nil {
		failed = false
		if err := l.raw.Read(read); errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil || failed {
			l.count.rxErrors.Add(1)
			sleep(ctx, 10*time.Millisecond) // an interface that is down may fail again at once
		}
	}
}

// take handles the i-th packet of a batch.
func (l *Link) take(h Handler, in *batch, i int) {
	if l.pace.Take() {
		l.count.rests.Add(1)
	}
	b, ok := l.admitted(in, i)
	if ok {
		b, ok = l.joiner.Join(netip.AddrPort{}, b) // all are the peer's
	}
	if ok {
		l.commitBy(h, b)
		h.OnPacket(l.cfg.Dir, b)
	}
}

// admitted returns a packet of a batch if it comes from the peer and the injected faults let it pass.
func (l *Link) admitted(in *batch, i int) ([]byte, bool) {
	b, from := in.datagram(i)
	if from != l.remote.Load().bare {
		l.count.strangers.Add(1)
		return nil, false
	}
	if m := l.faults.Load(); m != nil && !l.faultIn(m, b) {
		return nil, false
	}
	l.count.rx.Add(1)
	return b, true
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Send sends one packet or drops it: it never waits for room in the socket. It keeps no slice.
func (l *Link) Send(b []byte) error {
	if len(b) > l.cfg.MTU {
		return fmt.Errorf("link %s: packet of %d bytes: want at most %d", l.cfg.Dir, len(b), l.cfg.MTU)
	}
	if m := l.faults.Load(); m != nil {
		return l.sendFaulty(m, b)
	}
	return l.send(b)
}

// send sends a packet, in pieces if it is long.
func (l *Link) send(b []byte) error {
	if len(b) <= pieces.MaxPayload {
		return l.sendOne(b)
	}
	for _, p := range pieces.Split(b) {
		if err := l.sendOne(p); err != nil {
			return err
		}
	}
	return nil
}

func (l *Link) sendOne(b []byte) error {
	r := l.remote.Load()
	l.sendMu.Lock()
	l.out, l.to = b, &r.to
	err := l.raw.Write(l.sendFn)
	if err == nil {
		err = l.outErr
	}
	l.out = nil
	if err == nil {
		l.quotes.note(b)
	}
	l.sendMu.Unlock()
	if err != nil {
		l.count.txErrors.Add(1)
		return fmt.Errorf("link %s: send to %s: %w", l.cfg.Dir, r.addr, err)
	}
	l.count.tx.Add(1)
	return nil
}

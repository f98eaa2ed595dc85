package gossip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/pieces"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/udpguard"
)

var (
	errBlocked = errors.New("gossip is blocked by fault injection")
	errRefused = errors.New("the member's certificates are revoked")
)

// maxStreams bounds the streams that others hold open to us at one time: memberlist does not. Beyond it a new stream replaces the
// oldest one of the subnet and the address with the most: a stranger replaces its own. Members try again, in step with
// rejoinInterval or the next push and pull.
const maxStreams = 32

// refuseRate is the number of strangers' packets beyond their budget that are read per second without a pause:
// packets already in the buffer when a flood begins have to be read quickly.
const refuseRate, refuseBurst = 20_000, 4000

// transport carries memberlist's packets over UDP and its streams over TCP, both at one port, with a switch in it:
// while it is blocked, packets are dropped and streams refused, both ways. Memberlist's own reads each packet into 64
// KiB of its own: an idle member of a large pool then spends a third of its time on collecting them.
type transport struct {
	udp     *net.UDPConn
	raw     syscall.RawConn // of udp
	ipv6    bool            // the family of udp, which may take IPv4 too
	tcp     *net.TCPListener
	log     *log.Logger
	ctx     context.Context // ends dials when the member closes
	blocked atomic.Bool
	// refusedFrom holds the addresses whose packets are dropped, with the names of their members; nil if there are
	// none.
	refusedFrom atomic.Pointer[map[netip.AddrPort]string]
	refused     atomic.Uint64 // streams closed for a newer one
	guard       *guard
	pace        *udpguard.Pace  // of packets; nil: no bound
	known       *udpguard.Guard // nil: no source is a stranger
	refuse      *udpguard.Pace  // of strangers' packets beyond their budget
	accepts     *udpguard.Pace  // of streams; nil: no bound
	doors       *udpguard.Guard // of streams; nil: no source is a stranger
	packets     chan *memberlist.Packet
	streams     chan net.Conn
	stop        sync.Once
	done        chan struct{}
	wg          sync.WaitGroup

	openMu sync.Mutex
	open   []*stream // the oldest first
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(ctx context.Context, bind netip.AddrPort, logger *log.Logger, g *guard, cfg Config) (*transport, error) {
	t := &transport{
		log:     logger,
		ctx:     ctx,
		guard:   g,
		refuse:  udpguard.NewPace(refuseRate, refuseBurst, udpguard.FloodRest),
		packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn),
		done:    make(chan struct{}),
	}
	// With port 0, the TCP port that the kernel assigns may be in use for UDP.
	tries := 1
	if bind.Port() == 0 {
		tries = 10
	}
	var err error
	for range tries {
		if err = t.listen(bind); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	unfiltered := func(err error) { t.log.Printf("[WARN] gossip: strangers are not filtered in the kernel: %v", err) }
	if cfg.Strangers > 0 {
		t.known = udpguard.New(cfg.Strangers)
		t.known.OnFailure(unfiltered)
		t.known.Guard(t.raw)
	}
	if cfg.MaxPackets > 0 {
		t.pace = udpguard.NewPace(cfg.MaxPackets, cfg.MaxPackets, udpguard.FloodRest)
		t.accepts = udpguard.NewPace(streamRate, streamBurst, acceptPause)
	}
	if raw, err := t.tcp.SyscallConn(); err == nil && cfg.MaxPackets > 0 && cfg.Strangers > 0 {
		t.doors = udpguard.New(streamRate, udpguard.AnyPort, udpguard.Listener)
		t.doors.OnFailure(unfiltered)
		t.doors.Guard(raw)
	}
	t.wg.Go(t.readPackets)
	t.wg.Go(t.acceptStreams)
	return t, nil
}

// receiveBuffer is the size of the packet socket's buffer, in bytes, as far as the kernel allows (net.core.rmem_max).
const receiveBuffer = 2 << 20

func (t *transport) listen(bind netip.AddrPort) error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_MAXSEG, pieces.MaxSegment)
		})
		return errors.Join(err, failed)
	}}
	lc.SetMultipathTCP(false) // see udpguard.Listener
	at, err := lc.Listen(context.Background(), "tcp", bind.String())
	if err != nil {
		return err
	}
	tcp := at.(*net.TCPListener) //nolint:forcetypeassert // the network is TCP
	t.tcp = tcp
	if t.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind.Addr(), t.port()))); err != nil {
		return errors.Join(err, tcp.Close())
	}
	if err := errors.Join(t.udp.SetReadBuffer(receiveBuffer), t.findFamily()); err != nil {
		return errors.Join(err, tcp.Close(), t.udp.Close())
	}
	return nil
}

// findFamily finds the family of the packet socket, since one on 0.0.0.0 may be of IPv6.
func (t *transport) findFamily() (err error) {
	if t.raw, err = t.udp.SyscallConn(); err != nil {
		return err
	}
	var family int
	var ferr error
	err = t.raw.Control(func(fd uintptr) { family, ferr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) })
	t.ipv6 = family == unix.AF_INET6
	return errors.Join(err, ferr)
}

func (t *transport) port() uint16 { return t.tcp.Addr().(*net.TCPAddr).AddrPort().Port() }

func (t *transport) block(on bool) { t.blocked.Store(on) }

func (t *transport) closing() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// keepPieces is the number of packets whose pieces a member keeps: those of one packet come within microseconds.
const keepPieces = 32

// readPackets delivers the messages of packets, in memory of their own: memberlist keeps them.
func (t *transport) readPackets() {
	buf, joiner := make([]byte, packetSize+1), pieces.NewJoiner(keepPieces)
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buf)
		at := time.Now()
		if err != nil {
			if t.closing() {
				return
			}
			t.log.Printf("[ERR] gossip: read a packet: %v", err)
			continue
		}
		pace, stranger := t.pace, t.known != nil && !t.known.Admit(at, from)
		if stranger {
			pace = t.refuse
		}
		pace.Take()
		if stranger || t.blocked.Load() || t.refuses(from) {
			continue
		}
		packet, ok := joiner.Join(from, buf[:n])
		if !ok {
			continue
		}
		message, err := t.guard.packet(packet)
		if err != nil {
			t.log.Printf("[ERR] gossip: refuse a packet from %s: %v", from, err)
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: message, From: net.UDPAddrFromAddrPort(from), Timestamp: at}:
		case <-t.done:
			return
		}
	}
}

func (t *transport) refuses(from netip.AddrPort) bool {
	addrs := t.refusedFrom.Load()
	if addrs == nil || len(*addrs) == 0 {
		return false
	}
	_, refused := (*addrs)[netip.AddrPortFrom(from.Addr().Unmap(), from.Port())]
	return refused
}

// acceptRest is the pause after a failed accept, such as one that lacked file descriptors.
const acceptRest = 100 * time.Millisecond

// streamRate is the number of streams a second, and streamBurst that at once, that a member with Config.MaxPackets accepts without a rest
// (see udpguard.Pace). In a flood the kernel admits members' addresses, and streamRate streams a second of strangers.
const (
	streamRate  = 50
	streamBurst = 100
	acceptPause = 2 * time.Millisecond
)

func (t *transport) acceptStreams() {
	for {
		t.accepts.Take()
		c, err := t.tcp.Accept()
		if err != nil {
			if t.closing() {
				return
			}
			t.log.Printf("[ERR] gossip: accept a stream: %v", err)
			time.Sleep(acceptRest)
			continue
		}
		if from, ok := c.RemoteAddr().(*net.TCPAddr); ok && t.doors != nil {
			t.doors.Admit(time.Now(), from.AddrPort()) // only for the kernel's filter: an accepted stream may be a joining member's
		}
		if t.blocked.Load() {
			_ = c.Close()
			continue
		}
		select {
		case t.streams <- t.place(c):
		case <-t.done:
			_ = c.Close()
			return
		}
	}
}

// place gives a stream a place. If none is free, it closes the oldest stream of the address with the most streams, in the
// subnet (see udpguard.SourceOf) with the most streams.
func (t *transport) place(c net.Conn) *stream {
	s := &stream{sealedConn: sealedConn{Conn: c, guard: t.guard, accepted: true}, t: t}
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		s.addr = a.AddrPort().Addr().Unmap()
		s.from = udpguard.SourceOf(s.addr)
	}
	t.openMu.Lock()
	var victim *stream
	if len(t.open) >= maxStreams {
		subnets, addrs := make(map[netip.Prefix]int), make(map[netip.Addr]int)
		for _, o := range t.open {
			subnets[o.from]++
			addrs[o.addr]++
		}
		for _, o := range t.open {
			if victim == nil || subnets[o.from] > subnets[victim.from] ||
				subnets[o.from] == subnets[victim.from] && addrs[o.addr] > addrs[victim.addr] {
				victim = o
			}
		}
	}
	t.open = append(t.open, s)
	t.openMu.Unlock()
	if victim != nil {
		t.refused.Add(1)
		_ = victim.Close()
	}
	return s
}

// stream is an accepted stream, which gives its place back when it is closed.
type stream struct {
	sealedConn
	t    *transport
	addr netip.Addr
	from netip.Prefix // see udpguard.SourceOf
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.t.openMu.Lock()
	s.t.open = slices.DeleteFunc(s.t.open, func(o *stream) bool { return o == s })
	s.t.openMu.Unlock()
	return s.sealedConn.Close()
}

// sealedConn encrypts one message to the other end, and decrypts one from it. memberlist reads and writes from one goroutine, and
// writes a message at once.
type sealedConn struct {
	net.Conn
	guard    *guard
	accepted bool // the other end opened it

	opened bool
	rest   []byte // of the message

	mu      sync.Mutex // Close may come from another goroutine
	closed  bool
	release func() // nil: holds no place
}

// Read implements net.Conn.
func (c *sealedConn) Read(b []byte) (int, error) {
	if !c.opened {
		c.opened = true
		m, release, err := c.guard.stream(c.Conn, c.accepted)
		c.mu.Lock()
		c.release = release
		if c.closed {
			release()
			c.release = nil
		}
		c.mu.Unlock()
		if err != nil {
			return 0, err
		}
		c.rest = m
	}
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Write implements net.Conn.
func (c *sealedConn) Write(b []byte) (int, error) {
	if err := take(c.guard.sends, len(b)); err != nil {
		return 0, err
	}
	head := binary.BigEndian.AppendUint32([]byte{typeEncrypted}, uint32(len(b)+sealSize))
	if _, err := c.Conn.Write(c.guard.seal(head, b, head)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close implements net.Conn.
func (c *sealedConn) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.release != nil {
		c.release()
		c.release = nil
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	at, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, 0, fmt.Errorf("advertised address: %w", err)
	}
	return at.Unmap().AsSlice(), port, nil
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	if t.blocked.Load() {
		return time.Now(), nil // as a cut cable: the sender does not know
	}
	to, err := netip.ParseAddrPort(addr.Addr)
	if err != nil {
		return time.Time{}, err
	}
	for _, p := range pieces.Split(t.guard.seal(make([]byte, 0, len(b)+sealSize), b, nil)) {
		if err = t.send(p, netip.AddrPortFrom(to.Addr().Unmap(), to.Port())); err != nil {
			break
		}
	}
	return time.Now(), err
}

// send sends one packet. Unlike net.UDPConn it does not wait for room in the send buffer: then it returns an error that wraps
// servicenet.ErrBusy. A host half that waited there, behind a card that is stuck or members that do not answer ARP, would be found dead.
func (t *transport) send(b []byte, to netip.AddrPort) error {
	var sa unix.Sockaddr
	switch {
	case t.ipv6 && to.Addr().IsValid():
		sa = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	case to.Addr().Is4():
		sa = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	default:
		return fmt.Errorf("send to %s: want an address of the family of %s", to, t.udp.LocalAddr())
	}
	var sent error
	err := t.raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT, sa)
		return true
	})
	switch {
	case err != nil:
		return err
	case sent == nil:
		return nil
	case errors.Is(sent, unix.EAGAIN), errors.Is(sent, unix.ENOBUFS): // no evidence against the member
		return fmt.Errorf("send to %s: %w: %w", to, servicenet.ErrBusy, sent)
	}
	// Memberlist takes this type, and no other, for evidence against the member.
	return &net.OpError{Op: "write", Net: "udp", Addr: net.UDPAddrFromAddrPort(to), Err: os.NewSyscallError("sendto", sent)}
}

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if t.blocked.Load() {
		return nil, fmt.Errorf("dial %s: %w", addr.Addr, errBlocked)
	}
	// Memberlist probes a member by TCP if it does not answer by UDP: a refused member would stay in the pool.
	if to, err := netip.ParseAddrPort(addr.Addr); err == nil && t.refuses(to) {
		return nil, fmt.Errorf("dial %s: %w", addr.Addr, errRefused)
	}
	d := net.Dialer{Timeout: timeout}
	c, err := d.DialContext(t.ctx, "tcp", addr.Addr)
	if err != nil {
		return nil, err
	}
	return &outgoingConn{sealedConn{Conn: c, guard: t.guard}, context.AfterFunc(t.ctx, func() { _ = c.Close() })}, nil
}

// outgoingConn is a stream to another member. It closes when this member closes, because the other one may be paused and never answer.
type outgoingConn struct {
	sealedConn
	stop func() bool
}

// Close implements net.Conn.
func (d *outgoingConn) Close() error {
	d.stop()
	return d.sealedConn.Close()
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	var err error
	t.stop.Do(func() {
		close(t.done)
		for _, g := range t.guards() {
			g.Close()
		}
		err = errors.Join(t.tcp.Close(), t.udp.Close())
		t.wg.Wait()
	})
	return err
}

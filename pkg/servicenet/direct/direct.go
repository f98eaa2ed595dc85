// Package direct is the direct rail: datagrams on one UDP socket, between an agent and a supervisor or back. It
// carries marshalled envelopes and does not look into them; the outbox repeats lost ones.
//
// It reports early the kernel's evidence against a path (seed 004 §IV-B.1): errors of Send at once, and with
// Options.OnError also ICMP answers to earlier datagrams. Both are hints: an ICMP message is not signed, and anyone
// who sees or guesses the ports may forge it. They may start a migration; they prove nothing about the other end.
// Options.OnRefused gets the quotation in a refusal, which only a reader of the datagram can make.
package direct

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/pieces"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/udpguard"
)

// receiveBuffer is the requested size of the kernel's buffer for a burst: some 700 full datagrams. Beyond it the
// kernel drops, and counts (Stats.Dropped).
const receiveBuffer = 1 << 20

// Options of a socket.
type Options struct {
	// Interface binds the socket to a network interface (SO_BINDTODEVICE, which needs
	// CAP_NET_RAW); empty: any.
	Interface string
	// OnError gets the error that came back for a datagram to an address: port, host or network unreachable.
	// PathError holds for err. It is called from Run's goroutine and must not block. It gets errors of the same
	// destination at most once per errorGap, and at most errorRate in total per second. If it is nil, the kernel does
	// not collect errors.
	OnError func(to netip.AddrPort, err error)
	// OnRefused gets each datagram that the kernel at an address refused because nothing listens there (ICMP port
	// unreachable): the beginning that the answer quotes, at most QuoteSize bytes. It returns whether the owner sent
	// that datagram lately. Anybody can send such an answer, but only a reader of the datagram can quote it. It is
	// called from Run's goroutine, must not block and must not keep quote. If it is nil too, the kernel does not
	// collect errors; see strangeErrors.
	OnRefused func(to netip.AddrPort, quote []byte) bool
	// Late makes it no error of Listen that the interface or the address is not there: Send fails, and
	// nothing comes, until Rebind has found it. The port must not be 0.
	Late bool
	// MaxRate is the number of datagrams and errors per second that Run reads from the kernel; 0: all. Beyond that rate
	// and a burst of a quarter of it, Run rests between them, and the kernel drops datagrams that have no room. A
	// process of real-time class that never rests is killed by its limit (RLIMIT_RTTIME).
	MaxRate int
	// Gather is the time for which Run lets datagrams gather after it has read all. Run does so while more than gatherRate
	// datagrams arrive per Gather, because a wake-up costs more than a read. 0: never.
	Gather time.Duration
	// OnFull is called from Run's goroutine when it finds that the kernel has dropped datagrams and that at least half of its
	// buffer is in use. It must not block. May be nil.
	OnFull func()
	// Strangers is the number of datagrams per second that the socket accepts from all sources together that Know has
	// not named. The kernel drops the rest before they take buffer space from known sources (pkg/udpguard). 0: no
	// source is a stranger.
	Strangers int
	// OnUnfiltered is called once, when the kernel cannot filter strangers because Know named too many addresses.
	// Then strangers can fill the receive buffer. It must not block or call the socket. May be nil.
	OnUnfiltered func(error)
}

// Handler gets each datagram. It is called from one goroutine, must not block and must not keep b.
type Handler func(from netip.AddrPort, b []byte)

// Socket is one UDP socket. All methods may be called from any goroutine; Run from one at a time.
type Socket struct {
	opts  Options
	bound netip.AddrPort // as requested, with the assigned port: Rebind uses it again
	local netip.AddrPort
	cur   atomic.Pointer[endpoint] // nil: see Options.Late
	guard *udpguard.Guard          // nil without Options.Strangers

	opened chan struct{} // closed once there is an endpoint, or Close

	mu     sync.Mutex // for Rebind, which may wait for the kernel, and Close
	absent error      // why there is no endpoint yet
	past   uint64     // datagrams that the kernel dropped at former endpoints

	closed  atomic.Bool // set under mu
	blocked atomic.Bool
	zones   zones

	received, sent, oversized, blockedCount, sendErrors, busy, pathErrors, untold, rebinds atomic.Uint64
}

// endpoint is a socket's state in the kernel. Rebind replaces it.
type endpoint struct {
	conn *net.UDPConn
	raw  syscall.RawConn
	ipv6 bool // the family of the socket, which may take IPv4 too
}

// Listen opens the socket on addr ("ip:port"; port 0 picks a free one).
func Listen(addr string, opts Options) (*Socket, error) {
	want, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on direct rail: address: given %q: want ip:port", addr)
	}
	var guard *udpguard.Guard
	if opts.Strangers > 0 {
		guard = udpguard.New(opts.Strangers)
		guard.OnFailure(opts.OnUnfiltered)
	}
	ep, err := open(want, opts, false)
	switch {
	case opts.Late && want.Port() != 0 && absent(err):
		return &Socket{opts: opts, guard: guard, bound: want, local: unmap(want), opened: make(chan struct{}), absent: err}, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on direct rail %s: another process uses UDP port %d: %w", addr, want.Port(), err)
	case err != nil:
		return nil, fmt.Errorf("listen on direct rail %s: %w", addr, err)
	}
	local := unmap(ep.conn.LocalAddr().(*net.UDPAddr).AddrPort())
	s := &Socket{opts: opts, guard: guard, bound: netip.AddrPortFrom(want.Addr(), local.Port()), local: local, opened: make(chan struct{})}
	s.use(ep)
	close(s.opened)
	return s, nil
}

// use makes ep the socket's endpoint.
func (s *Socket) use(ep *endpoint) {
	if s.guard != nil {
		s.guard.Guard(ep.raw)
	}
	s.cur.Store(ep)
}

// Know sets the sources that are not strangers and replaces the earlier ones: see Options.Strangers.
func (s *Socket) Know(sources []netip.AddrPort) {
	if s.guard != nil {
		s.guard.Know(sources)
	}
}

// open makes an endpoint. With share, the port may be one that another endpoint of ours still has.
func open(addr netip.AddrPort, opts Options, share bool) (*endpoint, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if share {
			if err := setInt(c, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
				return err
			}
		}
		return bindToDevice(c, opts.Interface)
	}}
	pc, err := lc.ListenPacket(context.Background(), "udp", addr.String())
	if err != nil {
		return nil, err
	}
	ep := &endpoint{conn: pc.(*net.UDPConn)}
	_ = ep.conn.SetReadBuffer(receiveBuffer) // best effort: the kernel's limit may be lower
	if err := ep.prepare(opts.wantsErrors()); err != nil {
		return nil, errors.Join(err, ep.conn.Close())
	}
	return ep, nil
}

func (o *Options) wantsErrors() bool { return o.OnError != nil || o.OnRefused != nil }

// prepare finds the socket's family, since one on 0.0.0.0 may be of IPv6, and enables ICMP errors.
func (e *endpoint) prepare(wantErrors bool) (err error) {
	if e.raw, err = e.conn.SyscallConn(); err != nil {
		return err
	}
	var family int
	var ferr error
	err = e.raw.Control(func(fd uintptr) { family, ferr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) })
	if err = errors.Join(err, ferr); err != nil || !wantErrors {
		e.ipv6 = family == unix.AF_INET6
		return err
	}
	e.ipv6 = family == unix.AF_INET6
	return e.collectErrors(true)
}

// collectErrors asks the kernel to collect ICMP errors for this socket, or to collect none and to forget all.
func (e *endpoint) collectErrors(on bool) error {
	v := 0
	if on {
		v = 1
	}
	if e.ipv6 {
		if err := setInt(e.raw, unix.SOL_IPV6, unix.IPV6_RECVERR, v); err != nil {
			return fmt.Errorf("ask for ICMPv6 errors: %w", err)
		}
	}
	// A socket of IPv6 sends to IPv4 as well, and has both options.
	if err := setInt(e.raw, unix.SOL_IP, unix.IP_RECVERR, v); err != nil {
		return fmt.Errorf("ask for ICMP errors: %w", err)
	}
	return nil
}

func setInt(c syscall.RawConn, level, opt, v int) error {
	var serr error
	err := c.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), level, opt, v) })
	return errors.Join(err, serr)
}

func bindToDevice(c syscall.RawConn, name string) error {
	if name == "" {
		return nil
	}
	var bindErr error
	err := c.Control(func(fd uintptr) { bindErr = unix.BindToDevice(int(fd), name) })
	if err = errors.Join(err, bindErr); err != nil {
		return fmt.Errorf("bind to interface %q: %w", name, err)
	}
	return nil
}

// Blocked reports whether the socket is blocked by fault injection, or has no endpoint yet.
func (s *Socket) Blocked() bool { return s.blocked.Load() || s.cur.Load() == nil }

// LocalAddr returns the address that the socket is bound to.
func (s *Socket) LocalAddr() netip.AddrPort { return s.local }

// Send sends one datagram. It does not block: if the kernel has no room, Send returns an error that wraps
// servicenet.ErrBusy. b is the caller's again on return. While the socket is blocked it succeeds and sends nothing,
// as a cut cable would.
func (s *Socket) Send(to netip.AddrPort, b []byte) error {
	if len(b) > servicenet.MaxDatagram {
		return fmt.Errorf("send to %s: datagram: given %d bytes: want at most %d: %w", to, len(b), servicenet.MaxDatagram, servicenet.ErrTooLong)
	}
	if s.blocked.Load() {
		s.blockedCount.Add(1)
		return nil
	}
	err := s.sendNow(to, b)
	if err == nil {
		s.sent.Add(1)
		return nil
	}
	s.sendErrors.Add(1)
	switch {
	case errors.Is(err, net.ErrClosed):
		return fmt.Errorf("send to %s: %w", to, servicenet.ErrClosed)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
		s.busy.Add(1)
		return fmt.Errorf("send to %s: %w: %w", to, servicenet.ErrBusy, err)
	case errors.Is(err, unix.ECONNREFUSED): // never of this datagram: see sendTries
		s.busy.Add(1)
		return fmt.Errorf("send to %s: %w: too many ICMP errors", to, servicenet.ErrBusy)
	}
	return fmt.Errorf("send to %s: %w", to, err)
}

// sendNow sends at the endpoint of the moment.
func (s *Socket) sendNow(to netip.AddrPort, b []byte) error {
	var scope uint32
	if name := to.Addr().Zone(); name != "" {
		var err error
		if scope, err = s.zones.number(name); err != nil {
			return err
		}
	}
	for ep := s.cur.Load(); ; {
		if ep == nil {
			return s.errAbsent()
		}
		err := ep.sendAll(to, scope, b)
		now := s.cur.Load()
		if now == ep || !errors.Is(err, net.ErrClosed) {
			if err != nil && scope != 0 {
				s.zones.doubt(to.Addr().Zone(), err)
			}
			return err
		}
		ep = now // Rebind came between
	}
}

// sendTries bounds how often a datagram is offered to the kernel. An ICMP answer to an earlier one shows as the error
// of the next call, once: it is no fault of this datagram, and may concern another supervisor. When the reader takes an error
// from the queue, the next call gets the error behind it. The reader takes up to errorBatch in a row.
const sendTries = 4 * errorBatch

// sendAll sends a datagram, in pieces if it is long.
func (e *endpoint) sendAll(to netip.AddrPort, scope uint32, b []byte) error {
	if len(b) <= pieces.MaxPayload {
		return e.send(to, scope, b)
	}
	for _, p := range pieces.Split(b) {
		if err := e.send(to, scope, p); err != nil {
			return err
		}
	}
	return nil
}

// send goes around net.UDPConn, which waits for room in the send buffer. A host half that waited
// there, behind a card that is stuck or neighbours that do not answer ARP, would be found dead.
func (e *endpoint) send(to netip.AddrPort, scope uint32, b []byte) error {
	sa, saLen, err := e.sockaddr(to, scope)
	if err != nil {
		return err
	}
	var sendErr error
	if err := e.raw.Write(func(fd uintptr) bool {
		for range sendTries {
			_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
				unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&sa)), saLen)
			if sendErr = nil; errno == 0 {
				break
			}
			if sendErr = errno; !fromICMP(errno) {
				break
			}
		}
		return true
	}); err != nil {
		return err
	}
	return sendErr
}

// sockaddr returns an address in the kernel's form, and its length. scope is the number of its zone.
func (e *endpoint) sockaddr(to netip.AddrPort, scope uint32) (sa unix.RawSockaddrAny, size uintptr, err error) {
	addr := to.Addr()
	switch {
	case e.ipv6 && addr.IsValid():
		*(*unix.RawSockaddrInet6)(unsafe.Pointer(&sa)) = unix.RawSockaddrInet6{
			Family: unix.AF_INET6, Port: port(to.Port()), Addr: addr.As16(), Scope_id: scope,
		}
		return sa, unix.SizeofSockaddrInet6, nil
	case addr.Unmap().Is4():
		*(*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)) = unix.RawSockaddrInet4{
			Family: unix.AF_INET, Port: port(to.Port()), Addr: addr.Unmap().As4(),
		}
		return sa, unix.SizeofSockaddrInet4, nil
	}
	return sa, 0, fmt.Errorf("address %s: want one of the family of %s", to, e.conn.LocalAddr())
}

// Run reads until the context ends or the socket is closed, and closes it. It returns nil then,
// and an error when the socket fails for good.
func (s *Socket) Run(ctx context.Context, h Handler) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	defer func() { _ = s.Close() }()
	if !s.awaitOpen(ctx) {
		return nil
	}
	r := newReader(s, h)
	for {
		ep := s.cur.Load()
		if err := r.serve(ctx, ep); !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("read direct rail %s: %w", s.local, err)
		}
		if s.cur.Load() == ep {
			return nil
		}
	}
}

// unmap makes an IPv4 address of one that a dual-stack socket shows as IPv6.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Block makes the socket drop everything both ways, for fault injection.
func (s *Socket) Block(on bool) { s.blocked.Store(on) }

// Stats counts datagrams, except for PathErrors, Untold and Rebinds.
type Stats struct {
	Received, Sent uint64
	Oversized      uint64 // received, longer than servicenet.MaxDatagram
	Blocked        uint64 // dropped by Block, both ways
	SendErrors     uint64
	Busy           uint64 // those of SendErrors that lacked room
	Dropped        uint64 // dropped by the kernel on arrival: a stranger beyond the budget, or Run was too slow
	Strangers      uint64 // over the limit, dropped unread; the kernel drops most, see Dropped
	PathErrors     uint64 // read from the kernel's queue of errors
	Untold         uint64 // those of PathErrors beyond the rate of OnError
	Rebinds        uint64
}

// Stats returns the counters.
func (s *Socket) Stats() Stats {
	var strangers uint64
	if s.guard != nil {
		strangers = s.guard.Stats().Refused
	}
	return Stats{
		Strangers:  strangers,
		Received:   s.received.Load(),
		Sent:       s.sent.Load(),
		Oversized:  s.oversized.Load(),
		Blocked:    s.blockedCount.Load(),
		SendErrors: s.sendErrors.Load(),
		Busy:       s.busy.Load(),
		Dropped:    s.dropped(),
		PathErrors: s.pathErrors.Load(),
		Untold:     s.untold.Load(),
		Rebinds:    s.rebinds.Load(),
	}
}

// Close closes the socket; Run returns.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Swap(true) {
		return nil
	}
	if s.guard != nil {
		s.guard.Close()
	}
	ep := s.cur.Load()
	if ep == nil {
		close(s.opened)
		return nil
	}
	s.past += ep.drops()
	if err := ep.conn.Close(); err != nil {
		return fmt.Errorf("close direct rail %s: %w", s.local, err)
	}
	return nil
}

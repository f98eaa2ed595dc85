// Package direct is the direct rail: datagrams on one UDP socket, between an agent and a
// supervisor or back. It carries marshalled envelopes and knows nothing of what is in them; what
// is lost, the outbox sends again.
package direct

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// receiveBuffer is what the kernel is asked to hold while a burst is handled: some 700 full
// datagrams. Beyond it the kernel drops.
const receiveBuffer = 1 << 20

// Options of a socket.
type Options struct {
	// Interface binds the socket to a network interface (SO_BINDTODEVICE, which needs
	// CAP_NET_RAW); empty: any.
	Interface string
}

// Handler gets each datagram. It is called from one goroutine, must not block and must not keep b.
type Handler func(from netip.AddrPort, b []byte)

// Socket is one UDP socket. All methods may be called from any goroutine.
type Socket struct {
	conn    *net.UDPConn
	raw     syscall.RawConn
	ipv6    bool // the family of the socket, which may take IPv4 too
	local   netip.AddrPort
	blocked atomic.Bool

	received, sent, oversized, blockedCount, sendErrors atomic.Uint64
}

// Listen opens the socket on addr ("ip:port"; port 0 takes a free one).
func Listen(addr string, opts Options) (*Socket, error) {
	want, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on direct rail: address: given %q: want ip:port", addr)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { return bindToDevice(c, opts.Interface) }}
	pc, err := lc.ListenPacket(context.Background(), "udp", want.String())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on direct rail %s: UDP port %d is taken by another process: %w", addr, want.Port(), err)
	case err != nil:
		return nil, fmt.Errorf("listen on direct rail %s: %w", addr, err)
	}
	conn := pc.(*net.UDPConn)
	_ = conn.SetReadBuffer(receiveBuffer) // best effort: the kernel's limit may be lower
	s := &Socket{conn: conn, local: unmap(conn.LocalAddr().(*net.UDPAddr).AddrPort())}
	if err := s.inspect(); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on direct rail %s: %w", addr, err), conn.Close())
	}
	return s, nil
}

// inspect finds the socket's family: one on 0.0.0.0 may be of IPv6.
func (s *Socket) inspect() (err error) {
	if s.raw, err = s.conn.SyscallConn(); err != nil {
		return err
	}
	var family int
	var ferr error
	err = s.raw.Control(func(fd uintptr) { family, ferr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) })
	s.ipv6 = family == unix.AF_INET6
	return errors.Join(err, ferr)
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

// LocalAddr returns the address that the socket is bound to.
func (s *Socket) LocalAddr() netip.AddrPort { return s.local }

// Send sends one datagram. It does not block: what the kernel cannot take is an error. b is the
// caller's again on return. While the socket is blocked it succeeds and sends nothing, as a cut
// cable would.
func (s *Socket) Send(to netip.AddrPort, b []byte) error {
	if len(b) > servicenet.MaxDatagram {
		return fmt.Errorf("send to %s: datagram: given %d bytes: want at most %d", to, len(b), servicenet.MaxDatagram)
	}
	if s.blocked.Load() {
		s.blockedCount.Add(1)
		return nil
	}
	err := s.send(to, b)
	// An ICMP refusal of an earlier datagram may show here: no fault of this one.
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = s.send(to, b)
	}
	if err != nil {
		s.sendErrors.Add(1)
		return fmt.Errorf("send to %s: %w", to, err)
	}
	s.sent.Add(1)
	return nil
}

// send goes around net.UDPConn, which waits for room in the send buffer. A host half that waited
// there, behind a card that is stuck or neighbours that do not answer ARP, would be found dead.
func (s *Socket) send(to netip.AddrPort, b []byte) error {
	sa, err := s.sockaddr(to)
	if err != nil {
		return err
	}
	var sendErr error
	if err := s.raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT, sa)
		return true
	}); err != nil {
		return err
	}
	return sendErr
}

func (s *Socket) sockaddr(to netip.AddrPort) (unix.Sockaddr, error) {
	addr, port := to.Addr(), int(to.Port())
	switch {
	case s.ipv6 && addr.IsValid():
		sa := &unix.SockaddrInet6{Port: port, Addr: addr.As16()}
		if addr.Zone() != "" {
			ifc, err := net.InterfaceByName(addr.Zone())
			if err != nil {
				return nil, fmt.Errorf("zone %q: %w", addr.Zone(), err)
			}
			sa.ZoneId = uint32(ifc.Index)
		}
		return sa, nil
	case addr.Unmap().Is4():
		return &unix.SockaddrInet4{Port: port, Addr: addr.As4()}, nil
	}
	return nil, fmt.Errorf("address %s: want one of the family of %s", to, s.local)
}

// Run reads until the context ends or the socket is closed, and closes it. It returns nil then,
// and an error when the socket fails for good.
func (s *Socket) Run(ctx context.Context, h Handler) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	defer func() { _ = s.conn.Close() }()
	wait := time.Millisecond // after an error that may pass, such as ENOBUFS
	// One byte longer than what is allowed, so that what is too long shows.
	buf := make([]byte, servicenet.MaxDatagram+1)
	for {
		err := s.read(buf, h)
		switch {
		case err == nil:
			wait = time.Millisecond
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.ECONNREFUSED):
			// An ICMP answer to something sent earlier; the outbox sees the missing answer.
		case wait > time.Second:
			return fmt.Errorf("read direct rail %s: %w", s.local, err)
		default:
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait *= 2
		}
	}
}

// read handles one datagram.
func (s *Socket) read(buf []byte, h Handler) error {
	n, from, err := s.conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		return err
	}
	switch {
	case s.blocked.Load():
		s.blockedCount.Add(1)
	case n > servicenet.MaxDatagram:
		s.oversized.Add(1)
	default:
		s.received.Add(1)
		h(unmap(from), buf[:n])
	}
	return nil
}

// unmap makes an IPv4 address of one that a dual-stack socket shows as IPv6.
func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Block makes the socket drop everything both ways, for fault injection.
func (s *Socket) Block(on bool) { s.blocked.Store(on) }

// Stats counts datagrams.
type Stats struct {
	Received, Sent uint64
	Oversized      uint64 // received, longer than servicenet.MaxDatagram
	Blocked        uint64 // dropped by Block, both ways
	SendErrors     uint64
}

// Stats returns the counters.
func (s *Socket) Stats() Stats {
	return Stats{
		Received:   s.received.Load(),
		Sent:       s.sent.Load(),
		Oversized:  s.oversized.Load(),
		Blocked:    s.blockedCount.Load(),
		SendErrors: s.sendErrors.Load(),
	}
}

// Close closes the socket; Run returns.
func (s *Socket) Close() error {
	if err := s.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close direct rail %s: %w", s.local, err)
	}
	return nil
}

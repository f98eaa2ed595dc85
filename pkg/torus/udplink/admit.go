package udplink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// A handshake comes from the port of the link's own UDP flow: the dialer holds that port in TCP too, so that no other user of its machine can
// connect from it. The acceptor takes such a connection at once, and in place of an earlier one. Any other connection from the peer's address
// (a dialer of an earlier version, or one whose port was taken) has to show the beginning of a ClientHello within helloTime before it costs
// a place or any of the rate.
const (
	helloTime = 100 * time.Millisecond
	// maxSilent bounds the connections that have not shown it yet, maxHandshakes the handshakes of these others, acceptRate (a second) and
	// acceptBurst what each class makes the acceptor do over time. What is above is closed unread.
	maxSilent     = 32
	maxHandshakes = 4
	acceptRate    = 20
	acceptBurst   = 8
)

// reserve holds the link's own port in TCP. Nobody listens there: connections to it are refused.
func (l *Link) reserve() {
	family := unix.AF_INET6
	if l.local.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		l.log.Warn("handshakes come from any port", "err", err)
		return
	}
	if err = l.bindOwn(fd); err != nil {
		_ = unix.Close(fd)
		l.log.Warn("handshakes come from any port: others on this machine can delay them", "port", l.local.Port(), "err", err)
		return
	}
	l.reserved = fd
}

// bindOwn binds a TCP socket to the link's own address. The port is shared with sockets of this user alone.
func (l *Link) bindOwn(fd int) error {
	sa, err := Sockaddr(l.local)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}
	if err == nil && l.cfg.Interface != "" {
		err = unix.BindToDevice(fd, l.cfg.Interface)
	}
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	return err
}

// connect opens a connection to the acceptor, from the link's own port where that can be had.
func (l *Link) connect(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	if l.reserved >= 0 {
		conn, err := l.connectFrom(ctx, l.local.Port(), to)
		// A connection of before may not be forgotten yet, at either end.
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return conn, err
		}
	}
	return l.connectFrom(ctx, 0, to)
}

func (l *Link) connectFrom(ctx context.Context, port uint16, to netip.AddrPort) (*net.TCPConn, error) {
	bound := bindTo(l.cfg.Interface)
	d := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(l.local.Addr(), port)),
		Control: func(network, address string, c syscall.RawConn) error {
			var serr error
			if port != 0 {
				if err := c.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); err != nil {
					return err
				}
			}
			if serr != nil || bound == nil {
				return serr
			}
			return bound(network, address, c)
		},
	}
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", to, err)
	}
	return conn.(*net.TCPConn), nil
}

// finish closes a dialled connection once the acceptor has closed it, or after wait. Neither end then remembers it, so that the next one can
// come from the same port.
func finish(conn *net.TCPConn, wait time.Duration) {
	if wait > 0 {
		_ = conn.SetDeadline(time.Now().Add(wait))
		_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<10))
	}
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

// admission decides which connections cost the acceptor a handshake.
type admission struct {
	peers  *rate.Limiter // connections from the peer's own port
	others *rate.Limiter // of others, those that begin with a ClientHello
	silent chan struct{} // a place for each of the others that does not yet
	slots  chan struct{} // and for each that does

	mu  sync.Mutex
	own net.Conn // from the peer's own port, under way
}

func newAdmission() *admission {
	return &admission{
		peers: rate.NewLimiter(acceptRate, acceptBurst), others: rate.NewLimiter(acceptRate, acceptBurst),
		silent: make(chan struct{}, maxSilent), slots: make(chan struct{}, maxHandshakes),
	}
}

// enter admits a connection, in a goroutine of its own, and returns what it is to be read from and what to call at its end; nil: it may cost
// nothing.
func (a *admission) enter(conn net.Conn, own bool) (net.Conn, func()) {
	if own {
		return a.enterOwn(conn)
	}
	select {
	case a.silent <- struct{}{}:
	default:
		return nil, nil
	}
	begun, err := beginning(conn)
	<-a.silent
	if err != nil || !a.others.Allow() {
		return nil, nil
	}
	select {
	case a.slots <- struct{}{}:
		return begun, func() { <-a.slots }
	default:
		return nil, nil
	}
}

// enterOwn admits a connection from the peer's own port in place of an earlier one: the peer has one at a time.
func (a *admission) enterOwn(conn net.Conn) (net.Conn, func()) {
	if !a.peers.Allow() {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.own != nil {
		_ = a.own.Close()
	}
	a.own = conn
	return conn, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.own == conn {
			a.own = nil
		}
	}
}

// What a TLS handshake begins with: a record of kind handshake, version and length, and in it a ClientHello (RFC 8446 §5.1 and §4).
const (
	helloSize       = 6
	recordHandshake = 22
	clientHello     = 1
)

// begunConn is a connection of which the beginning was read already.
type begunConn struct {
	net.Conn
	head []byte
}

// Read implements net.Conn.
func (c *begunConn) Read(b []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(b, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// beginning waits helloTime for the beginning of a ClientHello.
func beginning(conn net.Conn) (net.Conn, error) {
	if err := conn.SetReadDeadline(time.Now().Add(helloTime)); err != nil {
		return nil, err
	}
	head := make([]byte, helloSize)
	if _, err := io.ReadFull(conn, head); err != nil {
		return nil, err
	}
	if head[0] != recordHandshake || head[helloSize-1] != clientHello {
		return nil, errors.New("no ClientHello")
	}
	return &begunConn{conn, head}, conn.SetReadDeadline(time.Time{})
}

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

	"github.com/lofamo/lofamo/pkg/pieces"
	"github.com/lofamo/lofamo/pkg/udpguard"
)

// A handshake comes from the port of the link's own UDP flow. The dialer also holds that port in TCP, so that no
// other user of its machine can connect from it. The acceptor takes such a connection at once and closes an earlier
// one. Any other connection from the peer's address (from a dialer of an earlier version, or one that could not get
// its port) must show the beginning of a ClientHello within helloTime before it takes a place or counts against the
// rate.
const (
	helloTime = 100 * time.Millisecond
	// maxSilent limits the connections that have not shown it yet, and maxHandshakes their handshakes. acceptRate
	// (per second) and acceptBurst limit the acceptor's work for each class over time. Connections beyond these
	// limits are closed unread.
	maxSilent     = 32
	maxHandshakes = 4
	acceptRate    = 20
	acceptBurst   = 8
)

// The acceptor accepts connectRate connections a second, after a burst of connectBurst, without a rest. It rests for connectRest after
// each further one: see udpguard.Pace. The kernel drops connections from addresses other than the peer's. In a flood it admits othersRate
// a second from other ports at that address, so that the peer's connection does not wait behind them.
const (
	connectRate  = 50
	connectBurst = 50
	connectRest  = 2 * time.Millisecond
	othersRate   = 50
)

// listen opens the acceptor's listener.
func (l *Link) listen(network string) error {
	lc := net.ListenConfig{Control: BindTo(l.cfg.Interface)}
	lc.SetMultipathTCP(false)
	at, err := lc.Listen(context.Background(), network, l.local.String())
	if err != nil {
		return err
	}
	l.tcp = at.(*net.TCPListener) //nolint:forcetypeassert // the network is TCP
	raw, err := l.tcp.SyscallConn()
	if err != nil {
		return err
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_MAXSEG, pieces.MaxSegment) }) // best effort
	l.doors = udpguard.New(othersRate, udpguard.Listener, udpguard.SameAddress)
	l.doors.OnFailure(func(err error) {
		l.log.Info("the kernel does not filter the handshakes of this link: strangers can delay them", "err", err)
	})
	l.knowPeer()
	l.doors.Guard(raw)
	return nil
}

// knowPeer makes the peer's address known to the filter of the acceptor's listener.
func (l *Link) knowPeer() {
	if l.doors == nil {
		return
	}
	var known []netip.AddrPort
	if r := l.remote.Load(); !r.away {
		known = append(known, r.addr)
	}
	l.doors.Know(known)
}

// reserve holds the link's own port in TCP without listening, so connections to it are refused.
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

// bindOwn binds a TCP socket to the link's own address. Only sockets of this user can share the port.
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

// connect opens a connection to the acceptor, from the link's own port if that is available.
func (l *Link) connect(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	if l.reserved >= 0 {
		conn, err := l.connectFrom(ctx, l.local.Port(), to)
		// Either end may still remember an earlier connection.
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return conn, err
		}
	}
	return l.connectFrom(ctx, 0, to)
}

func (l *Link) connectFrom(ctx context.Context, port uint16, to netip.AddrPort) (*net.TCPConn, error) {
	bound := BindTo(l.cfg.Interface)
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

// finish closes a dialled connection once the acceptor has closed it, or after wait. Neither end then remembers it,
// so the next one can use the same port.
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
	others *rate.Limiter // other connections that begin with a ClientHello
	silent chan struct{} // a place for each other connection without one
	slots  chan struct{} // a place for each other connection with one

	mu  sync.Mutex
	own net.Conn // the connection from the peer's own port
}

func newAdmission() *admission {
	return &admission{
		peers: rate.NewLimiter(acceptRate, acceptBurst), others: rate.NewLimiter(acceptRate, acceptBurst),
		silent: make(chan struct{}, maxSilent), slots: make(chan struct{}, maxHandshakes),
	}
}

// enter admits a connection, in the connection's own goroutine. It returns the connection to read from and a function
// to call at its end; nil if the connection is refused.
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

// enterOwn admits a connection from the peer's own port and closes an earlier one: the peer has one at a time.
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

// Beginning of a TLS handshake: a record of kind handshake, its version and length, and a ClientHello inside (RFC
// 8446 §5.1 and §4).
const (
	helloSize       = 6
	recordHandshake = 22
	clientHello     = 1
)

// begunConn is a connection whose beginning was already read.
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

// beginning waits up to helloTime for the beginning of a ClientHello.
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

package udplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/udpguard"
)

const (
	exporterLabel = "EXPERIMENTAL lofamo link"
	alpn          = "lofamo-link/1"

	handshakeTimeout = time.Second

	warnEvery = time.Minute // of warnings on failed handshakes of one link

	// peerStart is how long nobody may listen at the peer's address before the first session without a warning: agents
	// that start together are not ready at the same moment.
	peerStart = 30 * time.Second

	// settle is how long a new session may carry frames before it can be replaced. Requests in that time were made
	// before its first frames could arrive.
	settle = 200 * time.Millisecond

	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second

	byteReady  = 'R' // acceptor: I have verified you
	byteCommit = 'C' // dialer: I go over to the new session, and so do you
)

var errBlocked = errors.New("handshakes are blocked by fault injection")

// handshakeConfig returns the given configuration with the settings required for every link handshake.
func (c Config) handshakeConfig(verifyPeer func(*x509.Certificate) error) *tls.Config {
	t := c.TLS.Clone()
	t.MinVersion = tls.VersionTLS13
	t.NextProtos = []string{alpn}
	t.SessionTicketsDisabled = true // certificates prove each session separately
	t.ClientSessionCache = nil
	given := t.VerifyConnection
	t.VerifyConnection = func(cs tls.ConnectionState) error {
		if given != nil {
			if err := given(cs); err != nil {
				return err
			}
		}
		if len(cs.PeerCertificates) == 0 {
			return errors.New("the peer shows no certificate")
		}
		return verifyPeer(cs.PeerCertificates[0])
	}
	return t
}

// Redial requests a new session, because the peer is silent. It does not wait, and calls faster than the backoff
// count as one. On the accepting end it does nothing.
func (l *Link) Redial() {
	select {
	case l.redial <- struct{}{}:
	default:
	}
}

// pacer spaces attempts: each waits twice as long after the previous one, minBackoff to maxBackoff, whether that one
// failed or not (a handshake may succeed on a link whose frames do not pass). After a while without any attempt it
// begins again.
type pacer struct {
	last    time.Time
	backoff time.Duration
}

// attempt notes a wish for an attempt at now and returns how long to wait before it.
func (p *pacer) attempt(now time.Time) time.Duration {
	if p.last.IsZero() || now.Sub(p.last) > p.backoff+2*maxBackoff {
		p.last, p.backoff = now, minBackoff
		return 0
	}
	wait := max(0, p.backoff-now.Sub(p.last))
	p.last = now.Add(wait)
	p.backoff = min(2*p.backoff, maxBackoff)
	return wait
}

// keepDialling makes a session, and another one on every request or when Rekey has passed.
func (l *Link) keepDialling(ctx context.Context, h Handler) {
	var pace pacer
	if l.cfg.Resumed {
		l.awaitNeed(ctx, l.cfg.SessionAge)
	}
	for {
		sleep(ctx, pace.attempt(time.Now()))
		if ctx.Err() != nil {
			return
		}
		r := l.remote.Load()
		if r.away {
			l.awaitNeed(ctx, 0)
			continue
		}
		s, conn, err := l.dial(ctx, r)
		if err != nil {
			l.failed(ctx, "dial", err)
			continue
		}
		l.established(h, r, s)
		settled := time.Now().Add(settle)
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		finish(conn, handshakeTimeout)
		stop()
		sleep(ctx, time.Until(settled))
		select {
		case <-l.redial:
		default:
		}
		l.awaitNeed(ctx, 0)
	}
}

// awaitNeed waits until a new session is requested, or due because of the present one's age.
func (l *Link) awaitNeed(ctx context.Context, age time.Duration) {
	rekey := time.NewTimer(l.cfg.Rekey - age)
	defer rekey.Stop()
	select {
	case <-l.redial:
	case <-rekey.C:
	case <-ctx.Done():
	}
}

// failed counts and logs a failed handshake.
func (l *Link) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	l.count.failures.Add(1)
	level := slog.LevelDebug
	if l.deservesWarning(err, time.Now()) {
		level = slog.LevelWarn
	}
	l.log.Log(ctx, level, "link handshake failed", "peer", l.remote.Load().addr.String(), "as", what, "error", err)
}

// deservesWarning reports whether a failed handshake is logged as a warning: seldom, for strangers can cause it too, and
// not while a peer may still be starting.
func (l *Link) deservesWarning(err error, now time.Time) bool {
	first := !l.cfg.Resumed && l.made.Load() == nil
	if first && errors.Is(err, unix.ECONNREFUSED) && now.Sub(l.began) < peerStart {
		return false
	}
	return l.warn.AllowN(now, 1)
}

func (l *Link) established(h Handler, r *remote, s *torus.Session) {
	l.sessionMu.Lock()
	defer l.sessionMu.Unlock()
	l.begin(h, handshaken{s, r})
}

// begin hands a new session over. It runs under sessionMu.
func (l *Link) begin(h Handler, made handshaken) {
	l.made.Store(&made)
	l.count.handshakes.Add(1)
	l.log.Debug("link session established", "session", fmt.Sprintf("%08x", made.session.ID()))
	h.OnSession(l.cfg.Dir, made.session)
}

// dial makes a session. The caller finishes the connection.
func (l *Link) dial(ctx context.Context, r *remote) (_ *torus.Session, _ *net.TCPConn, err error) {
	if l.blocked() {
		return nil, nil, errBlocked
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := l.connect(ctx, r.addr)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			finish(conn, 0)
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	tc := tls.Client(conn, r.tls)
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("handshake with %s: %w", r.addr, err)
	}
	if err := expect(tc, byteReady); err != nil {
		return nil, nil, fmt.Errorf("handshake with %s: wait until it is ready: %w", r.addr, err)
	}
	s, err := l.derive(tc, r)
	if err != nil {
		return nil, nil, err
	}
	if _, err := tc.Write([]byte{byteCommit}); err != nil {
		return nil, nil, fmt.Errorf("handshake with %s: commit: %w", r.addr, err)
	}
	if l.blocked() {
		return nil, nil, errBlocked
	}
	return s, conn, nil
}

// Knock makes a handshake with the peer although this end is the one that accepts, and begins no session. A correctly configured
// peer dials and does not listen. So a peer that answers is misconfigured: it waits for a dialer too. verify judges the peer's
// certificate. Knock reports whether the peer has proved that it has the key of a certificate that verify accepts.
func (l *Link) Knock(ctx context.Context, verify func(*x509.Certificate) error) (proved bool, err error) {
	if l.blocked() {
		return false, errBlocked
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := l.connectFrom(ctx, 0, l.remote.Load().addr)
	if err != nil {
		return false, err
	}
	defer finish(conn, 0)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := tls.Client(conn, l.cfg.handshakeConfig(verify)).HandshakeContext(ctx); err != nil {
		return false, fmt.Errorf("handshake with %s: %w", l.PeerAddr(), err)
	}
	return true, nil
}

func expect(c net.Conn, want byte) error {
	var b [1]byte
	if _, err := c.Read(b[:]); err != nil {
		return err
	}
	if b[0] != want {
		return fmt.Errorf("got %q: want %q", b[0], want)
	}
	return nil
}

// accept accepts connections until the listener is closed, and waits for the handshakes it began.
func (l *Link) accept(ctx context.Context, h Handler) {
	var wg sync.WaitGroup
	defer wg.Wait()
	doors := newAdmission()
	pace := udpguard.NewPace(connectRate, connectBurst, connectRest)
	for ctx.Err() == nil {
		pace.Take()
		conn, err := l.tcp.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			l.count.failures.Add(1)
			sleep(ctx, minBackoff) // out of file descriptors, for one
			continue
		}
		own, ok := l.admit(conn)
		if !ok {
			l.count.refused.Add(1)
			_ = conn.Close()
			continue
		}
		if !own {
			l.count.others.Add(1)
		}
		wg.Go(func() {
			begun, leave := doors.enter(conn, own)
			if begun == nil {
				l.count.refused.Add(1)
				_ = conn.Close()
				return
			}
			defer leave()
			r := l.remote.Load()
			if err := l.answer(ctx, h, begun, r); err != nil {
				l.failed(ctx, "accept", err)
			}
		})
	}
}

// admit reports whether a connection comes from the peer's own port (own), or from another one at its address within the budget.
func (l *Link) admit(conn net.Conn) (own, ok bool) {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return false, false
	}
	from, r := unmap(tcp.AddrPort()), l.remote.Load()
	if r.away || from.Addr() != r.addr.Addr() || l.blocked() {
		return false, false
	}
	own = from.Port() == r.addr.Port()
	return own, own || l.doors.Admit(time.Now(), from)
}

// answer accepts a handshake and begins its session.
func (l *Link) answer(ctx context.Context, h Handler, conn net.Conn, r *remote) error {
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	tc := tls.Server(conn, r.tls)
	from := conn.RemoteAddr()
	if err := tc.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("handshake from %s: %w", from, err)
	}
	s, err := l.derive(tc, r)
	if err != nil {
		return err
	}
	o := l.propose(s, r) // frames of the session may follow ready at once
	if _, err := tc.Write([]byte{byteReady}); err != nil {
		return fmt.Errorf("handshake from %s: say ready: %w", from, err)
	}
	err = expect(tc, byteCommit)
	switch {
	case l.begun(o):
		return nil
	case err != nil:
		return fmt.Errorf("handshake from %s: wait for commit: %w", from, err)
	case l.blocked():
		return errBlocked
	}
	l.commit(h, o)
	return nil
}

// derive makes the session from the handshake's exporter, bound to this link. So two links between the same two nodes
// (a dimension of size 2) cannot be confused.
func (l *Link) derive(tc *tls.Conn, r *remote) (*torus.Session, error) {
	dialer, acceptor, dir := l.cfg.Src, r.at, l.cfg.Dir
	if !l.cfg.Dialer {
		dialer, acceptor, dir = acceptor, dialer, dir.Opposite()
	}
	cs := tc.ConnectionState()
	m, err := cs.ExportKeyingMaterial(exporterLabel, exporterContext(dialer, acceptor, dir), 4+2*torus.KeySize)
	if err != nil {
		return nil, fmt.Errorf("export session keys: %w", err)
	}
	id := max(1, binary.BigEndian.Uint32(m)) // 0 is no session
	toAcceptor, toDialer := [torus.KeySize]byte(m[4:]), [torus.KeySize]byte(m[4+torus.KeySize:])
	if l.cfg.Dialer {
		return torus.NewSession(id, toAcceptor, toDialer), nil
	}
	return torus.NewSession(id, toDialer, toAcceptor), nil
}

// exporterContext names the link: the coordinates of dialer and acceptor, 16 bits a part, and the
// dialer's direction.
func exporterContext(dialer, acceptor grid.Coord, dir grid.Direction) []byte {
	b := make([]byte, 0, 13)
	for _, c := range [2]grid.Coord{dialer, acceptor} {
		for _, v := range [3]int{c.X, c.Y, c.Z} {
			b = binary.BigEndian.AppendUint16(b, uint16(v))
		}
	}
	return append(b, byte(dir))
}

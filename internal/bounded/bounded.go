// Package bounded limits the connections of a listener, so that no source can use up the connections of the others. It also limits the
// calls in progress on a gRPC server: see Calls.
//
// A connection's standing only rises, except that serving connections become idle:
//
//	fresh ──a request has arrived──► serving ⇄ idle        (HTTP: HTTPState)
//	  └─────the peer has proved its identity─► admitted    (Conn.Admit, Credentials)
//
// When a source has used its share, or the listener is full, a new connection replaces the least valuable one: from the source
// with the most connections, then with the lowest standing, then the oldest. An admitted connection is never closed for another
// one, and counts for its subject instead of its source. If only admitted connections are left, the new connection is refused. A
// source is an IPv4 address, an IPv6 /64, or a user of this machine. Connections beyond Limits.Handshakes a second wait for their turn.
//
// The package knows neither TLS nor the content of requests: start with Listen.
package bounded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/udpguard"
)

// Limits are the limits of a listener, in connections. The first two must be at least 1; 0 means All in the others.
type Limits struct {
	All        int
	PerSource  int // connections of one source that are not admitted
	PerSubject int // admitted connections of one subject
	Subjects   int // admitted connections of all subjects: less than All, to leave room for peers without a limit
	// Handshakes is the number of connections a second, and at once, that Accept returns. The others wait, and the sources take turns.
	// 0: all, but ListenTCP has a default.
	Handshakes int
}

// Reasons for closing a connection: the values of Options.Dropped.
const (
	Evicted = "evicted" // closed for a newer connection
	Refused = "refused" // no place was left
	Subject = "subject" // its subject has too many connections
)

// Options are the options of a listener.
type Options struct {
	Limits Limits
	// Source returns the source of a connection; nil: the remote address is the source.
	Source func(net.Conn) string
	// Dropped receives the reason when a connection is closed for a limit. It must not block. May be nil.
	Dropped func(reason string)
	// Log receives one line a minute while file descriptors have run out. May be nil.
	Log *slog.Logger
}

// standing orders connections by their value.
type standing uint8

const (
	fresh    standing = iota + 1 // no complete request has arrived
	idle                         // waiting for the next request
	serving                      // a request is being answered
	admitted                     // the peer has proved its identity
)

// Listener is a listener with limits. Its methods may be called from any goroutine.
type Listener struct {
	net.Listener

	opts      Options
	exhausted exhaustion // of the goroutine that accepts
	closing   sync.Once
	closed    chan struct{}

	mu       sync.Mutex
	turns    *turns
	order    uint64
	conns    map[*Conn]bool
	sources  map[string]int
	subjects map[string]int
	named    int // admitted connections of subjects
}

// Listen limits the connections of a listener.
func Listen(l net.Listener, o Options) *Listener {
	if o.Limits.All < 1 || o.Limits.PerSource < 1 {
		panic(fmt.Sprintf("bounded: limits %+v: want at least 1", o.Limits))
	}
	if _, ok := l.(interface{ SetDeadline(time.Time) error }); !ok && o.Limits.Handshakes > 0 {
		panic(fmt.Sprintf("bounded: a %T has no deadline: want a TCP listener", l))
	}
	if o.Source == nil {
		o.Source = func(c net.Conn) string { return SourceOf(c.RemoteAddr()) }
	}
	return &Listener{Listener: l, opts: o, conns: map[*Conn]bool{}, sources: map[string]int{}, subjects: map[string]int{},
		turns: newTurns(o.Limits.Handshakes), closed: make(chan struct{})}
}

// SourceOf returns the source of an address: an IPv4 address, an IPv6 /64, or the address itself.
func SourceOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	p := udpguard.SourceOf(ap.Addr())
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// Close implements net.Listener. Connections that Accept has returned stay open.
func (l *Listener) Close() error {
	l.closing.Do(func() { close(l.closed) })
	err := l.Listener.Close()
	l.mu.Lock()
	waiting := slices.Clone(l.turns.waiting)
	l.mu.Unlock()
	for _, c := range waiting {
		_ = c.Close()
	}
	return err
}

// Accept returns the next connection that finds a place, a *Conn, when its turn has come. It waits while file descriptors have run out.
// Only one goroutine may call it.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		l.mu.Lock()
		c, due := l.turns.next(time.Now())
		l.mu.Unlock()
		if c != nil {
			return c, nil
		}
		nc, err := l.acceptUntil(due)
		switch {
		case err == nil:
			l.exhausted.pause = 0
			l.place(nc)
		case errors.Is(err, os.ErrDeadlineExceeded), l.wait(err):
		default:
			return nil, err
		}
	}
}

// acceptUntil accepts a connection, until a time; zero: without end.
func (l *Listener) acceptUntil(end time.Time) (net.Conn, error) {
	if d, ok := l.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		if err := d.SetDeadline(end); err != nil {
			return nil, err
		}
	}
	return l.Listener.Accept()
}

// place gives a connection a place and lets it wait for its turn, or closes it.
func (l *Listener) place(nc net.Conn) {
	c := &Conn{Conn: nc, l: l, source: l.opts.Source(nc), standing: fresh}
	victim, ok := l.take(c)
	if victim != nil {
		_ = victim.Close()
		l.dropped(Evicted)
	}
	if !ok {
		_ = nc.Close()
		l.dropped(Refused)
	}
}

func (l *Listener) dropped(reason string) {
	if l.opts.Dropped != nil {
		l.opts.Dropped(reason)
	}
}

// take gives a connection a place. If none is free, it returns the connection to close instead.
func (l *Listener) take(c *Conn) (victim *Conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.sources[c.source] >= l.opts.Limits.PerSource:
		victim = l.least(c.source)
	case len(l.conns) >= l.opts.Limits.All:
		victim = l.least("")
	default:
		l.add(c)
		return nil, true
	}
	if victim == nil {
		return nil, false
	}
	l.remove(victim)
	l.add(c)
	return victim, true
}

func (l *Listener) add(c *Conn) {
	l.order++
	c.order = l.order
	l.conns[c] = true
	l.sources[c.source]++
	l.turns.waiting = append(l.turns.waiting, c)
}

func (l *Listener) remove(c *Conn) {
	if !l.conns[c] {
		return
	}
	delete(l.conns, c)
	if i := slices.Index(l.turns.waiting, c); i >= 0 {
		l.turns.waiting = slices.Delete(l.turns.waiting, i, i+1)
	}
	if c.standing != admitted {
		decrease(l.sources, c.source)
	}
	if c.subject != "" {
		decrease(l.subjects, c.subject)
		l.named--
	}
}

func decrease(counts map[string]int, key string) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// least returns the least valuable connection of one source, or of all (""); nil if all are admitted.
func (l *Listener) least(source string) *Conn {
	var out *Conn
	for c := range l.conns {
		if c.standing != admitted && (source == "" || c.source == source) && (out == nil || l.less(c, out)) {
			out = c
		}
	}
	return out
}

func (l *Listener) less(a, b *Conn) bool {
	if na, nb := l.sources[a.source], l.sources[b.source]; na != nb {
		return na > nb
	}
	if a.standing != b.standing {
		return a.standing < b.standing
	}
	return a.order < b.order
}

// Len returns the number of open connections.
func (l *Listener) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

// Conn is a connection of a Listener.
type Conn struct {
	net.Conn

	l      *Listener
	source string

	// Guarded by the listener's mutex.
	order    uint64 // order of acceptance; idle connections are ordered by their last request
	standing standing
	subject  string      // subject of an admitted connection, if known
	end      *time.Timer // closes it; nil: none does
}

// ErrSubject means that a subject, or all subjects together, have too many connections.
var ErrSubject = errors.New("too many connections of this subject")

// Admit records that the peer has proved its identity: the connection is no longer closed for another one. The subject "" has no
// limit. Admit returns ErrSubject if the subject, or all subjects together, have reached their limit, and net.ErrClosed if the
// connection was closed meanwhile.
func (c *Conn) Admit(subject string) error {
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.conns[c] {
		return net.ErrClosed
	}
	if c.standing == admitted {
		return nil
	}
	if subject != "" {
		each, all := l.opts.Limits.PerSubject, l.opts.Limits.Subjects
		if each > 0 && l.subjects[subject] >= each || all > 0 && l.named >= all {
			l.dropped(Subject)
			return fmt.Errorf("%w: %s has %d, of %d in all", ErrSubject, subject, l.subjects[subject], l.named)
		}
		l.subjects[subject]++
		l.named++
	}
	decrease(l.sources, c.source)
	l.turns.prove(c.source)
	c.standing, c.subject = admitted, subject
	return nil
}

// stand changes the standing of a connection, unless it is admitted.
func (c *Conn) stand(s standing) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.standing != admitted {
		if s == idle {
			c.l.order++
			c.order = c.l.order
		}
		c.standing = s
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.l.mu.Lock()
	c.l.remove(c)
	if c.end != nil {
		c.end.Stop()
	}
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// CloseAt closes the connection at a time, if it is still open then. Call it once.
func (c *Conn) CloseAt(at time.Time) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if c.l.conns[c] {
		c.end = time.AfterFunc(time.Until(at), func() { _ = c.Close() })
	}
}

// Of returns the Listener's connection below a TLS connection, or nil.
func Of(nc net.Conn) *Conn {
	for {
		switch c := nc.(type) {
		case *Conn:
			return c
		case interface{ NetConn() net.Conn }:
			nc = c.NetConn()
		default:
			return nil
		}
	}
}

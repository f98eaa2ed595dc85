// Package bounded limits the connections of a listener, so that no source of connections can use up those of the others.
//
// A connection has a standing that only rises, but for idle ones:
//
//	fresh ──a request has arrived──► serving ⇄ idle        (HTTP: HTTPState)
//	  └─────the peer has proved who it is──► admitted      (Conn.Admit, Credentials)
//
// When a source has its share, or all connections are taken, a new connection takes the place of the least valuable one: that of
// the source with the most connections, then of the lowest standing, then the oldest. An admitted connection is never closed for
// another, and counts for its subject instead of its source; when only such are left, the new connection is refused. A source is an
// IPv4 address, an IPv6 /64, or a user of this machine.
//
// The package knows neither TLS nor requests: start with Listen.
package bounded

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// Limits of a listener, in connections. The first two must be at least 1; 0 stands for All in the others.
type Limits struct {
	All        int
	PerSource  int // of one source, that are not admitted
	PerSubject int // of one subject, admitted
	Subjects   int // of all subjects, admitted: less than All, so that there is room for who has no limit
}

// Why a connection was closed: the values of Options.Dropped.
const (
	Evicted = "evicted" // it made room for a newer one
	Refused = "refused" // there was no room for it
	Subject = "subject" // its subject has too many
)

// Options of a listener.
type Options struct {
	Limits Limits
	// Source names the source of a connection; nil: its remote address.
	Source func(net.Conn) string
	// Dropped hears why a connection was closed for its number. It must not block. May be nil.
	Dropped func(reason string)
}

// standing orders connections by what they are worth.
type standing uint8

const (
	fresh    standing = iota + 1 // nothing complete has arrived
	idle                         // between two requests
	serving                      // a request is being answered
	admitted                     // the peer has proved who it is
)

// Listener is a listener with limits. Its methods may be called from any goroutine.
type Listener struct {
	net.Listener

	opts Options

	mu       sync.Mutex
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
	if o.Source == nil {
		o.Source = func(c net.Conn) string { return SourceOf(c.RemoteAddr()) }
	}
	return &Listener{Listener: l, opts: o, conns: map[*Conn]bool{}, sources: map[string]int{}, subjects: map[string]int{}}
}

// SourceOf names the source of an address: an IPv4 address, an IPv6 /64, or the address as it is written.
func SourceOf(a net.Addr) string {
	if a == nil {
		return ""
	}
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return a.String()
	}
	ip := ap.Addr().Unmap().WithZone("")
	if ip.Is6() {
		p, _ := ip.Prefix(64) // never fails
		return p.String()
	}
	return ip.String()
}

// Accept returns the next connection for which there is room, a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: nc, l: l, source: l.opts.Source(nc), standing: fresh}
		victim, ok := l.take(c)
		if victim != nil {
			_ = victim.Close()
			l.dropped(Evicted)
		}
		if ok {
			return c, nil
		}
		_ = nc.Close()
		l.dropped(Refused)
	}
}

func (l *Listener) dropped(reason string) {
	if l.opts.Dropped != nil {
		l.opts.Dropped(reason)
	}
}

// take gives a connection a place, if need be that of another one, which is to be closed.
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
}

func (l *Listener) remove(c *Conn) {
	if !l.conns[c] {
		return
	}
	delete(l.conns, c)
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

// least returns the connection that is worth least, of one source or of all (""); nil: all have proved who they are.
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

// Len is the number of open connections.
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
	order    uint64 // of accepting; an idle connection counts from its last request
	standing standing
	subject  string // of an admitted one, where it is known
}

// ErrSubject says that a subject, or all of them together, have too many connections.
var ErrSubject = errors.New("too many connections of this subject")

// Admit notes that the peer has proved who it is: the connection is not closed for another one any more. A subject "" has no limit. It
// fails with ErrSubject when the subject, or all together, have their share of connections, and with net.ErrClosed when the connection was closed meanwhile.
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
	c.standing, c.subject = admitted, subject
	return nil
}

// stand changes the standing of a connection that is not admitted.
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
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// Of finds the connection of a Listener below a TLS connection; nil: there is none.
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

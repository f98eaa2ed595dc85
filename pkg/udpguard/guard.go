package udpguard

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

const (
	// tighten is by how many powers of two the share of strangers shrinks when their budget is exceeded, at most once in tightenEvery: what
	// was in the buffer before must not count twice.
	tighten      = 3
	tightenEvery = 2 * time.Millisecond
	// maxShift bounds the share: of a million strangers' datagrams one still comes, so that a change of rate shows.
	maxShift = 20
	// loosenEvery is how long strangers must stay within half of their budget before the share doubles.
	loosenEvery = 250 * time.Millisecond
)

// Guard bounds what strangers can do to a socket with many peers. Known sources are always admitted. Strangers share one budget: what
// exceeds it Admit refuses, and then the kernel admits of strangers a share only, which shrinks to what the budget bears within some
// milliseconds and grows again when the flood is over. A stranger's single datagram among a flood may be lost; known sources lose nothing.
//
//	         budget exceeded                     budget exceeded
//	all ──────────────────────► one in 2^3 ──────────────────────► one in 2^6 … 2^20
//	 ▲                              │ ▲                                │
//	 └── loosenEvery below half ────┘ └────── loosenEvery below half ──┘
//
// Its methods may be called from any goroutine. Close must follow.
type Guard struct {
	perSecond int
	refused   atomic.Uint64
	known     atomic.Pointer[map[netip.AddrPort]struct{}]

	mu      sync.Mutex
	conn    syscall.RawConn // nil: none yet
	limit   *rate.Limiter
	shift   uint
	last    time.Time // when the share shrank
	passed  int       // strangers admitted since the last look
	timer   *time.Timer
	closed  bool
	failure error // of the last attempt to attach a program
}

// New returns a guard that admits so many datagrams of strangers in a second, at least 1, and as many at once as in a quarter of one.
func New(perSecond int) *Guard {
	g := &Guard{perSecond: max(perSecond, 1)}
	g.limit = rate.NewLimiter(rate.Limit(g.perSecond), max(g.perSecond/4, 1))
	g.known.Store(&map[netip.AddrPort]struct{}{})
	return g
}

// Guard has the guard act on a socket, or on another one in its place.
func (g *Guard) Guard(c syscall.RawConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conn = c
	g.apply()
}

// Know sets the known sources in place of those before.
func (g *Guard) Know(sources []netip.AddrPort) {
	known := make(map[netip.AddrPort]struct{}, len(sources))
	for _, a := range sources {
		known[plain(a)] = struct{}{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if maps.Equal(known, *g.known.Load()) {
		return
	}
	g.known.Store(&known)
	if g.shift > 0 {
		g.apply()
	}
}

// plain is a source as it is compared: the zone of a link-local address is not in a datagram.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// Known says whether a source is known.
func (g *Guard) Known(from netip.AddrPort) bool {
	_, ok := (*g.known.Load())[plain(from)]
	return ok
}

// Admit says whether a datagram that came is to be looked at. It does not allocate for a known source.
func (g *Guard) Admit(now time.Time, from netip.AddrPort) bool {
	if g.Known(from) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limit.AllowN(now, 1) {
		g.passed++
		return true
	}
	g.refused.Add(1)
	if now.Sub(g.last) >= tightenEvery && !g.closed {
		g.last, g.shift = now, min(g.shift+tighten, maxShift)
		g.apply()
		if g.timer == nil {
			g.timer = time.AfterFunc(loosenEvery, g.look)
		}
	}
	return false
}

// look lets more strangers in when those that came left room in the budget.
func (g *Guard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	few := float64(g.passed) <= float64(g.perSecond)*loosenEvery.Seconds()/2
	if g.passed = 0; few && time.Since(g.last) >= loosenEvery {
		g.shift--
		g.apply()
	}
	if g.shift == 0 {
		g.timer = nil
		return
	}
	g.timer.Reset(loosenEvery)
}

// apply attaches the program for the moment. Without one the socket works as before, and Admit still bounds what is looked at.
func (g *Guard) apply() {
	if g.conn == nil || g.closed {
		return
	}
	if g.shift == 0 {
		g.failure = detach(g.conn)
		return
	}
	known := slices.SortedFunc(maps.Keys(*g.known.Load()), netip.AddrPort.Compare)
	switch {
	case len(known) <= MaxKnown:
		g.failure = attach(g.conn, program(known, true, g.shift))
	case addresses(known) <= MaxKnown:
		g.failure = attach(g.conn, program(known, false, g.shift))
	default:
		g.failure = detach(g.conn)
	}
}

// Stats of a guard.
type Stats struct {
	Refused uint64 // strangers' datagrams beyond the budget that still came to the reader
	Shift   uint   // the kernel admits one of 2^Shift of strangers
	Err     error  // why the kernel does not filter, of the last attempt; nil: it does, or need not
}

// Stats returns the counter and the state of the moment.
func (g *Guard) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{Refused: g.refused.Load(), Shift: g.shift, Err: g.failure}
}

// Flooded says whether strangers send more than their budget at present.
func (g *Guard) Flooded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shift > 0
}

// Close ends the guard; the socket stays as it is.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

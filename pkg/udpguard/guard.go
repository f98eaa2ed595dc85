package udpguard

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// tighten is the number of powers of two by which the strangers' share shrinks when they exceed their budget, at
	// most once per tightenEvery, so that datagrams already in the buffer do not count twice.
	tighten      = 3
	tightenEvery = 2 * time.Millisecond
	// maxShift limits the reduction: one in a million strangers' datagrams still arrives, so that a change of rate
	// shows.
	maxShift = 20
	// loosenEvery is the time that strangers must stay within half of their budget before the share doubles.
	loosenEvery = 250 * time.Millisecond
)

// Guard limits the harm that strangers can do to a socket with many peers. It always admits known sources. Strangers
// share one budget: Admit refuses datagrams beyond it, and then the kernel admits only a share of strangers. The
// share shrinks to the budget within some milliseconds and grows again after the flood. A stranger's single datagram
// may be lost in a flood; known sources lose nothing.
//
//	         budget exceeded                     budget exceeded
//	all ──────────────────────► one in 2^3 ──────────────────────► one in 2^6 … 2^20
//	 ▲                              │ ▲                                │
//	 └── loosenEvery below half ────┘ └────── loosenEvery below half ──┘
//
// Its methods may be called from any goroutine. Call Close at the end.
type Guard struct {
	perSecond int
	rules     rules
	refused   atomic.Uint64
	known     atomic.Pointer[map[netip.AddrPort]struct{}]

	mu      sync.Mutex
	conn    syscall.RawConn // nil: none yet
	limit   *rate.Limiter
	shift   uint
	last    time.Time // when the share shrank
	passed  int       // strangers admitted since the last check
	timer   *time.Timer
	closed  bool
	failure error // from the last attempt to attach a program

	onFailure func(error)
	reported  bool
}

// Option changes the sources that a guard knows.
type Option uint8

const (
	// AnyPort makes a guard ignore ports: it knows addresses.
	AnyPort Option = iota + 1
	// SameAddress makes strangers of the other ports at known addresses. The kernel drops datagrams from all other addresses. Admit does
	// not check for such addresses; the caller has to.
	SameAddress
	// Listener is for a TCP listener. The guard filters SYNs and admits all other packets, because accepted connections inherit
	// the program. Open the listener without MPTCP (net.ListenConfig.SetMultipathTCP): the kernel does not filter MPTCP sockets.
	// Some kernels (Linux 6.18) refuse a filter on a TCP socket without CAP_NET_ADMIN: see Stats.Err. Guard also shortens the
	// backlog, so that connections from before the filter do not delay others.
	Listener
)

// backlog is the number of connections that wait at a guarded listener.
const backlog = 128

// New returns a guard that admits perSecond datagrams of strangers per second, at least 1, with bursts of a quarter
// of that rate.
func New(perSecond int, options ...Option) *Guard {
	g := &Guard{perSecond: max(perSecond, 1), rules: rules{
		ports: !slices.Contains(options, AnyPort), near: slices.Contains(options, SameAddress), listener: slices.Contains(options, Listener),
	}}
	g.limit = newLimit(g.perSecond, g.perSecond/4)
	g.known.Store(&map[netip.AddrPort]struct{}{})
	return g
}

// OnFailure sets a function that the guard calls once if the kernel cannot filter. f must not block or call the
// guard.
func (g *Guard) OnFailure(f func(error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onFailure = f
}

// Guard makes the guard filter this socket instead of an earlier one. nil: no socket.
func (g *Guard) Guard(c syscall.RawConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conn = c
	if c != nil && g.rules.listener {
		_ = c.Control(func(fd uintptr) { _ = unix.Listen(int(fd), backlog) }) // if this fails, the longer backlog only costs time
	}
	g.apply()
}

// Know replaces the known sources.
func (g *Guard) Know(sources []netip.AddrPort) {
	known := make(map[netip.AddrPort]struct{}, len(sources))
	for _, a := range sources {
		known[g.plain(a)] = struct{}{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if maps.Equal(known, *g.known.Load()) {
		return
	}
	g.known.Store(&known)
	if g.shift > 0 || g.rules.near {
		g.apply()
	}
}

// plain returns a source in the form for comparison: datagrams do not carry the zone of a link-local address.
func (g *Guard) plain(a netip.AddrPort) netip.AddrPort {
	if !g.rules.ports {
		a = netip.AddrPortFrom(a.Addr(), 0)
	}
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// SourceOf returns the addresses that count as one source: an IPv4 address, or an IPv6 /64, all of which one host may
// own.
func SourceOf(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // fails only for no address, which stays without a prefix
	return p
}

// Known reports whether a source is known.
func (g *Guard) Known(from netip.AddrPort) bool {
	_, ok := (*g.known.Load())[g.plain(from)]
	return ok
}

// Admit reports whether the reader should handle a datagram. It does not allocate for a known source.
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
		was := g.shift
		if g.last, g.shift = now, min(g.shift+tighten, maxShift); g.shift != was {
			g.apply()
		}
		if g.timer == nil {
			g.timer = time.AfterFunc(loosenEvery, g.look)
		}
	}
	return false
}

// look raises the strangers' share if they stayed well within the budget.
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

// apply attaches a program by addresses and ports, or by addresses alone if the kernel refuses that. Without a
// program the socket admits everything, and Admit still bounds the datagrams that are processed.
func (g *Guard) apply() {
	if g.conn == nil || g.closed {
		return
	}
	if g.shift == 0 && !g.rules.near {
		g.failure = detach(g.conn)
		return
	}
	known := slices.Collect(maps.Keys(*g.known.Load()))
	r := g.rules
	if g.failure = replace(g.conn, program(known, r, g.shift)); g.failure != nil && r.ports {
		r.ports = false
		g.failure = replace(g.conn, program(known, r, g.shift))
	}
	if g.failure != nil && !g.reported && g.onFailure != nil {
		g.reported = true
		g.onFailure(fmt.Errorf("filter datagrams by %d sources: %w", len(known), g.failure))
	}
}

// Stats are the figures of a guard.
type Stats struct {
	Refused uint64 // strangers' datagrams beyond the budget that still reached the reader
	Shift   uint   // the kernel admits one in 2^Shift of strangers' datagrams
	Err     error  // why the last attempt to filter failed; nil: the kernel filters, or need not
}

// Stats returns the current figures.
func (g *Guard) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{Refused: g.refused.Load(), Shift: g.shift, Err: g.failure}
}

// Flooded reports whether strangers currently exceed their budget.
func (g *Guard) Flooded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shift > 0
}

// Close ends the guard and leaves the socket unchanged.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

package ingest

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Budgets for waiting datagrams, per second. Verifying one costs some 100 µs, so all strangers together get a tenth of a core. Each known
// source has its own budget, because its address may be forged, and so does every origin that a signature has proved: many times the rate
// of a node whose neighbours all die. Each origin has one budget for each of its addresses, for each relay's address, for gossip, and for
// all other addresses together. The last one serves replays by a stranger.
const (
	strangerRate, strangerBurst = 1000, 1000
	sourceRate, sourceBurst     = 2000, 4096
	originRate, originBurst     = 1000, 4096

	// sourcesMost limits the remembered sources and origins: more than a torus of 100,000 nodes has at one of three replicas.
	sourcesMost = 1 << 17
	// originWaysMost limits the remembered budgets of origins. A replica of three with 100,000 nodes hears 67,000 halves; each may come by
	// seven ways: its addresses on the rails, relays, gossip and copies. A budget takes some 240 bytes: 126 MB in all.
	originWaysMost = 4 * sourcesMost
	// learnedTime is how long a source stays known after the last use of its session; up to twice that.
	learnedTime = 10 * time.Minute
	// learnedMost bounds the learned addresses of one origin.
	learnedMost = 8
)

// sources limits the verification work for each source and each origin. A source is known if the topology has its address, or if a half
// with a proved session uses it. It reads no clock; its methods may be called from any goroutine.
type sources struct {
	configured func(netip.AddrPort) (fault.NodeID, bool)

	mu        sync.Mutex
	strangers *rate.Limiter
	known     map[netip.AddrPort]*rate.Limiter
	origins   map[originWay]*rate.Limiter
	turned    time.Time              // when addresses last expired
	learned   map[string][]use       // by origin, the least recently used address first
	users     map[netip.AddrPort]int // how many origins have learned addresses there
	version   uint64                 // see listVersion
	newest    map[string]stamp       // digest of an origin under a session
}

// originWay is a way by which messages of an origin come.
type originWay struct {
	origin string
	from   netip.AddrPort // the origin's or a relay's own address; zero: any other address, or gossip
	gossip bool
}

// use is the last use of an address by an origin.
type use struct {
	addr netip.AddrPort
	at   time.Time
}

// stamp orders the digests of an origin.
type stamp struct {
	epoch fault.Epoch
	seq   fault.Seq
}

func newSources(configured func(netip.AddrPort) (fault.NodeID, bool)) *sources {
	return &sources{
		configured: configured, strangers: rate.NewLimiter(strangerRate, strangerBurst), known: make(map[netip.AddrPort]*rate.Limiter),
		origins: make(map[originWay]*rate.Limiter), learned: make(map[string][]use), users: make(map[netip.AddrPort]int),
		newest: make(map[string]stamp), version: 1,
	}
}

// admit reports whether a datagram may wait for a worker (ok), and whether its source is known.
func (s *sources) admit(now time.Time, from netip.AddrPort) (known, ok bool) {
	_, known = s.configured(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !known && s.users[from] == 0 {
		return false, s.strangers.AllowN(now, 1)
	}
	return true, allow(s.known, sourcesMost, from, sourceRate, sourceBurst, now)
}

// origin reports whether another message of a proved origin is accepted (ok), and whether it came from its sender's own address or by
// gossip (own). The sender is the origin or a relay; from is not valid for gossip.
func (s *sources) origin(now time.Time, origin, sender string, from netip.AddrPort) (own, ok bool) {
	way := originWay{origin: origin, gossip: !from.IsValid()}
	node, _ := s.configured(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if node != "" && node == fault.NodeOf(sender) || slices.ContainsFunc(s.learned[sender], func(u use) bool { return u.addr == from }) {
		way.from = from
	}
	return way.gossip || way.from.IsValid(), allow(s.origins, originWaysMost, way, originRate, originBurst, now)
}

// allow takes one unit from a budget. A new budget beyond most resets all.
func allow[K comparable](limits map[K]*rate.Limiter, most int, key K, perSecond rate.Limit, burst int, now time.Time) bool {
	l := limits[key]
	if l == nil {
		if len(limits) >= most {
			clear(limits)
		}
		l = rate.NewLimiter(perSecond, burst)
		limits[key] = l
	}
	return l.AllowN(now, 1)
}

// fresh reports whether a digest is newer than all earlier ones of its origin, and remembers it. A replay is not fresh.
func (s *sources) fresh(name string, reports []fault.Report) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest, ok := s.newest[name]
	at := newest
	for i := range reports {
		id := reports[i].ID
		if reports[i].Digest && (id.Epoch > at.epoch || id.Epoch == at.epoch && id.Seq > at.seq) {
			at = stamp{id.Epoch, id.Seq}
		}
	}
	if at == newest || !ok && len(s.newest) >= sourcesMost {
		return false
	}
	s.newest[name] = at
	return true
}

// keep forgets the digests and budgets of nodes for which known is false.
func (s *sources) keep(known func(fault.NodeID) bool) {
	gone := func(name string) bool { return !known(fault.NodeOf(name)) }
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.newest, func(name string, _ stamp) bool { return gone(name) })
	maps.DeleteFunc(s.origins, func(way originWay, _ *rate.Limiter) bool { return gone(way.origin) })
}

// learn notes that an origin has proved a session at an address. Only a fresh proof adds an address, in place of the
// origin's least recently used one if it has learnedMost; other proofs renew existing ones.
func (s *sources) learn(now time.Time, from netip.AddrPort, name string, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.turned) >= learnedTime {
		for origin := range s.learned {
			s.forget(origin, func(u use) bool { return now.Sub(u.at) > learnedTime })
		}
		s.turned = now
	}
	mine := s.learned[name]
	switch i := slices.IndexFunc(mine, func(u use) bool { return u.addr == from }); {
	case i >= 0:
		s.learned[name] = append(slices.Delete(mine, i, i+1), use{from, now})
		return
	case !fresh:
		return
	case len(mine) >= learnedMost:
		s.forget(name, func(u use) bool { return u == mine[0] })
	case len(s.users) >= sourcesMost:
		return
	}
	if s.users[from]++; s.users[from] == 1 {
		s.version++
	}
	s.learned[name] = append(s.learned[name], use{from, now})
}

// forget takes addresses from an origin.
func (s *sources) forget(name string, which func(use) bool) {
	kept := make([]use, 0, learnedMost)
	for _, u := range s.learned[name] {
		if !which(u) {
			kept = append(kept, u)
		} else if s.users[u.addr]--; s.users[u.addr] == 0 {
			delete(s.users, u.addr)
			s.version++
		}
	}
	if s.learned[name] = kept; len(kept) == 0 {
		delete(s.learned, name)
	}
}

// list returns the learned addresses.
func (s *sources) list() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.users))
}

// listVersion returns a number that changes with the learned addresses. It is never 0.
func (s *sources) listVersion() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

const (
	// askedTime is how long answers to a challenge use the priority queue; up to twice that.
	askedTime = 5 * time.Second
	// askedMost limits the challenges remembered per askedTime.
	askedMost = 1 << 14
	// answersMost is the number of answers to one challenge with priority: two halves, by all rails and all replicas.
	answersMost = 64
)

// asked remembers the challenges that this replica sent, so that only their answers use the answer queue.
type asked struct {
	mu            sync.Mutex
	turned        time.Time
	latest, older map[[16]byte]*pending
}

// pending is a challenge that this replica sent.
type pending struct {
	sent     time.Time // for the first time
	copies   int       // answers received since it was sent last
	answered bool      // a verified answer has come

	node fault.NodeID     // of a challenge that went straight only
	open []netip.AddrPort // of its addresses: not refused yet
}

// note records a challenge, or its repetition.
func (a *asked) note(now time.Time, nonce [16]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.turned) >= askedTime {
		a.older = nil
		if now.Sub(a.turned) < 2*askedTime {
			a.older = a.latest
		}
		a.latest, a.turned = make(map[[16]byte]*pending), now
	}
	p := a.find(nonce)
	if p == nil {
		p = &pending{sent: now}
	}
	if p.copies = 0; len(a.latest) < askedMost {
		a.latest[nonce] = p
	}
}

// find returns the challenge with a nonce, or nil. The caller holds the mutex.
func (a *asked) find(nonce [16]byte) *pending {
	if p := a.latest[nonce]; p != nil {
		return p
	}
	return a.older[nonce]
}

// roundTrip returns the time from a challenge to its first verified answer. ok is false for all other answers.
func (a *asked) roundTrip(now time.Time, nonce [16]byte) (took time.Duration, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.find(nonce)
	if p == nil || p.answered {
		return 0, false
	}
	p.answered = true
	return now.Sub(p.sent), true
}

// awaited reports whether an answer with this nonce has priority.
func (a *asked) awaited(nonce []byte) bool {
	if len(nonce) != 16 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.find([16]byte(nonce))
	if p == nil || p.copies >= answersMost {
		return false
	}
	p.copies++
	return true
}

package rails

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// What may wait for a worker, in datagrams per second. Verifying one costs some 100 µs, so strangers together get a tenth of a core. One
// known source, whose address somebody may forge, gets its own share, and so does every origin that a signature has proved: many
// times what a node sends when all its neighbours die.
const (
	strangerRate, strangerBurst = 1000, 1000
	sourceRate, sourceBurst     = 2000, 4096
	originRate, originBurst     = 1000, 4096

	// sourcesMost bounds the sources and origins that are remembered.
	sourcesMost = 1 << 14
	// learnedTime is for how long, twice that at most, a source is known after a session was last used from it.
	learnedTime = 10 * time.Minute
)

// sources bounds what each source and each origin may have verified. A source is known when the topology has its address, or when a half
// that has proved a session there uses it. It reads no clock; its methods may be called from any goroutine.
type sources struct {
	configured func(netip.AddrPort) bool

	mu            sync.Mutex
	strangers     *rate.Limiter
	known         map[netip.AddrPort]*rate.Limiter
	origins       map[string]*rate.Limiter
	turned        time.Time
	latest, older map[netip.AddrPort]struct{} // learned
}

func newSources(configured func(netip.AddrPort) bool) *sources {
	return &sources{
		configured: configured, strangers: rate.NewLimiter(strangerRate, strangerBurst), known: make(map[netip.AddrPort]*rate.Limiter),
		origins: make(map[string]*rate.Limiter), latest: make(map[netip.AddrPort]struct{}),
	}
}

// admit says whether a datagram may wait for a worker, and whether its source is known.
func (s *sources) admit(now time.Time, from netip.AddrPort) (known, ok bool) {
	known = s.configured(from)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !known && !s.learned(from) {
		return false, s.strangers.AllowN(now, 1)
	}
	return true, allow(s.known, from, sourceRate, sourceBurst, now)
}

func (s *sources) learned(from netip.AddrPort) bool {
	if _, ok := s.latest[from]; ok {
		return true
	}
	_, ok := s.older[from]
	return ok
}

// origin says whether another message of an origin, which a signature or a MAC has proved, is taken.
func (s *sources) origin(now time.Time, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return allow(s.origins, name, originRate, originBurst, now)
}

// allow takes one from a budget. When there are too many budgets all begin anew.
func allow[K comparable](limits map[K]*rate.Limiter, key K, perSecond rate.Limit, burst int, now time.Time) bool {
	l := limits[key]
	if l == nil {
		if len(limits) >= sourcesMost {
			clear(limits)
		}
		l = rate.NewLimiter(perSecond, burst)
		limits[key] = l
	}
	return l.AllowN(now, 1)
}

// learn notes that a half has proved a session at an address.
func (s *sources) learn(now time.Time, from netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.turned) >= learnedTime {
		s.older = nil
		if now.Sub(s.turned) < 2*learnedTime {
			s.older = s.latest
		}
		s.latest, s.turned = make(map[netip.AddrPort]struct{}), now
	}
	if len(s.latest) < sourcesMost {
		s.latest[from] = struct{}{}
	}
}

// list returns what was learned.
func (s *sources) list() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]netip.AddrPort, 0, len(s.latest)+len(s.older))
	for a := range s.latest {
		out = append(out, a)
	}
	for a := range s.older {
		out = append(out, a)
	}
	return out
}

const (
	// askedTime is for how long, twice that at most, a challenge may be answered by the queue that goes first.
	askedTime = 5 * time.Second
	// askedMost bounds the challenges that are remembered of one askedTime.
	askedMost = 1 << 14
	// answersMost is how many copies of the answers to one challenge go first: two halves, by all rails and all replicas.
	answersMost = 64
)

// asked remembers the challenges that this replica has sent, so that only what answers one of them waits in the queue of answers.
type asked struct {
	mu            sync.Mutex
	turned        time.Time
	latest, older map[[16]byte]*int // how many answers have come
}

// note remembers a challenge.
func (a *asked) note(now time.Time, nonce [16]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.turned) >= askedTime {
		a.older = nil
		if now.Sub(a.turned) < 2*askedTime {
			a.older = a.latest
		}
		a.latest, a.turned = make(map[[16]byte]*int), now
	}
	if len(a.latest) < askedMost {
		a.latest[nonce] = new(int)
	}
}

// awaited says whether an answer that holds this nonce may go first.
func (a *asked) awaited(nonce []byte) bool {
	if len(nonce) != 16 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.latest[[16]byte(nonce)]
	if n == nil {
		n = a.older[[16]byte(nonce)]
	}
	if n == nil || *n >= answersMost {
		return false
	}
	*n++
	return true
}

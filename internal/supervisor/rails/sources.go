package rails

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Budgets for waiting datagrams, per second. Verifying one costs some 100 µs, so all strangers together get a tenth of a core. Each
// known source has its own budget, because its address may be forged, and so does every origin that a signature has proved: many
// times the rate of a node whose neighbours all die.
const (
	strangerRate, strangerBurst = 1000, 1000
	sourceRate, sourceBurst     = 2000, 4096
	originRate, originBurst     = 1000, 4096

	// sourcesMost limits the remembered sources and origins.
	sourcesMost = 1 << 14
	// learnedTime is how long a source stays known after the last use of its session; up to twice that.
	learnedTime = 10 * time.Minute
)

// sources limits the verification work for each source and each origin. A source is known if the topology has its address, or if a half
// with a proved session uses it. It reads no clock; its methods may be called from any goroutine.
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

// admit reports whether a datagram may wait for a worker (ok), and whether its source is known.
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

// origin reports whether another message of a proved origin is accepted.
func (s *sources) origin(now time.Time, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return allow(s.origins, name, originRate, originBurst, now)
}

// allow takes one unit from a budget. If there are too many budgets, all are reset.
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

// learn records that a half has proved a session at an address.
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

// list returns the learned addresses.
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
	latest, older map[[16]byte]*int // number of answers received
}

// note records a challenge.
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

// awaited reports whether an answer with this nonce has priority.
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

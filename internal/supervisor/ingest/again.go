package ingest

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/paths"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// How often damage is answered, per second: by this supervisor, and to one source. An answer is larger
// than the smallest packet that asks for it, and sources can be forged, so it must not be much.
const (
	againRate        = 200
	againBurst       = 50
	againSourceRate  = 10
	againSourceBurst = 5
	// againSources bounds the sources that are remembered; the one that was silent longest is forgotten.
	againSources = 1024
)

// againLimit bounds the answers to damaged packets. It reads no clock; its methods may be called from
// any goroutine.
type againLimit struct {
	mu      sync.Mutex
	all     *rate.Limiter
	sources map[netip.AddrPort]*list.Element
	recent  *list.List // of *source, the newest in front
}

type source struct {
	addr  netip.AddrPort
	limit *rate.Limiter
}

func newAgainLimit() *againLimit {
	return &againLimit{all: rate.NewLimiter(againRate, againBurst), sources: make(map[netip.AddrPort]*list.Element), recent: list.New()}
}

// allow says whether a damaged packet of a source is answered now.
func (l *againLimit) allow(now time.Time, from netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.sources[from]
	if e == nil {
		if l.recent.Len() == againSources {
			oldest := l.recent.Back()
			l.recent.Remove(oldest)
			delete(l.sources, oldest.Value.(*source).addr)
		}
		e = l.recent.PushFront(&source{from, rate.NewLimiter(againSourceRate, againSourceBurst)})
		l.sources[from] = e
	}
	l.recent.MoveToFront(e)
	return e.Value.(*source).limit.AllowN(now, 1) && l.all.AllowN(now, 1)
}

// Again asks a source for what came damaged from it, within limits. It is signed, once and for all: who
// is there is not known, and there is nothing in it that changes.
func (s *Sender) Again(from paths.Place) {
	if !s.limit.allow(time.Now(), from.Addr) {
		s.cfg.Metrics.Again.WithLabelValues(metrics.AgainLimited).Inc()
		return
	}
	b, err := s.again()
	if err != nil {
		s.fail("again", "", err)
		return
	}
	if s.send("again", "", from, b) {
		s.cfg.Metrics.Again.WithLabelValues(metrics.AgainSent).Inc()
	}
}

// sealAgain makes what again returns.
func sealAgain(signer servicenet.Signer) func() ([]byte, error) {
	return sync.OnceValues(func() ([]byte, error) {
		return servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}, signer)
	})
}

package ingest

import (
	"bytes"
	"container/list"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Answers to damaged packets per second: in total, and to one source. An answer is larger than the smallest packet
// that triggers it, and sources can be forged, so the rates must stay low.
const (
	againRate        = 200
	againBurst       = 50
	againSourceRate  = 10
	againSourceBurst = 5
	// againSources bounds the remembered sources; the least recently active one is forgotten.
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

// allow reports whether a damaged packet of a source gets an answer now.
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

// Again asks a source to resend a damaged message, within the rate limits. It signs the request only once under each certificate, because
// the source is unknown and the content never changes.
func (s *Sender) Again(from Place) {
	if !s.limit.allow(time.Now(), from.Addr) {
		s.cfg.Metrics.Again.WithLabelValues(metrics.AgainLimited).Inc()
		return
	}
	b, err := s.again.seal(s.cfg.Signer)
	if err != nil {
		s.fail("again", "", err)
		return
	}
	if s.send("again", "", from, b) {
		s.cfg.Metrics.Again.WithLabelValues(metrics.AgainSent).Inc()
	}
}

// sealedAgain keeps the sealed request.
type sealedAgain struct {
	mu           sync.Mutex
	cert, sealed []byte // cert: of the signature
}

// seal returns the request sealed under the signer's certificate in use.
func (a *sealedAgain) seal(signer servicenet.Signer) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	cert := signer.Cert()
	if a.sealed != nil && bytes.Equal(cert, a.cert) {
		return a.sealed, nil
	}
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}, signer)
	if err == nil {
		a.cert, a.sealed = cert, b
	}
	return b, err
}

package udplink

import (
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/torus"
)

// offerLife is how long the acceptor waits for a frame of an offered session. It is longer than the silence after
// which a link is broken and its dialer requests another session.
const offerLife = 10 * time.Second

// offer is a session that the acceptor is ready to use, because it has verified the dialer. The dialer uses it as soon
// as it has sent its commit, which may be lost or late. So the first authentic frame of the session is a commit too.
type offer struct {
	handshaken
	at    time.Time
	taken bool
}

// offers holds the acceptor's newest offer; nil: none.
type offers struct {
	mu     sync.Mutex
	newest *offer
}

// propose offers a session in place of an earlier offer.
func (l *Link) propose(s *torus.Session, r *remote) *offer {
	o := &offer{handshaken: handshaken{s, r}, at: time.Now()}
	l.offers.mu.Lock()
	defer l.offers.mu.Unlock()
	l.offers.newest = o
	return o
}

// commit begins an offered session. It reports false, and does nothing, if the session has begun already, or a later
// one was offered.
func (l *Link) commit(h Handler, o *offer) bool {
	l.sessionMu.Lock()
	defer l.sessionMu.Unlock()
	l.offers.mu.Lock()
	ok := l.offers.newest == o
	if ok {
		l.offers.newest, o.taken = nil, true
	}
	l.offers.mu.Unlock()
	if ok {
		l.begin(h, o.handshaken)
	}
	return ok
}

// begun reports whether an offered session has begun.
func (l *Link) begun(o *offer) bool {
	l.offers.mu.Lock()
	defer l.offers.mu.Unlock()
	return o.taken
}

// commitBy begins the offered session if the packet is an authentic frame of that session.
func (l *Link) commitBy(h Handler, b []byte) {
	if o := l.offered(b); o != nil {
		l.commit(h, o)
	}
}

// offered returns the offer if it stands and the packet is an authentic frame of its session. It opens the packet under
// the mutex: once the session has begun, only its owner opens frames.
func (l *Link) offered(b []byte) *offer {
	l.offers.mu.Lock()
	defer l.offers.mu.Unlock()
	o := l.offers.newest
	if o == nil || o.with != l.remote.Load() || time.Since(o.at) >= offerLife || l.blocked() {
		return nil
	}
	if _, err := torus.Decode(b, l.cfg.MTU, o.session); err != nil {
		return nil
	}
	return o
}

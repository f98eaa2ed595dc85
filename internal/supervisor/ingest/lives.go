package ingest

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Times of Lives.
const (
	// livesWithin is the time for an answer. A challenge or its answer may be lost, so the sender repeats it every livesAgain.
	livesWithin = 600 * time.Millisecond
	livesAgain  = 150 * time.Millisecond
)

// lives holds the questions of Lives that wait for an answer, by their nonces.
type lives struct {
	mu      sync.Mutex
	waiting map[[16]byte]liveQuestion
}

// liveQuestion is a challenge to a node; answered has room for one.
type liveQuestion struct {
	node     fault.NodeID
	answered chan struct{}
}

// Lives reports whether a node answers a challenge on any rail; via are its neighbours. It blocks for livesWithin, unless the node
// answers or ctx ends.
func (s *Sender) Lives(ctx context.Context, id fault.NodeID, via []fault.NodeID) bool {
	c := awareness.Challenge{Node: id, Via: via}
	_, _ = rand.Read(c.Nonce[:]) // never fails
	q := liveQuestion{node: id, answered: make(chan struct{}, 1)}
	s.lives.mu.Lock()
	if s.lives.waiting == nil {
		s.lives.waiting = make(map[[16]byte]liveQuestion)
	}
	s.lives.waiting[c.Nonce] = q
	s.lives.mu.Unlock()
	defer func() {
		s.lives.mu.Lock()
		defer s.lives.mu.Unlock()
		delete(s.lives.waiting, c.Nonce)
	}()
	ctx, cancel := context.WithTimeout(ctx, livesWithin)
	defer cancel()
	again := time.NewTicker(livesAgain)
	defer again.Stop()
	for {
		s.Challenge(c)
		select {
		case <-q.answered:
			return true
		case <-ctx.Done():
			return false
		case <-again.C:
		}
	}
}

// answer notes a verified answer of a node. It reports whether Lives has asked for it.
func (l *lives) answer(nonce [16]byte, node fault.NodeID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q, asked := l.waiting[nonce]
	if asked && q.node == node {
		select {
		case q.answered <- struct{}{}:
		default: // another rail was faster
		}
	}
	return asked
}

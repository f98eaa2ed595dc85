package mailbox

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// soon holds messages that wait for room in the other half's queue. While it is empty it costs nothing.
type soon struct {
	mu      sync.Mutex
	waiting []soonMessage
	rest    time.Duration // until the next turn
	life    time.Duration // soonLife
	timer   *time.Timer   // nil: none has ever waited
	closed  bool
}

type soonMessage struct {
	m     Message
	until time.Time
}

const (
	// testRoom is spareRoom for tests, of which more than ten would find room in that: seven of the smallest, each of which counts as some
	// 770 bytes. Six neighbours may have as many probes passed on at once (seed 003 §5.2.2).
	testRoom = 5000
	// maxSoon bounds the waiting messages: the probes that six neighbours send in 120 ms (pkg/torus/diagnosis).
	maxSoon = 128
	// soonLife is how long a message waits: a probe that comes back later counts as late (diagnosis.LateAfter).
	soonLife = 150 * time.Millisecond
	// leastRest and mostRest bound the time between two turns, which doubles.
	leastRest, mostRest = time.Millisecond, 16 * time.Millisecond
)

// SendSoon is SendSpare for test probes, of which several may come at once. A probe that finds no room waits in
// order, for up to soonLife, and is then lost. If maxSoon probes wait already, it is lost at once. The payload
// belongs to the box from then on.
func (b *Box) SendSoon(m Message) {
	s := &b.soon
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.waiting) >= maxSoon || len(s.waiting) == 0 && !errors.Is(b.sendTest(m), ErrDropped) {
		return
	}
	s.waiting = append(s.waiting, soonMessage{m, time.Now().Add(s.life)})
	if len(s.waiting) > 1 {
		return // the timer runs
	}
	s.rest = leastRest
	if s.timer == nil {
		s.timer = time.AfterFunc(s.rest, b.sendWaiting)
	} else {
		s.timer.Reset(s.rest)
	}
}

// sendTest sends a message unless too much lies in the other half's queue.
func (b *Box) sendTest(m Message) error { return b.sendWithin(m, testRoom) }

// sendWaiting sends waiting messages, as far as there is room.
func (b *Box) sendWaiting() {
	s := &b.soon
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now, done := time.Now(), 0
	for _, w := range s.waiting {
		if now.Before(w.until) && errors.Is(b.sendTest(w.m), ErrDropped) {
			break
		}
		done++
	}
	if s.waiting = slices.Delete(s.waiting, 0, done); len(s.waiting) > 0 {
		s.rest = min(2*s.rest, mostRest)
		s.timer.Reset(s.rest)
	}
}

// close drops all waiting messages.
func (s *soon) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.waiting = true, nil
	if s.timer != nil {
		s.timer.Stop()
	}
}

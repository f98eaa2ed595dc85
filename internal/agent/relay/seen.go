package relay

import (
	"crypto/sha256"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// seenKey names a message by what it carries and where to; ways and times differ by copy.
type seenKey [16]byte

// Seen remembers what was passed on, so that a flood ends: a ring of a fixed number of messages
// that forgets each after a while, since a sender may well repeat the same bytes on purpose. When
// the ring is full the oldest is forgotten early; then a copy may be passed on twice, which the
// receivers' own sequence numbers and the hop limit bear.
type Seen struct {
	ttl  time.Duration
	at   map[seenKey]time.Time
	ring []seenKey
	next int
}

// NewSeen returns a memory of size messages for ttl each.
func NewSeen(size int, ttl time.Duration) *Seen {
	return &Seen{ttl: ttl, at: make(map[seenKey]time.Time, size), ring: make([]seenKey, 0, size)}
}

// First says whether m was not seen within the last ttl, and remembers it.
func (s *Seen) First(now time.Time, m Message) bool {
	k := key(m)
	at, known := s.at[k]
	if known && now.Sub(at) < s.ttl {
		return false
	}
	s.at[k] = now
	if known {
		return true
	}
	if len(s.ring) < cap(s.ring) {
		s.ring = append(s.ring, k)
		return true
	}
	delete(s.at, s.ring[s.next])
	s.ring[s.next] = k
	s.next = (s.next + 1) % len(s.ring)
	return true
}

func key(m Message) seenKey {
	h := sha256.New()
	var head [7]byte
	head[0] = byte(m.Kind)
	dst := m.Dst
	if m.Kind == Up {
		dst = grid.Coord{}
	}
	copy(head[1:], appendCoord(nil, dst))
	h.Write(head[:])
	h.Write(m.Envelope)
	var k seenKey
	copy(k[:], h.Sum(nil))
	return k
}

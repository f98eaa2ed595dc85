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
	at   map[seenKey]sight
	ring []seenKey
	next int
}

// sight is what is remembered of a message.
type sight struct {
	at     time.Time
	made   uint8 // hops at its last visit
	visits uint8
	spread bool // it was sent to all neighbours from here
	left   byte // channels by which it left at earlier visits, bit i that of Index i
	leaves byte // and at this one: it may have to leave twice, when a channel fails
}

// maxVisits is how often a message that is routed may come by the same node: it may have to, on a detour around an
// obstacle, and copies that a flood elsewhere has made must end all the same.
const maxVisits = 8

// NewSeen returns a memory of size messages for ttl each.
func NewSeen(size int, ttl time.Duration) *Seen {
	return &Seen{ttl: ttl, at: make(map[seenKey]sight, size), ring: make([]seenKey, 0, size)}
}

// First says whether m was not seen within the last ttl, and remembers it.
func (s *Seen) First(now time.Time, m Message) bool {
	k := key(m)
	was, known := s.at[k]
	if known && now.Sub(was.at) < s.ttl {
		return false
	}
	s.add(k, known, sight{at: now, made: m.Made, visits: 1})
	return true
}

// Visit says whether m, which is routed and not for this node, may be passed on, and remembers it: it is new, or it is back from a
// detour, which a copy with no more hops than the last one is not. What went to all neighbours from here need not go again.
func (s *Seen) Visit(now time.Time, m Message) bool {
	k := key(m)
	was, known := s.at[k]
	switch {
	case !known || now.Sub(was.at) >= s.ttl:
		s.add(k, known, sight{at: now, made: m.Made, visits: 1})
		return true
	case m.Made <= was.made || was.visits >= maxVisits || was.spread:
		return false
	}
	was.made = m.Made
	was.visits++
	was.left, was.leaves = was.left|was.leaves, 0
	s.at[k] = was
	return true
}

// Left returns the channels by which m left from here when it was here before, bit i that of Index i.
func (s *Seen) Left(m Message) byte { return s.at[key(m)].left }

// Leaves remembers that m, which is remembered, leaves by a channel, of the Index given.
func (s *Seen) Leaves(m Message, channel int) {
	k := key(m)
	if was, known := s.at[k]; known {
		was.leaves |= 1 << channel
		s.at[k] = was
	}
}

// Spread remembers that m was sent to all neighbours from here.
func (s *Seen) Spread(now time.Time, m Message) {
	k := key(m)
	was, known := s.at[k]
	if !known || now.Sub(was.at) >= s.ttl { // it may have waited here for a way
		was = sight{at: now, made: m.Made, visits: 1}
	}
	was.spread = true
	s.add(k, known, was)
}

func (s *Seen) add(k seenKey, known bool, m sight) {
	s.at[k] = m
	switch {
	case known:
	case len(s.ring) < cap(s.ring):
		s.ring = append(s.ring, k)
	default:
		delete(s.at, s.ring[s.next])
		s.ring[s.next] = k
		s.next = (s.next + 1) % len(s.ring)
	}
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

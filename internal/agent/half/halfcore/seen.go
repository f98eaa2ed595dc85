package halfcore

import (
	"crypto/sha256"
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// relaySeenKey identifies a message by its content and destination; routes and times differ between copies.
type relaySeenKey [16]byte

// RelaysSeen remembers forwarded messages, so that a flood ends: a ring of a fixed number of messages that forgets each after
// a while, because a sender may repeat the same bytes on purpose. When the ring is full it forgets the oldest early.
// Then a copy may be forwarded twice, which the receivers' sequence numbers and the hop limit tolerate.
type RelaysSeen struct {
	ttl  time.Duration
	at   map[relaySeenKey]relaySight
	ring []relaySeenKey
	next int
}

// relaySight is the memory of one message.
type relaySight struct {
	at     time.Time
	made   uint8 // hops at its last visit
	ahead  uint8 // hops that it had left, the most of its copies
	visits uint8
	spread bool // it was sent to all neighbours from here
	left   byte // channels by which it left at earlier visits, bit i for Index i
	leaves byte // and at this one: it may have to leave twice, when a channel fails
}

// maxRelayVisits is how often a routed message may pass the same node: a detour around an obstacle may require it, but
// copies from a flood elsewhere must end.
const maxRelayVisits = 8

// NewRelaysSeen returns a memory of size messages for ttl each.
func NewRelaysSeen(size int, ttl time.Duration) *RelaysSeen {
	return &RelaysSeen{ttl: ttl, at: make(map[relaySeenKey]relaySight, size), ring: make([]relaySeenKey, 0, size)}
}

// AllHops marks a message with enough hops left to cross the whole torus: no other copy reaches further.
const AllHops = math.MaxUint8

// First reports whether m was not seen within the last ttl, and remembers it.
func (s *RelaysSeen) First(now time.Time, m Relay) bool { return s.Flood(now, m, AllHops) }

// Flood reports whether m was not seen within the last ttl, or has more hops left than every copy seen so far. It
// remembers m.
func (s *RelaysSeen) Flood(now time.Time, m Relay, left uint8) bool {
	k := relayKey(m)
	was, known := s.at[k]
	if known && now.Sub(was.at) < s.ttl && left <= was.ahead {
		return false
	}
	s.add(k, known, relaySight{at: now, made: m.Made, ahead: left, visits: 1})
	return true
}

// Visit reports whether m, a routed message for another node, may be forwarded, and remembers it. A new message may,
// and one that is back from a detour, with more hops than at its last visit. A message that this node sent to all
// neighbours need not go again. A copy with more hops left than every copy seen so far counts as new.
func (s *RelaysSeen) Visit(now time.Time, m Relay, left uint8) bool {
	k := relayKey(m)
	was, known := s.at[k]
	switch {
	case !known || now.Sub(was.at) >= s.ttl || left > was.ahead:
		s.add(k, known, relaySight{at: now, made: m.Made, ahead: left, visits: 1})
		return true
	case m.Made <= was.made || was.visits >= maxRelayVisits || was.spread:
		return false
	}
	was.made = m.Made
	was.visits++
	was.left, was.leaves = was.left|was.leaves, 0
	s.at[k] = was
	return true
}

// Left returns the channels by which m left this node at earlier visits, bit i for Index i.
func (s *RelaysSeen) Left(m Relay) byte { return s.at[relayKey(m)].left }

// Leaves records that m, which must be remembered already, leaves by the channel with the given Index.
func (s *RelaysSeen) Leaves(m Relay, channel int) {
	k := relayKey(m)
	if was, known := s.at[k]; known {
		was.leaves |= 1 << channel
		s.at[k] = was
	}
}

// Spread records that this node sent m, with so many hops left, to all neighbours.
func (s *RelaysSeen) Spread(now time.Time, m Relay, left uint8) {
	k := relayKey(m)
	was, known := s.at[k]
	if !known || now.Sub(was.at) >= s.ttl { // it may have waited here for a route
		was = relaySight{at: now, made: m.Made, ahead: left, visits: 1}
	}
	was.spread = true
	s.add(k, known, was)
}

func (s *RelaysSeen) add(k relaySeenKey, known bool, m relaySight) {
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

func relayKey(m Relay) relaySeenKey {
	h := sha256.New()
	var head [7]byte
	head[0] = byte(m.Kind)
	dst := m.Dst
	if m.Kind == RelayUp {
		dst = grid.Coord{}
	}
	copy(head[1:], appendRelayCoord(nil, dst))
	h.Write(head[:])
	h.Write(m.Envelope)
	var k relaySeenKey
	copy(k[:], h.Sum(nil))
	return k
}

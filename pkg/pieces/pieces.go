// Package pieces carries a datagram that is longer than every path takes in several datagrams. A path may drop longer ones without a
// word: its routers send no ICMP, or its switches have a smaller MTU than the interfaces. Most datagrams are short and stay as they are.
//
//	offset  size
//	     0     1  0: no envelope, frame, chunk or packet of gossip begins so
//	     1     2  number of the datagram, random
//	     3     1  number of the piece, from 0
//	     4     1  number of pieces
//	     5     n  the datagram's bytes: all pieces but the last have the same length
//
// The package authenticates nothing: a datagram that is put together wrongly fails the check of its receiver, as a damaged one does.
// It does no I/O. Start with Split and Joiner. Connections pass such a path with segments of at most MaxSegment bytes.
package pieces

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
)

// MaxPayload is the UDP payload that every path takes: that of IPv6's smallest MTU, 1,280 bytes, without the headers of IPv6 and UDP.
const MaxPayload = 1280 - 40 - 8

// MaxSegment is the TCP segment that every path takes: the value of TCP_MAXSEG for listeners, which holds for both ends.
const MaxSegment = 1280 - 40 - 20

const (
	mark     = 0
	headSize = 5
	body     = MaxPayload - headSize
	// MaxPieces bounds the pieces of one datagram.
	MaxPieces = 8
)

// Split returns the datagrams that carry b: b itself if every path takes it.
func Split(b []byte) [][]byte {
	if len(b) <= MaxPayload {
		return [][]byte{b}
	}
	number := uint16(rand.Uint32())
	count := (len(b) + body - 1) / body
	if count > MaxPieces {
		panic(fmt.Sprintf("pieces: datagram of %d bytes: want at most %d", len(b), MaxPieces*body))
	}
	out := make([][]byte, 0, count)
	for i := range count {
		head := binary.BigEndian.AppendUint16([]byte{mark}, number)
		out = append(out, append(append(head, byte(i), byte(count)), b[i*body:min((i+1)*body, len(b))]...))
	}
	return out
}

// Joiner puts datagrams together again. It keeps the pieces of a fixed number of datagrams, and drops those of the oldest one for a new
// one. One goroutine uses it.
type Joiner struct {
	keep  int
	parts []parts // the oldest first
}

// parts are the pieces of a datagram that have arrived.
type parts struct {
	from   netip.AddrPort
	number uint16
	count  int
	have   [MaxPieces]bool
	left   int
	size   int // of the datagram; 0: the last piece is missing
	b      []byte
}

// NewJoiner returns a Joiner that keeps the pieces of so many datagrams.
func NewJoiner(keep int) *Joiner { return &Joiner{keep: keep} }

// Join takes what arrived from a sender. It returns a whole datagram: b itself if it is no piece, or the one that b completes.
func (j *Joiner) Join(from netip.AddrPort, b []byte) (whole []byte, ok bool) {
	if len(b) <= headSize || len(b) > MaxPayload || b[0] != mark {
		return b, true
	}
	number, i, count := binary.BigEndian.Uint16(b[1:]), int(b[3]), int(b[4])
	last := i == count-1
	if count < 2 || count > MaxPieces || i >= count || !last && len(b) != MaxPayload {
		return b, true
	}
	k := j.find(from, number, count)
	p := &j.parts[k]
	if p.have[i] {
		return nil, false
	}
	p.have[i] = true
	p.left--
	if n := copy(p.b[i*body:], b[headSize:]); last {
		p.size = i*body + n
	}
	if p.left > 0 {
		return nil, false
	}
	whole = p.b[:p.size]
	j.parts = append(j.parts[:k], j.parts[k+1:]...)
	return whole, true
}

// find returns the index of a datagram, which may be new.
func (j *Joiner) find(from netip.AddrPort, number uint16, count int) int {
	for k := range j.parts {
		if p := &j.parts[k]; p.number == number && p.from == from && p.count == count {
			return k
		}
	}
	if len(j.parts) == j.keep {
		j.parts = append(j.parts[:0], j.parts[1:]...)
	}
	j.parts = append(j.parts, parts{from: from, number: number, count: count, left: count, b: make([]byte, count*body)})
	return len(j.parts) - 1
}

package mapping

import (
	"encoding/binary"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A probe, big endian: the question, and the answers that go back by the same path.
//
//	0   4  "LFMP"
//	4   1  kind: 1 ask, 2 the DNP half's answer, 3 the host half's
//	5   1  hops made since it was sent
//	6   1  hops of the path, n: 1 to MaxPath
//	7   1  bit 0 of an ask: the host half is to answer too
//	8   4  number within the run, from 1
//	12  8  the run
//	20  n  the path: directions, 1 to 6, from the mapper on
//
// and in answers behind it
//
//	0   1  links that work, bit 0 X+ to bit 5 Z-
//	1   1  links that do not
//	2   1  the host half, as the DNP half's watchdog has it: 0 not known, 1 alive, 2 dead
const (
	headSize   = 20
	answerSize = 3
	// MaxPath bounds a path, in hops. Deeper nodes are for another mapper.
	MaxPath = 32
	// MaxFrame bounds a probe, in bytes.
	MaxFrame = headSize + MaxPath + answerSize
)

var magic = [4]byte{'L', 'F', 'M', 'P'}

const (
	kindAsk byte = iota + 1
	kindDNP
	kindHost
)

const asksHost byte = 1

// HostWord is a DNP half's view of its host half.
type HostWord uint8

// The words.
const (
	HostUnknown HostWord = iota
	HostAlive
	HostDead
)

// Word is a node's report about itself.
type Word struct {
	Good, Bad uint8 // its links, bit 0 X+ to bit 5 Z-; a link in neither is unknown
	Host      HostWord
}

// frame is a decoded probe. Its path aliases the decoded bytes.
type frame struct {
	kind, made byte
	host       bool
	number     uint32
	run        uint64
	path       []byte
	word       Word // of an answer
}

func decode(b []byte) (f frame, ok bool) {
	if len(b) < headSize+1 || [4]byte(b) != magic {
		return f, false
	}
	n := int(b[6])
	f = frame{kind: b[4], made: b[5], host: b[7] == asksHost, number: binary.BigEndian.Uint32(b[8:]), run: binary.BigEndian.Uint64(b[12:])}
	size := headSize + n
	if f.kind != kindAsk {
		size += answerSize
	}
	if f.kind < kindAsk || f.kind > kindHost || n < 1 || n > MaxPath || int(f.made) > n || len(b) != size || b[7] > asksHost ||
		f.kind != kindAsk && b[7] != 0 {
		return f, false
	}
	f.path = b[headSize : headSize+n]
	for _, d := range f.path {
		if !grid.Direction(d).Valid() {
			return f, false
		}
	}
	if f.kind != kindAsk {
		w := b[headSize+n:]
		f.word = Word{Good: w[0], Bad: w[1], Host: HostWord(w[2])}
		if f.word.Good|f.word.Bad > 1<<grid.NumDirections-1 || f.word.Good&f.word.Bad != 0 || f.word.Host > HostDead {
			return f, false
		}
	}
	return f, true
}

func (f *frame) append(dst []byte) []byte {
	flags := byte(0)
	if f.host {
		flags = asksHost
	}
	dst = append(dst, magic[:]...)
	dst = append(dst, f.kind, f.made, byte(len(f.path)), flags)
	dst = binary.BigEndian.AppendUint32(dst, f.number)
	dst = binary.BigEndian.AppendUint64(dst, f.run)
	dst = append(dst, f.path...)
	if f.kind != kindAsk {
		dst = append(dst, f.word.Good, f.word.Bad, byte(f.word.Host))
	}
	return dst
}

// What names the action of a half on a probe.
type What uint8

// The actions.
const (
	Drop   What = iota // malformed, or not on its path
	Pass               // send Frame by To
	Asked              // it is for this node: Answer it
	Answer             // it is back: give it to the machine
)

// Hop returns the action of a half on a probe that came by its link from. out is a new slice.
func Hop(b []byte, from grid.Direction) (what What, to grid.Direction, out []byte) {
	f, ok := decode(b)
	if !ok || f.made == 0 {
		return Drop, 0, nil
	}
	n, made := len(f.path), int(f.made)
	if f.kind != kindAsk { // it goes the path backwards
		switch {
		case grid.Direction(f.path[n-made]) != from:
			return Drop, 0, nil
		case made == n:
			return Answer, 0, nil
		}
		to = grid.Direction(f.path[n-made-1]).Opposite()
	} else {
		switch {
		case grid.Direction(f.path[made-1]).Opposite() != from:
			return Drop, 0, nil
		case made == n:
			return Asked, 0, nil
		}
		to = grid.Direction(f.path[made])
	}
	f.made++
	return Pass, to, f.append(make([]byte, 0, len(b)))
}

// Reply returns the DNP half's answer to a probe for which Hop said Asked, its direction, and whether to ask the host
// half as well.
func Reply(b []byte, w Word) (to grid.Direction, out []byte, host bool) {
	to, out = reply(b, kindDNP, w)
	f, _ := decode(b)
	return to, out, out != nil && f.host && w.Host != HostDead
}

// ReplyHost is the answer of a host half that has sent the same probe back.
func ReplyHost(b []byte, w Word) (to grid.Direction, out []byte) { return reply(b, kindHost, w) }

func reply(b []byte, kind byte, w Word) (grid.Direction, []byte) {
	f, ok := decode(b)
	if !ok || f.kind != kindAsk || int(f.made) != len(f.path) {
		return 0, nil
	}
	to := grid.Direction(f.path[len(f.path)-1]).Opposite()
	f.kind, f.made, f.host, f.word = kind, 1, false, w
	return to, f.append(make([]byte, 0, len(b)+answerSize))
}

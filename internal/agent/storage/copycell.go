package storage

import (
	"encoding/binary"
	"hash/crc32"
)

// headerSize is the length of a cell's header, in bytes.
const headerSize = 16

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cell is one record: its place in either copy, header included. Its number is unique: a cell that came into
// another's place is bad.
type cell struct {
	number   uint32
	at, size int
}

// room is how long a payload may be.
func (c cell) room() int { return c.size - headerSize }

// in returns the cell's bytes in a copy.
func (c cell) in(copy []byte) []byte { return copy[c.at : c.at+c.size : c.at+c.size] }

// put writes a payload, which must fit, and returns the number of bytes used.
func (c cell) put(b []byte, seq uint64, payload []byte) int {
	binary.LittleEndian.PutUint32(b[4:], uint32(len(payload)))
	binary.LittleEndian.PutUint64(b[8:], seq)
	n := headerSize + copy(b[headerSize:], payload)
	binary.LittleEndian.PutUint32(b, c.sum(b[:n]))
	return n
}

// sum is the CRC of a cell's first bytes.
func (c cell) sum(b []byte) uint32 {
	// The number first, as if it stood where the CRC does.
	crc := ^uint32(0)
	for v, i := c.number, 0; i < 4; i++ {
		crc = castagnoli[byte(crc)^byte(v)] ^ crc>>8
		v >>= 8
	}
	return crc32.Update(^crc, castagnoli, b[4:])
}

// used returns the bytes of the cell that count, and whether they are good. A cell that was never written is not.
func (c cell) used(b []byte) ([]byte, bool) {
	n := binary.LittleEndian.Uint32(b[4:])
	if n > uint32(c.room()) || sequenceOf(b) == 0 {
		return nil, false
	}
	u := b[: headerSize+int(n) : headerSize+int(n)]
	return u, binary.LittleEndian.Uint32(b) == c.sum(u)
}

func sequenceOf(b []byte) uint64 { return binary.LittleEndian.Uint64(b[8:]) }

// blank reports whether the cell was never written.
func blank(b []byte) bool {
	return binary.LittleEndian.Uint64(b) == 0 && sequenceOf(b) == 0
}

// choose returns the good one of two copies of a cell with the higher sequence number, or nil when neither is good.
// mendA and mendB report whether a and b must be repaired from it.
func (c cell) choose(a, b []byte) (best []byte, mendA, mendB bool) {
	ua, goodA := c.used(a)
	ub, goodB := c.used(b)
	switch {
	case goodA && (!goodB || sequenceOf(ua) > sequenceOf(ub)):
		return ua, false, true
	case goodB && (!goodA || sequenceOf(ub) > sequenceOf(ua)):
		return ub, true, false
	case goodA:
		return ua, false, false
	}
	return nil, false, false
}

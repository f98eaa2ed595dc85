package regfile

import "hash/crc32"

// guard is the check value beside a word: sequence number in the upper half, CRC-32C in the lower. The CRC covers the
// word's offset, so that a guard fits its own word only, the word without its Valid bit, which the other half clears,
// and the sequence. Over these 96 bits CRC-32C detects every error of up to six bits (see the tests).
type guard uint64

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func makeGuard(c cell, word, seq uint32) guard {
	crc := ^uint32(0)
	for _, v := range [3]uint32{uint32(c.word), word &^ c.valid, seq} {
		for range 4 {
			crc = castagnoli[byte(crc)^byte(v)] ^ crc>>8
			v >>= 8
		}
	}
	return guard(uint64(seq)<<32 | uint64(^crc))
}

func (g guard) seq() uint32 { return uint32(g >> 32) }

func (g guard) covers(c cell, word uint32) bool { return g == makeGuard(c, word, g.seq()) }

// cellState is the content of a cell: one load of each of its three parts.
type cellState struct {
	word uint32
	a, b guard
}

// blank reports that no store into the cell was ever completed, nor its word written: it reads as 0.
func (s cellState) blank() bool { return s.word == 0 && s.b == 0 }

// good reports that the owner wrote the word.
func (s cellState) good(c cell) bool { return s.a.covers(c, s.word) || s.b.covers(c, s.word) }

// part names one of the three parts of a cell.
type part uint8

const (
	partWord part = iota + 1
	partA
	partB
)

// write is one atomic store into a cell.
type write struct {
	part part
	v    uint64
}

// planStore returns the stores that put a new word into a cell, in order. If the cell was good or blank before, then
// between any two stores it holds either the old word or the new one with a guard that covers it. This makes a kill at
// any instruction harmless.
func planStore(c cell, s cellState, word uint32) (plan [4]write, n int) {
	add := func(p part, v uint64) {
		plan[n] = write{p, v}
		n++
	}
	seq := max(s.a.seq(), s.b.seq()) + 1 // may wrap: nothing compares sequences, they only differ
	if s.a != s.b && s.a.covers(c, s.word) {
		add(partB, uint64(s.a)) // A is about to be overwritten and the word may depend on it alone
	}
	g := uint64(makeGuard(c, word, seq))
	add(partA, g)
	add(partWord, uint64(word))
	add(partB, g)
	return plan, n
}

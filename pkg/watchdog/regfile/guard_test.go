package regfile

import (
	"fmt"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

func (s *cellState) apply(w write) {
	switch w.part {
	case partWord:
		s.word = uint32(w.v)
	case partA:
		s.a = guard(w.v)
	case partB:
		s.b = guard(w.v)
	}
}

// stored returns the state after a store that ran to its end.
func stored(c cell, s cellState, word uint32) cellState {
	plan, n := planStore(c, s, word)
	for _, w := range plan[:n] {
		s.apply(w)
	}
	return s
}

// TestKilledBetweenAnyTwoStores kills owners between any two stores, one after the other, while the reader clears Valid
// at any moment: the cell always contains the old word or the new one, guarded.
func TestKilledBetweenAnyTwoStores(t *testing.T) {
	words := []uint32{0x000001, 0x4000041, 0x000001, 0x2aaaa01, 0, 1}
	var lives func(s cellState, old uint32, life int, trail string)
	lives = func(s cellState, old uint32, life int, trail string) {
		if life == 4 {
			return
		}
		for _, word := range words[:3+life] {
			plan, n := planStore(dnpCell, s, word)
			if n > len(plan) {
				t.Fatalf("plan of %d stores", n)
			}
			now := s
			for i := range n + 1 {
				if i > 0 {
					now.apply(plan[i-1])
				}
				is := now.word &^ dnpCell.valid
				if is != old&^dnpCell.valid && is != word&^dnpCell.valid || !now.good(dnpCell) && !now.blank() {
					t.Fatalf("%s, then %d of %d stores of 0x%x over 0x%x: %+v", trail, i, n, word, old, now)
				}
				if life < 2 || i == 1 || i == 2 { // deeper lives die in the middle only
					next := now
					next.word &^= dnpCell.valid // the reader invalidated it
					lives(next, now.word, life+1, fmt.Sprintf("%s %x/%d", trail, word, i))
				}
			}
		}
	}
	lives(cellState{}, 0, 0, "blank")
}

// baseWords returns the base words of the flip tests: normal, each fault alone, everything sick, everything broken.
func baseWords() map[string]struct {
	c     cell
	words []uint32
} {
	dnp := []uint32{0, 1}
	var sick, broken watchdog.DNPWord
	for _, d := range grid.Directions() {
		i := d.Index()
		dnp = append(dnp, 1<<(1+i)|1, 1<<(15+2*i)|1, 2<<(15+2*i)|1)
		sick.Links[i], broken.Links[i], broken.NeighbourHostFailed[i] = watchdog.HealthSick, watchdog.HealthBroken, true
	}
	sick.Core, sick.Power, sick.Voltage, sick.Temperature = 1, 1, 1, 1
	broken.Core, broken.Power, broken.Voltage, broken.Temperature = 2, 2, 2, 2
	dnp = append(dnp, sick.Encode(), broken.Encode()|1)
	type base = struct {
		c     cell
		words []uint32
	}
	return map[string]base{
		"dnp":        {dnpCell, dnp},
		"host":       {hostCell, []uint32{0, 1, 1 | 1<<1, 1 | 2<<1, 1 | 2<<3, 1 | 1<<5, 1 | 2<<7, 1 | 0x0aa, 0x154, 1 | 0x154}},
		"descriptor": {descriptorCell, []uint32{0, 1, 0xf, 0x800000, 0x123456, 0xffffff}},
	}
}

func (s cellState) flip(bit int) cellState {
	switch {
	case bit < 32:
		s.word ^= 1 << bit
	case bit < 96:
		s.a ^= 1 << (bit - 32)
	default:
		s.b ^= 1 << (bit - 96)
	}
	return s
}

const cellBits = 32 + 64 + 64

// TestEveryOneAndTwoFlips flips every bit and every two bits of a word and its guards. The register then reads as the
// owner's word (the flips were masked; only Valid may differ), or is invalid. In particular, only a broken component
// reads as broken.
func TestEveryOneAndTwoFlips(t *testing.T) {
	for name, base := range baseWords() {
		c := base.c
		masked, invalid := 0, 0
		check := func(s cellState, allowed ...uint32) bool {
			if !s.blank() && !s.good(c) {
				invalid++
				return true
			}
			for _, w := range allowed {
				if s.word&^c.valid == w&^c.valid {
					masked++
					return true
				}
			}
			return false
		}
		for i, word := range base.words {
			settled := stored(c, stored(c, cellState{}, 0x155), word)
			// The same after an owner was killed in the middle of its next store, of another word.
			next := base.words[(i+1)%len(base.words)]
			plan, n := planStore(c, settled, next)
			half := settled
			for _, w := range plan[:n-1] {
				half.apply(w)
			}
			for a := range cellBits {
				for b := a; b < cellBits; b++ {
					once, torn := settled.flip(a), half.flip(a)
					if b != a {
						once, torn = once.flip(b), torn.flip(b)
					}
					if !check(once, word) {
						t.Fatalf("%s 0x%08x, bits %d and %d: reads 0x%08x", name, word, a, b, once.word)
					}
					if !check(torn, word, next) {
						t.Fatalf("%s 0x%08x torn by 0x%08x, bits %d and %d: reads 0x%08x", name, word, next, a, b, torn.word)
					}
				}
			}
		}
		if masked == 0 || invalid == 0 {
			t.Errorf("%s: %d masked, %d invalid: the test tests nothing", name, masked, invalid)
		}
	}
}

func TestGuardFitsItsOwnWordOnly(t *testing.T) {
	g := makeGuard(dnpCell, 0x41, 7)
	if g.seq() != 7 || !g.covers(dnpCell, 0x40) || !g.covers(dnpCell, 0x41) || g.covers(dnpCell, 0x43) || g.covers(hostCell, 0x41) {
		t.Errorf("guard 0x%016x", uint64(g))
	}
	if makeGuard(descriptorCell, 0, 7).covers(descriptorCell, 1) {
		t.Error("bit 0 of the descriptor is no Valid bit")
	}
}

func TestEveryRegisterHasItsPlace(t *testing.T) {
	used := map[int]string{}
	take := func(off, n int, what string) {
		for i := off; i < off+n; i++ {
			if was, ok := used[i]; ok || i >= Size {
				t.Fatalf("offset 0x%x: %s and %s", i, was, what)
			}
			used[i] = what
		}
	}
	take(pageSize+offMagic, 8, "magic")
	take(pageSize+offDoorbells, 8, "doorbells")
	take(pageSize+offCounters, 4*NumCounters, "counters")
	take(pageSize+offEpochs, 2*epochStride, "epochs")
	for _, r := range watchdog.Registers() {
		c, ok := registerCell(r.Addr)
		if !ok {
			t.Errorf("%s has no guard", r.Addr)
			continue
		}
		take(c.word, 4, r.Name)
		take(c.guards, guardStride, r.Name)
	}
	for i := range numExtWords {
		c := extCell(i)
		take(c.word, 4, "extension word")
		take(c.guards, guardStride, "extension word")
	}
}

func FuzzCell(f *testing.F) {
	f.Add(uint32(1), uint64(0), uint64(0), uint32(0x41))
	f.Fuzz(func(t *testing.T, word uint32, a, b uint64, next uint32) {
		s := cellState{word, guard(a), guard(b)}
		if s := stored(dnpCell, s, next); !s.good(dnpCell) || s.word != next || s.a != s.b {
			t.Errorf("a store over anything is not whole: %+v", s)
		}
	})
}

// TestAnySixFlipsAreFound: the CRC is linear, so flipped bits go undetected exactly when their syndromes cancel out. No
// two different sets of up to three of the 96 bits have the same syndrome. Therefore any six flips over a word and a
// guard are detected, whichever the word.
func TestAnySixFlipsAreFound(t *testing.T) {
	syndrome := make([]uint32, 96) // of each bit of word, CRC, sequence
	zero := uint32(makeGuard(descriptorCell, 0, 0))
	for i := range 32 {
		syndrome[i] = uint32(makeGuard(descriptorCell, 1<<i, 0)) ^ zero
		syndrome[32+i] = 1 << i
		syndrome[64+i] = uint32(makeGuard(descriptorCell, 0, 1<<i)) ^ zero
	}
	seen := map[uint32]bool{0: true}
	add := func(s uint32, bits ...int) {
		if seen[s] {
			t.Fatalf("bits %v have the syndrome 0x%08x of others", bits, s)
		}
		seen[s] = true
	}
	for a := range syndrome {
		add(syndrome[a], a)
		for b := range a {
			add(syndrome[a]^syndrome[b], a, b)
			for c := range b {
				add(syndrome[a]^syndrome[b]^syndrome[c], a, b, c)
			}
		}
	}
}

package regfile

import "github.com/lofamo/lofamo/pkg/fault"

// maxCells limits the cells of a file, numbered by the position of their guards.
const maxCells = (pageSize - offGuards) / guardStride

func (c cell) number() int { return (c.guards - pageSize - offGuards) / guardStride }

// Scrub checks all words of this half and repairs them if possible: a flipped guard by the word and the other guard, a
// copy of the epoch by the other, the magic. Otherwise a flip that one guard masks would stay until a second flip,
// which is not masked. mended also counts words that were damaged or zeroed since the last call, and that a store has
// replaced meanwhile. lost is the number of words that match neither guard, or that are gone: the caller writes them
// again. Call it once a second; it writes nothing if everything is intact.
func (f *File) Scrub() (mended, lost int, err error) {
	if f.half == 0 {
		return 0, 0, f.mustBe("scrub", fault.HalfHost)
	}
	err = f.access("scrub", func() error {
		if at := f.u64(pageSize + offMagic); at.load() != magic {
			at.store(magic)
			mended++
		}
		for _, a := range guardedRegisters {
			if c, ok := registerCell(a); ok {
				f.scrub(c, &mended, &lost)
			}
		}
		for i := range numExtWords {
			f.scrub(extCell(i), &mended, &lost)
		}
		f.scrubEpoch(&mended, &lost)
		mended += f.replaced
		f.replaced = 0
		return nil
	})
	f.mu.Lock()
	f.corrupt += uint64(mended + lost)
	f.mu.Unlock()
	return mended, lost, err
}

// scrub checks one word of this half. No store happens meanwhile, but the other half may clear its Valid bit, which no
// guard covers.
func (f *File) scrub(c cell, mended, lost *int) {
	if c.owner != f.half || !f.wrote[c.number()] {
		return
	}
	s := f.state(c)
	a, b := s.a.covers(c, s.word), s.b.covers(c, s.word)
	switch {
	case a && b:
	case a:
		f.write(c, write{partB, uint64(s.a)})
		*mended++
	case b:
		f.write(c, write{partA, uint64(s.b)})
		*mended++
	default:
		f.lost[c.number()] = true
		*lost++
	}
}

// scrubEpoch checks both copies of this half's boot epoch.
func (f *File) scrubEpoch(mended, lost *int) {
	if !f.wroteEpoch {
		return
	}
	var values [2]uint64
	for i := range values {
		value, check := f.epochCopy(f.half, i)
		if v := value.load(); check.load() == epochCheck(f.half, v) {
			values[i] = v // 0 means none
		}
	}
	switch a, b := values[0], values[1]; {
	case a == b && a != 0:
	case a != 0: // or both good and different: the first is the newer
		f.writeEpoch(f.half, 1, a)
		*mended++
	case b != 0:
		f.writeEpoch(f.half, 0, b)
		*mended++
	default:
		*lost++
	}
}

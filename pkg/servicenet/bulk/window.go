package bulk

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// reorder is the number of later chunks that may arrive before one counts as lost.
const reorder = 16

// window is a receiver's part of an object: at most buffer chunks, from the first that the consumer has not
// processed.
//
//	 consumed        delivered                            consumed + buffer
//	    │ with the       │ missing, under way, or here          │
//	    │ consumer       │ ahead of a gap                       │
//	────┴────────────────┴──────────────────────────────────────┴────► index
type window struct {
	size      uint64
	chunkSize uint32
	count     uint32
	slots     []slot // of index i: i modulo the length
	consumed  uint32
	delivered uint32
	next      uint32 // nothing from here on was ever pulled
	gaps      int    // below next: missing, and not under way
	inflight  int
	order     uint64 // of the last chunk pulled, counting every pull of a chunk
	latest    uint64 // highest order of which a chunk came
}

// slot is one chunk.
type slot struct {
	state slotState
	again bool // pulled more than once: its round trip says nothing
	order uint64
	at    time.Time // pulled
	data  []byte
}

type slotState uint8

const (
	slotMissing slotState = iota
	slotPulled
	slotHere
)

type place uint8

const (
	placeFree place = iota + 1
	placeHave
	placeOutside
)

func newWindow(buffer int, size uint64, chunkSize uint32) window {
	return window{size: size, chunkSize: chunkSize, count: chunkCount(size, chunkSize), slots: make([]slot, buffer)}
}

func (w *window) slot(i uint32) *slot { return &w.slots[int(i)%len(w.slots)] }
func (w *window) length(i uint32) int { return chunkLength(w.size, w.chunkSize, i) }
func (w *window) done() bool          { return w.delivered == w.count }
func (w *window) end() uint32         { return min(w.count, w.consumed+uint32(len(w.slots))) }
func (w *window) bytes() uint64       { return min(w.size, uint64(w.delivered)*uint64(w.chunkSize)) }

// place returns how to treat a chunk before it is opened.
func (w *window) place(i uint32) place {
	switch {
	case i < w.delivered:
		return placeHave
	case i >= w.end():
		return placeOutside
	case w.slot(i).state == slotHere:
		return placeHave
	}
	return placeFree
}

// put stores a chunk whose place is free. It returns the round trip, or 0 if that is unknown, and how many chunks now
// count as lost, with the highest order among them.
func (w *window) put(now time.Time, i uint32, data []byte) (sample time.Duration, lost int, lastLost uint64) {
	s := w.slot(i)
	switch {
	case s.state == slotPulled:
		w.inflight--
		w.latest = max(w.latest, s.order)
		if !s.again {
			sample = now.Sub(s.at)
		}
	case i < w.next:
		w.gaps-- // it was declared lost too early
	}
	s.state, s.data = slotHere, data
	for j := w.delivered; j < w.next; j++ {
		if s := w.slot(j); s.state == slotPulled && s.order+reorder < w.latest {
			w.lose(s)
			lost++
			lastLost = max(lastLost, s.order)
		}
	}
	return sample, lost, lastLost
}

func (w *window) lose(s *slot) {
	s.state = slotMissing
	w.inflight--
	w.gaps++
}

// loseAll gives up everything under way.
func (w *window) loseAll() int {
	n := w.inflight
	for j := w.delivered; j < w.next; j++ {
		if s := w.slot(j); s.state == slotPulled {
			w.lose(s)
		}
	}
	return n
}

// deliver returns the next chunks in order.
func (w *window) deliver() [][]byte {
	var out [][]byte
	for w.delivered < w.end() && w.slot(w.delivered).state == slotHere {
		s := w.slot(w.delivered)
		out = append(out, s.data)
		s.data = nil
		w.delivered++
	}
	w.next = max(w.next, w.delivered)
	return out
}

// consume makes room.
func (w *window) consume(n int) {
	for ; n > 0 && w.consumed < w.delivered; n-- {
		*w.slot(w.consumed) = slot{}
		w.consumed++
	}
}

// ask returns the next chunks to pull, lowest first, and their number. It returns none unless the limit leaves room
// for a quarter of it at once, or no more chunks will ever follow. That cannot wait forever: when no chunk is under
// way and no gap is left, the consumer holds all chunks that fill the buffer.
func (w *window) ask(now time.Time, limit int) (ranges []*lofamov1.ChunkRange, n int) {
	free := limit - w.inflight
	ahead := int(w.end() - min(w.next, w.end()))
	eligible := w.gaps + ahead
	worth := w.gaps > 0 && w.inflight == 0 || min(free, eligible) >= max(1, limit/4) || eligible <= free && w.end() == w.count
	if free <= 0 || eligible == 0 || !worth {
		return nil, 0
	}
	for i := w.delivered; i < w.end() && n < free; i++ {
		s := w.slot(i)
		if s.state != slotMissing {
			continue
		}
		last := len(ranges) - 1
		switch {
		case last >= 0 && ranges[last].First+ranges[last].Count == i:
			ranges[last].Count++
		case last+1 == maxRanges:
			return ranges, n
		default:
			ranges = append(ranges, &lofamov1.ChunkRange{First: i, Count: 1})
		}
		if i >= w.next {
			w.next = i + 1
		} else {
			w.gaps--
			s.again = true
		}
		w.order++
		s.state, s.order, s.at = slotPulled, w.order, now
		w.inflight++
		n++
	}
	return ranges, n
}

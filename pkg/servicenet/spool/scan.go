package spool

import (
	"cmp"
	"slices"
)

// found is the content of a ring.
type found struct {
	entries []entry // those that count, by number; they share memory with the image
	reports []entry // of these, the reports that are not freed, by (epoch, sequence number)
	next    uint64  // number of the record to be written next
	head    int64   // offset in the ring at which it goes, unless it does not fit there
	damaged int     // records that should be there and are not
}

// scanRing finds the records that count. It never fails: it skips bytes that are no record. An image that is shorter
// than the ring was cut off; apart from that, memory is bounded by the image.
func scanRing(ring []byte, id fileID) found {
	var all []entry
	newest := -1
	for at := int64(0); at < int64(len(ring)); {
		e, ok := decodeEntry(ring[at:], id, at)
		if !ok {
			at += blockSize
			continue
		}
		all = append(all, e)
		if newest < 0 || e.number > all[newest].number {
			newest = len(all) - 1
		}
		at += e.size()
	}
	if newest < 0 {
		return found{next: 1}
	}
	last := all[newest]
	f := found{next: last.number + 1, head: last.at + last.size()}
	f.entries = live(all, last)
	f.damaged = int(min(last.number-last.tail+1-uint64(len(f.entries)), 1<<31))
	if tornAfter(ring, f) {
		f.damaged++
	}
	f.reports = replay(f.entries)
	return f
}

// live returns the records that count, by number. In the order of their numbers they go once around the ring and end
// with the newest; other records were not left by the writer.
func live(all []entry, last entry) []entry {
	out := slices.DeleteFunc(all, func(e entry) bool { return e.number < last.tail })
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(b.number, a.number) })
	kept := out[:0]
	for _, e := range out {
		if n := len(kept); n > 0 && (e.number == kept[n-1].number || age(e, last) >= age(kept[n-1], last)) {
			continue
		}
		kept = append(kept, e)
	}
	slices.Reverse(kept)
	return kept
}

// age orders the places of the ring, oldest first: records behind the newest one are of the lap before.
func age(e, last entry) int64 {
	if e.at > last.at {
		return e.at - 1<<62
	}
	return e.at
}

// tornAfter reports whether the record after the newest one was begun.
func tornAfter(ring []byte, f found) bool {
	for _, at := range []int64{f.head, 0} {
		if at+24 <= int64(len(ring)) && le.Uint32(ring[at:]) == recordMagic && le.Uint64(ring[at+8:]) == f.next {
			return true
		}
	}
	return false
}

// replay carries out the records in order and returns the reports that are left.
func replay(entries []entry) []entry {
	left := map[key]int{}
	for i, e := range entries {
		switch e.kind {
		case kindReport:
			left[e.key] = i
		case kindFree:
			for _, s := range e.freed {
				delete(left, key{e.key.epoch, s})
			}
		}
	}
	out := make([]entry, 0, len(left))
	for _, i := range left {
		out = append(out, entries[i])
	}
	slices.SortFunc(out, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.key.epoch, b.key.epoch), cmp.Compare(a.key.seq, b.key.seq))
	})
	return out
}

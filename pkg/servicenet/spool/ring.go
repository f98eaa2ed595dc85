package spool

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
)

// ring knows where records are and where the next ones go. It does no I/O: begin, then report and
// free, make a batch; commit says that the batch is on disk. There is one batch at a time, and until
// it is committed the ring is as before.
//
// Places are counted on over the laps: a place modulo size is the offset.
//
//	    limit      tail                    head
//	──────┼──────────┼───────────────────────┼──────────► place
//	 may be     nothing here counts,   counts, or is dead     head - limit <= size
//	 overwritten  but the disk does    between what counts
//	            not know it yet
type ring struct {
	id   fileID
	size int64

	head  int64
	limit int64
	next  uint64
	run   []slot         // from the tail, by number; the first counts
	where map[key]uint64 // number of the record of each report that is not freed
	bytes int64          // the size of these records
}

// slot is a record on disk.
type slot struct {
	number uint64
	place  int64
	length int
	key    key
	counts bool // a report that is not freed
}

func (s slot) size() int64 { return blocks(s.length) }

func newRing(id fileID, size int64) *ring {
	return &ring{id: id, size: size, next: 1, where: map[key]uint64{}}
}

// recoverRing continues from the result of a scan.
func recoverRing(id fileID, size int64, f found) *ring {
	r := newRing(id, size)
	r.next = f.next
	r.head = size + f.head
	for _, e := range f.reports {
		r.where[e.key] = e.number
		r.bytes += e.size()
	}
	for _, e := range f.entries {
		s := slot{number: e.number, place: e.at, length: e.length, key: e.key}
		if e.at < f.head {
			s.place += size
		}
		s.counts = e.kind == kindReport && r.where[e.key] == e.number
		r.run = append(r.run, s)
	}
	r.limit = r.head
	if len(r.run) > 0 {
		r.limit = r.run[0].place
	}
	r.advanceTail()
	return r
}

// advanceTail drops obsolete records at the old end.
func (r *ring) advanceTail() {
	n := 0
	for n < len(r.run) && !r.run[n].counts {
		n++
	}
	r.run = r.run[n:]
}

// tail is the oldest record that counts: its number and place, or those of the next one.
func (r *ring) tail() (uint64, int64) {
	if len(r.run) > 0 {
		return r.run[0].number, r.run[0].place
	}
	return r.next, r.head
}

// free returns the bytes that can be written before the limit has to move.
func (r *ring) free() int64 { return r.size - (r.head - r.limit) }

// mostReports is the share of reports, in bytes.
func (r *ring) mostReports() int64 { return r.size / 2 }

// batch is a run of records to be written.
type batch struct {
	ring      *ring
	tail      uint64
	tailPlace int64
	head      int64
	next      uint64
	slots     []slot
	freed     []key
	pieces    []piece
	bytes     int64 // by which reports will take more
}

// piece is a contiguous part of a batch: at most two, unless the ring is tiny.
type piece struct {
	at   int64 // offset in the ring
	data []byte
}

func (r *ring) begin() *batch {
	b := &batch{ring: r, head: r.head, next: r.next}
	b.tail, b.tailPlace = r.tail()
	return b
}

func (b *batch) empty() bool { return len(b.slots) == 0 }

// place returns where a record goes, and whether there is room for it if so much is kept free.
func (b *batch) place(length int, reserve int64) (int64, bool) {
	at, n := b.head, blocks(length)
	if rest := b.ring.size - at%b.ring.size; rest < n {
		at += rest
	}
	return at, at+n+reserve-b.ring.limit <= b.ring.size
}

func (b *batch) put(e entry, place int64) {
	e.number, e.tail, e.at = b.next, b.tail, place%b.ring.size
	if n := len(b.pieces); n == 0 || b.pieces[n-1].at+int64(len(b.pieces[n-1].data)) != e.at {
		b.pieces = append(b.pieces, piece{at: e.at})
	}
	p := &b.pieces[len(b.pieces)-1]
	p.data = appendEntry(p.data, b.ring.id, &e)
	b.slots = append(b.slots, slot{e.number, place, e.length, e.key, e.kind == kindReport})
	b.head = place + e.size()
	b.next++
}

// report adds a report, and reports whether there was room.
func (b *batch) report(r Record, reserve int64) bool {
	place, ok := b.place(reportHead+len(r.Payload), reserve)
	if ok {
		b.put(entry{kind: kindReport, key: keyOf(r.ID), boot: r.Boot, added: r.At, payload: r.Payload}, place)
	}
	return ok
}

// free removes reports of one epoch, and reports whether there was room. Without any it only records the tail on
// disk.
func (b *batch) free(epoch fault.Epoch, seqs []fault.Seq, reserve int64) bool {
	place, ok := b.place(freeHead+8*len(seqs), reserve)
	if ok {
		b.put(entry{kind: kindFree, key: key{epoch: epoch}, freed: seqs}, place)
		for _, s := range seqs {
			b.freed = append(b.freed, key{epoch, s})
			b.bytes -= b.ring.sizeOf(key{epoch, s})
		}
	}
	return ok
}

// admits reports whether one more report fits into the reports' part of the ring.
func (b *batch) admits(r Record) bool {
	n := blocks(reportHead + len(r.Payload))
	if b.ring.bytes+b.bytes+n > b.ring.mostReports() {
		return false
	}
	b.bytes += n
	return true
}

// commit: the batch is on disk. Reports freed in a batch were added before that batch.
func (r *ring) commit(b *batch) {
	if b.ring != r || b.slots[0].number != r.next {
		panic(fmt.Sprintf("spool: batch from record %d committed, want %d", b.slots[0].number, r.next))
	}
	for _, k := range b.freed {
		r.forget(k)
	}
	r.run = append(r.run, b.slots...)
	for _, s := range b.slots {
		if s.counts {
			r.forget(s.key)
			r.where[s.key] = s.number
			r.bytes += s.size()
		}
	}
	r.head, r.next, r.limit = b.head, b.next, b.tailPlace
	r.advanceTail()
}

// forget removes a report from the live records: freed, replaced or no longer readable.
func (r *ring) forget(k key) {
	if s := r.slot(k); s != nil {
		s.counts = false
		r.bytes -= s.size()
		delete(r.where, k)
	}
}

// sizeOf returns the size of a report in the ring; 0 when it does not count.
func (r *ring) sizeOf(k key) int64 {
	if s := r.slot(k); s != nil {
		return s.size()
	}
	return 0
}

// slot finds the record of a report that counts.
func (r *ring) slot(k key) *slot {
	number, ok := r.where[k]
	if !ok {
		return nil
	}
	i, ok := slices.BinarySearchFunc(r.run, number, func(s slot, n uint64) int { return cmp.Compare(s.number, n) })
	if !ok {
		panic(fmt.Sprintf("spool: report %d#%d counts at record %d, which is not there", k.epoch, k.seq, number))
	}
	return &r.run[i]
}

// The reserved space. Before reports are written there is a quarter of the ring (if not, the oldest are moved).
// Reports leave an eighth, which is for frees. Frees leave enough to move one report and to record that.
func (r *ring) roomForReports() bool { return r.free() >= r.size/4 }
func (r *ring) roomForFrees() bool   { return r.free() >= r.size/8 }
func (r *ring) reportReserve() int64 { return r.size / 8 }
func (r *ring) freeReserve() int64   { return 2*blocks(maxRecord) + 2*blockSize }

// mark makes a batch that records the tail on disk, and moves the limit by it; nil when the disk knows, or there is
// no room even for this.
func (r *ring) mark() *batch {
	b := r.begin()
	if b.tailPlace == r.limit || !b.free(0, nil, 0) {
		return nil
	}
	return b
}

// oldest lists the records to move to the head to make room.
func (r *ring) oldest() []slot {
	var out []slot
	n := int64(0)
	for _, s := range r.run {
		if !s.counts {
			continue
		}
		if n += s.size(); len(out) > 0 && n > r.size/16 {
			break
		}
		out = append(out, s)
	}
	return out
}

package spool

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/fault"
)

var testID = fileID{7, 7, 7}

func rec(epoch fault.Epoch, seq fault.Seq, n int) Record {
	return Record{ID: id(epoch, seq), Payload: payload(epoch, seq, n), Boot: [16]byte{byte(epoch)}, At: int64(seq)}
}

// image is a ring with its bytes.
type image struct {
	r     *ring
	bytes []byte
}

func newImage(size int64) *image { return &image{newRing(testID, size), make([]byte, size)} }

func (m *image) write(b *batch) {
	for _, p := range b.pieces {
		copy(m.bytes[p.at:], p.data)
	}
}

func (m *image) commit(b *batch) {
	m.write(b)
	m.r.commit(b)
}

func (m *image) add(t testing.TB, rs ...Record) {
	t.Helper()
	b := m.r.begin()
	for _, r := range rs {
		if !b.report(r, 0) {
			t.Fatalf("no room for %s", r.ID)
		}
	}
	m.commit(b)
}

func (m *image) free(t testing.TB, epoch fault.Epoch, seqs ...fault.Seq) {
	t.Helper()
	b := m.r.begin()
	if !b.free(epoch, seqs, 0) {
		t.Fatalf("no room to free %v", seqs)
	}
	m.commit(b)
}

func (f found) records() []Record {
	out := make([]Record, 0, len(f.reports))
	for _, e := range f.reports {
		out = append(out, e.record(origin))
	}
	return out
}

func TestScan(t *testing.T) {
	garble := func(at int) func(t *testing.T, m *image) {
		return func(_ *testing.T, m *image) { m.bytes[at] ^= 1 }
	}
	for _, tc := range []struct {
		name    string
		do      func(t *testing.T, m *image)
		want    string
		next    uint64
		damaged int
	}{
		{"empty", func(*testing.T, *image) {}, "", 1, 0},
		{"two", func(t *testing.T, m *image) { m.add(t, rec(1, 1, 10), rec(1, 2, 10)) }, "1#1 1#2", 3, 0},
		{"in the order of their ids", func(t *testing.T, m *image) { m.add(t, rec(2, 1, 10), rec(1, 9, 10)) }, "1#9 2#1", 3, 0},
		{"freed", func(t *testing.T, m *image) {
			m.add(t, rec(1, 1, 10), rec(1, 2, 10), rec(1, 3, 10))
			m.free(t, 1, 1, 3)
		}, "1#2", 5, 0},
		{"freed, and added again", func(t *testing.T, m *image) {
			m.add(t, rec(1, 1, 10))
			m.free(t, 1, 1)
			m.add(t, rec(1, 1, 20))
		}, "1#1", 4, 0},
		{"of another epoch", func(t *testing.T, m *image) {
			m.add(t, rec(1, 1, 10), rec(2, 1, 10))
			m.free(t, 2, 1)
		}, "1#1", 4, 0},
		{"garbled in the middle", func(t *testing.T, m *image) {
			m.add(t, rec(1, 1, 10), rec(1, 2, 10), rec(1, 3, 10))
			garble(150)(t, m)
		}, "1#1 1#3", 4, 1},
		{"garbled at the end", func(t *testing.T, m *image) {
			m.add(t, rec(1, 1, 10), rec(1, 2, 10), rec(1, 3, 10))
			garble(256+70)(t, m)
		}, "1#1 1#2", 3, 1},
		{"written in another place", func(t *testing.T, m *image) {
			m.add(t, rec(1, 1, 10), rec(1, 2, 10))
			copy(m.bytes[512:], m.bytes[:128])
			clear(m.bytes[:128])
		}, "1#2", 3, 1},
		{"of another file", func(t *testing.T, m *image) {
			m.add(t, rec(1, 1, 10))
			other := newImage(m.r.size)
			other.r.id[0]++
			other.add(t, rec(1, 1, 10), rec(1, 2, 10), rec(1, 3, 10))
			copy(m.bytes[128:], other.bytes[128:])
		}, "1#1", 2, 1},
		{"a record in a payload", func(t *testing.T, m *image) {
			inner := appendEntry(nil, testID, &entry{number: 99, tail: 1, at: 128, kind: kindReport, key: key{9, 9}})
			r := rec(1, 1, 56)
			r.Payload = append(r.Payload, inner...) // at offset 128 of the ring
			m.add(t, r, rec(1, 2, 10))
		}, "1#1 1#2", 3, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newImage(4096)
			tc.do(t, m)
			f := scanRing(m.bytes, testID)
			if got := names(f.records()); got != tc.want || f.next != tc.next || f.damaged != tc.damaged {
				t.Errorf("%q, next %d, damaged %d: want %q, %d, %d", got, f.next, f.damaged, tc.want, tc.next, tc.damaged)
			}
		})
	}
}

func TestRecordsComeBackWhole(t *testing.T) {
	m := newImage(16 << 10)
	want := []Record{rec(1, 1, 0), rec(1, 2, 1), rec(1, 3, MaxPayload), rec(3, 1, 200)}
	m.add(t, want...)
	for i, got := range scanRing(m.bytes, testID).records() {
		w := want[i]
		if got.ID != w.ID || !bytes.Equal(got.Payload, w.Payload) || got.Boot != w.Boot || got.At != w.At {
			t.Errorf("%+v, want %+v", got, w)
		}
	}
}

// dozens is a ring with some dozens of records, none of which was overwritten.
func dozens(t testing.TB) *image {
	m := newImage(6 << 10)
	for i := fault.Seq(1); i <= 28; i += 4 {
		m.add(t, rec(1, i, int(i)), rec(1, i+1, 60), rec(2, i+2, int(3*i)), rec(2, i+3, 0))
		m.free(t, 1, i)
	}
	return m
}

// TestCutAtEveryByte checks the ring of a file that ends at any byte.
func TestCutAtEveryByte(t *testing.T) {
	m := dozens(t)
	var all []entry // also those behind the tail
	for at := int64(0); at < m.r.head; at += all[len(all)-1].size() {
		e, ok := decodeEntry(m.bytes[at:], testID, at)
		if !ok {
			t.Fatalf("no record at %d", at)
		}
		all = append(all, e)
	}
	if len(all) != 35 {
		t.Fatalf("%d records", len(all))
	}
	for cut := range m.bytes {
		before := slices.Clone(all)
		before = slices.DeleteFunc(before, func(e entry) bool { return e.at+int64(e.length) > int64(cut) })
		got, want := scanRing(m.bytes[:cut], testID), replay(before)
		if names((found{reports: want}).records()) != names(got.records()) {
			t.Fatalf("cut at %d: %q, want %q", cut, names(got.records()), names((found{reports: want}).records()))
		}
	}
}

// TestEveryBitFlip: never a wrong record, and no more lost than the one that was hit.
func TestEveryBitFlip(t *testing.T) {
	m := dozens(t)
	whole := scanRing(bytes.Clone(m.bytes), testID)
	byNumber := map[uint64]entry{}
	for _, e := range whole.entries {
		byNumber[e.number] = e
	}
	for bit := range len(m.bytes) * 8 {
		m.bytes[bit/8] ^= 1 << (bit % 8)
		f := scanRing(m.bytes, testID)
		m.bytes[bit/8] ^= 1 << (bit % 8)
		lost := 0
		seen := map[uint64]bool{}
		for _, e := range f.entries {
			seen[e.number] = true
			if w, ok := byNumber[e.number]; ok && (w.at != e.at || w.key != e.key || w.length != e.length || w.kind != e.kind ||
				w.boot != e.boot || w.added != e.added || !bytes.Equal(w.payload, e.payload) || !slices.Equal(w.freed, e.freed)) {
				t.Fatalf("bit %d: record %d is another", bit, e.number)
			}
		}
		for n, e := range byNumber {
			if !seen[n] {
				lost++
				if at := int64(bit / 8); at < e.at || at >= e.at+e.size() {
					t.Fatalf("bit %d: record %d at %d of %d bytes is lost", bit, n, e.at, e.length)
				}
			}
		}
		if lost > 1 {
			t.Fatalf("bit %d: %d records are lost", bit, lost)
		}
	}
}

func TestHeader(t *testing.T) {
	h := header{origin: origin, size: MinSize, id: testID}
	file := make([]byte, ringStart)
	copy(file, encodeHeader(h))
	copy(file[headerStride:], encodeHeader(h))
	for bit := range 8 * headerSize {
		file[bit/8] ^= 1 << (bit % 8)
		if got, err := decodeHeader(file); err != nil || got != h {
			t.Fatalf("bit %d: %+v, %v", bit, got, err)
		}
		if _, err := decodeHeaderCopy(file); err == nil {
			t.Fatalf("bit %d: this copy is taken for good", bit)
		}
		file[bit/8] ^= 1 << (bit % 8)
	}
	for cut := range ringStart {
		switch got, err := decodeHeader(file[:cut]); {
		case cut >= headerSize && (err != nil || got != h), cut < headerSize && err == nil:
			t.Fatalf("cut at %d: %+v, %v", cut, got, err)
		}
	}
}

// world is the naive model: the reports that were appended and not freed, and those that the batch under way may
// change.
type world struct {
	image
	kept  map[key]Record
	epoch fault.Epoch
	seq   fault.Seq
	done  []uint64 // numbers of the records that are on disk, or were
}

// undamaged checks that, of the records that count by the disk's content, every written one is present.
func (w *world) undamaged(t *rapid.T, f found) {
	if len(f.entries) == 0 {
		return
	}
	there := map[uint64]bool{}
	for _, e := range f.entries {
		there[e.number] = true
	}
	for i := len(w.done) - 1; i >= 0 && w.done[i] >= f.entries[len(f.entries)-1].tail; i-- {
		if !there[w.done[i]] {
			t.Fatalf("record %d was overwritten; the tail is %d", w.done[i], f.entries[len(f.entries)-1].tail)
		}
	}
}

func (w *world) keys() []key {
	return slices.SortedFunc(maps.Keys(w.kept), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.seq, b.seq))
	})
}

// check compares a scan with the model. maybe are reports that may be there or not.
func (w *world) check(t *rapid.T, f found, maybe map[key]Record, added map[key]Record) {
	got := map[key]Record{}
	for _, r := range f.records() {
		k := keyOf(r.ID)
		if _, twice := got[k]; twice {
			t.Fatalf("%s twice", r.ID)
		}
		got[k] = r
		want, ok := w.kept[k]
		if m, isMaybe := maybe[k]; isMaybe && !ok {
			want, ok = m, true
		}
		if a, isNew := added[k]; isNew && (!ok || !bytes.Equal(want.Payload, r.Payload)) {
			want, ok = a, true
		}
		if !ok || !bytes.Equal(want.Payload, r.Payload) || want.At != r.At || want.Boot != r.Boot {
			t.Fatalf("%s was not appended like this, or was freed", r.ID)
		}
	}
	for k := range w.kept {
		if _, ok := got[k]; !ok {
			if _, ok := maybe[k]; !ok {
				t.Fatalf("%d#%d is lost; there are %s", k.epoch, k.seq, names(f.records()))
			}
		}
	}
}

// batch draws a batch, and returns its additions and frees.
func (w *world) batch(t *rapid.T) (b *batch, added, freed map[key]Record) {
	b = w.r.begin()
	added, freed = map[key]Record{}, map[key]Record{}
	var move []key
	if !w.r.roomForReports() {
		if b := w.r.mark(); b != nil {
			return b, added, freed
		}
		for _, s := range w.r.oldest() {
			move = append(move, s.key)
		}
	}
	for _, k := range move {
		if r := w.kept[k]; !b.report(r, 2*blockSize) {
			return b, added, freed
		}
	}
	if len(move) > 0 {
		return b, added, freed
	}
	for i, k := range w.keys() {
		if i == 0 && b.next%64 != 0 {
			continue // the oldest stays long, so that it must move
		}
		if rapid.IntRange(0, 9).Draw(t, "free") == 0 && b.free(k.epoch, []fault.Seq{k.seq}, w.r.freeReserve()) {
			freed[k] = w.kept[k]
		}
	}
	for range rapid.IntRange(0, 6).Draw(t, "reports") {
		w.seq++
		r := rec(w.epoch, w.seq, rapid.IntRange(0, 2500).Draw(t, "bytes"))
		r.At = int64(b.next)
		if b.admits(r) && b.report(r, w.r.reportReserve()) {
			added[keyOf(r.ID)] = r
		}
	}
	return b, added, freed
}

// TestSpoolAgreesWithModel appends, frees, moves, crashes with any part of a batch on disk, and recovers.
func TestSpoolAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 80 << 10
		w := &world{image: *newImage(size), kept: map[key]Record{}, epoch: 1}
		for range rapid.IntRange(1, 150).Draw(t, "batches") {
			b, added, freed := w.batch(t)
			if b.empty() {
				continue
			}
			if rapid.IntRange(0, 9).Draw(t, "crash") == 0 {
				for _, p := range b.pieces { // any of its sectors
					for at := 0; at < len(p.data); at += 512 {
						if rapid.Bool().Draw(t, "sector") {
							copy(w.bytes[p.at+int64(at):], p.data[at:min(at+512, len(p.data))])
						}
					}
				}
				f := scanRing(w.bytes, testID)
				w.check(t, f, freed, added)
				w.undamaged(t, f)
				w.done = w.done[:0]
				for _, e := range f.entries {
					w.done = append(w.done, e.number)
				}
				w.r = recoverRing(testID, size, f)
				clear(w.kept)
				for _, r := range f.records() {
					r.Payload = bytes.Clone(r.Payload)
					w.kept[keyOf(r.ID)] = r
				}
				w.epoch, w.seq = w.epoch+1, 0
				continue
			}
			w.commit(b)
			for _, s := range b.slots {
				w.done = append(w.done, s.number)
			}
			maps.Copy(w.kept, added)
			maps.DeleteFunc(w.kept, func(k key, _ Record) bool { _, ok := freed[k]; return ok })
			f := scanRing(w.bytes, testID)
			w.check(t, f, nil, nil)
			w.undamaged(t, f)
			w.invariants(t)
		}
	})
}

func (w *world) invariants(t *rapid.T) {
	sum := int64(0)
	for i, s := range w.r.run {
		if s.counts {
			sum += s.size()
		}
		if i > 0 && (s.place <= w.r.run[i-1].place || s.number <= w.r.run[i-1].number) {
			t.Fatalf("record %d at %d is not behind %d at %d", s.number, s.place, w.r.run[i-1].number, w.r.run[i-1].place)
		}
	}
	_, tail := w.r.tail()
	if sum != w.r.bytes || sum > w.r.mostReports() || w.r.limit > tail || w.r.free() < 0 || len(w.r.where) != len(w.kept) {
		t.Fatalf("%d bytes count, %d are said; limit %d, tail %d, head %d; %d reports, want %d",
			sum, w.r.bytes, w.r.limit, tail, w.r.head, len(w.r.where), len(w.kept))
	}
}

// FuzzScan: from any content of the ring, a scan accepts only records with the right check value.
func FuzzScan(f *testing.F) {
	m := newImage(2048)
	m.add(f, rec(1, 1, 10), rec(1, 2, 300))
	m.free(f, 1, 1)
	f.Add(m.bytes, uint16(0), byte(0))
	f.Add(m.bytes, uint16(200), byte(1))
	f.Add([]byte{}, uint16(0), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, flip byte) {
		if len(b) > 0 {
			b[int(at)%len(b)] ^= flip
		}
		got := scanRing(b, testID)
		if len(got.entries) > len(b)/blockSize+1 || len(got.reports) > len(got.entries) || got.damaged < 0 {
			t.Fatalf("%d records of %d bytes, %d reports, damaged %d", len(got.entries), len(b), len(got.reports), got.damaged)
		}
		for _, e := range got.entries {
			raw := b[e.at : e.at+int64(e.length)]
			if le.Uint32(raw[4:]) != checksum(testID, e.at, raw) {
				t.Fatalf("record %d at %d: check value is wrong", e.number, e.at)
			}
		}
		if len(b) >= blockSize {
			recoverRing(testID, int64(len(b))/blockSize*blockSize, got)
		}
		_, _ = decodeHeader(b)
	})
}

package spool

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

// benchSpool is a spool of the default size, with a report of a usual length.
func benchSpool(b *testing.B) (*Spool, Record) {
	cfg, _ := config(b)
	cfg.Size = 4 << 20
	s, _ := reopen(b, cfg)
	return s, rec(1, 1, 400)
}

// BenchmarkAppend measures the caller's cost of a report, without the disk.
func BenchmarkAppend(b *testing.B) {
	s, r := benchSpool(b)
	ids := make([]fault.ReportID, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		r.ID.Seq++
		s.Append(r)
		if ids = append(ids, r.ID); len(ids) == cap(ids) {
			b.StopTimer()
			sync1(b, s)
			s.Free(ids)
			sync1(b, s)
			ids = ids[:0]
			b.StartTimer()
		}
	}
	if st := s.Status(); st.Lost > 0 {
		b.Errorf("%+v", st)
	}
}

// BenchmarkAppendFree is reports through the disk, both ways, so many at a time.
func BenchmarkAppendFree(b *testing.B) {
	for _, bc := range []struct {
		name string
		n    int
	}{{"1", 1}, {"16", 16}, {"256", 256}} {
		b.Run(bc.name, func(b *testing.B) {
			s, r := benchSpool(b)
			ids := make([]fault.ReportID, 0, bc.n)
			for b.Loop() {
				r.ID.Seq++
				s.Append(r)
				if ids = append(ids, r.ID); len(ids) == cap(ids) {
					sync1(b, s)
					s.Free(ids)
					ids = ids[:0]
				}
			}
			sync1(b, s)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
			if st := s.Status(); st.Lost > 0 {
				b.Errorf("%+v", st)
			}
		})
	}
}

// BenchmarkScan is the reading of a full ring at the start.
func BenchmarkScan(b *testing.B) {
	m := newImage(ringSize(4 << 20))
	for seq := fault.Seq(1); ; seq++ {
		batch := m.r.begin()
		if !batch.report(rec(1, seq, 400), 0) {
			break
		}
		m.commit(batch)
	}
	b.SetBytes(int64(len(m.bytes)))
	for b.Loop() {
		if f := scanRing(m.bytes, testID); f.damaged > 0 {
			b.Fatal(f.damaged)
		}
	}
}

package storage

import (
	"cmp"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// reportHeader is the length of a report's header in its slot: epoch, sequence number, and time of logging.
const reportHeader = 24

func durationOf(b []byte) time.Duration { return time.Duration(le.Uint64(b)) }

// CopiedReport is an undelivered report in the copy.
type CopiedReport struct {
	Epoch   fault.Epoch
	Seq     fault.Seq
	At      int64  // when it was logged, on the clock of the caller of PutReport
	Payload []byte // marshalled
}

type reportKey struct {
	epoch fault.Epoch
	seq   fault.Seq
}

// reportSlots holds the slot of each report.
type reportSlots struct {
	at   map[reportKey]int
	free []int // a stack: the last one goes next
	room [headerSize + reportHeader + MaxReport]byte
}

func newReportSlots() reportSlots {
	s := reportSlots{at: make(map[reportKey]int, NumReports), free: make([]int, 0, NumReports)}
	for i := range NumReports {
		s.free = append(s.free, NumReports-1-i)
	}
	return s
}

// takeReports finds the slots in use.
func (f *CopyFile) takeReports() {
	s := newReportSlots()
	s.free = s.free[:0]
	for i := NumReports - 1; i >= 0; i-- {
		if r, ok := decodeCopiedReport(f.payload(f.lay.reports[i])); ok {
			s.at[reportKey{r.Epoch, r.Seq}] = i
		} else {
			s.free = append(s.free, i)
		}
	}
	f.reports = s
}

func decodeCopiedReport(b []byte) (CopiedReport, bool) {
	if len(b) <= reportHeader {
		return CopiedReport{}, false
	}
	return CopiedReport{fault.Epoch(le.Uint64(b)), fault.Seq(le.Uint64(b[8:])), int64(le.Uint64(b[16:])), b[reportHeader:]}, true
}

// Reports returns the reports held, in the order of their ids. Their payloads are the caller's.
func (f *CopyFile) Reports() []CopiedReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []CopiedReport
	for _, i := range f.reports.at {
		if r, ok := decodeCopiedReport(f.payload(f.lay.reports[i])); ok {
			r.Payload = slices.Clone(r.Payload)
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b CopiedReport) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Seq, b.Seq)) })
	return out
}

// PutReport keeps a report until FreeReports. Call it before the report's first datagram leaves. A report without
// room is counted, and not kept: the spool has it.
func (f *CopyFile) PutReport(r CopiedReport) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &f.reports
	key := reportKey{r.Epoch, r.Seq}
	i, again := s.at[key]
	if len(r.Payload) > MaxReport || !again && len(s.free) == 0 {
		f.stats.NoRoom++
		return nil
	}
	if wrong := again && !f.holds(i, key) || !again && !f.vacant(s.free[len(s.free)-1]); wrong {
		f.takeReports()
		if i, again = s.at[key]; !again && len(s.free) == 0 {
			f.stats.NoRoom++
			return nil
		}
	}
	if !again {
		i = s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		s.at[key] = i
	}
	b := s.room[:0]
	b = le.AppendUint64(b, uint64(r.Epoch))
	b = le.AppendUint64(b, uint64(r.Seq))
	b = le.AppendUint64(b, uint64(r.At))
	return f.storeLocked(f.lay.reports[i], append(b, r.Payload...))
}

// holds reports whether a slot holds a report, by the number in the slot itself.
func (f *CopyFile) holds(i int, key reportKey) bool {
	if i < 0 || i >= NumReports {
		return false
	}
	r, ok := decodeCopiedReport(f.payload(f.lay.reports[i]))
	return ok && reportKey{r.Epoch, r.Seq} == key
}

// vacant reports whether a slot holds no report.
func (f *CopyFile) vacant(i int) bool {
	if i < 0 || i >= NumReports {
		return false
	}
	_, ok := decodeCopiedReport(f.payload(f.lay.reports[i]))
	return !ok
}

// FreeReports frees the slots of reports. It ignores reports that are not stored. It frees no slot that holds another
// report: if the index of the slots is wrong, because a bit of it flipped in memory, FreeReports makes a new one.
func (f *CopyFile) FreeReports(ids []fault.ReportID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var first error
	for _, id := range ids {
		key := reportKey{id.Epoch, id.Seq}
		i, ok := f.reports.at[key]
		if ok && !f.holds(i, key) {
			f.takeReports()
			i, ok = f.reports.at[key]
		}
		if !ok {
			continue
		}
		delete(f.reports.at, key)
		f.reports.free = append(f.reports.free, i)
		if err := f.storeLocked(f.lay.reports[i], nil); first == nil {
			first = err
		}
	}
	return first
}

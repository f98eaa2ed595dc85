package storage

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// copied opens the world's copy.
func (w *world) copied(t *testing.T) *CopyFile {
	t.Helper()
	f, err := OpenCopy(filepath.Join(filepath.Dir(w.Path), "host.backup"),
		CopyIdentity{Node: host0.Node, Half: host0.Half, Boot: w.Boot})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func payload(t *testing.T, r fault.Report) []byte {
	t.Helper()
	b, err := proto.Marshal(servicenet.EncodeReport(r))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func seqs(kept []servicenet.Kept) (out []fault.Seq) {
	for _, k := range kept {
		out = append(out, k.Report.ID.Seq)
	}
	return out
}

func held(f *CopyFile) (out []fault.Seq) {
	for _, r := range f.Reports() {
		out = append(out, r.Seq)
	}
	return out
}

// Reports in the copy, in the spool or in both come back once, in order and with their age, and are in both from then
// on.
func TestCopyAndSpoolAreMerged(t *testing.T) {
	w := newWorld(t)
	f := w.copied(t)
	w.Copy = f
	k, _ := w.open(t)
	k.Keep([]fault.Report{report(1), report(2)})
	k.KeepCopied([]fault.Report{report(3)}) // a half that was killed before the spool had it
	if got := held(f); !reflect.DeepEqual(got, []fault.Seq{1, 2, 3}) {
		t.Errorf("the copy holds %d when Keep returns", got)
	}
	k.Forget([]fault.ReportID{report(2).ID})
	w.close(t, k)
	if err := f.FreeReports([]fault.ReportID{report(1).ID}); err != nil { // as if it had been lost there
		t.Fatal(err)
	}
	w.clock += int64(time.Minute)
	k, kept := w.open(t)
	if got := seqs(kept); !reflect.DeepEqual(got, []fault.Seq{1, 3}) || kept[0].Age != time.Minute || kept[1].Age != time.Minute ||
		!reflect.DeepEqual(kept[1].Report, report(3)) {
		t.Errorf("%d, %+v", got, kept)
	}
	if got := held(f); !reflect.DeepEqual(got, []fault.Seq{1, 3}) {
		t.Errorf("the copy holds %d", got)
	}
	w.close(t, k)
	w.Copy = nil
	if _, kept = w.open(t); !reflect.DeepEqual(seqs(kept), []fault.Seq{1, 3}) {
		t.Errorf("the spool holds %d", seqs(kept))
	}
}

// Without a spool the copy suffices alone. Reports of a copy that is otherwise unusable move to the new copy.
// Unreadable ones are omitted and logged.
func TestReportsOfUnusableCopyAreRescued(t *testing.T) {
	w := newWorld(t)
	w.Size = 0
	f := w.copied(t)
	w.Copy = f
	w.Rescued = []CopiedReport{
		{Epoch: 3, Seq: 5, At: w.clock, Payload: payload(t, report(5))},
		{Epoch: 3, Seq: 6, At: w.clock, Payload: payload(t, report(7))}, // another's place
		{Epoch: 3, Seq: 8, At: w.clock, Payload: []byte{0xff}},
	}
	if err := f.PutReport(CopiedReport{Epoch: 3, Seq: 9, Payload: []byte{0xff}}); err != nil {
		t.Fatal(err)
	}
	_, kept := w.open(t)
	if got := seqs(kept); !reflect.DeepEqual(got, []fault.Seq{5}) || !reflect.DeepEqual(held(f), []fault.Seq{5}) {
		t.Errorf("%d, the copy holds %d", got, held(f))
	}
	if n := strings.Count(w.log.String(), "cannot be read"); n != 3 {
		t.Errorf("%d warnings, want 3:\n%s", n, w.log.String())
	}
}

// TestFlippedIndexFreesNoOtherReport: a bit that flips in the index of the slots neither frees nor overwrites a report
// that still waits for its commit.
func TestFlippedIndexFreesNoOtherReport(t *testing.T) {
	for bit := range 11 { // of a slot's number
		for _, where := range []string{"the index", "the free slots"} {
			w := newWorld(t)
			f := w.copied(t)
			for seq := fault.Seq(1); seq <= 40; seq++ {
				if err := f.PutReport(CopiedReport{Epoch: 1, Seq: seq, At: 1, Payload: payload(t, report(seq))}); err != nil {
					t.Fatal(err)
				}
			}
			key := reportKey{1, 7}
			if where == "the index" {
				f.reports.at[key] ^= 1 << bit
			} else {
				f.reports.free[len(f.reports.free)-1] ^= 1 << bit
			}
			if err := f.FreeReports([]fault.ReportID{{Origin: host0, Epoch: 1, Seq: 7}}); err != nil {
				t.Fatal(err)
			}
			for seq := fault.Seq(41); seq <= 44; seq++ {
				if err := f.PutReport(CopiedReport{Epoch: 1, Seq: seq, At: 1, Payload: payload(t, report(seq))}); err != nil {
					t.Fatal(err)
				}
			}
			again := w.again(t, f)
			var want []fault.Seq
			for seq := fault.Seq(1); seq <= 44; seq++ {
				if seq != 7 {
					want = append(want, seq)
				}
			}
			if got := held(again); !reflect.DeepEqual(got, want) {
				t.Errorf("bit %d of %s: holds %v, want %v", bit, where, got, want)
			}
		}
	}
}

// again opens the world's copy as the next process does.
func (w *world) again(t *testing.T, f *CopyFile) *CopyFile {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return w.copied(t)
}

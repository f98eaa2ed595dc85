package watchdog

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestPeriodsRefused(t *testing.T) {
	ms := time.Millisecond
	for _, tc := range []struct {
		err  error
		want []string
	}{
		{CheckPeriods(50*ms, 50*ms), []string{"TWrite is 50ms", "TRead is 50ms", "TWrite < TRead"}},
		{CheckPeriods(60*ms, 50*ms), []string{"TWrite is 60ms", "TRead is 50ms"}},
		{CheckPeriods(0, -ms), []string{"TWrite is 0s", "TRead is -1ms", "more than 0"}},
		{WriterConfig{}.Validate(), []string{"TWrite is 0s"}},
		{ReaderConfig{Misses: -1, Grace: -ms}.Validate(), []string{"TRead is 0s", "Misses is -1", "0 to 100", "Grace is -1ms"}},
		{ReaderConfig{TRead: ms, Misses: 101}.Validate(), []string{"Misses is 101"}},
	} {
		if tc.err == nil {
			t.Errorf("no error, want one that says %q", tc.want)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(tc.err.Error(), w) {
				t.Errorf("error %q does not say %q", tc.err, w)
			}
		}
	}
	if err := CheckPeriods(25*ms, 50*ms); err != nil {
		t.Error(err)
	}
	for name, f := range map[string]func(){
		"writer": func() { NewWriter(WriterConfig{}) },
		"reader": func() { NewReader(ReaderConfig{}, time.Time{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: a configuration that was not validated went through", name)
				}
			}()
			f()
		}()
	}
}

func TestVerdictNames(t *testing.T) {
	if Waiting.String() != "Waiting" || Alive.String() != "Alive" || Stale.String() != "Stale" || Verdict(0).String() != "Verdict(0)" {
		t.Error("names")
	}
}

// TestVerdictFallsWithinStaleBound: at whatever time in the reader's period the owner writes last, the verdict comes within StaleBound of
// that write, and not before K whole periods have passed. A death just after a read takes StaleBound, less a
// nanosecond.
func TestVerdictFallsWithinStaleBound(t *testing.T) {
	const tRead = 50 * time.Millisecond
	for misses := range 4 {
		for last := time.Duration(1); last <= tRead; last += tRead / 25 {
			var t0 time.Time
			r := NewReader(ReaderConfig{TRead: tRead, Misses: misses}, t0)
			valid := false
			take := func() Sample { s := Sample{Valid: valid}; valid = false; return s }
			now := t0
			for range 4 { // discarded, then alive
				valid = true
				now = r.Step(now, take).Wake
			}
			died := now.Add(last - tRead)
			valid = true
			var out ReaderOutput
			for out = r.Step(now, take); out.Verdict != Stale; out = r.Step(now, take) {
				now = out.Wake
			}
			took := now.Sub(died)
			if took > StaleBound(tRead, misses) || took < time.Duration(misses)*tRead {
				t.Errorf("K=%d, last write %v before a read: stale after %v, bound %v", misses, tRead-last, took, StaleBound(tRead, misses))
			}
			if last == 1 && took != StaleBound(tRead, misses)-1 {
				t.Errorf("K=%d: the longest is %v, the bound %v", misses, took, StaleBound(tRead, misses))
			}
		}
	}
}

// TestDoubtIsNotForEver: a reader that is late every time still notices a death, after MaxDoubts.
func TestDoubtIsNotForEver(t *testing.T) {
	const tRead = 50 * time.Millisecond
	var now time.Time
	r := NewReader(ReaderConfig{TRead: tRead, Misses: 1}, now)
	out := r.Step(now, func() Sample { return Sample{} })
	out = r.Step(out.Wake, func() Sample { return Sample{Valid: true} })
	reads := 0
	for ; out.Verdict == Alive && reads < 100; reads++ {
		out = r.Step(out.Wake.Add(tRead), func() Sample { return Sample{} })
		if !out.Late {
			t.Fatal("not noted as late")
		}
	}
	if reads != MaxDoubts+2 {
		t.Errorf("stale after %d empty late reads, want %d", reads, MaxDoubts+2)
	}
	if st := r.Stats(); st.Doubts != MaxDoubts || st.Late != uint64(reads) || st.Misses != 2 {
		t.Errorf("stats %+v", st)
	}
}

// TestGridsStayTogether: a writer and a reader that started together continue to wake together, after any delays: one
// timer serves both.
func TestGridsStayTogether(t *testing.T) {
	const tWrite, tRead = 25 * time.Millisecond, 50 * time.Millisecond
	var now time.Time
	w, r := NewWriter(WriterConfig{TWrite: tWrite}), NewReader(ReaderConfig{TRead: tRead, Misses: 1}, now)
	for i := range 500 {
		_, ww := w.Step(now)
		out := r.Step(now, func() Sample { return Sample{Valid: true} })
		if gap := out.Wake.Sub(ww) % tWrite; gap != 0 {
			t.Fatalf("step %d: writer wakes at %v, reader at %v", i, ww, out.Wake)
		}
		if now = ww; out.Wake.Before(now) {
			now = out.Wake
		}
		now = now.Add(time.Duration(i*i%97) * time.Millisecond) // delays from 0 to 96 ms
	}
	if w.Missed() == 0 || r.Stats().Late == 0 {
		t.Error("the delays were not noticed")
	}
}

func TestStepBeforeDueDoesNothing(t *testing.T) {
	var now time.Time
	r := NewReader(ReaderConfig{TRead: 50 * time.Millisecond}, now)
	out := r.Step(now, func() Sample { return Sample{} })
	early := r.Step(now.Add(10*time.Millisecond), func() Sample { t.Error("read before due"); return Sample{} })
	if early.Read || !early.Wake.Equal(out.Wake) || early.Age != 10*time.Millisecond {
		t.Errorf("%+v", early)
	}
	w := NewWriter(WriterConfig{TWrite: 10 * time.Millisecond})
	if due, _ := w.Step(now); !due {
		t.Error("first Step is not due")
	}
	if due, wake := w.Step(now.Add(time.Millisecond)); due || wake.Sub(now) != 10*time.Millisecond {
		t.Error("due before its time")
	}
}

// TestLateReaderCountsMissesAnew: a late read proves nothing, and neither do the misses before it. The verdict takes K+1
// misses in time.
func TestLateReaderCountsMissesAnew(t *testing.T) {
	const tRead = 50 * time.Millisecond
	var now time.Time
	empty := func() Sample { return Sample{} }
	r := NewReader(ReaderConfig{TRead: tRead, Misses: 1}, now)
	out := r.Step(now, empty)
	out = r.Step(out.Wake, func() Sample { return Sample{Valid: true} })
	out = r.Step(out.Wake, empty) // one miss in time
	for i := range 5 {
		if out = r.Step(out.Wake.Add(tRead), empty); !out.Late || out.Verdict != Alive {
			t.Fatalf("late read %d: late %t, %s", i, out.Late, out.Verdict)
		}
		if out = r.Step(out.Wake, empty); out.Verdict != Alive {
			t.Fatalf("after late read %d one miss in time made the verdict %s", i, out.Verdict)
		}
	}
	for range 2 {
		out = r.Step(out.Wake, empty)
	}
	if out.Verdict != Stale {
		t.Errorf("after further misses in time: %s, want Stale", out.Verdict)
	}
}

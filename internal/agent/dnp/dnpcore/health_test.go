package dnpcore

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// While the host half is dead, this half's digests carry the health of both halves, as far as there is room.
func TestHealthGoesWithDigests(t *testing.T) {
	w := newWorld(t, "2x2x2", "0,0,0")
	own := &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Restarts: 3,
		Cause: "killed by signal 9"}}
	w.step(Health{fault.HalfDNP, own})
	w.step(Health{fault.HalfHost, &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP,
		Restarts: 6}}})
	if h := w.m.Health(w.now).DNP; !proto.Equal(h, own) {
		t.Errorf("known: %v, want %v", h, own)
	}
	w.hostAlive = false
	digests := 0
	for range 500 {
		w.now = w.now.Add(10 * time.Millisecond)
		out := w.m.Step(w.now, Tick{})
		if out.TakeHost {
			out = w.m.Step(w.now, Host{Taken: true})
		}
		for _, s := range out.Seal {
			switch h := s.Health.Of(fault.HalfHost); {
			case s.Reports == nil || !s.Reports[0].Digest:
				if h != nil {
					t.Errorf("a report of a change says how the halves fare: %v", h)
				}
			case h.GetRecovery().GetState() != lofamov1.RecoveryState_GIVEN_UP || s.Health.Of(fault.HalfDNP).GetRecovery().GetRestarts() != 3:
				t.Errorf("a digest says %v", s.Health)
			default:
				digests++
			}
		}
	}
	if digests == 0 {
		t.Error("no digest says how the halves fare")
	}
}

// If the daemon has given up the host half, the daemon's reason is the reason of the failure, whether it becomes known
// before the host word is stale or after. A host half that is started again is NORMAL as usual.
func TestGivingUpIsNamedAsReason(t *testing.T) {
	const reason = "next start after 1m0s: 5 restarts within 1m0s, the last ended by signal 9"
	record := func(s lofamov1.RecoveryState, reason string) Health {
		return Health{fault.HalfHost, &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: s, Reason: reason}}}
	}
	for _, before := range []bool{true, false} {
		w := newWorld(t, "2x2x2", "0,0,0")
		w.hostAlive = false
		if before {
			w.step(record(lofamov1.RecoveryState_GIVEN_UP, reason))
		}
		newest := fault.Seq(0) // older reports are repeated: they are not acknowledged
		last := func(evs ...Event) (detail string) {
			for range 300 {
				w.now = w.now.Add(10 * time.Millisecond)
				out := w.m.Step(w.now, Tick{})
				seals := out.Seal
				if out.TakeHost {
					seals = append(seals, w.m.Step(w.now, Host{Taken: true}).Seal...)
				}
				for _, ev := range evs { // no answer arrives: its report is sent once, at once
					seals, evs = append(seals, w.m.Step(w.now, ev).Seal...), nil
				}
				for _, s := range seals {
					for _, r := range s.Reports {
						for _, o := range r.Observations {
							if o.Node == "n0-0-0" && o.Component == fault.ComponentHost && o.State == fault.Failed && r.ID.Seq > newest {
								newest, detail = r.ID.Seq, o.Detail
							}
						}
					}
				}
			}
			return detail
		}
		if !before {
			_ = last()
			w.step(record(lofamov1.RecoveryState_GIVEN_UP, reason))
		}
		for range 3 {
			if got := last(); got == "" {
				continue // within the grace, or nothing was due
			} else if got != "given up, "+reason {
				t.Errorf("known before %t: %q: want %q", before, got, reason)
			}
		}
		if got := last(record(lofamov1.RecoveryState_RESTARTING, "")); got != "watchdog word not valid" {
			t.Errorf("it is being started again: %q", got)
		}
	}
}

// TestLastWordsGoWithReportOfDeath: the last words of the host's kernel go with the report of the host's death. If they come after that
// report, the death is reported again with them, once for each error. While the host half lives, this half says nothing.
func TestLastWordsGoWithReportOfDeath(t *testing.T) {
	const line = "Kernel panic - not syncing: Fatal exception in interrupt"
	words := func(serial uint32) Health {
		return Health{fault.HalfDNP, &lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{{Node: "n0-0-0", From: "10.7.0.2",
			End: lofamov1.BootEnd_BOOT_PANIC, Line: line, Serial: serial}}}}
	}
	w := newWorld(t, "3x3x3", "0,0,0") // with six links, digests have no room for words
	reported := map[fault.Seq]uint32{} // serial of the words, by reports that accuse the host
	accusations := func(d time.Duration, evs ...Event) (out int, serial uint32, age time.Duration) {
		t.Helper()
		for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(10 * time.Millisecond) {
			out := w.m.Step(w.now, Tick{})
			seals := out.Seal
			if out.TakeHost {
				sample := watchdog.Sample{Valid: w.hostAlive}
				seals = append(seals, w.m.Step(w.now, Host{Taken: true, Sample: sample, Word: w.host, Window: w.window}).Seal...)
			}
			for _, ev := range evs {
				seals = append(seals, w.m.Step(w.now, ev).Seal...)
			}
			evs = nil
			for _, s := range seals {
				if s.Reports == nil {
					continue
				}
				said := s.Health.DNP.GetLastWords()
				if s.Reports[0].Digest && len(said) > 0 {
					t.Errorf("a digest has room for %v", said)
				}
				if s.Attempt == 1 && !s.Reports[0].Digest && len(said) > 0 {
					reported[s.Reports[0].ID.Seq] = said[0].GetSerial()
					serial, age = said[0].GetSerial(), time.Duration(said[0].GetAgeMs())*time.Millisecond
				}
			}
		}
		return len(reported), serial, age
	}
	w.window = halfcore.Window{State: watchdog.WindowAlive, Platform: fault.PlatformDPU}
	if n, _, _ := accusations(30*time.Second, words(7)); n != 0 {
		t.Fatalf("%d reports with last words while the host half lives", n)
	}
	w.window.State, w.hostAlive = watchdog.WindowSilent, false
	if n, serial, age := accusations(5 * time.Second); n != 1 || serial != 7 || age < 30*time.Second || age > 31*time.Second {
		t.Errorf("%d reports, the last words are number %d, %s old", n, serial, age)
	}
	if n, serial, age := accusations(5*time.Second, words(8)); n != 2 || serial != 8 || age > time.Second {
		t.Errorf("after newer words: %d reports, number %d, %s old", n, serial, age)
	}
	if n, _, _ := accusations(5*time.Second, words(8)); n != 2 {
		t.Errorf("the same words again: %d reports", n)
	}
	if n, _, _ := accusations(5*time.Second, Health{fault.HalfHost, words(9).Health}); n != 2 {
		t.Errorf("words that the host half passed on: %d reports", n)
	}
}

package dnpcore

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
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
	const reason = "not started again: 5 restarts within 1m0s, the last ended by signal 9"
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
			} else if got != reason {
				t.Errorf("known before %t: %q: want %q", before, got, reason)
			}
		}
		if got := last(record(lofamov1.RecoveryState_RESTARTING, "")); got != "watchdog word not valid" {
			t.Errorf("it is being started again: %q", got)
		}
	}
}

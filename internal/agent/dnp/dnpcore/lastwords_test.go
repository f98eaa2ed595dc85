package dnpcore

import (
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// TestLastWordsAreCompleteWhenAllLinksFailToo: the host dies while all links fail, and no acknowledgement comes. Every attempt to send the
// report of the death carries the complete last words. The half reports each of the other changes once, in other reports.
func TestLastWordsAreCompleteWhenAllLinksFailToo(t *testing.T) {
	for dims, links := range map[string]int{"3x3x3": 6, "3x3x1": 4, "3x1x1": 2, "4x1x1": 2} {
		t.Run(dims, func(t *testing.T) { lastWordsBesideChanges(t, dims, links) })
	}
}

func lastWordsBesideChanges(t *testing.T, dims string, failed int) {
	t.Helper()
	w := newWorld(t, dims, "0,0,0")
	w.window = halfcore.Window{State: watchdog.WindowAlive, Platform: fault.PlatformDPU}
	line := "Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b"
	words := Health{fault.HalfDNP, &lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{{Node: "n0-0-0", From: "10.7.0.2",
		End: lofamov1.BootEnd_BOOT_PANIC, Line: line, Serial: 7}}}}
	reports := map[fault.Seq]fault.Report{}
	attempts := map[fault.Seq]int{}
	seals := w.m.Step(w.now, words).Seal
	for w.now = start; w.now.Before(start.Add(20 * time.Second)); w.now = w.now.Add(10 * time.Millisecond) {
		if w.now.Sub(start) == 900*time.Millisecond {
			w.window.State, w.hostAlive = watchdog.WindowSilent, false
		}
		out := w.m.Step(w.now, Tick{})
		seals = append(seals, out.Seal...)
		if out.TakeHost {
			sample := watchdog.Sample{Valid: w.hostAlive}
			seals = append(seals, w.m.Step(w.now, Host{Taken: true, Sample: sample, Word: w.host, Window: w.window}).Seal...)
		}
		for _, s := range seals {
			for _, r := range s.Reports {
				if r.Digest {
					continue
				}
				reports[r.ID.Seq] = r
				if !slices.ContainsFunc(r.Observations, func(o fault.Observation) bool {
					return o.Component == fault.ComponentHost && o.State == fault.Failed
				}) {
					continue
				}
				attempts[r.ID.Seq]++
				if said := s.Health.DNP.GetLastWords(); len(said) != 1 || said[0].GetLine() != line || said[0].GetFrom() != "10.7.0.2" {
					t.Errorf("%s: attempt %d of the report of the death, with %d observations and %d other reports, "+
						"has the last words %v: want the complete panic line",
						w.now.Sub(start), s.Attempt, len(r.Observations), len(s.Reports)-1, said)
				}
			}
		}
		seals = nil
	}
	if len(attempts) != 1 {
		t.Errorf("attempts of the reports of the death: %v: want one report", attempts)
	}
	links := map[fault.Component]int{}
	for _, r := range reports {
		for _, o := range r.Observations {
			if o.State == fault.Failed && o.Component != fault.ComponentHost && o.Component != fault.ComponentBus {
				links[o.Component]++
			}
		}
	}
	if len(links) != failed {
		t.Errorf("reports of failed links: %v: want %d links", links, failed)
	}
	for c, n := range links {
		if n != 1 {
			t.Errorf("%d reports of %s: want one", n, c)
		}
	}
}

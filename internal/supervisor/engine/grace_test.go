package engine

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestNewLeaderWaits: a new leader waits one digest period before any new FAILED, however clear the evidence is,
// because evidence that it has not received yet may contradict it.
func TestNewLeaderWaits(t *testing.T) {
	st, ch := memstore.New(100), &asked{}
	cfg := testConfig(ch)
	const challenge, grace = 50 * time.Millisecond, 500 * time.Millisecond
	cfg.Awareness.ChallengeHalf, cfg.Awareness.ChallengeNode, cfg.Awareness.ChallengeSingle = challenge, challenge, challenge
	cfg.Awareness.Grace = grace
	before := time.Now() // the term begins
	term, err := New(cfg, st).newTerm(t.Context(), st.Campaign())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	id := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfDNP}, Epoch: 2, Seq: 1}
	term.take(began, Input{Arrived: began, Reports: &servicenet.Reports{Path: fault.PathTorus, List: []fault.Report{{ID: id, Digest: true,
		Observations: []fault.Observation{{Node: "n1-0-0", Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindWatchdog}}}}}})
	if ch.last.Node != "n1-0-0" {
		t.Fatalf("challenged %q, want n1-0-0", ch.last.Node)
	}
	failed := func() (at time.Duration, ok bool) {
		for _, c := range term.open.changes {
			if c.Component == fault.ComponentHost && c.To == fault.Failed {
				return c.at.Sub(before), true
			}
		}
		return 0, false
	}
	for range 100 { // uses the machine's wake-up times instead of waiting for a clock
		if at, ok := failed(); ok {
			if at < grace {
				t.Errorf("FAILED after %s, within the %s that a new leader waits", at, grace)
			}
			return
		}
		if term.wake.IsZero() {
			break
		}
		term.step(term.wake, awareness.Tick{})
	}
	t.Errorf("never %s", lofamov1.State_FAILED)
}

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// TestStoppedHalfAccusesNoOther stops a half for a second (SIGSTOP) and continues it. Others may rightly find it silent
// or dead meanwhile. The half itself blames no link and not its other half when it returns; it says that it was starved.
func TestStoppedHalfAccusesNoOther(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 1, Periods: patient()})
	for _, tt := range []struct {
		half, other string
		stop        cluster.Kind
	}{{"dnp", "host", cluster.HangDNP}, {"host", "dnp", cluster.HangHost}} {
		t.Run(tt.half, func(t *testing.T) {
			tr := begin(t, l)
			tr.settled()
			tr.inject("1,0,0", simple(tt.stop))
			pause(tr, time.Second)
			tr.undo("1,0,0", simple(tt.stop))
			// The map shows this starvation for some seconds.
			eventually(t, "the map to show 500 ms or more of starvation", func() bool {
				return tr.node("n1-0-0").GetStarved().GetLongestMs() >= 500
			})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := l.Wait(ctx, tr.mark, func(s lab.Seen) bool {
				return s.GetKind() == lofamov1.EventKind_STARVATION_CHANGED && s.GetNode() == "n1-0-0" && s.GetComponent() == tt.half && !s.GetEnded()
			}); err != nil {
				t.Fatalf("no event of the starvation: %v", err)
			}
			tr.settled()
			for _, s := range l.Since(tr.mark) {
				blames := strings.HasPrefix(s.GetComponent(), "link/") || tt.half == "host" && s.GetComponent() == tt.other
				if s.GetNode() == "n1-0-0" && blames && s.GetTo() == lofamov1.State_FAILED && strings.HasPrefix(s.GetObserver(), "n1-0-0/") {
					t.Errorf("the stopped half accused: %s", s)
				}
			}
		})
	}
}

// TestReturningHalfGivesLatePeersTime stops a half and those that it watches, as an overloaded machine does, and
// continues the half first. It must not accuse them: they are silent for too short a time before it stops, and again
// after it returns, though both times together are long enough.
func TestReturningHalfGivesLatePeersTime(t *testing.T) {
	t.Parallel()
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 1, Periods: patient()})
	p, err := l.Cluster.Periods()
	if err != nil {
		t.Fatal(err)
	}
	const away, attempts = 500 * time.Millisecond, 40
	for _, tt := range []struct {
		half          string
		stop          cluster.Kind
		peers         []string // whose DNP halves it watches
		silence       time.Duration
		before, after time.Duration // of the peers' silence
	}{
		{"dnp", cluster.HangDNP, []string{"0,0,0", "1,1,0"}, p.Link().SilentAfter(), 0, 200 * time.Millisecond},
		{"host", cluster.HangHost, []string{"1,0,0"}, time.Duration(p.ReadMisses+1) * p.TRead, 600 * time.Millisecond, 500 * time.Millisecond},
	} {
		t.Run(tt.half, func(t *testing.T) {
			for range attempts {
				tr := begin(t, l)
				tr.settled()
				start := time.Now()
				for _, peer := range tt.peers {
					tr.inject(peer, simple(cluster.HangDNP))
				}
				pause(tr, tt.before)
				tr.inject("1,0,0", simple(tt.stop))
				before := time.Since(start)
				pause(tr, away)
				start = time.Now()
				tr.undo("1,0,0", simple(tt.stop))
				pause(tr, tt.after)
				for _, peer := range tt.peers {
					tr.undo(peer, simple(cluster.HangDNP))
				}
				after := time.Since(start)
				tr.settled()
				if max(before, after) > tt.silence*9/10 {
					t.Logf("the peers were silent for %s and %s, which is too long: next attempt", before, after)
					continue
				}
				for _, s := range l.Since(tr.mark) {
					blames := strings.HasPrefix(s.GetComponent(), "link/") || tt.half == "host" && s.GetComponent() == "dnp"
					if s.GetNode() == "n1-0-0" && blames && s.GetTo() == lofamov1.State_FAILED && strings.HasPrefix(s.GetObserver(), "n1-0-0/") {
						t.Errorf("silent for %s, then %s away, then silent for %s: %s", before, away, after, s)
					}
				}
				return
			}
			t.Fatalf("in %d attempts this machine stopped and continued halves too slowly", attempts)
		})
	}
}

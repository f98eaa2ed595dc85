package engine

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestLossesAreNoSilence loses a digest in each way in which a leader may lose one. Meanwhile a silent node does not become
// UNKNOWN; without a loss it does.
func TestLossesAreNoSilence(t *testing.T) {
	const period = 300 * time.Millisecond // longer than a leader lets the first reports of a node gather, for a window of four
	digest := func(at time.Time) Input {
		id := fault.ReportID{Origin: fault.Origin{Node: "n0-1-0", Half: fault.HalfHost}, Epoch: 1, Seq: fault.Seq(time.Since(began))}
		return Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Digest: true}}}, Arrived: at}
	}
	for _, tc := range []struct {
		name string
		lose func(h *harness)
		want fault.State
	}{
		{"no loss", func(*harness) {}, fault.Unknown},
		{"a follower's loss", func(h *harness) { h.Lost() }, fault.Normal},
		{"digests that wait long", func(h *harness) { h.Submit(digest(time.Now().Add(-period))) }, fault.Normal},
		{"digests that find no room", func(h *harness) {
			for h.Submit(digest(time.Now())) {
				continue
			}
		}, fault.Normal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := start(t, memstore.New(100), func(c *Config) { c.Awareness.DigestPeriod, c.Queue = period, 2 })
			h.report(1, true, fault.ComponentMemory, fault.Normal)
			state := func() fault.State {
				for _, c := range h.node(t, "n1-0-0").Status.Components {
					if c.Component == fault.ComponentMemory {
						return c.State
					}
				}
				return fault.Unknown
			}
			for deadline := time.Now().Add(wait); state() != fault.Normal; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the node is not NORMAL")
				}
			}
			window := h.cfg.Awareness.Window()
			for end := time.Now().Add(2 * window); time.Now().Before(end); time.Sleep(period / 5) {
				tc.lose(h)
			}
			if got := state(); got != tc.want {
				t.Errorf("after two windows of silence the node's memory is %s, want %s", got, tc.want)
			}
			if lost := tc.want == fault.Normal; (h.Discounting() != "") != lost {
				t.Errorf("it says %q; lost: %t", h.Discounting(), lost)
			}
			for deadline := time.Now().Add(wait); state() != fault.Unknown; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("after the last loss the silent node stays NORMAL")
				}
			}
		})
	}
}

var began = time.Now()

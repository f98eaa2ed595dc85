package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestLossesAreNoSilence loses a digest in each way in which a leader may lose one. Meanwhile a silent node does not become
// UNKNOWN; without a loss it does.
func TestLossesAreNoSilence(t *testing.T) {
	const period = time.Second
	seq := fault.Seq(0)
	report := func(digest bool, waited time.Duration) Input {
		seq++
		id := fault.ReportID{Origin: fault.Origin{Node: "n0-1-0", Half: fault.HalfHost}, Epoch: 1, Seq: seq}
		return Input{Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Digest: digest}}},
			Arrived: time.Now().Add(-waited)}
	}
	for _, tc := range []struct {
		name string
		lose func(h *harness)
		want fault.State
	}{
		{"no loss", func(*harness) {}, fault.Unknown},
		{"a follower's loss", func(h *harness) { h.Lost() }, fault.Normal},
		{"digests that wait long", func(h *harness) { h.Submit(report(true, period)) }, fault.Normal},
		{"other reports that wait long", func(h *harness) { h.Submit(report(false, period)) }, fault.Unknown},
		{"digests that find no room", func(h *harness) {
			for h.Submit(report(true, 0)) {
				continue
			}
		}, fault.Normal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := start(t, memstore.New(100), func(c *Config) { c.Awareness.DigestPeriod, c.Queue = period, 2 })
				window := h.cfg.Awareness.Window()
				h.report(1, true, fault.ComponentMemory, fault.Normal)
				time.Sleep(window / 2)
				if got := h.memory(t); got != fault.Normal {
					t.Fatalf("the memory of a node that has just reported is %s", got)
				}
				for end := time.Now().Add(2 * window); time.Now().Before(end); time.Sleep(period / 5) {
					tc.lose(h)
				}
				if got := h.memory(t); got != tc.want {
					t.Errorf("after two windows of silence the node's memory is %s, want %s", got, tc.want)
				}
				if lost := tc.want == fault.Normal; h.Discounting() != lost || (h.Held() != "") != lost {
					t.Errorf("it discounts silence: %t, and says %q; lost: %t", h.Discounting(), h.Held(), lost)
				}
				time.Sleep(window + period)
				if got := h.memory(t); got != fault.Unknown {
					t.Errorf("a window after the last loss, the memory of the silent node is %s", got)
				}
			})
		})
	}
}

// TestHeldNamesTheSilentNodes: readers learn of losses only while these hold the state of a silent node, with their cause and remedy.
func TestHeldNamesTheSilentNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t, memstore.New(100), func(c *Config) { c.Awareness.DigestPeriod = time.Second })
		window := h.cfg.Awareness.Window()
		h.report(1, true, fault.ComponentMemory, fault.Normal)
		h.Lost()
		if h.memory(t); h.Held() != "" || !h.Discounting() {
			t.Errorf("all nodes are heard, and the leader says %q; discounting: %t", h.Held(), h.Discounting())
		}
		for range 20 {
			h.Lost()
			time.Sleep(window / 10)
		}
		want := "1 silent node keeps its last state, because supervisors may have lost its messages, most recently 400ms ago: this is usual " +
			"for some seconds after a change of leader; if it lasts for minutes, see docs/runbooks/LofamoSilenceDiscounted.md"
		if h.memory(t); h.Held() != want {
			t.Errorf("one node is silent, and the leader says %q, want %q", h.Held(), want)
		}
		time.Sleep(window + time.Second)
		if h.memory(t); h.Held() != "" || h.Discounting() {
			t.Errorf("a window after the losses, the leader says %q; discounting: %t", h.Held(), h.Discounting())
		}
	})
}

// memory returns the state of a node's memory.
func (h *harness) memory(t *testing.T) fault.State {
	t.Helper()
	for _, c := range h.node(t, "n1-0-0").Status.Components {
		if c.Component == fault.ComponentMemory {
			return c.State
		}
	}
	return fault.Unknown
}

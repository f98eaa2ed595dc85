package hostile

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// These tests prove that the harness finds faults: they plant faults from outside, each in place of a part that keeps a
// promise, and expect the harness to find them.

// gathered returns a Gather that changes the real one's result.
func gathered(change func(*response.Evidence, fault.NodeID)) func(awareness.NodeStatus, fault.Component,
	func(fault.NodeID) time.Time, time.Time) response.Evidence {
	return func(st awareness.NodeStatus, c fault.Component, life func(fault.NodeID) time.Time, now time.Time) response.Evidence {
		ev := view.Gather(st, c, life, now)
		change(&ev, st.ID)
		return ev
	}
}

func TestPlantedFaultsAreFound(t *testing.T) {
	for _, tc := range []struct {
		name   string
		plants Plants
		want   Promise
	}{
		{"every witness counts twice", Plants{Gather: gathered(func(ev *response.Evidence, _ fault.NodeID) {
			if len(ev.Witnesses) > 0 {
				ev.Witnesses = append(ev.Witnesses, "supervisor/s0", "another/host")
			}
		})}, Spared},
		{"everything counts as the accused's own word", Plants{Gather: gathered(func(ev *response.Evidence, id fault.NodeID) {
			ev.Kind, ev.Witnesses = fault.KindSelf, append(ev.Witnesses, string(id)+"/host")
		})}, Spared},
		{"signatures are not checked: a liar's report counts as the word of whom it is about", Plants{Hear: func(s *Sequence, d *fault.Delivery) {
			if len(d.Report.Observations) == 1 && d.Report.Observations[0].Node != d.Report.ID.Origin.Node {
				d.Report.ID.Origin.Node = d.Report.Observations[0].Node
				d.Report.ID.Epoch += 1000
			}
		}}, Spared},
		{"hosts are condemned by reports in others' names, and answers are lost",
			Plants{Unanswered: true, Hear: func(s *Sequence, d *fault.Delivery) {
				for i := range d.Report.Observations {
					if o := &d.Report.Observations[i]; o.Node == d.Report.ID.Origin.Node && o.Component == fault.ComponentHost {
						o.Kind, o.State = fault.KindWatchdog, fault.Failed
					}
					if o := d.Report.Observations[i]; o.Component == fault.ComponentHost && o.Node != d.Report.ID.Origin.Node {
						d.Report.ID = fault.ReportID{Origin: fault.Origin{Node: o.Node, Half: fault.HalfDNP}, Epoch: 2, Seq: d.Report.ID.Seq}
					}
				}
			}}, Alive},
		{"the breaker opens for one node", Plants{Limits: func(c *response.Config) { c.BreakerNodes, c.BreakerPercent = 1, 1 }}, Shut},
		{"a liar's restart notice counts as one of an honest node", Plants{Hear: func(s *Sequence, d *fault.Delivery) {
			for rank := range s.Dims.Nodes() {
				if d.Report.Restart.Half != 0 && !s.liar(rank) && rank != s.Dead {
					d.Report.ID.Origin.Node = fault.DefaultNodeID(s.Dims.At(rank))
					d.Report.ID.Epoch += 1000
					return
				}
			}
		}}, Held},
		{"every silence counts as that of an ended process", Plants{Ended: true}, Patient},
		{"the wait for a quorum is half as long", Plants{Waits: func(c *awareness.Config) { c.ChallengeNode /= 2 }}, Patient},
		{"liars go on", Plants{Restless: true}, Wedged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := player(t, tc.plants)
			for seed := uint64(1); seed <= 3000; seed++ {
				s := Draw(seed)
				if out := play(t, p, s); out.Promise == tc.want {
					short := shorter(p, s, tc.want)
					t.Logf("seed %d: %s\n%s", seed, play(t, p, short).Broken, short.String())
					if len(short.Actions) > 4 {
						t.Errorf("cut short it still has %d actions", len(short.Actions))
					}
					return
				}
			}
			t.Errorf("3000 sequences did not break %s", tc.want)
		})
	}
}

package servicenet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Reports that wait in the log, for any time, fit their datagrams: one that cannot be sealed would be tried forever.
func TestBatchesFitHoweverLongTheyWaited(t *testing.T) {
	for _, days := range []int{0, 8, 3000} {
		for n := 1; n <= 16; n++ {
			t.Run(fmt.Sprintf("%d observations for %d days", n, days), func(t *testing.T) {
				o := newTestOutboxOf(t, DefaultOutboxConfig(fault.PathDirect, fault.PathGossip))
				r := fault.Report{Registers: fault.Registers{DNPWatchdog: 1}}
				for _, c := range fault.Components()[:n] {
					r.Observations = append(r.Observations, fault.Observation{Component: c, State: fault.Sick, Kind: fault.KindSelf})
				}
				for range 100 {
					o.Add(epochStart, r)
				}
				signer := newSignerSize(RoleNode, "n0-0-0/host", usualCertificate)
				out := o.Step(epochStart.Add(time.Duration(days)*24*time.Hour), Supervisors{Targets: []string{"s0"}})
				for range 10 {
					for _, s := range out.Send {
						b, err := SealReports(s.Reports, s.Status, signer, SealOptions{})
						mustSeal(t, b, err)
					}
					out = o.Step(out.Wake, Tick{})
				}
			})
		}
	}
}

// A restored report that no datagram can hold is forgotten, and holds up nothing.
func TestRestoredReportsCanBeSent(t *testing.T) {
	report := func(seq fault.Seq, observations ...fault.Observation) Kept {
		return Kept{Report: fault.Report{ID: fault.ReportID{Origin: origin("n0-0-0/host"), Epoch: 1, Seq: seq}, Observations: observations}}
	}
	good := fault.Observation{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf,
		Detail: strings.Repeat("d", fault.MaxDetail)}
	garbled, nobody := good, good
	garbled.State, nobody.Node = 9, "Ä"
	o, err := NewOutbox(origin("n0-0-0/host"), 2, DefaultOutboxConfig(fault.PathDirect))
	if err != nil {
		t.Fatal(err)
	}
	out := o.Restore(epochStart, []Kept{
		report(1, good), report(2, slices.Repeat([]fault.Observation{good}, 7)...), report(3, garbled), report(4, nobody), report(5, good),
	})
	if len(out.Forget) != 3 || o.Stats().Pending != 2 {
		t.Errorf("forgotten %v, %d in the log: want 3 and 2", out.Forget, o.Stats().Pending)
	}
	for _, s := range o.Step(epochStart, Supervisors{Targets: []string{"s0"}}).Send {
		b, err := SealReports(s.Reports, s.Status, newSignerSize(RoleNode, "n0-0-0/host", usualCertificate), SealOptions{})
		mustSeal(t, b, err)
	}
}

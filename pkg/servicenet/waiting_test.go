package servicenet

import (
	"fmt"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Whatever waits in the log, for however long, fits the datagrams that it is put into: what cannot be
// sealed would be tried for ever.
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
				signer := newSignerSize(RoleNode, "n0-0-0/host", MaxCertificate)
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

package half

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile/pagetest"

	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestContractOfWindow runs the contract of the shared registers against two register files that the window over sockets joins.
func TestContractOfWindow(t *testing.T) {
	cfg, card := windowHalves(t)
	host, dnp := openEnd(t, cfg, fault.HalfHost), openEnd(t, card, fault.HalfDNP)
	live := func(e *windowEnd) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		_, is := e.keys.Current()
		return is
	}
	agenttest.Await(t, "a session", func() bool { return live(host) && live(dnp) })
	pagetest.Contract(t, pagetest.Page{
		Host: host.own.File, DNP: dnp.own.File, HostPath: host.common.StatePath(RegisterFile),
		Wrote: func(h fault.Half) {
			from, to := host, dnp
			if h == fault.HalfDNP {
				from, to = dnp, host
			}
			before := to.counts().Statements
			from.mu.Lock()
			from.countersAt = time.Time{} // with the counters, which otherwise follow within a second
			from.mu.Unlock()
			from.own.epoch = from.own.File.Epoch(h)
			// An end that has heard nothing for a while only asks, so it writes until a statement arrives.
			agenttest.Await(t, "the statement", func() bool {
				from.Wrote(time.Now(), from.own)
				return to.counts().Statements > before
			})
		},
	})
}

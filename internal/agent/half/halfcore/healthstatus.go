package halfcore

import (
	"math"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// RecoveryStatus turns a daemon's record into a recovery status. mono is CLOCK_MONOTONIC now, in ns.
func RecoveryStatus(r RecoveryRecord, mono int64) *lofamov1.RecoveryStatus {
	out := &lofamov1.RecoveryStatus{
		State: lofamov1.RecoveryState(r.State), Restarts: uint32(min(r.Total,
			math.MaxUint32)), InWindow: count32(r.Restarts), Budget: count32(r.Budget),
		WindowMs: uint32(within32(r.Window.Milliseconds())), Reason: CleanText(r.Reason),
	}
	if r.Until > mono {
		out.UntilMs = uint32(within32((r.Until - mono) / int64(time.Millisecond)))
	}
	if l := r.Last; l != nil {
		out.Cause = CleanText(l.Cause.String())
		out.AgeNs = uint64(min(max(1, mono-l.At), int64(servicenet.MaxAge)))
		out.GoneUs, out.StartedUs, out.ServingUs, out.ProvenUs = step(l.Gone), step(l.Started), step(l.Serving), step(l.Proven)
	}
	return out
}

// step is a time from the beginning of a recovery in microseconds; 0 stays not yet.
func step(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(max(1, within32(d.Microseconds())))
}

func count32(n int) uint32 { return uint32(within32(int64(n))) }

func within32(n int64) int64 { return min(max(0, n), math.MaxUint32) }

// Numbers of modules, as in SelfTest.
const (
	moduleNumberLink   = 1 // and the five after it
	moduleNumberDirect = 16
)

var moduleNumbers = map[selftest.Kind]uint32{
	selftest.Relay: 7, selftest.Gossip: 8, selftest.Reports: 9, selftest.Mailbox: 10, selftest.Register: 11, selftest.Bulk: 12,
}

// ModuleNumber is the number of a module, as in SelfTest; 0: it has none.
func ModuleNumber(m selftest.Module) uint32 {
	switch m.Kind {
	case selftest.Link:
		return moduleNumberLink + uint32(m.Index)
	case selftest.Direct:
		return moduleNumberDirect + uint32(m.Index)
	default:
		return moduleNumbers[m.Kind]
	}
}

// SelfTestStatuses turns the results of modules that were tested at least once into statuses.
func SelfTestStatuses(results []selftest.Result) []*lofamov1.SelfTest {
	out := make([]*lofamov1.SelfTest, 0, len(results))
	for i := range results {
		r := &results[i]
		if number := ModuleNumber(r.Module); number != 0 && r.Age >= 0 && len(out) < servicenet.MaxSelfTests {
			out = append(out, &lofamov1.SelfTest{
				Number: number, State: testState(r), AgeMs: uint32(within32(r.Age.Milliseconds())), LatencyUs: step(r.Latency),
				LearnedUs: step(r.Baseline),
				Tests:     r.Tests, Lost: r.Lost, Altered: r.Altered, Doubled: r.Doubled, Late: r.Late, Why: CleanText(r.Why), Proving: r.Proving,
			})
		}
	}
	return out
}

func testState(r *selftest.Result) lofamov1.TestState {
	switch {
	case r.State == selftest.Failed:
		return lofamov1.TestState_FAILING
	case !r.InUse:
		return lofamov1.TestState_IDLE
	case r.State == selftest.Untested:
		return lofamov1.TestState_UNTESTED
	}
	return lofamov1.TestState_PASSED
}

// CleanText makes text for people fit the fields of messages.
func CleanText(s string) string { return fault.Clean(s, fault.MaxDetail) }

package halfcore

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func TestRecoveryStatusOfEachRecord(t *testing.T) {
	const mono = int64(100 * time.Second)
	last := &Recovery{
		Cause: Cause{Kind: Killed, Code: 9}, At: mono - int64(2*time.Second),
		Gone: 1, Started: 9 * time.Millisecond, Serving: 43 * time.Millisecond,
	}
	for name, tt := range map[string]struct {
		give RecoveryRecord
		want *lofamov1.RecoveryStatus
	}{
		"never restarted": {
			RecoveryRecord{State: Running, Budget: 5, Window: time.Minute},
			&lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Budget: 5, WindowMs: 60_000},
		},
		"serving": {
			RecoveryRecord{State: Running, Restarts: 1, Total: 7, Budget: 5, Window: time.Minute, Last: last},
			&lofamov1.RecoveryStatus{
				State: lofamov1.RecoveryState_RUNNING, Restarts: 7, InWindow: 1, Budget: 5, WindowMs: 60_000, Cause: "ended by signal 9",
				AgeNs: uint64(2 * time.Second), GoneUs: 1, StartedUs: 9000, ServingUs: 43_000,
			},
		},
		"restarting": {
			RecoveryRecord{State: Restarting, Until: mono + int64(700*time.Millisecond)},
			&lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, UntilMs: 700},
		},
		"late": {
			RecoveryRecord{State: Restarting, Until: mono - 1,
				Last: &Recovery{Cause: Cause{Kind: Unseen}, At: mono}},
			&lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Cause: "ended unseen", AgeNs: 1},
		},
		"given up": {
			RecoveryRecord{State: GivenUp, Reason: "not started soon\n" + strings.Repeat("é", 100), Total: 1 << 40},
			&lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP,
				Reason: "not started soon " + strings.Repeat("é", (fault.MaxDetail-17)/2), Restarts: 1<<32 - 1},
		},
	} {
		if got := RecoveryStatus(tt.give, mono); !proto.Equal(got, tt.want) {
			t.Errorf("%s: %v\nwant %v", name, got, tt.want)
		}
	}
}

// The states are those of the daemon, by number.
func TestStatesOfRecovery(t *testing.T) {
	for s := Stopped; s.Valid(); s++ {
		want := strings.ToUpper(strings.ReplaceAll(s.String(), " ", "_"))
		if got := lofamov1.RecoveryState(s).String(); got != want {
			t.Errorf("%s is %s: want %s", s, got, want)
		}
	}
}

func TestSelfTestStatusesCarryResults(t *testing.T) {
	link := selftest.Module{Kind: selftest.Link, Index: uint8(grid.YMinus.Index())}
	got := SelfTestStatuses([]selftest.Result{
		{Module: link, State: selftest.Passed, InUse: true, Age: 1500 * time.Millisecond, Latency: 90 * time.Microsecond,
			Baseline: 100 * time.Microsecond, Tests: 4, Lost: 1},
		{Module: selftest.Module{Kind: selftest.Direct, Index: 1}, State: selftest.Failed, Fault: selftest.Late, Why: "late: 4 tests", Late: 4},
		{Module: selftest.Module{Kind: selftest.Bulk}, State: selftest.Untested, Age: -1},
		{Module: selftest.Module{Kind: selftest.Gossip}, State: selftest.Untested, InUse: true, Proving: true},
		{Module: selftest.Module{Kind: selftest.Reports}, State: selftest.Passed, Altered: 1, Doubled: 2},
		{Module: selftest.Module{Kind: 99}},
	})
	want := []*lofamov1.SelfTest{
		{Number: 4, State: lofamov1.TestState_PASSED, AgeMs: 1500, LatencyUs: 90, LearnedUs: 100, Tests: 4, Lost: 1},
		{Number: 17, State: lofamov1.TestState_FAILING, Why: "late: 4 tests", Late: 4},
		{Number: 8, State: lofamov1.TestState_UNTESTED, Proving: true},
		{Number: 9, State: lofamov1.TestState_IDLE, Altered: 1, Doubled: 2},
	}
	if !proto.Equal(&lofamov1.HalfHealth{Tests: got}, &lofamov1.HalfHealth{Tests: want}) {
		t.Errorf("%v\nwant %v", got, want)
	}
	if n := len(SelfTestStatuses(make([]selftest.Result, 100))); n != 0 {
		t.Errorf("%d tests of modules without a name", n)
	}
	many := make([]selftest.Result, 100)
	for i := range many {
		many[i].Module = link
	}
	if n := len(SelfTestStatuses(many)); n != servicenet.MaxSelfTests {
		t.Errorf("%d tests: want %d", n, servicenet.MaxSelfTests)
	}
}

// Every kind of module has a number of its own.
func TestEveryModuleHasOneNumber(t *testing.T) {
	seen := map[uint32]selftest.Module{}
	for k := selftest.Link; k.Valid(); k++ {
		for i := range uint8(8) {
			m := selftest.Module{Kind: k, Index: i}
			if k == selftest.Link && i >= 6 || k != selftest.Link && k != selftest.Direct && i > 0 {
				break
			}
			n := ModuleNumber(m)
			if old, ok := seen[n]; ok || n == 0 {
				t.Errorf("%s has number %d, as %s", m, n, old)
			}
			seen[n] = m
		}
	}
}

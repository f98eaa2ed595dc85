package halfcore

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

var start = time.Unix(1000, 0)

// Ages grow without new reports, and test results expire without newer ones. The given report is not modified.
func TestAgesAreCountedOn(t *testing.T) {
	given := &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Restarts: 1, AgeNs: uint64(time.Second), UntilMs: 1500},
		Tests:    []*lofamov1.SelfTest{{Number: 1, AgeMs: 10}, {Number: 2, AgeMs: 1<<32 - 1}},
	}
	was := proto.CloneOf(given)
	var k HealthLog
	if h := k.As(start); h != (servicenet.Health{}) {
		t.Errorf("nothing is known: %v", h)
	}
	k.Set(start, fault.HalfDNP, given)
	k.Set(start, 0, given) // no half
	recovery := func(age time.Duration, until uint32) *lofamov1.RecoveryStatus {
		return &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RESTARTING, Restarts: 1, AgeNs: uint64(age), UntilMs: until}
	}
	for _, tt := range []struct {
		after time.Duration
		want  *lofamov1.HalfHealth
	}{
		{0, was},
		{-time.Second, was},
		{time.Second, &lofamov1.HalfHealth{
			Recovery: recovery(2*time.Second, 500), Tests: []*lofamov1.SelfTest{{Number: 1, AgeMs: 1010},
				{Number: 2, AgeMs: 1<<32 - 1}}, AgeNs: uint64(time.Second),
		}},
		{testsFor, &lofamov1.HalfHealth{Recovery: recovery(16*time.Second, 0)}},
		{20 * servicenet.MaxAge, &lofamov1.HalfHealth{Recovery: recovery(servicenet.MaxAge, 0)}},
	} {
		h := k.As(start.Add(tt.after))
		if h.Host != nil || !proto.Equal(h.DNP, tt.want) {
			t.Errorf("after %s: %v\nwant %v", tt.after, h, tt.want)
		}
	}
	if !proto.Equal(given, was) {
		t.Error("what was given was changed")
	}
	if k.Set(start, fault.HalfDNP, nil); k.As(start).DNP != nil {
		t.Error("something is known of a half of which nothing is")
	}
}

// The daemon knows of restarts, the half knows how it resumed. Neither report undoes the other, but a new process has
// not resumed like the one before.
func TestHealthMergesDaemonAndHalf(t *testing.T) {
	var k HealthLog
	daemon := func(restarts uint32) {
		k.Set(start, fault.HalfHost, &lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING,
			Restarts: restarts}})
	}
	half := func(how lofamov1.Resumption, why string) {
		k.Set(start, fault.HalfHost, &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{Resumption: how, Cold: why}, Tests: []*lofamov1.SelfTest{{Number: 10}},
		})
	}
	check := func(restarts uint32, how lofamov1.Resumption, why string) {
		t.Helper()
		h := k.As(start).Host
		if r := h.GetRecovery(); r.GetRestarts() != restarts || r.GetResumption() != how || r.GetCold() != why || len(h.GetTests()) != 1 {
			t.Errorf("%v: want %d restarts, %s %q and a test", h, restarts, how, why)
		}
	}
	half(lofamov1.Resumption_COLD, "no copy")
	check(0, lofamov1.Resumption_COLD, "no copy")
	daemon(0)
	check(0, lofamov1.Resumption_COLD, "no copy")
	daemon(1)
	check(1, lofamov1.Resumption_RESUMPTION_UNSPECIFIED, "")
	half(lofamov1.Resumption_RESUMED, "")
	check(1, lofamov1.Resumption_RESUMED, "")
	daemon(1)
	check(1, lofamov1.Resumption_RESUMED, "")
}

// TestLastWordsKeepTheirAge: the age of last words counts from their arrival, and newer last words of another machine do not renew it.
func TestLastWordsKeepTheirAge(t *testing.T) {
	var k HealthLog
	now := time.Unix(1000, 0)
	k.Set(now, fault.HalfHost, &lofamov1.HalfHealth{LastWords: []*lofamov1.LastWords{{Node: "n2-0-0", Serial: 2}, {Node: "n1-0-0", Serial: 1,
		AgeMs: 100_000}}})
	for after, want := range map[time.Duration][]uint32{10 * time.Second: {10_000, 110_000}, time.Minute: {60_000}, 2 * time.Minute: nil} {
		var ages []uint32
		for _, w := range k.As(now.Add(after)).Host.GetLastWords() {
			ages = append(ages, w.GetAgeMs())
		}
		if !slices.Equal(ages, want) {
			t.Errorf("%s later: ages %d ms, want %d ms", after, ages, want)
		}
	}
}

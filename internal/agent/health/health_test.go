package health

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Ages go on while nothing new is said; what was given is not changed.
func TestAgesAreCountedOn(t *testing.T) {
	start := time.Unix(1000, 0)
	given := &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{Restarts: 1, AgeNs: uint64(time.Second), UntilMs: 1500},
		Tests:    []*lofamov1.SelfTest{{Number: 1, AgeMs: 10}, {Number: 2, AgeMs: 1<<32 - 1}},
		AgeNs:    uint64(time.Second),
	}
	was := proto.CloneOf(given)
	var k Keeper
	if h := k.As(start); h != (servicenet.Health{}) {
		t.Errorf("nothing is known: %v", h)
	}
	k.Set(start, fault.HalfDNP, given)
	k.Set(start, 0, given) // no half
	for _, tt := range []struct {
		after time.Duration
		want  *lofamov1.HalfHealth
	}{
		{0, was},
		{-time.Second, was},
		{time.Second, &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{Restarts: 1, AgeNs: uint64(2 * time.Second), UntilMs: 500},
			Tests:    []*lofamov1.SelfTest{{Number: 1, AgeMs: 1010}, {Number: 2, AgeMs: 1<<32 - 1}}, AgeNs: uint64(2 * time.Second),
		}},
		{20 * servicenet.MaxAge, &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{Restarts: 1, AgeNs: uint64(servicenet.MaxAge)},
			Tests:    []*lofamov1.SelfTest{{Number: 1, AgeMs: 1<<32 - 1}, {Number: 2, AgeMs: 1<<32 - 1}}, AgeNs: uint64(servicenet.MaxAge),
		}},
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

package half

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// A half reports changes to the other half at once, and repeats unchanged health now and then.
func TestHalfStatusReachesOtherHalf(t *testing.T) {
	now := time.Unix(1000, 0)
	var f Status
	if h, tell := f.Look(now); h != nil || tell {
		t.Errorf("a half that knows nothing says %v", h)
	}
	state := selftest.Passed
	f.resumption, f.Cold = lofamov1.Resumption_COLD, "no copy"
	f.Results = func(time.Time) []selftest.Result {
		return []selftest.Result{{Module: selftest.Module{Kind: selftest.Mailbox}, State: state, InUse: true, Tests: uint64(now.Unix())}}
	}
	for _, tt := range []struct {
		after time.Duration
		state selftest.State
		tell  bool
	}{
		{0, selftest.Passed, true},
		{time.Second, selftest.Passed, false},
		{2 * time.Second, selftest.Failed, true},
		{3 * time.Second, selftest.Failed, false},
		{2*time.Second + halfcore.HealthRepeat, selftest.Failed, true},
	} {
		state = tt.state
		h, tell := f.Look(now.Add(tt.after))
		if tell != tt.tell || h.GetRecovery().GetCold() != "no copy" || len(h.GetTests()) != 1 {
			t.Errorf("after %s: tell %v, %v; want %v", tt.after, tell, h, tt.tell)
		}
	}
}

// TestHeardHealthIgnoresInvalidMessages: HeardHealth decodes messages of the daemon and the other half, and ignores invalid ones.
func TestHeardHealthIgnoresInvalidMessages(t *testing.T) {
	rec, err := halfcore.RecoveryRecord{Half: fault.HalfDNP, State: halfcore.GivenUp, Total: 3, Reason: "spent"}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	said := &lofamov1.HalfHealth{Tests: []*lofamov1.SelfTest{{Number: 10, State: lofamov1.TestState_PASSED}}}
	bad := &lofamov1.HalfHealth{Tests: []*lofamov1.SelfTest{{}}}
	bytes := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, tt := range map[string]struct {
		give mailbox.Message
		half fault.Half
		want *lofamov1.HalfHealth
	}{
		"the daemon": {mailbox.Message{Type: mailbox.Recovery, Payload: rec}, fault.HalfDNP,
			&lofamov1.HalfHealth{Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_GIVEN_UP, Restarts: 3, Reason: "spent"}}},
		"the other half":       {mailbox.Message{Type: mailbox.Health, Payload: bytes(said)}, fault.HalfHost, said},
		"not a record":         {mailbox.Message{Type: mailbox.Recovery, Payload: []byte("{")}, 0, nil},
		"not a message":        {mailbox.Message{Type: mailbox.Health, Payload: []byte{1}}, 0, nil},
		"a message of nothing": {mailbox.Message{Type: mailbox.Health, Payload: bytes(bad)}, 0, nil},
	} {
		if half, h := HeardHealth(tt.give, fault.HalfHost); half != tt.half || !proto.Equal(h, tt.want) {
			t.Errorf("%s: %s half: %v; want %s half: %v", name, half, h, tt.half, tt.want)
		}
	}
	t.Setenv(RecoveryEnv, string(rec))
	if half, h := GivenHealth(); half != fault.HalfDNP || h.GetRecovery().GetReason() != "spent" {
		t.Errorf("given to a half that starts: %s half: %v", half, h)
	}
}

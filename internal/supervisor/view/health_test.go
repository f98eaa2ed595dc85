package view

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Ages are those of the moment of asking: of what happened once since it was said, of what is tested all the time since
// it was last heard.
func TestHealthRendered(t *testing.T) {
	at := time.Unix(1000, 0)
	h := Health{
		Said: &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{Restarts: 1, AgeNs: uint64(time.Second), UntilMs: 1500},
			Tests: []*lofamov1.SelfTest{
				{Number: 4, State: lofamov1.TestState_PASSED, AgeMs: 100}, {Number: 12, State: lofamov1.TestState_IDLE, AgeMs: 100},
				{Number: 17, State: lofamov1.TestState_FAILING, AgeMs: 1<<32 - 1}, {Number: 99},
			},
			AgeNs: uint64(time.Second),
		},
		At: at, Heard: at.Add(9 * time.Second), OldAt: at.Add(10 * time.Second),
	}
	rails := &lofamov1.DeliveryStatus{Rails: []*lofamov1.RailStatus{{Name: "direct/eth0"}, {Name: "direct/eth2"}}}
	want := &lofamov1.HalfHealth{
		Recovery: &lofamov1.RecoveryStatus{Restarts: 1, AgeNs: uint64(11 * time.Second)},
		Tests: []*lofamov1.SelfTest{
			{Number: 4, State: lofamov1.TestState_PASSED, AgeMs: 1100, Module: "link/Y-"}, {Number: 12, State: lofamov1.TestState_IDLE, AgeMs: 10_100, Module: "bulk"},
			{Number: 17, State: lofamov1.TestState_FAILING, AgeMs: 1<<32 - 1, Module: "direct/eth2"}, {Number: 99, AgeMs: 1000, Module: "module/99"},
		},
		AgeNs: uint64(2 * time.Second), Old: true,
	}
	n := Node(Entry{Health: [2]Health{1: h}, Delivery: rails}, at.Add(10*time.Second))
	if !proto.Equal(n.GetDnpHealth(), want) || n.GetHostHealth() != nil {
		t.Errorf("%v\nwant %v", n.GetDnpHealth(), want)
	}
}

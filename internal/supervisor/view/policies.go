package view

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// PolicyEvent reports that a response policy was enabled, replaced or withdrawn; reason describes the change.
func PolicyEvent(policy, reason string, withdrawn bool, by string, at time.Time) *lofamov1.Event {
	return &lofamov1.Event{
		Kind: lofamov1.EventKind_POLICY_CHANGED, Policy: policy, Ended: withdrawn, Observer: by, Reason: reason, Time: timestamppb.New(at),
		From: lofamov1.State_UNKNOWN, To: lofamov1.State_UNKNOWN,
	}
}

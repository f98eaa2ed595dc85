package view

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// PolicyEvent tells that a policy of responses was put in force, replaced or withdrawn; reason says what has changed.
func PolicyEvent(policy, reason string, withdrawn bool, by string, at time.Time) *lofamov1.Event {
	return &lofamov1.Event{
		Kind: lofamov1.EventKind_POLICY_CHANGED, Policy: policy, Ended: withdrawn, Observer: by, Reason: reason, Time: timestamppb.New(at),
		From: lofamov1.State_UNKNOWN, To: lofamov1.State_UNKNOWN,
	}
}

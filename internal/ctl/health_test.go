package ctl

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func TestRecoveryEvents(t *testing.T) {
	a := &app{env: Env{Now: func() time.Time { return now }, Location: time.UTC}}
	event := func(s lofamov1.RecoveryState, words string) *lofamov1.Event {
		return &lofamov1.Event{
			Kind: lofamov1.EventKind_RECOVERY_CHANGED, Revision: 7, Node: "n0-0-0", Component: "dnp", From: lofamov1.State_NORMAL, To: lofamov1.State_NORMAL,
			Reason: words, Recovery: &lofamov1.RecoveryStatus{State: s}, Time: timestamppb.New(now),
		}
	}
	rows := a.eventRows([]*lofamov1.Event{
		event(lofamov1.RecoveryState_RUNNING, "restarted (ended by signal 9): serving again after 43ms"),
		event(lofamov1.RecoveryState_GIVEN_UP, "given up: 5 restarts within 1m0s"),
	}, false)
	for i, want := range [][]string{
		{"n0-0-0", "dnp", "-", "recovered", "restarted (ended by signal 9): serving again after 43ms"},
		{"n0-0-0", "dnp", "-", "given up", "given up: 5 restarts within 1m0s"},
	} {
		r := rows[i+1]
		if got := []string{r[2], r[3], r[4], r[5], r[9]}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

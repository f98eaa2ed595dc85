package show

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

func TestRecoveryEvents(t *testing.T) {
	a := &command.App{Env: command.Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	event := func(s lofamov1.RecoveryState, words string) *lofamov1.Event {
		return &lofamov1.Event{
			Kind: lofamov1.EventKind_RECOVERY_CHANGED, Revision: 7, Node: "n0-0-0", Component: "dnp", From: lofamov1.State_NORMAL, To: lofamov1.State_NORMAL,
			Reason: words, Recovery: &lofamov1.RecoveryStatus{State: s}, Time: timestamppb.New(ctltest.Now),
		}
	}
	rows := EventRows(a, []*lofamov1.Event{
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

// TestWarningSaysNothingTwice: and each value with its unit.
func TestWarningSaysNothingTwice(t *testing.T) {
	for _, tc := range []struct {
		w    *lofamov1.Warning
		want string
	}{
		{&lofamov1.Warning{Component: "temperature", Quantity: "temperature", Reason: "temperature is 71.5°C and rises"},
			"temperature is 71.5°C and rises"},
		{&lofamov1.Warning{Component: "link/X+", Quantity: "crc-ratio", Reason: "crc-ratio is 0.01 and rises"},
			"link/X+: crc-ratio is 0.01 and rises"},
		{&lofamov1.Warning{Component: "temperature", Quantity: "temperature", Value: 71.52, Threshold: 85,
			TimeToThreshold: durationpb.New(time.Minute)}, "temperature is 71.5°C and reaches 85°C in 1m"},
		{&lofamov1.Warning{Component: "fan", Quantity: "hum", Value: 3, Threshold: 9, TimeToThreshold: durationpb.New(time.Minute),
			Reason: "of a version to come"}, "fan: hum is 3 and reaches 9 in 1m (of a version to come)"},
	} {
		if got := Warning(tc.w); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.w, got, tc.want)
		}
	}
}

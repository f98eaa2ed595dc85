package half

import (
	"context"
	"testing"
)

// A half whose timer fails does not live on without ticks. The end of the context is no failure.
func TestHalfEndsWithItsTimer(t *testing.T) {
	ringOnClosed := func(ctx context.Context) error {
		a, err := NewAlarm()
		if err != nil {
			t.Fatal(err)
		}
		closeAlarm(t, a)
		return (&Loop{Common: &Common{}, Mu: new(Guard), Alarm: a}).ring(ctx)
	}
	if err := ringOnClosed(t.Context()); err == nil {
		t.Error("no error although the timer has failed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ringOnClosed(ctx); err != nil {
		t.Error(err)
	}
}

package daemon

import (
	"testing"
	"time"
)

// TestFailedTimerEndsWait: a daemon whose timer fails gets an error instead of waiting for ever.
func TestFailedTimerEndsWait(t *testing.T) {
	c := &child{}
	rang, stop, err := c.openAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := c.alarm.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case _, ok := <-rang:
		if ok {
			t.Error("a closed timer rang")
		}
	case <-time.After(checkBound):
		t.Error("the daemon waits on for a timer that failed")
	}
}

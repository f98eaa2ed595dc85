package embedded

import (
	"testing"
	"time"
)

// TestBump: a restore goes on above every life of the store that there may have been before it, whichever
// snapshot it is of, and is never taken for ordinary growth.
func TestBump(t *testing.T) {
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	fresh := int64(1000)
	second := fresh + int64(bump(fresh, now))
	later := now.Add(time.Minute) // of 20,000 commits a second
	if third := fresh + int64(bump(fresh, later)); third <= second+20_000*60 {
		t.Errorf("the same file a minute later goes on at %d, after %d", third, second)
	}
	if third := second + 100 + int64(bump(second+100, later)); third < second+100+minBump {
		t.Errorf("a snapshot of what was restored goes on at %d, after %d", third, second)
	}
	if got := bump(fresh, time.Time{}); got != minBump {
		t.Errorf("a clock that is wrong: raised by %d", got)
	}
	if second > 1<<53 {
		t.Errorf("%d is more than a double has digits for", second)
	}
	at, err := ParseRestoreToken(RestoreToken(now))
	if err != nil || !at.Equal(now) {
		t.Errorf("the token of %v: %v, %v", now, at, err)
	}
	for _, token := range []string{"", "mine", "20240506T070809Z", "20260506T070809"} {
		if _, err := ParseRestoreToken(token); err == nil {
			t.Errorf("token %q is taken", token)
		}
	}
}

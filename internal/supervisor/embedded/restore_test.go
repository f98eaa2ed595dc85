package embedded

import (
	"errors"
	"testing"
	"time"
)

// TestRestoreContinuesAboveEarlierRevisions: a restore of any snapshot continues above every possible earlier life of
// the store, and never looks like ordinary growth.
func TestRestoreContinuesAboveEarlierRevisions(t *testing.T) {
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	bump := func(revision int64, at time.Time) int64 {
		t.Helper()
		n, err := bump(revision, at)
		if err != nil {
			t.Error(err)
		}
		return int64(n)
	}
	fresh := int64(1000)
	second := fresh + bump(fresh, now)
	later := now.Add(time.Minute) // of 20,000 commits a second
	if third := fresh + bump(fresh, later); third <= second+20_000*60 {
		t.Errorf("the same file a minute later goes on at %d, after %d", third, second)
	}
	third := second + 100 + bump(second+100, later)
	if third <= second+20_000*60 {
		t.Errorf("a snapshot of what was restored goes on at %d, after %d", third, second)
	}
	if again := second + 100 + bump(second+100, later.Add(time.Second)); again < third+20_000 {
		t.Errorf("the same a second later goes on at %d, after %d", again, third)
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

// TestRestoreWithSlowClockIsRefused: a restore with a slow clock is refused, because it would reuse revisions.
func TestRestoreWithSlowClockIsRefused(t *testing.T) {
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	n, err := bump(1000, now)
	if err != nil {
		t.Fatal(err)
	}
	restored := 1000 + int64(n)
	for name, at := range map[string]time.Time{
		"none":                      {},
		"since 1970":                time.Unix(30, 0),
		"a year behind":             now.AddDate(-1, 0, 0),
		"as of the restore before":  now,
		"a second before the other": now.Add(-time.Second),
	} {
		if n, err := bump(restored, at); !errors.Is(err, ErrClock) {
			t.Errorf("%s: raised by %d, %v", name, n, err)
		}
	}
}

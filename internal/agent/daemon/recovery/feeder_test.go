package recovery

import (
	"testing"
	"time"
)

// feederRun plays a feeder in looks of a second.
type feederRun struct {
	t      *testing.T
	f      *Feeder
	now    time.Time
	stores uint32
}

func newFeederRun(t *testing.T, timeout, contactWithin time.Duration, left *Left) *feederRun {
	now := time.Unix(1_000_000, 0)
	return &feederRun{t: t, f: NewFeeder(now, timeout, contactWithin, left), now: now}
}

// look takes a reading of two halves that work, and is then delayed.
func (r *feederRun) look(contact bool, delay time.Duration) Deed {
	r.now = r.now.Add(time.Second)
	r.stores++
	r.f.Take(r.now, FenceLook{Readable: [2]bool{true, true}, Stores: [2]uint32{r.stores, r.stores}, Links: contact})
	r.now = r.now.Add(delay)
	do, _ := r.f.Next(r.now)
	return do
}

func (r *feederRun) want(what string, got, want Deed) {
	r.t.Helper()
	if got != want {
		r.t.Fatalf("%s: deed %d, want %d", what, got, want)
	}
}

// opened returns a run whose device is open and fed.
func openedRun(t *testing.T, timeout, contactWithin time.Duration) *feederRun {
	t.Helper()
	r := newFeederRun(t, timeout, contactWithin, nil)
	r.want("the first look", r.look(true, 0), Wait)
	r.want("the second look", r.look(true, 0), Open)
	r.f.Opened(r.now, true)
	r.want("the third look", r.look(true, 0), Feed)
	return r
}

func TestFeederRetriesBusyDeviceLater(t *testing.T) {
	r := newFeederRun(t, 10*time.Second, 0, nil)
	r.look(true, 0)
	r.want("both halves work", r.look(true, 0), Open)
	if !r.f.Opened(r.now, false) {
		t.Fatal("a device that never opened: want its record removed")
	}
	for at := r.now; r.now.Sub(at) < openRetry-2*time.Second; {
		r.want("soon after a failure", r.look(true, 0), Wait)
	}
	r.look(true, 0)
	r.want("later", r.look(true, 0), Open)
}

// TestFeederRetriesDeviceLeftArmedAtOnce: such a device may count down.
func TestFeederRetriesDeviceLeftArmedAtOnce(t *testing.T) {
	r := newFeederRun(t, 10*time.Second, 0, &Left{Alone: 0})
	for range 3 {
		r.want("a device left armed", r.look(true, 0), Open)
		if r.f.Opened(r.now, false) {
			t.Fatal("it may be armed: want its record kept")
		}
	}
	r.f.Opened(r.now, true)
	r.want("opened", r.look(true, 0), Feed)
}

// TestFeederDoesNotFeedAfterPause: a daemon that did not run between its look and the feeding must not feed because of what held before.
func TestFeederDoesNotFeedAfterPause(t *testing.T) {
	r := openedRun(t, time.Minute, 10*time.Second)
	for range 8 {
		r.want("within contactWithin", r.look(false, 0), Feed)
	}
	r.want("9 s without contact, and then a pause", r.look(false, 30*time.Second), Starve)
	r.want("contact again", r.look(true, 0), Feed)
}

// TestFeederHoldsToStatedSettings: supervisors that could not be reached since know only the settings of the earlier daemon.
func TestFeederHoldsToStatedSettings(t *testing.T) {
	strict := &Left{Timeout: 10 * time.Second, ContactWithin: 20 * time.Second}
	for name, tc := range map[string]struct {
		contactWithin time.Duration
		left          *Left
		wantTimeout   time.Duration
		want          time.Duration
	}{
		"no earlier daemon":        {time.Minute, nil, time.Minute, time.Minute},
		"longer now":               {time.Minute, strict, 10 * time.Second, 20 * time.Second},
		"none now":                 {0, strict, 10 * time.Second, 20 * time.Second},
		"shorter now":              {10 * time.Second, strict, 10 * time.Second, 10 * time.Second},
		"not counted before":       {10 * time.Second, &Left{Timeout: 5 * time.Second}, 5 * time.Second, 10 * time.Second},
		"from an earlier version":  {time.Minute, &Left{}, time.Minute, time.Minute},
		"contact counts nowhere":   {0, &Left{Timeout: 5 * time.Second}, 5 * time.Second, 0},
		"same settings as earlier": {time.Minute, &Left{Timeout: time.Minute, ContactWithin: time.Minute}, time.Minute, time.Minute},
	} {
		f := NewFeeder(time.Unix(1_000_000, 0), time.Minute, tc.contactWithin, tc.left)
		if f.Timeout() != tc.wantTimeout || f.ContactWithin() != tc.want {
			t.Errorf("%s: timeout %s, contactWithin %s: want %s, %s", name, f.Timeout(), f.ContactWithin(), tc.wantTimeout, tc.want)
		}
	}
}

func TestFeederStarvesDeviceLeftWithoutRecordOfContact(t *testing.T) {
	r := newFeederRun(t, 10*time.Second, 10*time.Second, &Left{Alone: -1})
	if do, _ := r.f.Next(r.now); do != Starve {
		t.Fatalf("at once: deed %d, want %d", do, Starve)
	}
	r.want("no contact", r.look(false, 0), Starve)
	r.look(true, 0)
	r.want("contact", r.look(true, 0), Open)
}

func TestFeederDisarmsOnlyWhenNobodyRelies(t *testing.T) {
	for name, tc := range map[string]struct {
		contactWithin   time.Duration
		open, announced bool
		want            bool
	}{
		"announced":                   {time.Minute, true, true, true},
		"not announced":               {time.Minute, true, false, false},
		"not announced, never opened": {time.Minute, false, false, true},
		"contact does not count":      {0, true, false, true},
	} {
		r := newFeederRun(t, 10*time.Second, tc.contactWithin, nil)
		r.f.Opened(r.now, tc.open)
		if got := r.f.Disarm(tc.announced); got != tc.want {
			t.Errorf("%s: disarmed %t, want %t", name, got, tc.want)
		}
	}
	if r := newFeederRun(t, 10*time.Second, time.Minute, &Left{}); r.f.Disarm(false) {
		t.Error("left armed by an earlier daemon, and not opened: want it left as it is")
	}
}

// TestFeederKeepsEachContactOnce: a daemon that replaces this one must know it.
func TestFeederKeepsEachContactOnce(t *testing.T) {
	r := newFeederRun(t, 10*time.Second, 10*time.Second, nil)
	r.look(true, 0)
	if _, keep := r.f.Keep(); keep {
		t.Fatal("a closed device: want no record")
	}
	r = openedRun(t, 10*time.Second, 10*time.Second)
	at, keep := r.f.Keep()
	if !keep || !at.Equal(r.now) {
		t.Fatalf("contact %s, keep %t: want %s", at, keep, r.now)
	}
	r.f.Kept(at)
	r.look(false, 0)
	if _, keep := r.f.Keep(); keep {
		t.Fatal("no contact since: want no further record")
	}
}

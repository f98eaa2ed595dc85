package recovery

import (
	"strings"
	"testing"
	"time"
)

// fenceRun plays a fence in steps of a second. In each step the halves named in advance write their words.
type fenceRun struct {
	t      *testing.T
	f      Fence
	now    time.Time
	stores [2]uint32
}

func (r *fenceRun) step(host, dnp, contact bool) (bool, string) {
	r.t.Helper()
	r.now = r.now.Add(time.Second)
	for i, on := range [...]bool{host, dnp} {
		if on {
			r.stores[i] += 10
		}
	}
	return r.f.Look(r.now, FenceLook{Readable: [2]bool{true, true}, Stores: r.stores, Contact: contact})
}

func newFenceRun(t *testing.T, contactWithin time.Duration) *fenceRun {
	return &fenceRun{t: t, f: Fence{ContactWithin: contactWithin}, now: time.Unix(1_000_000, 0)}
}

// armed returns a run whose device is fed.
func armedRun(t *testing.T, contactWithin time.Duration) *fenceRun {
	t.Helper()
	r := newFenceRun(t, contactWithin)
	r.step(true, true, true)
	if feed, why := r.step(true, true, true); !feed || why != "" || !r.f.Armed() {
		t.Fatalf("two words of both halves and a contact: feed %v, %q: want the device fed", feed, why)
	}
	return r
}

func TestFenceIsNotArmedBeforeNodeWorks(t *testing.T) {
	for name, tc := range map[string]struct {
		host, dnp, contact bool
		contactWithin      time.Duration
		want               bool
	}{
		"no host half":                           {false, true, true, 0, false},
		"no DNP half":                            {true, false, true, 0, false},
		"no contact":                             {true, true, false, time.Minute, false},
		"no contact, and it does not count":      {true, true, false, 0, true},
		"both halves and a contact":              {true, true, true, time.Minute, true},
		"both halves and a contact that is free": {true, true, true, 0, true},
	} {
		r := newFenceRun(t, tc.contactWithin)
		fed := false
		for range 300 {
			feed, why := r.step(tc.host, tc.dnp, tc.contact)
			fed = fed || feed
			if why != "" && !fed {
				t.Fatalf("%s: %q for a device that is not armed", name, why)
			}
		}
		if fed != tc.want {
			t.Errorf("%s: fed %v: want %v", name, fed, tc.want)
		}
	}
}

func TestFenceStarvesWhenHalfStandsStill(t *testing.T) {
	for _, dead := range []string{"host", "dnp"} {
		r := armedRun(t, 0)
		for range FenceStall / time.Second { // a planned restart takes less
			if feed, why := r.step(dead != "host", dead != "dnp", true); !feed {
				t.Fatalf("within %s: not fed: %s", FenceStall, why)
			}
		}
		feed, why := r.step(dead != "host", dead != "dnp", true)
		if feed || !strings.Contains(why, "the "+dead+" half") {
			t.Fatalf("the %s half writes nothing: feed %v, %q", dead, feed, why)
		}
		if feed, why := r.step(true, true, true); !feed {
			t.Fatalf("it writes again: not fed: %s", why)
		}
	}
}

func TestFenceStarvesWithoutContact(t *testing.T) {
	r := armedRun(t, 10*time.Second)
	for range 10 {
		if feed, why := r.step(true, true, false); !feed {
			t.Fatalf("within 10s: not fed: %s", why)
		}
	}
	if feed, why := r.step(true, true, false); feed || !strings.Contains(why, "no frame of a neighbour") {
		t.Fatalf("11s without contact: feed %v, %q", feed, why)
	}
	if feed, _ := r.step(true, true, true); !feed {
		t.Fatal("contact again: not fed")
	}
}

// TestFenceTakesUnreadableRegistersAsNoWord: a register file that cannot be read shows no progress.
func TestFenceTakesUnreadableRegistersAsNoWord(t *testing.T) {
	r := armedRun(t, 0)
	feed := true
	for range FenceStall/time.Second + 1 {
		r.now = r.now.Add(time.Second)
		feed, _ = r.f.Look(r.now, FenceLook{Contact: true})
	}
	if feed {
		t.Fatalf("registers unreadable for more than %s: fed", FenceStall)
	}
}

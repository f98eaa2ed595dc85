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
	return r.f.Look(r.now, FenceLook{Readable: [2]bool{true, true}, Stores: r.stores, Links: contact})
}

func newFenceRun(t *testing.T, contactWithin time.Duration) *fenceRun {
	return &fenceRun{t: t, f: Fence{ContactWithin: contactWithin}, now: time.Unix(1_000_000, 0)}
}

// armed returns a run whose device is fed.
func armedRun(t *testing.T, contactWithin time.Duration) *fenceRun {
	t.Helper()
	r := newFenceRun(t, contactWithin)
	r.step(true, true, true)
	if feed, why := r.step(true, true, true); !feed || why != "" {
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
		feed, _ = r.f.Look(r.now, FenceLook{Links: true, Service: true})
	}
	if feed {
		t.Fatalf("registers unreadable for more than %s: fed", FenceStall)
	}
}

// TestFenceTakesOldRegistersAsNoContact: the registers of the former boot still name links and a service network. They count only
// when the half that owns them writes.
func TestFenceTakesOldRegistersAsNoContact(t *testing.T) {
	r := newFenceRun(t, time.Minute)
	look := func(host, dnp, links, service bool) bool {
		r.now = r.now.Add(time.Second)
		for i, on := range [...]bool{host, dnp} {
			if on {
				r.stores[i]++
			}
		}
		feed, _ := r.f.Look(r.now, FenceLook{Readable: [2]bool{true, true}, Stores: r.stores, Links: links, Service: service})
		return feed
	}
	look(false, false, true, true) // nothing runs yet
	for range 5 {
		if look(true, false, true, false) {
			t.Fatal("armed by links of a DNP half that does not run")
		}
	}
	for range 5 {
		if look(true, true, false, false) {
			t.Fatal("armed without contact")
		}
	}
	if !look(true, true, false, true) {
		t.Fatal("a supervisor answers, and both halves run: want the device fed")
	}
}

// TestFenceResumesAtOnce: a daemon that starts again in the same boot feeds the armed device at its first look.
func TestFenceResumesAtOnce(t *testing.T) {
	r := newFenceRun(t, 10*time.Second)
	r.f.Resume(r.now, 0)
	if feed, why := r.step(false, false, false); !feed {
		t.Fatalf("the first look: not fed: %s", why)
	}
	for range 11 {
		r.step(true, true, false)
	}
	if feed, _ := r.step(true, true, false); feed {
		t.Fatal("no contact since the start: fed")
	}
}

// TestFenceKeepsAgeOfContactAcrossDaemons: a daemon that dies again and again does not lengthen the time without contact.
func TestFenceKeepsAgeOfContactAcrossDaemons(t *testing.T) {
	r := newFenceRun(t, 10*time.Second)
	r.f.Resume(r.now, 8*time.Second)
	if feed, why := r.step(true, true, false); !feed {
		t.Fatalf("9s after the contact: not fed: %s", why)
	}
	r.step(true, true, false)
	if feed, _ := r.step(true, true, false); feed {
		t.Fatal("11s after the contact that the earlier daemon saw: fed")
	}
	if feed, why := r.step(true, true, true); !feed {
		t.Fatalf("contact again: not fed: %s", why)
	}
}

// TestFenceWaitsForSlowStart: a half that takes as long to start as its settings allow does not make the machine reset. The time without
// contact counts as before.
func TestFenceWaitsForSlowStart(t *testing.T) {
	const start = 2 * time.Minute
	r := armedRun(t, 0)
	r.f.Start = start
	for range (start + startMargin) / time.Second {
		if feed, why := r.step(true, false, true); !feed {
			t.Fatalf("within %s: not fed: %s", start+startMargin, why)
		}
	}
	if feed, _ := r.step(true, false, true); feed {
		t.Errorf("beyond %s: fed", start+startMargin)
	}
	r = armedRun(t, 10*time.Second)
	r.f.Start = start
	for range 10 {
		r.step(true, true, false)
	}
	if feed, _ := r.step(true, true, false); feed {
		t.Error("11s without contact: fed")
	}
}

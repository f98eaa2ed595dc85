package recovery

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// FenceStall is how long a half's watchdog word may stay unchanged before the daemon stops feeding the hardware watchdog. It is longer
// than a planned restart takes. A half that may take longer to start gets startMargin more than that.
const FenceStall = 30 * time.Second

// startMargin is for the time until the daemon finds that the former process hangs, for the longest wait before a restart (5 s), and for
// the daemon's looks (1 s).
const startMargin = 10 * time.Second

// Fence decides when the recovery daemon feeds the hardware watchdog of its machine, which resets the machine when it is
// not fed in time:
//
//	         both halves serve, and contact       a word stands still, or no contact for too long
//	disarmed ─────────────────────────────► fed ◄───────────────────────────────────────────────► starved
//	                                              both words advance, and contact
//
// It never arms the device before the halves have written their words and, with ContactWithin, before the node has
// reached another one. So a machine that boots into a fault is not reset again and again.
type Fence struct {
	// ContactWithin is how long the node may be without contact. Zero: contact does not count.
	ContactWithin time.Duration
	// Start is how long a half may take to start.
	Start time.Duration

	armed   bool
	seen    [2]bool // words that have advanced, by half
	stores  [2]uint32
	known   [2]bool      // stores holds a number
	moved   [2]time.Time // when the word last advanced, or the fence began
	contact time.Time    // the last one, or when the fence began
	reached bool         // there was a contact
}

// FenceLook is one reading of the halves' registers.
type FenceLook struct {
	Readable [2]bool   // by half: host, DNP
	Stores   [2]uint32 // numbers of the watchdog words, where readable
	Links    bool      // the DNP half's registers say that a link works both ways: frames arrive, and the neighbour hears this node
	Service  bool      // the host half says that a supervisor answers it on the service network
}

// Resume makes a fence that an earlier daemon of this boot had armed: the device is not fed now, so the next Look feeds it unless the
// node has been alone for too long. alone is the time since the last contact that the earlier daemon saw.
func (f *Fence) Resume(now time.Time, alone time.Duration) {
	f.armed, f.contact, f.moved = true, now.Add(-alone), [2]time.Time{now, now}
}

// Contact returns the time of the last contact.
func (f *Fence) Contact() time.Time { return f.contact }

// Disarmed notes that the device is not open: it could not be opened, or the daemon closed it.
func (f *Fence) Disarmed() { f.armed = false }

// Look takes a look. It reports whether to feed the device now, which arms it the first time. why is the reason for not
// feeding an armed device, and empty otherwise.
func (f *Fence) Look(now time.Time, l FenceLook) (feed bool, why string) {
	f.take(now, l)
	return f.decide(now)
}

// take takes a reading that began at a time.
func (f *Fence) take(now time.Time, l FenceLook) {
	if f.contact.IsZero() {
		f.contact, f.moved = now, [2]time.Time{now, now}
	}
	var advances [2]bool
	for i := range f.stores {
		if !l.Readable[i] {
			continue
		}
		if advances[i] = f.known[i] && l.Stores[i] != f.stores[i]; advances[i] {
			f.seen[i], f.moved[i] = true, now
		}
		f.stores[i], f.known[i] = l.Stores[i], true
	}
	// What a half has left in its registers counts only while it runs.
	if l.Service && advances[0] || l.Links && advances[1] {
		f.contact, f.reached = now, true
	}
}

// decide returns what Look does.
func (f *Fence) decide(now time.Time) (feed bool, why string) {
	if !f.armed {
		f.armed = f.seen[0] && f.seen[1] && f.late(now) == "" && (f.ContactWithin == 0 || f.reached)
		return f.armed, ""
	}
	why = f.late(now)
	return why == "", why
}

// stall returns how long a half's word may stay unchanged.
func (f *Fence) stall() time.Duration { return max(FenceStall, f.Start+startMargin) }

// late returns the reason for not feeding the device; "": none.
func (f *Fence) late(now time.Time) string {
	for i, h := range [...]fault.Half{fault.HalfHost, fault.HalfDNP} {
		if silent := now.Sub(f.moved[i]); silent > f.stall() {
			return "the " + h.String() + " half has written no watchdog word for " + silent.Round(time.Second).String()
		}
	}
	if alone := now.Sub(f.contact); f.ContactWithin != 0 && alone > f.ContactWithin {
		return "no frame of a neighbour and no working service network for " + alone.Round(time.Second).String()
	}
	return ""
}

package recovery

import "time"

// openRetry is the time between two attempts to open a device that another process holds.
const openRetry = 30 * time.Second

// Feeder decides when the daemon opens, feeds and disarms the hardware watchdog device, as Fence allows it:
//
//	         Look, Next: Open                             Next: Feed, or Starve, by turns
//	closed ───────────────────► open (the device is armed) ─────────────────────────────► End: disarmed, or left armed
//	   ▲                             ▲
//	   └── a daemon begins           └── a daemon begins in whose boot an earlier one has left the device armed: it opens it at once
//
// Supervisors may wait for the reset of a node that stated an armed device. So a device stays as strict as it was stated until the
// supervisors have committed a stop, or the machine has booted. It depends only on its inputs, and is not safe for concurrent use.
type Feeder struct {
	fence   Fence
	timeout time.Duration
	resumed bool // an earlier daemon of this boot may have left the device armed, and this one has not opened it yet
	open    bool
	retryAt time.Time // when to try to open the device again
	kept    time.Time // the last contact that is recorded
}

// Left holds the records of an earlier daemon of this boot about a device that it left armed.
type Left struct {
	Timeout       time.Duration // of the device; 0: not recorded
	ContactWithin time.Duration // the time without contact in which it fed the device
	Alone         time.Duration // since the last contact; negative: not known
}

// NewFeeder returns the feeder of a daemon that begins now. left is nil if no earlier daemon of this boot left the device armed.
//
// The other settings then apply only in part: the device keeps its time-out, and the shorter of the times without contact counts. The
// supervisors may know only the earlier ones.
func NewFeeder(now time.Time, timeout, contactWithin time.Duration, left *Left) *Feeder {
	f := &Feeder{fence: Fence{ContactWithin: contactWithin}, timeout: timeout}
	if left == nil {
		return f
	}
	if left.Timeout > 0 {
		f.timeout = left.Timeout
		if contactWithin == 0 || left.ContactWithin > 0 && left.ContactWithin < contactWithin {
			f.fence.ContactWithin = left.ContactWithin
		}
	}
	alone := left.Alone
	if alone < 0 {
		alone = f.fence.ContactWithin + 1 // alone for longer than it may be
	}
	f.resumed = true
	f.fence.Resume(now, alone) // the device has not been fed since the earlier daemon died
	return f
}

// AllowStart lets a half take that long to start: its word may stay unchanged for some seconds longer. Contact counts as before, so a
// node that fences itself does so as early as without it.
func (f *Feeder) AllowStart(within time.Duration) { f.fence.Start = within }

// Stall returns how long a half's watchdog word may stay unchanged before the device is starved.
func (f *Feeder) Stall() time.Duration { return f.fence.stall() }

// Timeout returns the time-out that the device gets.
func (f *Feeder) Timeout() time.Duration { return f.timeout }

// ContactWithin returns how long the node may be without contact; 0: contact does not count.
func (f *Feeder) ContactWithin() time.Duration { return f.fence.ContactWithin }

// Resumed reports whether the device may count down, although this daemon has not opened it.
func (f *Feeder) Resumed() bool { return f.resumed }

// Take takes a reading that began at a time.
func (f *Feeder) Take(began time.Time, l FenceLook) { f.fence.take(began, l) }

// Deed is what to do with the device.
type Deed uint8

// The deeds.
const (
	Wait   Deed = iota // do nothing: the device is not armed, and must stay so for now
	Open               // open it, which arms or feeds it, and call Opened
	Feed               // feed it
	Starve             // do not feed it, so that the machine resets
)

// Next returns what to do with the device. Call it immediately before that: a daemon that was paused must not feed
// the device because of outdated readings. why is the reason to starve it.
func (f *Feeder) Next(now time.Time) (do Deed, why string) {
	feed, why := f.fence.decide(now)
	switch {
	case why != "":
		return Starve, why
	case !feed:
		return Wait, ""
	case f.open:
		return Feed, ""
	case now.Before(f.retryAt):
		f.fence.Disarmed()
		return Wait, ""
	}
	return Open, ""
}

// Opened notes an attempt to open the device. After a failure, wait reports whether the device is not armed: the next attempt comes
// later. Otherwise it may count down.
func (f *Feeder) Opened(now time.Time, ok bool) (wait bool) {
	switch {
	case ok:
		f.open, f.resumed = true, false
	case !f.resumed:
		f.retryAt = now.Add(openRetry)
		f.fence.Disarmed()
		return true
	}
	return false
}

// Contact returns the time of the last contact.
func (f *Feeder) Contact() time.Time { return f.fence.Contact() }

// Keep returns the last contact if it has to be recorded for a daemon that may replace this one: then call Kept.
func (f *Feeder) Keep() (contact time.Time, keep bool) {
	contact = f.Contact()
	return contact, f.open && f.fence.ContactWithin != 0 && contact.After(f.kept)
}

// Kept notes that a contact is recorded.
func (f *Feeder) Kept(contact time.Time) { f.kept = contact }

// Disarm reports whether the daemon disarms the device when it stops. announced: the supervisors have committed that the node stops,
// so they no longer rely on its fencing. Without that, a node that fences itself stays armed: others may be waiting for its reset.
func (f *Feeder) Disarm(announced bool) bool {
	return announced || f.fence.ContactWithin == 0 || !f.open && !f.resumed
}

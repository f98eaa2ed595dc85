package daemon

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/durable"
)

// This file has the records of an armed hardware watchdog, for a daemon that replaces one that died.

// armedFile in the state directory names the boot in which the daemon has armed the device, and not disarmed it, the device's time-out
// and contactWithin, both in ns.
const (
	armedFile = "hardware-watchdog.armed"
	maxArmed  = 96
)

// contactFile holds the boot and the time of the last contact, for a daemon that replaces one that died. It needs no fsync: it is for
// the same boot. A look waits at most contactWait for the disk to write it.
const (
	contactFile = "hardware-watchdog.contact"
	maxContact  = 64
	contactWait = 100 * time.Millisecond
)

// keepContact records the last contact for the next daemon, while the node fences itself. It waits at most contactWait for the disk, so
// that this daemon feeds the device even if the disk hangs. Then the record holds an earlier contact, and the next daemon feeds the device
// for a shorter time.
func (w *hardware) keepContact() {
	at, keep := w.feeder.Keep()
	if !keep {
		return
	}
	w.contacts.Write(w.contactRecord(at), contactWait)
	if done := w.recorded.Load(); done != nil {
		w.feeder.Kept(*done)
	}
}

// lastContact is a record of the last contact.
type lastContact struct {
	at time.Time
	up time.Duration // since the boot
}

// contactRecord returns the record of a contact. It reads the boot clock before w.now, so that a pause of the daemon between the two never
// makes the record later than the contact.
func (w *hardware) contactRecord(at time.Time) lastContact {
	up, err := bootTime()
	if err != nil {
		return lastContact{at: at} // no contact since the boot
	}
	return lastContact{at, up - w.now().Sub(at)}
}

func (w *hardware) writeContact(c lastContact) {
	err := os.WriteFile(w.path(contactFile), fmt.Appendf(nil, "%s %d", w.boot, c.up), 0o600)
	if w.unkept.Set(w.log, "record the last contact of a node that fences itself", err); err == nil {
		w.recorded.Store(&c.at)
	}
}

// state reports the device as armed once its settings are on disk, because the next daemon must be at least as strict as this report. The
// settings may differ from those that an earlier daemon recorded. It waits at most contactWait for the disk, so that this daemon feeds the
// device even if the disk hangs or refuses the record.
func (w *hardware) state() {
	if w.stated {
		return
	}
	if !w.settled.Load() {
		w.settings.Write(w.armedRecord(), contactWait)
	}
	if w.settled.Load() {
		w.stated = true
		w.tell(true)
	}
}

// armedRecord returns the record of a device with the feeder's settings.
func (w *hardware) armedRecord() []byte {
	return fmt.Appendf(nil, "%s %d %d", w.boot, w.feeder.Timeout(), w.feeder.ContactWithin())
}

// writeArmed removes the record again if the device was disarmed meanwhile: a hanging disk can delay the write until then.
func (w *hardware) writeArmed(record []byte) {
	err := durable.Replace(w.path(armedFile), record)
	if w.disarmed.Load() {
		_ = os.Remove(w.path(armedFile))
		return
	}
	if w.unsettled.Set(w.log, "record settings of the hardware watchdog, to state it as armed", err); err == nil {
		w.settled.Store(true)
	}
}

// recordArmed records that the device is armed, or is about to be.
func (w *hardware) recordArmed() error {
	err := durable.Replace(w.path(armedFile), w.armedRecord())
	w.settled.Store(err == nil)
	return err
}

// left returns the records of an earlier daemon of this boot that left the device armed; nil: none did.
func (w *hardware) left() *recovery.Left {
	b, err := durable.Read(w.path(armedFile), maxArmed)
	if err != nil || w.boot == "" {
		return nil
	}
	boot, settings, _ := strings.Cut(string(b), " ")
	if boot != w.boot {
		return nil
	}
	l := &recovery.Left{Alone: w.alone()}
	timeout, contact, ok := strings.Cut(settings, " ")
	t, terr := strconv.ParseInt(timeout, 10, 64)
	c, cerr := strconv.ParseInt(contact, 10, 64)
	if ok && terr == nil && cerr == nil && t > 0 && c >= 0 { // otherwise an earlier version wrote it
		l.Timeout, l.ContactWithin = time.Duration(t), time.Duration(c)
	}
	return l
}

// alone returns the time since the last contact that an earlier daemon of this boot recorded; negative: not known.
func (w *hardware) alone() time.Duration {
	b, err := durable.Read(w.path(contactFile), maxContact)
	up, terr := bootTime()
	boot, text, _ := strings.Cut(string(b), " ")
	at, perr := strconv.ParseInt(text, 10, 64)
	if err != nil || terr != nil || perr != nil || boot != w.boot || time.Duration(at) > up {
		return -1
	}
	return up - time.Duration(at)
}

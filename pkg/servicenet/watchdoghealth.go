package servicenet

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Bounds of a hardware watchdog's times: those of the agents' configuration.
const (
	maxWatchdogTimeout = 5 * time.Minute
	maxWatchdogContact = time.Hour
)

// checkWatchdog refuses what no agent may state of its hardware watchdog, which may be nil. A statement without a boot would hold for
// every boot.
func checkWatchdog(field string, w *lofamov1.HardwareWatchdog) error {
	switch timeout, contact := w.GetTimeoutMs(), w.GetContactWithinMs(); {
	case w == nil:
		return nil
	case timeout > uint32(maxWatchdogTimeout.Milliseconds()) || timeout == 0 && w.GetArmed():
		return refuse(RefusedField, "%s.hardware_watchdog.timeout_ms: given %d: want 1 to %d", field, timeout, maxWatchdogTimeout.Milliseconds())
	case contact > uint32(maxWatchdogContact.Milliseconds()):
		return refuse(RefusedField, "%s.hardware_watchdog.contact_within_ms: given %d: want at most %d", field, contact,
			maxWatchdogContact.Milliseconds())
	case w.GetBoot() == 0:
		return refuse(RefusedField, "%s.hardware_watchdog.boot: given 0: want a part of the boot's identity", field)
	}
	return nil
}

// WatchdogWords describes for people a node's hardware watchdog; empty: the node has stated none.
func WatchdogWords(w *lofamov1.HardwareWatchdog) string {
	timeout := time.Duration(w.GetTimeoutMs()) * time.Millisecond
	switch {
	case w == nil:
		return ""
	case !w.GetArmed():
		return "not armed"
	case w.GetContactWithinMs() == 0:
		return fmt.Sprintf("armed, resets the machine %s after a stall", timeout)
	}
	return fmt.Sprintf("armed, fences itself: without contact for %s it resets the machine within %s",
		time.Duration(w.GetContactWithinMs())*time.Millisecond, timeout)
}

// WatchdogState returns the state of a hardware watchdog in one word: disarmed, armed or self-fencing; "" for nil.
func WatchdogState(w *lofamov1.HardwareWatchdog) string {
	switch {
	case w == nil:
		return ""
	case !w.GetArmed():
		return "disarmed"
	case w.GetContactWithinMs() == 0:
		return "armed"
	}
	return "self-fencing"
}

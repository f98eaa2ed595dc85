// Package selftest finds what goes wrong quietly in a half (seed 000 §3.1): loopback messages of several
// sizes and bit patterns go through the real code path of each logical module that is in use, beside the
// real traffic, and what is lost, altered, doubled or late is named.
//
// It is pure: it sends nothing and reads no clock. The shell gives a probe to the module and steps the
// machine with what comes back. It does not say what a failure means for the node (internal/agent), and
// it watches no half that has stopped: that is the watchdog's business (pkg/watchdog).
//
// # Adaptive and concurrent
//
// A module is tested while it is in use. The first use after idleness begins a test, and the message
// follows on its heels without waiting for the result; then there is a test every Interval, until the
// module has not been used for IdleAfter. The machine wants no wake-up of its own: whoever owns it ticks
// it with the timer that is there anyway, at least every Config.Tick.
//
//	          ┌─────────── IdleAfter without use ────────────┐
//	          ▼                                              │
//	idle ──use──► tested every Interval ──bad test──► tested every Retry
//	                        ▲                                │
//	                        └────────── clean tests ─────────┘
//
//	UNTESTED ──a probe came back──► PASSED ──faults past the bounds──► FAILED
//	                                   ◄──ClearTests clean tests in a row──┘
//
// # What is a fault
//
//	altered   a probe came back otherwise than it went: one suffices
//	doubled   it came back twice: one suffices, but on a way through networks that are not ours more
//	          than such a way may double
//	lost      it did not come back, more often than a way that loses ModuleConfig.Loss would in one of
//	          a thousand million windows (LossBound): a lossy link is the link's fault, not ours
//	late      the same size was slower than Limit of what the module has learned in LateTests tests in
//	          a row, or came back when it was given up. What is late while this half was late itself
//	          does not count.
//
// A module whose other end has never answered is untested, not failed: its peer may be of an earlier
// version. It is asked more and more rarely.
//
// # After a restart
//
// What modules were in use and what they had learned is in the copy (Snapshot). A half that was restarted
// tests all of them at once, and is not proven until each has passed, or cannot be tested.
package selftest

// Package selftest finds silent faults in a half (seed 000 §3.1). Loopback messages of several sizes and bit patterns
// pass through the real code path of each logical module in use, beside the real traffic. The package reports messages
// that are lost, altered, doubled or late.
//
// It is pure: it sends nothing and reads no clock. The shell gives a probe to the module and steps the
// machine with the returned probe. It does not decide the consequences of a failure for the node (internal/agent),
// and it does not watch for a half that has stopped: that is the task of the watchdog (pkg/watchdog).
//
// # Adaptive and concurrent
//
// A module is tested while it is in use. The first use after an idle time begins a test, and the message
// follows at once without waiting for the result. After that there is a test every Interval, until the
// module has not been used for IdleAfter. The machine needs no timer of its own: its owner ticks
// it with an existing timer, at least every Config.Tick.
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
// # Faults
//
//	altered   a probe came back with other content: one suffices
//	doubled   it came back twice: one suffices, except on a path through foreign networks, which may double a
//	          limited share
//	lost      it did not come back, and the losses exceed those that a path with ModuleConfig.Loss has in one of
//	          a thousand million windows (LossBound): a lossy link is the link's fault, not ours
//	late      one size was slower than the module's learned Limit in LateTests tests in
//	          a row, or came back after it was given up. Probes that are late while this half itself was late
//	          do not count.
//
// A module whose other end has never answered is untested, not failed: its peer may be of an earlier
// version. It is tested less and less often.
//
// # After a restart
//
// The copy (Snapshot) contains the modules in use and their learned values. A restarted half
// tests all of them at once, and is not proven until each has passed, or cannot be tested.
package selftest

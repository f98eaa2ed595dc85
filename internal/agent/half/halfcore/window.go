package halfcore

import (
	"cmp"
	"strconv"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Window is what a half knows about the way to its other half. The zero Window is one kernel under both halves.
type Window struct {
	State    watchdog.WindowState // 0: there is none
	Silence  time.Duration        // since the last frame
	Platform fault.Platform       // of the two halves; 0: the other one has not named its kernel yet
}

// Bus returns this half's statement on the bus between the two kernels, given its verdict on the other half: FAILED by
// silence if neither that half nor its kernel answers, and NORMAL otherwise. It reports false if there is nothing to
// state: both halves have one kernel, or the other one has not been seen yet.
func (w Window) Bus(node fault.NodeID, v watchdog.Verdict) (o fault.Observation, known bool) {
	if w.State == 0 || v == watchdog.Waiting {
		return fault.Observation{}, false
	}
	o = fault.Observation{Node: node, Component: fault.ComponentBus, State: fault.Normal, Kind: fault.KindSelf}
	if v == watchdog.Stale && w.State == watchdog.WindowSilent {
		o.State, o.Kind, o.Age, o.Detail = fault.Failed, fault.KindSilence, w.Silence, "window silent"
	}
	return o, true
}

// Claimed reports whether another process of this half has the other half's place.
func (w Window) Claimed() bool { return w.State == watchdog.WindowClaimed }

// Ended reports whether the other half's kernel says that its process has ended.
func (w Window) Ended() bool { return w.State == watchdog.WindowRefused }

// DeadHalf is a half's statement that the node's other half is dead.
type DeadHalf struct {
	Node      fault.NodeID
	Component fault.Component
	Health    *lofamov1.HalfHealth // of the dead half; nil: not known
	Ended     string               // how its process ended; empty: not known to have ended
	Otherwise string               // why, if nothing better is known
	Age       time.Duration        // of its last sign of life
	Words     uint32               // serial of its kernel's last words, which go with the report; 0: none
}

// State records in the ledger that the half is FAILED. If another process of the reporter's half has its place, State records UNKNOWN
// instead: a wrong configuration accuses no half. State also records whether the half's process is known to have ended. The detail is the
// daemon's reason for giving the half up or for not starting it, else how the process ended, else Otherwise. A change of Ended alone is
// reported too, because the supervisors wait longer for a process that may only be cut off. Newer last words are reported too.
func (d DeadHalf) State(now time.Time, l *Ledger, w Window) {
	if w.Claimed() {
		l.Because(now, fault.Observation{Node: d.Node, Component: d.Component, State: fault.Unknown, Kind: fault.KindWatchdog,
			Detail: "the other end of the window runs the reporter's half, not this one"}, "claimed")
		return
	}
	ended, why := d.Ended != "" || w.Ended(), ""
	if ended {
		why = "ended"
	}
	if d.Words != 0 {
		why += " words " + strconv.FormatUint(uint64(d.Words), 10)
	}
	refused := ""
	if w.Ended() {
		refused = "its kernel refuses frames: its process has ended"
	}
	l.Because(now, fault.Observation{Node: d.Node, Component: d.Component, State: fault.Failed, Kind: fault.KindWatchdog,
		Detail: cmp.Or(WhyDown(d.Health), d.Ended, refused, d.Otherwise), Age: d.Age, Ended: ended}, why)
}

package halfcore

import (
	"time"

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

// Ended reports whether the other half's kernel says that its process has ended.
func (w Window) Ended() bool { return w.State == watchdog.WindowRefused }

package recovery

import (
	"time"

	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Process is the kernel's view of a half's process at a look.
type Process struct {
	Ran time.Duration // CPU time of all its threads since it began
	// Waited is the time for which its threads have waited for a processor, since they began; a wait counts when it is
	// over. 0: not known.
	Waited time.Duration
	// Waits says that one of its threads waits for a processor or for a disk (state R without running, or D). Something
	// keeps it from running, so no verdict is possible.
	Waits   bool
	Stopped bool // all threads are stopped by a signal, or traced (states T and t)
}

// hang judges whether a half hangs, by the sequence number of its watchdog word.
//
// It counts chance instead of time: the time in which the half could have run but wrote nothing. A half that waits for
// a processor (an overloaded machine, a CPU quota) is charged only the CPU time that it got, if that is less than half
// of the time. A half that waited only between two looks is charged the interval without the wait, but at least a quarter
// of the interval, because other threads may have waited while the half hangs. So the daemon does not end a starved
// half, but it ends one that spins under a quota, once it has spun for as long as it may be silent.
//
// The judge doubts itself first: if a look is late by more than a period, this machine or this process was stopped. The
// count then starts again, up to watchdog.MaxDoubts times between two words. After that, a late look counts as one period.
type hang struct {
	period time.Duration // of looks
	last   time.Time     // look
	seen   bool          // there was a look at this process
	stores uint32        // as last read
	ran    time.Duration
	waited time.Duration // Process.Waited at the last look; 0: unknown
	chance time.Duration // without a store
	doubts int           // since the last word
}

// begin resets the judge for a new process. Its word still holds the previous process's last value.
func (h *hang) begin(now time.Time, stores uint32) {
	*h = hang{period: h.period, last: now, stores: stores}
}

// look takes a look, and reports whether the half has stored since the last one.
func (h *hang) look(now time.Time, l Look) (stored bool) {
	dt, ran, waited := now.Sub(h.last), l.Process.Ran-h.ran, time.Duration(0)
	if h.waited > 0 {
		waited = max(0, l.Process.Waited-h.waited)
	}
	known := h.seen // Ran of the look before
	h.last, h.ran, h.waited, h.seen = now, l.Process.Ran, l.Process.Waited, true
	if l.Readable {
		stored = l.Stores != h.stores
		h.stores = l.Stores
	} else if known {
		// The file is being repaired, or cannot be: a half that runs at all is left alone.
		stored = ran > 0
	}
	late, could := dt > 2*h.period, dt // could: for how long the half could run at most, as far as this look shows
	if late {
		could = h.period
	}
	switch {
	case stored:
		h.chance, h.doubts = 0, 0
		return l.Readable
	case late && h.doubts < watchdog.MaxDoubts:
		h.chance = 0
		h.doubts++
		return false
	case known && 2*ran >= dt:
		h.chance += could
	case !l.Process.Waits:
		h.chance += min(could, max(dt/4, dt-waited))
	case known:
		h.chance += min(could, ran)
	}
	return false
}

// detail describes a hanging half in words.
func (h *hang) detail(p Process) string {
	silent := "nothing written for " + h.chance.Round(time.Millisecond).String()
	switch {
	case p.Stopped:
		return silent + ", stopped"
	case p.Waits:
		return silent + ", busy"
	}
	return silent
}

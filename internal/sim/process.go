package sim

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// maxStoppedQueue is the number of events that a stopped process keeps in its sockets; further ones are lost, as in a
// socket's buffer.
const maxStoppedQueue = 256

// Limits on the wake-ups of a process within tickSpan: of a half, whose periods are longer, and of a supervisor, which
// wakes for every node. A spinning process wakes some six times a millisecond. A few reports of a half, each with its
// own deadline, may do so for one millisecond, but not for four.
const (
	tickSpan           = 4 * time.Millisecond
	maxTicks           = 16
	maxSupervisorTicks = 200
)

// process is a half or a supervisor, as its operating system sees it.
//
// It has its own clock, which starts with its machine's wall clock and is monotonic from there, as time.Now is in Go.
// This detects a machine that uses another's time for its own, or is affected by a step of the wall clock (faults.md
// row 11).
type process struct {
	w       *World
	running bool
	stopped bool
	life    uint64 // of this start: events of an earlier one are dropped
	waiting []func()
	epoch   fault.Epoch
	cold    bool // nothing of the life before remains except data on disk
	name    string
	wall    time.Duration // present error of its machine's wall clock
	base    time.Duration // that error when the process started
	rate    float64       // by how much its clock is too fast, such as 0.0001

	tick    func() // work of its one timer
	wake    time.Time
	armed   bool
	armedAt time.Time
	arms    uint64 // number of the newest timer: older ones were reset

	born     time.Time // began this life
	started  time.Time // began it, or was last continued
	lived    time.Time // last, if it is not up
	maxTicks int
	ticks    int // since lastTick, less than tickSpan later
	lastTick time.Time
}

// clock is the process' own time.
func (p *process) clock() time.Time { return fast(p.w.now, p.rate).Add(p.base) }

// fast returns the time of a clock that is too fast by a rate.
func fast(now time.Time, rate float64) time.Time {
	return now.Add(time.Duration(float64(now.Sub(began)) * rate))
}

// moment returns when the process' clock shows a time.
func (p *process) moment(t time.Time) time.Time {
	if t = t.Add(-p.base); p.rate == 0 {
		return t
	}
	return began.Add(time.Duration(float64(t.Sub(began))/(1+p.rate)) + 1) // no later by its own clock than it thinks
}

// become starts the process; tick is the work of its timer. A resuming process keeps the epoch of its previous life.
func (p *process) become(tick func(), goesOn bool) {
	p.running, p.born, p.started, p.tick, p.cold = true, p.w.now, p.w.now, tick, false
	p.life++
	if !goesOn {
		p.epoch++
	}
	p.base, p.armed, p.wake = p.wall, false, time.Time{}
}

// deliver gives the process an event after a delay, if it still lives then.
func (p *process) deliver(d time.Duration, do func()) {
	life := p.life
	p.w.after(d, func() {
		switch {
		case !p.running || p.life != life:
		case p.stopped:
			if len(p.waiting) < maxStoppedQueue {
				p.waiting = append(p.waiting, do)
			}
		default:
			do()
		}
	})
}

// again calls do every period while this life of the process lasts. While stopped, it misses its turns, as with a
// ticker.
func (p *process) again(first, period time.Duration, do func()) {
	life := p.life
	p.w.after(first, func() {
		if !p.running || p.life != life {
			return
		}
		if !p.stopped {
			do()
		}
		p.again(period, period, do)
	})
}

// sleepUntil sets the process' one timer, by its own clock; the zero time: none is needed.
func (p *process) sleepUntil(t time.Time) {
	if t.IsZero() {
		p.wake = t
		return
	}
	p.wake = p.moment(t)
	if !p.armed || p.wake.Before(p.armedAt) {
		p.arm()
	}
}

// arm sets a timer for p.wake. A timer that fires too early sets itself again: most steps postpone the wake-up, and a
// timer for each would leave an event behind.
func (p *process) arm() {
	p.arms++
	p.armed, p.armedAt = true, p.wake
	n, life := p.arms, p.life
	p.w.after(p.wake.Sub(p.w.now)+p.w.between(wakeDelayMin, wakeDelayMax), func() {
		if p.arms != n || p.life != life || !p.running || p.stopped {
			return
		}
		p.armed = false
		switch {
		case p.wake.IsZero():
		case p.w.now.Before(p.wake):
			p.arm()
		default:
			p.ring()
		}
	})
}

func (p *process) ring() {
	if p.w.now.Sub(p.lastTick) > tickSpan {
		p.ticks, p.lastTick = 0, p.w.now
	}
	if p.ticks++; p.ticks == p.maxTicks {
		p.w.violate("%s wants to be woken %d times within %s: it would spin", p.name, p.ticks, tickSpan)
	}
	p.tick()
}

func (p *process) kill() {
	if p.up() {
		p.lived = p.w.now
	}
	p.running, p.stopped, p.waiting = false, false, nil
	p.life++
}

// up reports whether the process works now.
func (p *process) up() bool { return p.running && !p.stopped }

// halfReady is the time from a half's start until its other half and its links know it.
const halfReady = 500 * time.Millisecond

// ready reports whether a half can be expected to answer: one that has just started, or was just continued, has no
// links yet and does not know its other half.
func (p *process) ready() bool { return p.up() && p.w.now.Sub(p.started) > halfReady }

func (p *process) stop() {
	if p.up() {
		p.lived = p.w.now
	}
	p.stopped = p.running
}

// livedAfter reports whether the process was up at some time after t.
func (p *process) livedAfter(t time.Time) bool { return p.up() || p.lived.After(t) }

// resume continues a stopped process: it finds its timer expired and its sockets full.
func (p *process) resume() {
	if !p.stopped {
		return
	}
	p.stopped, p.started = false, p.w.now
	waiting := p.waiting
	p.waiting = nil
	for _, do := range waiting {
		p.deliver(0, do)
	}
	if p.armed = false; !p.wake.IsZero() {
		p.arm()
	}
}

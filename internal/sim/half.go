package sim

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// maxStoppedQueue is how many events a stopped half finds in its sockets when it goes on; what
// comes on top is lost, as in a socket's buffer.
const maxStoppedQueue = 256

// maxTicks is how often a half may want to be woken within a millisecond, its periods being longer.
const maxTicks = 5

// process is what a half is to its operating system.
type process struct {
	w       *World
	running bool
	stopped bool
	life    uint64 // of this start: events of an earlier one find nobody
	waiting []func()
	wakeAt  uint64 // number of the newest timer: older ones were reset
	epoch   fault.Epoch
	name    string

	started  time.Time
	ticks    int // since lastTick, less than a millisecond later
	lastTick time.Time
}

// deliver gives the half an event after a delay, if it still lives then.
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

// sleepUntil sets the half's one timer.
func (p *process) sleepUntil(t time.Time, tick func()) {
	p.wakeAt++
	n := p.wakeAt
	p.deliver(t.Sub(p.w.now)+p.w.between(wakeDelayMin, wakeDelayMax), func() {
		if p.wakeAt != n {
			return
		}
		if p.w.now.Sub(p.lastTick) > time.Millisecond {
			p.ticks, p.lastTick = 0, p.w.now
		}
		if p.ticks++; p.ticks == maxTicks {
			p.w.violate("%s wants to be woken %d times within a millisecond: it would spin", p.name, p.ticks)
		}
		tick()
	})
}

func (p *process) kill() {
	p.running, p.stopped, p.waiting = false, false, nil
	p.life++
}

// up says whether the half does its work now.
func (p *process) up() bool { return p.running && !p.stopped }

// ready says whether the half can be asked to answer: one that has just started, or goes on after it was
// stopped, has no links yet and does not know its other half.
func (p *process) ready() bool { return p.up() && p.w.now.Sub(p.started) > 500*time.Millisecond }

func (p *process) stop() { p.stopped = p.running }

// resume continues a stopped half: it finds its timer expired and its sockets full.
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
}

// registers is the page that the halves of a node share. Guards and torn words are regfile's own
// business and tested there.
type registers struct {
	dnp        watchdog.DNPWord
	host       watchdog.HostWord
	descriptor watchdog.DescriptorWord
	details    [grid.NumDirections]uint32
	causes     [grid.NumDirections]uint32
	words      map[watchdog.Addr]uint32
}

// cable is what may be wrong with one direction of a link, at its sending end.
type cable struct {
	cut     bool
	corrupt float64 // share of the frames that arrive damaged
	lose    float64
	session uint32 // that the receiving end has keys for
	before  uint32 // the one before it
}

// good says whether most of what is sent arrives.
func (c *cable) good() bool { return !c.cut && c.corrupt < 0.5 && c.lose < 0.5 }

// reading is what a simulated sensor shows.
type reading struct {
	state fault.State
	value float64
}

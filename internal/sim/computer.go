package sim

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Fences gives every machine of a world a hardware watchdog. The recovery daemons decide with recovery.Feeder, as in the product; the
// device, the daemon's files and its questions to the halves are simulated.
type Fences struct {
	Timeout, ContactWithin time.Duration
	// Drift bounds by how much a clock is too fast or too slow: the machines', the devices' and the supervisors'.
	Drift float64
	// Reboot is the time from a reset until the next boot, at most.
	Reboot time.Duration
}

// Times of the daemon, as in internal/agent/daemon.
const (
	hardwareLook   = time.Second
	askWithin      = hardwareLook / 2
	announceWithin = 2 * time.Second
	askEvery       = 20 * time.Millisecond // whether the announcement is committed
)

// Times of the workload's writer after the map calls its node NORMAL: the scheduler of the workload starts it then.
const writerMin, writerMax = time.Second, 5 * time.Second

// computer is the rest of a node: its boots, its device, the daemon that feeds the device, and a workload that writes to shared storage.
//
//	off ──boot──► on ──power loss, or the device is not fed in time──► off
type computer struct {
	n     *node
	on    bool
	boot  uint32
	rate  float64   // of its clock
	cutAt time.Time // when it was last cut off
	// writes: the workload may write to shared storage, until this boot ends.
	writes bool

	daemon   process
	feeder   *recovery.Feeder
	settings Fences                     // of the next daemon; without Timeout it feeds no device
	record   *lofamov1.HardwareWatchdog // that the daemon last stated, for the halves
	due      time.Time                  // of the next look, by the machine's clock
	announce func(committed bool)       // called when the present announcement ends; nil: there is none

	open    bool // the daemon holds the device
	armed   bool
	timeout time.Duration
	crystal float64 // by how much the device's clock is too fast
	fed     uint64  // how often it was fed or disarmed

	disk left
}

// left holds the files of the daemon in its state directory.
type left struct {
	boot                   uint32 // in which it has armed the device, and not disarmed it; 0: none
	timeout, contactWithin time.Duration
	contactBoot            uint32
	contact                time.Time // the last one in contactBoot, by the machine's clock
}

func newComputer(n *node, f Fences) *computer {
	m := &computer{n: n, settings: f, rate: n.w.drift(f.Drift), crystal: n.w.drift(f.Drift), on: true, boot: 1, writes: true}
	m.daemon.w, m.daemon.name = n.w, string(n.id())+"/daemon"
	n.host.rate, n.dnp.rate = m.rate, m.rate
	return m
}

// drift returns a random error of a clock.
func (w *World) drift(most float64) float64 { return most * (2*w.rnd.Float64() - 1) }

// startMachines starts the daemons, and makes the supervisors' clocks inexact.
func (w *World) startMachines() {
	if w.cfg.Fences == nil {
		return
	}
	for _, r := range w.replicas {
		r.rate = w.drift(w.cfg.Fences.Drift)
	}
	for _, n := range w.nodes {
		w.after(w.between(0, time.Second), n.machine.startDaemon)
	}
}

// clock returns the time since the boot of the world by the machine's clock, which no step of the wall clock changes.
func (m *computer) clock() time.Time { return fast(m.n.w.now, m.rate) }

// startDaemon starts the daemon. A running one goes on.
func (m *computer) startDaemon() {
	if !m.on || m.daemon.running {
		return
	}
	m.daemon.become(func() {}, false)
	m.feeder = nil
	if m.settings.Timeout == 0 {
		m.state(nil)
		return
	}
	contactWithin := m.settings.ContactWithin
	if m.n.w.cfg.bug == bugFed {
		contactWithin = 0
	}
	m.feeder = recovery.NewFeeder(m.clock(), m.settings.Timeout, contactWithin, m.left())
	m.tell(false)
	m.lookAt(m.clock().Add(m.n.w.between(0, hardwareLook)))
}

// left returns the records of an earlier daemon of this boot; nil: it left no armed device.
func (m *computer) left() *recovery.Left {
	d := &m.disk
	if d.boot != m.boot {
		return nil
	}
	l := &recovery.Left{Timeout: d.timeout, ContactWithin: d.contactWithin, Alone: -1}
	if d.contactBoot == m.boot {
		l.Alone = m.clock().Sub(d.contact)
	}
	switch m.n.w.cfg.bug {
	case bugForgotten:
		l.Alone = 0
	case bugSettings:
		l.Timeout = 0
	default:
	}
	return l
}

// look is one look of the daemon, as hardware.look: it reads the registers, asks the host half if it must, and decides.
func (m *computer) look() {
	n, w := m.n, m.n.w
	began := m.clock()
	if w.cfg.bug == bugPause {
		began = m.due
	}
	l := recovery.FenceLook{Readable: [2]bool{true, true}, Stores: n.page.stores}
	for _, d := range grid.Directions() {
		det, err := torus.DecodeDetail(n.page.details[d.Index()])
		l.Links = l.Links || err == nil && (det.Rx == torus.LinkNormal || det.Rx == torus.LinkSick) &&
			(det.Tx == torus.LinkNormal || w.cfg.bug == bugOneWay)
	}
	act := func() {
		m.feeder.Take(began, l)
		now := m.clock()
		if w.cfg.bug == bugPause {
			now = began
		}
		if at, keep := m.feeder.Keep(); keep {
			m.disk.contactBoot, m.disk.contact = m.boot, at
			m.feeder.Kept(at)
		}
		switch do, _ := m.feeder.Next(now); do {
		case recovery.Feed:
			m.feed()
		case recovery.Open:
			if !m.feeder.Resumed() {
				m.disk.boot, m.disk.timeout, m.disk.contactWithin = m.boot, m.feeder.Timeout(), m.feeder.ContactWithin()
			}
			m.open, m.armed, m.timeout = true, true, m.feeder.Timeout()
			m.feed()
			m.feeder.Opened(m.clock(), true)
			m.tell(true)
		case recovery.Wait, recovery.Starve:
		}
		m.lookAt(began.Add(hardwareLook))
	}
	if l.Links || m.feeder.ContactWithin() == 0 {
		m.daemon.deliver(w.between(0, 2*time.Millisecond), act)
		return
	}
	life := m.daemon.life
	asked := false
	answer := func(is bool) {
		if !asked && m.daemon.life == life {
			asked, l.Service = true, is
			m.daemon.deliver(0, act)
		}
	}
	n.host.deliver(w.between(0, 20*time.Millisecond), func() {
		answer(n.hostCore.SupervisorAnswers() || w.cfg.bug == bugGossip && n.hearsGossip())
	})
	m.daemon.deliver(askWithin, func() { answer(false) })
}

// lookAt schedules the next look. A daemon that does not run meanwhile looks as soon as it does.
func (m *computer) lookAt(due time.Time) {
	m.due = due
	m.daemon.deliver(due.Sub(m.clock()), m.look)
}

// feed restarts the device's time.
func (m *computer) feed() {
	if m.fed++; !m.armed {
		return
	}
	fed, boot := m.fed, m.boot
	m.n.w.after(time.Duration(float64(m.timeout)/(1+m.crystal)), func() {
		if m.armed && m.fed == fed && m.boot == boot {
			m.n.w.resets++
			m.down(m.n.w.between(m.settings.Reboot/4, m.settings.Reboot))
		}
	})
}

// killDaemon ends the daemon's process. The kernel then feeds a device that is still armed (watchdog_release in Linux).
func (m *computer) killDaemon() {
	m.daemon.kill()
	if m.open && m.armed && !m.n.w.cfg.bug.needsStrictDevice() {
		m.feed()
	}
	m.open = false
}

// disarm stops the device.
func (m *computer) disarm() {
	m.armed = false
	m.fed++
	m.disk.boot = 0
}

// tell states the device.
func (m *computer) tell(armed bool) {
	contactWithin := m.feeder.ContactWithin()
	if m.n.w.cfg.bug == bugFed {
		contactWithin = m.settings.ContactWithin
	}
	m.state(&lofamov1.HardwareWatchdog{Armed: armed, TimeoutMs: uint32(m.feeder.Timeout().Milliseconds()),
		ContactWithinMs: uint32(contactWithin.Milliseconds()), Boot: m.boot})
}

// state gives the halves a record of the daemon, now and whenever they start.
func (m *computer) state(is *lofamov1.HardwareWatchdog) {
	m.record = is
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		m.restate(h)
	}
	life := m.daemon.life
	m.daemon.deliver(halfcore.HealthRepeat, func() {
		if m.record == is && m.daemon.life == life {
			m.state(is)
		}
	})
}

// restate gives a half the daemon's record. A half reads it when it starts.
func (m *computer) restate(h fault.Half) {
	said := &lofamov1.HalfHealth{HardwareWatchdog: m.record, Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING}}
	m.n.process(h).deliver(m.n.w.between(wakeDelayMin, 20*time.Millisecond), func() {
		if h == fault.HalfHost {
			m.n.stepHost(hostcore.Health{Half: fault.HalfHost, Health: said})
		} else {
			m.n.stepDNP(dnpcore.Health{Half: fault.HalfHost, Health: said})
		}
	})
}

// down ends the boot: by the device, or a power loss. The next one follows after a time.
func (m *computer) down(after time.Duration) {
	if !m.on {
		return
	}
	n := m.n
	m.on, m.writes, m.open, m.armed, m.record, m.announce = false, false, false, false, nil, nil
	m.fed++
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		n.process(h).kill()
		n.process(h).cold = true
	}
	m.daemon.kill()
	n.w.after(after, m.up)
}

// up boots the machine. The halves take up to a second.
func (m *computer) up() {
	if m.on {
		return
	}
	m.on = true
	m.boot++
	m.startAgent()
}

// startAgent starts the daemon, and it starts the halves.
func (m *computer) startAgent() {
	w, boot := m.n.w, m.boot
	in := func(most time.Duration, do func()) {
		w.after(w.between(0, most), func() {
			if m.on && m.boot == boot {
				do()
			}
		})
	}
	in(agentStart, func() { m.n.start(fault.HalfDNP) })
	in(agentStart, func() { m.n.start(fault.HalfHost) })
	in(2*time.Second, func() {
		m.startDaemon()
		m.n.host.deliver(returnAfter, func() { m.n.stepHost(hostcore.Stop{Notice: fault.StopOver}) })
	})
}

// stopAgent is an orderly stop: the daemon announces it, ends the feeding, and ends the halves.
func (m *computer) stopAgent() {
	if !m.daemon.up() || m.announce != nil {
		return
	}
	end := func(committed bool) {
		m.announce = nil
		if m.n.w.cfg.bug == bugStop {
			committed = true
		}
		if m.feeder != nil && m.feeder.Disarm(committed) {
			m.tell(false)
			m.disarm()
		}
		m.n.host.kill()
		m.n.dnp.kill()
		m.killDaemon()
	}
	m.announce = end
	life := m.daemon.life
	m.n.announce(stopNotice, m.daemon.deliver, func() bool { return m.daemon.life == life && m.announce != nil }, end)
}

// stopNotice announces a stop of the agent.
var stopNotice = []hostcore.Notice{hostcore.Stop{Notice: fault.StopDaemon}}

// announce has the host half announce a stop or restarts. It calls end when the supervisors have committed all announcements, or after
// announceWithin. The daemon asks at intervals, by after, and no more once still is false.
func (n *node) announce(notices []hostcore.Notice, after func(time.Duration, func()), still func() bool, end func(committed bool)) {
	n.waits = nil
	for _, notice := range notices {
		n.waits = append(n.waits, notice.Kind())
		n.host.deliver(0, func() { n.stepHost(notice) })
	}
	until := n.w.now.Add(announceWithin)
	var wait func()
	wait = func() {
		switch {
		case !still():
		case len(n.waits) == 0 || !n.w.now.Before(until):
			end(len(n.waits) == 0)
		default:
			after(askEvery, wait)
		}
	}
	after(askEvery, wait)
}

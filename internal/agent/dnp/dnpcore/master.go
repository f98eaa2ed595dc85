package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Selection of a master (seed 003 §4.4.4; express.Master) in a DNP half. It serves a part of the torus whose nodes
// cannot tell whether any of them reaches the supervisors. Nodes whose host half reaches the supervisors take
// precedence, so the master tells both who speaks for the part and whether the part is cut off. Any node of such a rack
// shows the result (lofamo-agent status).
//
// A node begins a round once its own host half has been dead or without service network for masterAfter. While that
// lasts it begins another every masterAgain, or as soon as the last round can be over. In a healthy cluster no node
// sends anything.

const (
	masterPriority express.Priority = 5
	masterAfter                     = 10 * time.Second
	masterAgain                     = 30 * time.Second
)

// mastership holds the machine's state of the selection.
type mastership struct {
	machine *express.Master // nil: there was no round yet
	wake    time.Time       // zero: nothing is due
	alone   time.Time       // when this node's host half last lost the supervisors; zero: it reaches them
	round   time.Time       // when the last round began, here or elsewhere
	rank    int             // the chosen rank
	known   bool
}

// alone reports whether this node has no route of its own to the supervisors.
func (m *Machine) alone() bool {
	return m.verdict == watchdog.Stale || m.verdict == watchdog.Alive && m.host.ServiceNetwork == watchdog.HealthBroken
}

// tickMaster does the due work, which is almost always none.
func (m *Machine) tickMaster(now time.Time) {
	k := &m.master
	if m.express.machine == nil {
		return
	}
	if !k.wake.IsZero() && !now.Before(k.wake) {
		m.chooseMaster(now, k.machine.Tick(now))
	}
	switch alone := m.alone(); {
	case !alone:
		k.alone = time.Time{}
	case k.alone.IsZero():
		k.alone = now
	case now.Sub(k.alone) >= masterAfter && now.Sub(k.round) >= m.masterEvery():
		k.round = now
		m.setMaster()
		// The time serves as the round, so that a restarted half is not behind the others' rounds. Skewed clocks do no
		// harm, because the last round is forgotten by now.
		out, err := k.machine.Begin(now, uint64(max(1, now.UnixMilli())))
		if err == nil {
			m.chooseMaster(now, out)
		}
	}
}

// masterEvery returns the time between two rounds. If the Network Delay is only a margin, a round may take longer than
// usual.
func (m *Machine) masterEvery() time.Duration {
	if m.master.machine == nil {
		return masterAgain
	}
	return max(masterAgain, m.master.machine.Round())
}

// setMaster updates this node's priority.
func (m *Machine) setMaster() {
	dims := m.cfg.Topo.Dims
	rank := dims.Rank(m.cfg.Topo.Coord)
	if m.alone() {
		rank += dims.Places()
	}
	if m.master.machine == nil {
		m.master.machine = &express.Master{}
	}
	m.master.machine.Set(uint32(rank), m.networkDelay())
}

// onMaster handles another node's claim in a round.
func (m *Machine) onMaster(now time.Time, body []byte) {
	m.setMaster()
	out, err := m.master.machine.Heard(now, body)
	if err != nil {
		m.note(NoteRefused, "selection of a master: %v", err)
		return
	}
	m.master.round = now
	m.chooseMaster(now, out)
}

func (m *Machine) chooseMaster(now time.Time, out express.MasterOutput) {
	k := &m.master
	k.wake = out.Wake
	if out.Claim != nil {
		_, _ = m.raiseEureka(now, express.TopicMaster, masterPriority, out.Claim) // if refused, another round follows
	}
	if !out.Chosen || k.known && int(out.Rank) == k.rank {
		return
	}
	k.rank, k.known = int(out.Rank), true
	at, cutOff, _ := m.Master(now)
	m.note(NoteMaster, "master of the part of the torus that this node is in: %s; it is cut off from all supervisors: %t",
		m.cfg.Topo.ID(m.cfg.Topo.Dims.At(at)), cutOff)
}

// Master returns the rank of the node that speaks for this part of the torus, and whether the part is cut off from all
// supervisors. The result is known only while a node of the part has no route of its own to the supervisors.
func (m *Machine) Master(now time.Time) (rank int, cutOff, known bool) {
	k, places := &m.master, m.cfg.Topo.Dims.Places()
	if !k.known || k.rank >= 2*places || now.Sub(k.round) >= 2*m.masterEvery() {
		return 0, false, false
	}
	return k.rank % places, k.rank >= places, true
}

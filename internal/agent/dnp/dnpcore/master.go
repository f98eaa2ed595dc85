package dnpcore

import (
	"time"

	"github.com/lofamo/lofamo/pkg/torus/express"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Selection of a master (seed 003 §4.4.4; express.Master) in a DNP half. It is for the part of the torus that a node is in when
// it cannot tell whether anybody there reaches the supervisors: nodes whose host half reaches them go before all others, so that
// the master of a part tells both who speaks for it, and whether it is cut off. People who stand before such a rack ask any of
// its nodes (lofamo-agent status).
//
// A round is begun by a node whose own host half is dead, or has no service network, for masterAfter; and again every masterAgain
// while it is so, or as often as there is time for a round. In a cluster that is well nobody says anything.

const (
	masterPriority express.Priority = 5
	masterAfter                     = 10 * time.Second
	masterAgain                     = 30 * time.Second
)

// mastership is what the machine keeps of it.
type mastership struct {
	machine *express.Master // nil: there was no round yet
	wake    time.Time       // zero: nothing is due
	alone   time.Time       // since when the own host half reaches nobody; zero: it does
	round   time.Time       // when the last one was begun, here or elsewhere
	rank    int             // that was chosen
	known   bool
}

// alone says whether this node has no way of its own to the supervisors.
func (m *Machine) alone() bool {
	return m.verdict == watchdog.Stale || m.verdict == watchdog.Alive && m.host.ServiceNetwork == watchdog.HealthBroken
}

// tickMaster does what is due, which is next to always nothing.
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
		// The time, so that a half that begins anew is not behind the others' rounds. Where clocks are apart that does not matter: by
		// now the last round is forgotten.
		out, err := k.machine.Begin(now, uint64(max(1, now.UnixMilli())))
		if err == nil {
			m.chooseMaster(now, out)
		}
	}
}

// masterEvery is the time between two rounds. Where the Network Delay is a margin a round may take longer than usual.
func (m *Machine) masterEvery() time.Duration {
	if m.master.machine == nil {
		return masterAgain
	}
	return max(masterAgain, m.master.machine.Round())
}

// setMaster brings the own priority up to date.
func (m *Machine) setMaster() {
	dims := m.cfg.Topo.Dims
	rank := dims.Rank(m.cfg.Topo.Coord)
	if m.alone() {
		rank += dims.Nodes()
	}
	if m.master.machine == nil {
		m.master.machine = &express.Master{}
	}
	m.master.machine.Set(uint32(rank), m.networkDelay())
}

// onMaster takes what another node says of a round.
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
		_, _ = m.raiseEureka(now, express.TopicMaster, masterPriority, out.Claim) // refused: another round follows
	}
	if !out.Chosen || k.known && int(out.Rank) == k.rank {
		return
	}
	k.rank, k.known = int(out.Rank), true
	at, cutOff, _ := m.Master(now)
	m.note(NoteMaster, "master of the part of the torus that this node is in: %s; it is cut off from all supervisors: %t",
		m.cfg.Topo.ID(m.cfg.Topo.Dims.At(at)), cutOff)
}

// Master returns who speaks for the part of the torus that this node is in, by its rank, and whether that is cut off from all
// supervisors. It is known only while there is a node there that has no way of its own to the supervisors.
func (m *Machine) Master(now time.Time) (rank int, cutOff, known bool) {
	k, nodes := &m.master, m.cfg.Topo.Dims.Nodes()
	if !k.known || k.rank >= 2*nodes || now.Sub(k.round) >= 2*m.masterEvery() {
		return 0, false, false
	}
	return k.rank % nodes, k.rank >= nodes, true
}

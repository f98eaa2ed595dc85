package awareness

import (
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Hints that a process has ended shorten the wait for its answer. They come from the node's kernels: a kernel refuses
// frames or challenges because no process listens there, or it confirms the end of a half to the other half. A process
// that hangs or is late does not cause such a hint.
//
// A hint is no accusation and no vote. The accusers, the quorum, the challenges and all other conditions of a verdict
// stay the same; an answer disproves every hint. So a false hint costs a healthy node only time to answer, and only once
// a quorum accuses the node.

// refusedEnough is the number of challenges of one round that must come back, a quarter of ChallengeHalf apart.
const refusedEnough = 2

// hintedWait is the wait for an answer of a process that has probably ended: time for two straight challenges and for
// an answer by another rail.
func (m *Machine) hintedWait() time.Duration { return m.cfg.ChallengeHalf / 2 }

// waitForNode returns the wait for an answer of a node with these votes. It is short if hints say that both of its
// halves have ended: its kernel refuses the frames of a quorum of accusers, which went to the DNP half, and this
// leader's challenges, which went to the host half.
func (m *Machine) waitForNode(n *node, v votes, single bool, now time.Time) time.Duration {
	r := &n.rounds[0]
	switch {
	case single:
		return m.cfg.ChallengeSingle
	case r.refused < refusedEnough || v.ended < Quorum(len(n.neighbours)):
		return m.cfg.ChallengeNode
	case !now.After(r.refusedAt):
		// The next Tick reaches the verdict: it comes after all answers that have arrived.
		n.wakeAt(r.refusedAt.Add(time.Microsecond), now)
		return m.cfg.ChallengeNode
	}
	return min(m.hintedWait(), m.cfg.ChallengeNode)
}

// waitForHalf returns the wait for an answer of an accused half. It is short if the accuser is the node's other half,
// and that half's kernel has confirmed the end of the process. It is as long as that of a node if the other half has
// another kernel and has heard only silence. A DNP half behind a cut bus answers through its neighbours and their buses.
func (m *Machine) waitForHalf(n *node, a accusation) time.Duration {
	switch {
	case a.ofOtherHalf() && a.record.ended:
		return m.hintedWait()
	case a.bus && n.platform() == fault.PlatformDPU:
		return m.cfg.ChallengeNode
	}
	return m.cfg.ChallengeHalf
}

// refused notes that a challenge came back unread. Only challenges count that went straight to the node: neighbours
// forward the others, and could quote them.
func (m *Machine) refused(ev Refused, now time.Time) {
	rank, ok := m.ranks[ev.Node]
	if !ok {
		return
	}
	n := m.nodes[rank]
	for i := range n.nonces {
		c := &n.nonces[i]
		if c.value != ev.Nonce || !c.again || c.back {
			continue
		}
		c.back = true
		if r := &n.rounds[0]; r.open && c.serial > r.since.serial {
			r.refused, r.refusedAt = r.refused+1, now
			m.touch(n)
		}
		return
	}
}

package dnpcore

import (
	"errors"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Channel protocol checks (seed 003 §5.2.1.2) detect behaviour of a neighbour that no loss, delay, duplicate or restart
// explains. Then the neighbour or its link is faulty, or another node's. Most control sequences turn out to be legal
// (§5.2.1.2), so only unambiguous ones are checked. Each rule has a counter for each link, and all but RuleRate a bit
// in register router 0, which does not make this node's core sick.

var ruleBits = [halfcore.Rules]uint32{
	halfcore.RuleAck: watchdog.RouterProtocolAck, halfcore.RuleOrder: watchdog.RouterProtocolOrder,
	halfcore.RuleStream: watchdog.RouterProtocolStream,
	halfcore.RuleHops:   watchdog.RouterProtocolHops, halfcore.RuleOutside: watchdog.RouterProtocolOutside,
	halfcore.RuleBack:    watchdog.RouterProtocolBack,
	halfcore.RuleExpress: watchdog.RouterProtocolExpress, halfcore.RuleMalformed: watchdog.RouterProtocolMalformed,
}

// breaks notes that a neighbour has broken a rule, n times.
func (m *Machine) breaks(now time.Time, l *link, r halfcore.Rule, n uint64) {
	if l.protocol[r] == 0 {
		m.note(NoteProtocol, "link %s: the neighbour breaks rule %s of the channel protocol", l.dir, r)
	}
	l.protocol[r] += n
	m.evidence("link %s: the neighbour breaks rule %s of the channel protocol", l.dir, r)
	m.raise(now, watchdog.AddrRouter0, ruleBits[r])
}

// relayed decodes a message from a neighbour, and reports whether it could. A neighbour of a later version may send
// versions and kinds that are unknown here: they are dropped and break no rule.
func (m *Machine) relayed(now time.Time, from *link, payload []byte) (halfcore.Relay, bool) {
	msg, err := halfcore.DecodeRelay(payload)
	switch {
	case errors.Is(err, halfcore.ErrRelayVersion), errors.Is(err, halfcore.ErrRelayKind):
	case err != nil:
		m.breaks(now, from, halfcore.RuleMalformed, 1)
	}
	return msg, err == nil
}

// checkHop checks the header of a frame of TypeHop that arrived with a boot epoch.
func (m *Machine) checkHop(now time.Time, l *link, epoch fault.Epoch, hd torus.HopHeader) {
	if l.hop.Impossible(hd) {
		m.breaks(now, l, halfcore.RuleAck, 1)
	}
	switch {
	case l.hop.Renamed(hd):
		if epoch == l.rxEpoch && epoch != 0 {
			m.breaks(now, l, halfcore.RuleStream, 1)
		}
		l.rxEpoch = epoch
	case l.rxEpoch == 0 && hd.Stream != 0:
		l.rxEpoch = epoch
	}
}

// lawful checks a message from a neighbour, and reports whether it is possible. Impossible messages are dropped.
func (m *Machine) lawful(now time.Time, from *link, msg *halfcore.Relay) bool {
	before, recorded := msg.Previous()
	switch {
	case msg.Made == 0 || msg.Made > msg.Limit:
		m.breaks(now, from, halfcore.RuleHops, 1)
	case msg.Kind != halfcore.RelayUp && m.cfg.Topo.Dims.Vacant(msg.Dst): // a node there has left, or has just joined
	case msg.Kind != halfcore.RelayUp && !m.cfg.Topo.Dims.Contains(msg.Dst) && m.mayGrow(msg.Dst): // the neighbour knows of it first
	case msg.Kind != halfcore.RelayUp && !m.cfg.Topo.Dims.Contains(msg.Dst):
		m.breaks(now, from, halfcore.RuleOutside, 1)
	case msg.Kind == halfcore.RelayUp && recorded && before == m.cfg.Topo.Coord && msg.Hops[len(msg.Hops)-1].Coord == from.dst:
		// No node floods a message back to its previous station; routed messages may return, if no other link is
		// functional.
		m.breaks(now, from, halfcore.RuleBack, 1)
	default:
		return true
	}
	return false
}

// maxGrowth is the number of planes by which a torus may have grown in one dimension while this half's order is on its
// way: nodes get another torus in waves, and neighbours need not be in the same one.
const maxGrowth = 8

// mayGrow reports whether a place outside the torus may lie in one that a neighbour holds already.
func (m *Machine) mayGrow(at grid.Coord) bool {
	d := m.cfg.Topo.Dims
	return m.peers.cfg != nil && at.X < d.X+maxGrowth && at.Y < d.Y+maxGrowth && at.Z < d.Z+maxGrowth
}

// ProtocolStats returns how often the neighbour at each link has broken each rule; zero where there is none.
func (m *Machine) ProtocolStats() (out [grid.NumDirections][halfcore.Rules]uint64) {
	for i, l := range m.links {
		if l != nil {
			out[i] = l.protocol
		}
	}
	return out
}

package dnpcore

import (
	"fmt"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/peers"
)

// When a node is replaced, all its neighbours are informed (seed 003 §5.2.3.2). The supervisors' order names the peers
// at the other ends of the links and applies at once: the affected links start again and cold, and the others are not
// touched. The half acknowledges the order once it is on disk.
//
//	speaking with A ──word: B is there──► UNKNOWN, no session ──handshake with B──► NORMAL
//
// Messages that waited for A have no particular receiver then, and take any route that leads on.

// peerWord holds the machine's state of its peers.
type peerWord struct {
	order.Holder[peers.State]
	cfg *halfcore.PeersConfig // nil: the half knows no peer orders, like those of earlier versions
	// around holds the peers of the present links. After an order that takes the place away, or gives another one, it keeps the former peers.
	around [grid.NumDirections]peers.Peer
	asked  bool // the supervisors wait for an answer
	said   int  // the number of statuses sent
}

const (
	// peersAgain is the time between two statuses of a half that holds an order. A new leader learns of the order from
	// them.
	peersAgain = 30 * time.Second
	// peersSaid is how often a half repeats its unrequested status after its start, because messages may be lost.
	peersSaid = 3
)

func newPeerWord(cfg Config, now time.Time) peerWord {
	if cfg.Peers == nil {
		return peerWord{}
	}
	k := peerWord{cfg: cfg.Peers, Holder: order.Holder[peers.State]{State: cfg.Peers.State, Lost: cfg.Peers.Lost}}
	k.around = k.State.Over(k.cfg.Configured)
	k.Tell(now.Add(cfg.Periods.DigestPeriod))
	return k
}

// PeersKept reports that this state is on disk, or the disk's error.
type PeersKept struct {
	State peers.State
	Err   error // nil: it is on disk
}

func (PeersKept) dnpEvent() {}

// onPeersKept reports a stored state to the supervisors, unless a newer one is waiting for the disk.
func (m *Machine) onPeersKept(now time.Time, ev PeersKept) {
	if m.peers.Stored(now, ev.State, ev.Err) {
		m.tickPeers(now)
	}
}

// Peers returns the peer state to store.
func (m *Machine) Peers() peers.State { return m.peers.State }

// LinkTo returns the place of the node at the other end of a link, and false where there is no link.
func (m *Machine) LinkTo(d grid.Direction) (grid.Coord, bool) {
	if l := m.links[d.Index()]; l != nil {
		return l.dst, true
	}
	return grid.Coord{}, false
}

// Torus returns the present torus.
func (m *Machine) Torus() grid.Dims { return m.cfg.Topo.Dims }

// Around returns the present torus around the node. It is not modified later.
func (m *Machine) Around() *halfcore.Topology { return m.cfg.Topo }

// Links returns the directions in which the node has links now.
func (m *Machine) Links() []grid.Direction { return m.cfg.Topo.Links }

// PeerAt returns the peer at the other end of a link.
func (m *Machine) PeerAt(d grid.Direction) peers.Peer {
	return m.peers.around[d.Index()]
}

// onPeerOrder applies the supervisors' order. It always answers, because a repeated order shows that an answer was
// lost.
func (m *Machine) onPeerOrder(now time.Time, o *lofamov1.PeerOrder) {
	k := &m.peers
	if k.cfg == nil {
		m.note(NoteRefused, "an order of peers: this half knows of none")
		return
	}
	next, err := peers.FromOrder(o)
	if err != nil {
		m.note(NoteRefused, "%v", err)
		return
	}
	if why := m.unfit(next); why != "" {
		m.note(NoteRefused, "peer order %d: %s", next.Number, why)
		return
	}
	next, verdict := k.State.Order(next)
	if halfcore.PeersOfAnotherLife(k.State, o, uint64(m.Epoch())) {
		verdict = 0
	}
	switch verdict {
	case 0:
		m.note(NoteRefused, "peer order %d is for boot epoch %d: a half without an order accepts only one for its own epoch",
			o.GetNumber(), o.GetLife())
	case chanmask.Taken:
		k.Lost = false
		m.changePeers(now, next)
	case chanmask.Stale:
		m.note(NoteRefused, "peer order %d is not newer than %d", o.GetNumber(), next.Number)
	default:
	}
	k.asked = true
	k.Tell(now)
	m.tickPeers(now)
}

// unfit returns why an order cannot be carried out; empty if it can.
func (m *Machine) unfit(next peers.State) string {
	dims, at := m.torusOf(next), m.cfg.Topo.Coord
	if next.Placed {
		at = next.Coord
	}
	if next.Placed && !m.peers.cfg.Spare && !m.peers.cfg.Moves || !dims.Contains(at) && (next.Placed || !m.peers.cfg.Spare) {
		return fmt.Sprintf("place %s: want a place in the %s torus, for a spare or a node that can move", at, dims)
	}
	for i, d := range grid.Directions() {
		p, end, linked := next.Peers[i], m.peers.cfg.Ends[i].Address, m.links[i] != nil
		own := linked || end.IsValid()
		if dims.Contains(at) {
			_, linked = dims.Neighbour(at, d)
		}
		switch {
		case p.Node != "" && !linked:
			return fmt.Sprintf("a peer at %s, where this node of a torus of %s has no link", d, dims)
		case p.Node != "" && !own:
			return fmt.Sprintf("a peer at %s, where this node has no end of its own", d)
		case p.Node != "" && m.links[i] == nil && !p.Address.IsValid():
			return fmt.Sprintf("a peer at %s without an address", d)
		case p.Address.IsValid() && end.IsValid() && p.Address.Addr().Unmap().Is4() != end.Addr().Unmap().Is4():
			return fmt.Sprintf("link %s: address %s is of another family than this end, %s", d, p.Address, end)
		}
	}
	return ""
}

// changePeers is the only writer of the peers.
func (m *Machine) changePeers(now time.Time, next peers.State) {
	k := &m.peers
	says, returns := !next.Says(k.State), m.elsewhere(k.State)
	k.Change(next)
	m.out.SavePeers = true
	if says {
		m.note(NotePeers, "peers by order %d: %s", next.Number, next)
	}
	if m.elsewhere(next) {
		m.note(NotePeers, "this node's place is not %s any more: its daemon ends this half", m.cfg.Topo.Coord)
		return // the links stay: another order may give the place back before the daemon ends this half
	}
	was := k.around
	k.around = next.Over(k.cfg.Configured)
	m.relink(now, next, was, k.around)
	if returns { // a neighbour may have left meanwhile, and begun its link again
		m.redial = append(m.redial, m.cfg.Topo.Links...)
	}
}

// elsewhere reports whether this half's place is not the node's place by an order.
func (m *Machine) elsewhere(s peers.State) bool {
	return (m.peers.cfg.Spare || s.Placed) && (!s.Placed || s.Coord != m.cfg.Topo.Coord)
}

// tickPeers stores the state again if the disk has refused it, and reports it to the supervisors. An unrequested status
// waits for a host half that can carry it, because a cluster that starts must not flood the torus with statuses.
func (m *Machine) tickPeers(now time.Time) {
	k := &m.peers
	m.out.SavePeers = k.StoresAgain(now) || m.out.SavePeers
	if !k.Tells(now) {
		return
	}
	if !k.asked && !m.hostCarries() {
		k.Tell(now.Add(m.cfg.Periods.DigestPeriod))
		return
	}
	k.asked = false
	k.Tell(time.Time{})
	if k.said++; k.said < peersSaid || k.Lost || k.State != (peers.State{}) {
		k.Tell(now.Add(peersAgain))
	}
	for _, st := range halfcore.PeerStatuses(m.self, m.Epoch(), m.cfg.Topo.Coord.String(), k.State, *k.cfg, k.Lost) {
		m.answerOrder(0, &lofamov1.Message{Body: &lofamov1.Message_PeerStatus{PeerStatus: st}})
	}
}

package sim

import (
	"encoding/binary"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

const supervisorID = "sup-0"

// supervisor is one leading replica with a store that only takes time.
type supervisor struct {
	w       *World
	inbox   *servicenet.Inbox
	machine *awareness.Machine
	key     sealer
	wake    uint64
	normal  int // nodes that the map calls NORMAL
}

func newSupervisor(w *World) (*supervisor, error) {
	p := w.cfg.Periods
	ids := map[grid.Coord]fault.NodeID{}
	for rank := range w.cfg.Dims.Nodes() {
		at := w.cfg.Dims.At(rank)
		ids[at] = fault.DefaultNodeID(at)
	}
	s := &supervisor{w: w, inbox: servicenet.NewInbox(nil), key: sealer{[]byte(servicenet.RoleSupervisor + "|" + supervisorID)}}
	var err error
	s.machine, err = awareness.New(awareness.Config{
		Dims: w.cfg.Dims, IDs: ids, Supervisor: supervisorID,
		ChallengeNode: p.ChallengeNode, ChallengeHalf: p.ChallengeHalf, ChallengeSingle: p.ChallengeSingle,
		DigestPeriod: p.DigestPeriod, DigestMisses: p.DigestMisses, Grace: p.DigestPeriod, HalfBound: p.HalfBound(),
		Nonce: func() (n [16]byte) {
			binary.LittleEndian.PutUint64(n[:], w.rnd.Uint64())
			binary.LittleEndian.PutUint64(n[8:], w.rnd.Uint64())
			return n
		},
	}, w.now, nil)
	return s, err
}

// receive takes a datagram that came from a node's host half by one of its interfaces.
func (s *supervisor) receive(from *node, k uint8, b []byte, mangled bool) {
	arrival, err := servicenet.Unwrap(b, fault.PathDirect, verifier{})
	if servicenet.IsDamaged(err) {
		from.fromService(k, s.seal(&lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}))
	}
	if err != nil && !mangled {
		s.w.violate("the supervisor refuses a message by %s: %v", from.id(), err)
	}
	if err != nil {
		return
	}
	if mangled {
		s.w.violate("the supervisor takes a damaged message by %s", from.id())
	}
	if a := arrival.Msg.GetAnswer(); a != nil {
		ev := awareness.Answered{Origin: servicenet.OriginOf(a), Epoch: fault.Epoch(a.GetEpoch()), Path: arrival.Path}
		copy(ev.Nonce[:], a.GetNonce())
		s.step(ev)
		return
	}
	if r := arrival.Msg.GetPathRequest(); r != nil {
		from.fromService(k, s.seal(&lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: &lofamov1.PathReply{
			Node: r.GetNode(), Half: r.GetHalf(), Epoch: r.GetEpoch(), Id: r.GetId(),
			Checksum: lofamov1.Checksum_CHECKSUM_CRC32C, Key: make([]byte, servicenet.KeySize), Session: 1, Leader: supervisorID,
		}}}))
		return
	}
	for i := range arrival.Reports {
		s.receiveReport(from, k, arrival.Delivery(i))
	}
}

func (s *supervisor) receiveReport(from *node, k uint8, d fault.Delivery) {
	id := d.Report.ID
	switch s.inbox.Accept(id, d.Report.Digest) {
	case servicenet.StaleEpoch:
		s.ack(from, k, d, lofamov1.Ack_STALE_EPOCH, uint64(s.inbox.Position(id.Origin).Epoch))
		return
	case servicenet.EpochJump:
		s.w.violate("%s jumps in its boot epoch", id)
		return
	case servicenet.Fresh:
		if !d.Report.Digest && !s.w.deliveries.accept(id) {
			s.w.violate("%s is accepted twice", id)
		}
		s.ack(from, k, d, lofamov1.Ack_RECEIVED, 0)
		s.step(awareness.Evidence{Delivery: d})
	case servicenet.Duplicate:
		s.ack(from, k, d, lofamov1.Ack_RECEIVED, 0)
	}
	if !d.Report.Digest {
		s.w.after(s.w.between(commitDelayMin, commitDelayMax), func() { s.ack(from, k, d, lofamov1.Ack_COMMITTED, 0) })
	}
}

// ack answers the way the report came.
func (s *supervisor) ack(from *node, k uint8, d fault.Delivery, status lofamov1.Ack_Status, highest uint64) {
	acks := servicenet.NewAcks(status, d.Report.ID)
	acks[0].Leader, acks[0].HighestEpoch = supervisorID, highest
	b := s.seal(&lofamov1.Message{Acks: acks})
	if d.Path == fault.PathTorus && from.id() != d.Report.ID.Origin.Node {
		b = s.downcall(d.Report.ID.Origin.Node, b)
	}
	from.fromService(k, b)
}

func (s *supervisor) seal(m *lofamov1.Message) []byte {
	b, err := servicenet.Seal(m, s.key)
	if err != nil {
		panic("sim: the supervisor cannot seal: " + err.Error())
	}
	return b
}

func (s *supervisor) downcall(to fault.NodeID, inner []byte) []byte {
	b, err := servicenet.SealDowncall(to, inner, s.key)
	if err != nil {
		panic("sim: the supervisor cannot seal a downcall: " + err.Error())
	}
	return b
}

// step feeds the awareness machine, commits its changes and sends its challenges.
func (s *supervisor) step(ev awareness.Event) {
	out := s.machine.Step(s.w.now, ev)
	if len(out.Changes) > 0 {
		changes := out.Changes
		s.w.after(s.w.between(commitDelayMin, commitDelayMax), func() {
			for _, c := range changes {
				s.w.known = append(s.w.known, Known{c, s.w.now})
			}
		})
		for _, c := range changes {
			s.w.check(c)
			if c.Component == fault.ComponentNode && c.From != c.To {
				s.normal += count(c.To == fault.Normal) - count(c.From == fault.Normal)
			}
		}
	}
	for _, c := range out.Challenges {
		s.challenge(c)
	}
	if out.Wake.IsZero() {
		return
	}
	s.wake++
	n := s.wake
	s.w.at(out.Wake.Add(s.w.between(0, 100*time.Microsecond)), func() {
		if s.wake == n {
			s.step(awareness.Tick{})
		}
	})
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (s *supervisor) challenge(c awareness.Challenge) {
	b := s.seal(&lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{
		Nonce: c.Nonce[:], Node: string(c.Node), Half: lofamov1.Half(c.Half), ReplyTo: "127.0.0.1:1",
	}}})
	toAll := func(n *node, b []byte) {
		for k := range n.service.cut {
			n.fromService(uint8(k), b)
		}
	}
	toAll(s.w.find(c.Node), b)
	for _, via := range c.Via {
		toAll(s.w.find(via), s.downcall(c.Node, b))
	}
}

func (w *World) find(id fault.NodeID) *node {
	for _, n := range w.nodes {
		if n.id() == id {
			return n
		}
	}
	panic("sim: no node " + string(id))
}

// check holds every verdict against what is really so: nothing that lives and can be reached by
// some rail is ever called FAILED.
func (w *World) check(c awareness.Change) {
	if c.To != fault.Failed || c.From == fault.Failed {
		return
	}
	n := w.find(c.Node)
	var alive bool
	switch c.Component {
	case fault.ComponentNode:
		alive = w.reached(n)
	case fault.ComponentHost:
		alive = n.host.ready() && w.reached(n)
	case fault.ComponentDNP:
		alive = n.dnp.ready() && w.reached(n)
	default:
		return
	}
	if alive {
		w.violate("what lives and can be reached is called FAILED: %s", Known{c, w.now})
	}
}

// reached says whether n has a way to the supervisor: a living host half with a service network,
// its own or one that the torus connects it to, through living DNP halves and cables that are good
// in both directions.
func (w *World) reached(n *node) bool {
	seen := map[fault.NodeID]bool{n.id(): true}
	found := n.host.ready() && n.service.sure() && !w.supervisorCut
	for todo := []*node{n}; len(todo) > 0; todo = todo[1:] {
		at := todo[0]
		if !at.dnp.ready() {
			continue
		}
		found = found || at.host.ready() && at.service.sure() && !w.supervisorCut
		for _, d := range at.topo.Links {
			peer := at.neighbour(d)
			if peer.dnp.ready() && !seen[peer.id()] && at.links[d.Index()].good() && peer.links[d.Opposite().Index()].good() {
				seen[peer.id()] = true
				todo = append(todo, peer)
			}
		}
	}
	return found
}

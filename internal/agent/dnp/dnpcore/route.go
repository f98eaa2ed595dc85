package dnpcore

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// onMessage handles a message from a neighbour, under the header hd if the neighbour acknowledges. It reports whether
// this half accepted the message; otherwise the neighbour must send it again. The payload aliases the packet; code that
// keeps it makes a copy.
func (m *Machine) onMessage(now time.Time, from *link, payload []byte, hd torus.HopHeader) bool {
	if halfcore.RelayKindOf(payload) == halfcore.RelayBack {
		m.onBack(now, from, payload)
		return true
	}
	if !from.bucket.take(now) {
		m.raise(now, watchdog.AddrRouter1, watchdog.RouterQueueFull(from.dir.Index()))
		from.protocol[halfcore.RuleRate]++
		return false
	}
	if hd.Stream != 0 && !m.admit(now, from) {
		m.hops.stats.Refused++
		return false
	}
	msg, ok := m.relayed(now, from, payload)
	if !ok || !m.lawful(now, from, &msg) || !m.fresh(now, msg) {
		return true
	}
	m.useLink(now, from, msg.Kind)
	msg.Envelope = append([]byte(nil), msg.Envelope...)
	if msg.Kind == halfcore.RelayTest {
		m.onTestMessage(now, from, msg)
		return true
	}
	if msg.Kind == halfcore.RelayUp {
		msg = msg.AddHop(m.hop(0))
	}
	m.pass(now, m.hold(now, msg, from, hd), msg, from)
	return true
}

// fresh reports whether a message is not a copy of an earlier one. A message on its way to another node may
// legitimately pass by again. A copy without hops left is not remembered, because it must not end the copies that can go
// on. Nor does a copy with few hops left end one with more.
func (m *Machine) fresh(now time.Time, msg halfcore.Relay) bool {
	switch {
	case msg.Kind == halfcore.RelayUp && !m.hostCarries():
		return m.mayHop(now, none, msg) && m.seen.Flood(now, msg, m.hopsLeft(&msg))
	case msg.Kind == halfcore.RelayDown && msg.Dst != m.cfg.Topo.Coord:
		return m.mayHop(now, none, msg) && m.seen.Visit(now, msg, m.hopsLeft(&msg))
	default:
		return m.seen.First(now, msg)
	}
}

// hopsLeft returns the hops that a message has left. Half of the limit counts as all: by default it is enough for the whole
// torus (routing.HopBound).
func (m *Machine) hopsLeft(msg *halfcore.Relay) uint8 {
	if left := min(msg.Limit, m.cfg.MaxHops) - msg.Made; left < m.cfg.MaxHops/2 {
		return left
	}
	return halfcore.AllHops
}

func (m *Machine) hop(held time.Duration) halfcore.RelayHop {
	return halfcore.RelayHop{Coord: m.cfg.Topo.Coord, Half: fault.HalfDNP, Held: held}
}

// onFromHost takes a message of this node's host half. The host half sends its envelopes up through the torus only when
// its own service network has failed.
func (m *Machine) onFromHost(now time.Time, ev FromHost) {
	m.use(now, selftest.Module{Kind: selftest.Mailbox})
	msg := ev.Message
	if msg.Kind == halfcore.RelayBack {
		m.beginBack(now, msg, ev.Held)
		return
	}
	if msg.Limit == 0 || msg.Limit > m.cfg.MaxHops {
		msg.Limit = m.cfg.MaxHops
	}
	msg.Made = 0
	switch {
	case msg.Kind == halfcore.RelayDown && m.cfg.Topo.Dims.Vacant(msg.Dst): // a node there has left: the host half learns of it later
	case msg.Kind == halfcore.RelayDown && !m.cfg.Topo.Dims.Contains(msg.Dst):
		m.raise(now, watchdog.AddrRDMA, watchdog.RDMAMailboxBad)
	case msg.Kind == halfcore.RelayDown && msg.Dst == m.cfg.Topo.Coord:
		m.arrive(now, nil, msg.Envelope)
	case m.holdsUp(now, &msg, ev.Held, false):
	case !m.seen.First(now, msg):
	case msg.Kind == halfcore.RelayDown:
		m.pass(now, m.hold(now, msg, nil, torus.HopHeader{}), msg, nil)
	default:
		m.floodOwn(now, msg.AddHop(m.hop(ev.Held)))
	}
}

// arrive handles a message that came down for this node, through a link or, with nil, from its host half: an envelope, or a piece of one
// (seed 003 §5.2.1.3).
func (m *Machine) arrive(now time.Time, from *link, b []byte) {
	if !routing.IsPiece(b) {
		m.out.Open = append(m.out.Open, b)
		return
	}
	var dir grid.Direction
	if from != nil {
		dir = from.dir
	}
	whole, missing, err := m.reorder.Take(now, dir, b)
	if err != nil { // as for an envelope that does not open, the sender is wrong or of a later version, not this router
		m.note(NoteRefused, "a message that came down: %v", err)
		return
	}
	m.missing(now, missing)
	if whole != nil {
		m.out.Open = append(m.out.Open, whole)
	}
}

// missing records the messages that Reorder gave up incomplete.
func (m *Machine) missing(now time.Time, all []routing.Missing) {
	for _, l := range all {
		if more, ok := m.lossNotes.take(now, "more messages"); ok {
			m.note(NoteMissing, "%s%s", l, more)
		}
		m.evidence("%s", l)
	}
	m.out.Missing = append(m.out.Missing, all...)
}

// ReorderStats returns the counters of messages that arrived here in several pieces.
func (m *Machine) ReorderStats() routing.ReorderStats { return m.reorder.Stats() }

// onSealed sends an envelope of this half up: through this node's host if that can send, through the neighbours if it
// cannot, and through both after an unanswered first attempt. Answers to a challenge have no second attempt.
func (m *Machine) onSealed(now time.Time, ev Sealed) {
	msg := halfcore.Relay{Kind: halfcore.RelayUp, Limit: m.cfg.MaxHops, MayWait: deferrable(&ev.Seal), Envelope: ev.Envelope}
	m.seen.First(now, msg) // copies that come back end here
	byHost := m.hostCarries()
	if byHost {
		m.out.ToHost = append(m.out.ToHost, msg.AddHop(m.hop(0)))
	}
	if (!byHost || ev.Seal.Attempt > 1 || ev.Seal.Answer != nil) && !m.holdsUp(now, &msg, 0, true) {
		m.floodOwn(now, msg.AddHop(m.hop(0)))
	}
}

// floodOwn sends a message of this node to all neighbours.
func (m *Machine) floodOwn(now time.Time, msg halfcore.Relay) {
	i := m.hold(now, msg, nil, torus.HopHeader{})
	m.flood(now, i, msg, nil)
	m.settle(now, i)
}

// onOpened handles a verified envelope that came down for this node.
func (m *Machine) onOpened(now time.Time, o servicenet.Opened) {
	if m.sender.Heard(now, o, fault.PathTorus, 0) {
		m.toHost(o.Raw)
	}
	switch body := o.Msg.GetBody().(type) {
	case nil, *lofamov1.Message_Again: // the sender has handled it
	case *lofamov1.Message_Challenge:
		c := body.Challenge
		if c.GetNode() != string(m.self) {
			m.note(NoteRefused, "a challenge to %q", c.GetNode())
			return
		}
		if c.GetHalf() != lofamov1.Half_HALF_HOST {
			m.answer(c)
		}
		if c.GetHalf() != lofamov1.Half_HALF_DNP {
			m.toHost(o.Raw)
		}
	case *lofamov1.Message_BulkRequest:
		m.onBulk(o, body.BulkRequest.GetNode(), body.BulkRequest.GetHalf())
	case *lofamov1.Message_BulkPull:
		m.onBulk(o, body.BulkPull.GetNode(), body.BulkPull.GetHalf())
	default:
		if head, ok := servicenet.OrderOf(o.Msg); ok {
			m.onOrder(now, head, o)
			return
		}
		m.note(NoteRefused, "a message from %s that is not for a DNP half", o.Name)
	}
}

// Any message that is too long to be relayed can be split.
const _ = uint(routing.MaxPiece-halfcore.MaxRelayEnvelope) + uint(halfcore.MaxRelayEnvelope-routing.MaxPiece)

// toHost passes an envelope that came down to the host half, which verifies it itself.
func (m *Machine) toHost(envelope []byte) {
	if m.verdict == watchdog.Stale {
		return
	}
	parts := [][]byte{envelope}
	if len(envelope) > halfcore.MaxRelayEnvelope {
		parts, _ = routing.Split(m.cfg.Topo.Coord, envelope, halfcore.MaxRelayEnvelope) // it came in pieces, so it can leave in pieces
	}
	for _, b := range parts {
		m.out.ToHost = append(m.out.ToHost, halfcore.Relay{Kind: halfcore.RelayDown, Dst: m.cfg.Topo.Coord, Envelope: b})
	}
}

// functional reports whether messages may use a link now and are likely to arrive soon: the functional channel of seed
// 003 §5.2.3.1.
func (m *Machine) functional(l *link) bool { return l.usable() && !m.masked(l) }

// query returns the state of the channels for routing. A link that loses frames counts as one with a full window, so
// routing prefers the other of two that lead on.
func (m *Machine) query(msg *halfcore.Relay, from *link) routing.Query {
	q := routing.Query{Dims: m.cfg.Topo.Dims, At: m.cfg.Topo.Coord, Dst: msg.Dst}
	if from != nil {
		q.From = from.dir
	}
	for i, l := range m.links {
		if l == nil || !m.functional(l) || !mayTake(l, msg, msg.Made+1) {
			continue
		}
		q.Functional |= 1 << i
		q.Load[i] = l.hop.InFlight()
		if l.detail.State() == torus.LinkSick {
			q.Load[i] += torus.HopWindow
		}
		if !m.acknowledges(l) || !l.hop.Full() {
			q.Ready |= 1 << i
		}
	}
	return q
}

// earlierHops is the default hop limit of halves of earlier versions.
const earlierHops = 32

// mayTake reports whether a message that has made so many hops may go to a neighbour. A neighbour of an earlier version
// would report itself sick over a message without hops left for its next station.
func mayTake(l *link, msg *halfcore.Relay, made uint8) bool {
	return l.peer.Diagnosis || made < earlierHops || msg.Kind != halfcore.RelayUp && msg.Dst == l.dst
}

// decide returns the link for a message to another node, or nil and the reason.
func (m *Machine) decide(a routing.Algorithm, q *routing.Query) (*link, routing.Outcome) {
	d, how := a.Decide(q, m.random.IntN)
	switch how {
	case routing.Route:
		m.routed.Routed++
	case routing.Deroute:
		m.routed.Derouted++
	default:
		return nil, how
	}
	return m.links[d.Index()], how
}

// route sends a message one hop towards its destination, as Config.Routing decides. If no route is left, or the
// remaining hops are for the last resort, the message goes to all neighbours. A message for a neighbour always also
// goes by the direct link. A link that was broken counts as broken until its hold-off is over, and a node that has just
// returned may have no other link by which a challenge reaches it.
func (m *Machine) route(now time.Time, i int, msg halfcore.Relay, from *link) {
	if !m.mayHop(now, i, msg) {
		return
	}
	q := m.query(&msg, from)
	q.Left = routing.Set(m.seen.Left(msg))
	if i == none {
		q.Ready = q.Functional // it cannot wait
	}
	a := m.algorithm()
	if msg.Made >= derouteHops(min(msg.Limit, m.cfg.MaxHops)) {
		a = routing.MinimalAdaptive
	}
	l, how := m.decide(a, &q)
	if how == routing.Wait {
		return // wait for room and try again
	}
	if how != routing.Route {
		m.knock(now, i, msg, from)
	}
	if l != nil {
		m.seen.Leaves(msg, l.dir.Index())
		msg.Made++
		m.send(now, i, l, msg)
		return
	}
	m.routed.Flooded++
	m.seen.Spread(now, msg, m.hopsLeft(&msg))
	m.flood(now, i, msg, from)
}

// algorithm returns the configured routing, but chaos where an order made places of the torus empty: no other algorithm
// finds a way around them.
func (m *Machine) algorithm() routing.Algorithm {
	if !m.cfg.Topo.Dims.Full() {
		return routing.Chaos
	}
	return m.cfg.Routing
}

// derouteHops returns how many hops of a message's limit may be detours; the rest is for the last resort, the flood.
func derouteHops(limit uint8) uint8 { return limit - limit/4 }

// RouteStats counts the outcomes of messages that have a destination.
type RouteStats struct {
	Routed   uint64 // sent nearer
	Derouted uint64 // sent to a link that is no nearer, because no nearer link was functional
	Flooded  uint64 // sent to all neighbours
	Swapped  uint64 // sent to a neighbour without room, in exchange for a message from it
	Ended    uint64 // ran out of hops
}

// RouteStats returns the counters.
func (m *Machine) RouteStats() RouteStats { return m.routed }

// knock sends a message for a neighbour by a direct link, in any state of that link.
func (m *Machine) knock(now time.Time, i int, msg halfcore.Relay, from *link) {
	for _, n := range m.cfg.Topo.Neighbours {
		if n.Coord != msg.Dst || from != nil && n.Coord == from.dst {
			continue
		}
		if l := m.linkTo(n, false); l != nil {
			msg.Made++
			m.send(now, i, l, msg)
		}
	}
}

// flood sends a message by working links to all distinct neighbours except the one it came from, which a message on its way up names
// itself; if no link works, by any link.
func (m *Machine) flood(now time.Time, i int, msg halfcore.Relay, from *link) {
	if !m.mayHop(now, i, msg) {
		return
	}
	msg.Made++
	sent := 0
	before, known := msg.Previous() // the link that the message came by may lead to another node by now
	if from != nil && (!known || before == m.cfg.Topo.Coord) {
		before, known = from.dst, true
	}
	for _, usable := range []bool{true, false} {
		for _, n := range m.cfg.Topo.Neighbours {
			if known && n.Coord == before {
				continue
			}
			if l := m.linkTo(n, usable); l != nil && mayTake(l, &msg, msg.Made) {
				m.send(now, i, l, msg)
				sent++
			}
		}
		if sent > 0 {
			return
		}
		// With a single neighbour, there may be no other node to forward it to: that is no fault.
		if usable && (from == nil || len(m.cfg.Topo.Neighbours) > 1) && now.Sub(m.start) > m.cfg.LinkGrace && !m.awaits() && !m.masking() {
			m.raiseNoRoute(now)
		}
	}
}

// raiseNoRoute raises an exception for a message without a route, except while the torus or the peers of links change.
func (m *Machine) raiseNoRoute(now time.Time) {
	if m.relinked.IsZero() || now.Sub(m.relinked) >= relinkGrace {
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterNoRoute)
	}
}

// awaits reports whether a neighbour is being restarted, so that a route will exist soon.
func (m *Machine) awaits() bool {
	return slices.ContainsFunc(m.links[:], func(l *link) bool { return l != nil && l.detail.Restarting })
}

// linkTo returns the best link to a neighbour: a normal one before a sick one; or, when usable is false, any with a
// session. It never returns a masked link. While an order changes the torus, some of n's links may be missing.
func (m *Machine) linkTo(n halfcore.Neighbour, usable bool) *link {
	var best *link
	for _, d := range n.Dirs {
		l := m.links[d.Index()]
		switch {
		case l == nil || !l.session || m.masked(l) || usable && !l.usable():
		case best == nil || rank(l) < rank(best):
			best = l
		}
	}
	return best
}

func rank(l *link) int {
	switch s := l.detail.State(); {
	case l.detail.Restarting && s != torus.LinkBroken:
		return 3
	case s == torus.LinkNormal:
		return 0
	case s == torus.LinkSick:
		return 1
	case s == torus.LinkUnknown:
		return 2
	default:
		return 4
	}
}

// mayHop checks the hop limit: more hops than allowed are the paper's own example of a router exception (§IV-B). The
// hops and their limit come from a neighbour, so here the exception makes no core sick. A message to an unreachable
// node rightly ends so too: after all its detours it has no route, and no node on its way is at fault.
func (m *Machine) mayHop(now time.Time, i int, msg halfcore.Relay) bool {
	if msg.Made < min(msg.Limit, m.cfg.MaxHops) {
		return true
	}
	if msg.Kind == halfcore.RelayDown {
		m.routed.Ended++
		m.raiseNoRoute(now)
	} else {
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterHopsExceeded)
	}
	if i != none {
		m.hops.slots[i].passed = true // it cannot go any further
	}
	return false
}

func (m *Machine) forward(now time.Time, l *link, msg halfcore.Relay) {
	payload, err := msg.Append(nil)
	if err != nil {
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterMalformed)
		return
	}
	m.useLink(now, l, msg.Kind)
	m.noteWire(now, &msg)
	f := torus.Frame{Type: torus.TypeMessage, Payload: payload}
	l.machine.Fill(&f)
	m.frames = append(m.frames, Outgoing{l.dir, f})
}

package dnpcore

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/routing"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/relay"
	"github.com/lofamo/lofamo/internal/agent/topo"
)

// onMessage handles a message that a neighbour sent, under the header hd if it acknowledges; and says whether it was
// taken, or is to come again. The payload lies in the packet and is copied by whatever keeps it.
func (m *Machine) onMessage(now time.Time, from *link, payload []byte, hd torus.HopHeader) bool {
	if relay.KindOf(payload) == relay.Back {
		m.onBack(now, from, payload)
		return true
	}
	if !from.bucket.take(now) {
		m.raise(now, watchdog.AddrRouter1, watchdog.RouterQueueFull(from.dir.Index()))
		from.protocol[RuleRate]++
		return false
	}
	if hd.Stream != 0 && !m.admit(now, from) {
		m.hops.stats.Refused++
		return false
	}
	msg, err := relay.Decode(payload)
	if err != nil {
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterMalformed)
		return true
	}
	if !m.lawful(now, from, &msg) || !m.fresh(now, msg) {
		return true
	}
	m.useLink(now, from, msg.Kind)
	msg.Envelope = append([]byte(nil), msg.Envelope...)
	if msg.Kind == relay.Test {
		m.onTestMessage(now, from, msg)
		return true
	}
	if msg.Kind == relay.Up {
		msg = msg.AddHop(m.hop(0))
	}
	m.pass(now, m.hold(now, msg, from, hd), msg, from)
	return true
}

// fresh says whether a message is not a copy of one that was here: one that is on its way to another node may come by again.
func (m *Machine) fresh(now time.Time, msg relay.Message) bool {
	if msg.Kind == relay.Down && msg.Dst != m.cfg.Topo.Coord {
		return m.seen.Visit(now, msg)
	}
	return m.seen.First(now, msg)
}

func (m *Machine) hop(held time.Duration) relay.Hop {
	return relay.Hop{Coord: m.cfg.Topo.Coord, Half: fault.HalfDNP, Held: held}
}

// onFromHost takes a message of the own host half. Its envelopes go up by the torus, for it asks
// only when its own service network failed it.
func (m *Machine) onFromHost(now time.Time, ev FromHost) {
	m.use(now, selftest.Module{Kind: selftest.Mailbox})
	msg := ev.Message
	if msg.Kind == relay.Back {
		m.beginBack(now, msg, ev.Held)
		return
	}
	if msg.Limit == 0 || msg.Limit > m.cfg.MaxHops {
		msg.Limit = m.cfg.MaxHops
	}
	msg.Made = 0
	switch {
	case msg.Kind == relay.Down && !m.cfg.Topo.Dims.Contains(msg.Dst):
		m.raise(now, watchdog.AddrRDMA, watchdog.RDMAMailboxBad)
	case msg.Kind == relay.Down && msg.Dst == m.cfg.Topo.Coord:
		m.arrive(now, msg.Envelope)
	case m.holdsUp(now, &msg, ev.Held, false):
	case !m.seen.First(now, msg):
	case msg.Kind == relay.Down:
		m.pass(now, m.hold(now, msg, nil, torus.HopHeader{}), msg, nil)
	default:
		m.floodOwn(now, msg.AddHop(m.hop(ev.Held)))
	}
}

// arrive takes what came down for this node: an envelope, or a piece of one (seed 003 §5.2.1.3).
func (m *Machine) arrive(now time.Time, b []byte) {
	if !routing.IsPiece(b) {
		m.out.Open = append(m.out.Open, b)
		return
	}
	whole, missing, err := m.reorder.Take(now, b)
	if err != nil { // like an envelope that does not open it is who sent it that is wrong, or of a later version, and not this router
		m.note(NoteRefused, "a message that came down: %v", err)
		return
	}
	m.missing(missing)
	if whole != nil {
		m.out.Open = append(m.out.Open, whole)
	}
}

// missing says that messages were given up incomplete.
func (m *Machine) missing(all []routing.Missing) {
	for _, l := range all {
		m.note(NoteMissing, "%s", l)
		m.evidence("%s", l)
	}
	m.out.Missing = append(m.out.Missing, all...)
}

// ReorderStats returns the counters of messages of several pieces that came here.
func (m *Machine) ReorderStats() routing.ReorderStats { return m.reorder.Stats() }

// onSealed sends an envelope of this half on its way up: by the own host if that can send, through
// the neighbours if it cannot, and by both when the first attempt went unanswered. Answers to a
// challenge have no second attempt.
func (m *Machine) onSealed(now time.Time, ev Sealed) {
	msg := relay.Message{Kind: relay.Up, Limit: m.cfg.MaxHops, MayWait: deferrable(&ev.Seal), Envelope: ev.Envelope}
	m.seen.First(now, msg) // copies that come back end here
	byHost := m.hostCarries()
	if byHost {
		m.out.ToHost = append(m.out.ToHost, msg.AddHop(m.hop(0)))
	}
	if (!byHost || ev.Seal.Attempt > 1 || ev.Seal.Answer != nil) && !m.holdsUp(now, &msg, 0, true) {
		m.floodOwn(now, msg.AddHop(m.hop(0)))
	}
}

// floodOwn sends what is of this node itself to all neighbours.
func (m *Machine) floodOwn(now time.Time, msg relay.Message) {
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
	case nil, *lofamov1.Message_Again: // the sender's
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

// What does not fit a relayed message can be split.
const _ = uint(routing.MaxPiece-relay.MaxEnvelope) + uint(relay.MaxEnvelope-routing.MaxPiece)

// toHost passes an envelope that came down to the host half, which verifies it again itself.
func (m *Machine) toHost(envelope []byte) {
	if m.verdict == watchdog.Stale {
		return
	}
	parts := [][]byte{envelope}
	if len(envelope) > relay.MaxEnvelope {
		parts, _ = routing.Split(m.cfg.Topo.Coord, envelope, relay.MaxEnvelope) // it came in pieces: it can go in pieces
	}
	for _, b := range parts {
		m.out.ToHost = append(m.out.ToHost, relay.Message{Kind: relay.Down, Dst: m.cfg.Topo.Coord, Envelope: b})
	}
}

// functional says whether messages may go by a link now, and are likely to arrive soon: the functional channel of seed 003 §5.2.3.1.
func (m *Machine) functional(l *link) bool { return l.usable() && !m.masked(l) }

// query is what routing has to know of the channels. A link that loses frames counts as one with a full window: of two that lead on
// the other is taken.
func (m *Machine) query(msg *relay.Message, from *link) routing.Query {
	q := routing.Query{Dims: m.cfg.Topo.Dims, At: m.cfg.Topo.Coord, Dst: msg.Dst}
	if from != nil {
		q.From = from.dir
	}
	for i, l := range m.links {
		if l == nil || !m.functional(l) || !bears(l, msg, msg.Made+1) {
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

// earlierHops is what halves of earlier versions allow a message by default.
const earlierHops = 32

// bears says whether a message that has made so many hops may be given to a neighbour: one of an earlier version calls itself sick over
// what it would have to pass on with no hops left.
func bears(l *link, msg *relay.Message, made uint8) bool {
	return l.peer.Diagnosis || made < earlierHops || msg.Kind != relay.Up && msg.Dst == l.dst
}

// decide returns the link that a message to another node takes, or nil and why there is none.
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

// route sends a message a hop on towards its destination, as Config.Routing has it. When that has no way any more, or hops are
// left only for the last resort, it goes to all neighbours. What is for a neighbour goes by its own link all the same: one that
// was broken is called so until it has been good for its hold-off, and a node that has just come back may have no other way to be
// asked whether it lives.
func (m *Machine) route(now time.Time, i int, msg relay.Message, from *link) {
	if !m.mayHop(now, i, msg) {
		return
	}
	q := m.query(&msg, from)
	q.Left = routing.Set(m.seen.Left(msg))
	if i == none {
		q.Ready = q.Functional // it cannot wait
	}
	a := m.cfg.Routing
	if msg.Made >= derouteHops(min(msg.Limit, m.cfg.MaxHops)) {
		a = routing.MinimalAdaptive
	}
	l, how := m.decide(a, &q)
	if how == routing.Wait {
		return // for room: it is tried again
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
	m.seen.Spread(now, msg)
	m.flood(now, i, msg, from)
}

// derouteHops is how many of the hops that a message is allowed may go by detours; the rest is for the last resort, the flood.
func derouteHops(limit uint8) uint8 { return limit - limit/4 }

// RouteStats count what became of messages that have a destination.
type RouteStats struct {
	Routed   uint64 // sent nearer
	Derouted uint64 // sent where it is no nearer, for all that is was not functional
	Flooded  uint64 // sent to all neighbours
	Swapped  uint64 // sent where there was no room, for one that came from there
	Ended    uint64 // had no hops left
}

// RouteStats returns the counters.
func (m *Machine) RouteStats() RouteStats { return m.routed }

// knock sends a message that is for a neighbour by a link to it, whatever is thought of that link.
func (m *Machine) knock(now time.Time, i int, msg relay.Message, from *link) {
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

// flood sends a message to all distinct neighbours but the one it came from, by a link that
// works; by any link when none does.
func (m *Machine) flood(now time.Time, i int, msg relay.Message, from *link) {
	if !m.mayHop(now, i, msg) {
		return
	}
	msg.Made++
	sent := 0
	for _, usable := range []bool{true, false} {
		for _, n := range m.cfg.Topo.Neighbours {
			if from != nil && n.Coord == from.dst {
				continue
			}
			if l := m.linkTo(n, usable); l != nil && bears(l, &msg, msg.Made) {
				m.send(now, i, l, msg)
				sent++
			}
		}
		if sent > 0 {
			return
		}
		// With one neighbour only there may be nowhere to pass it on to: that is no fault.
		if usable && (from == nil || len(m.cfg.Topo.Neighbours) > 1) && now.Sub(m.start) > m.cfg.LinkGrace && !m.awaits() && !m.masking() {
			m.raise(now, watchdog.AddrRouter0, watchdog.RouterNoRoute)
		}
	}
}

// awaits says whether a neighbour is being restarted: then there is a way soon.
func (m *Machine) awaits() bool {
	return slices.ContainsFunc(m.links[:], func(l *link) bool { return l != nil && l.detail.Restarting })
}

// linkTo returns the best link to a neighbour: a normal one before a sick one; or, when usable is
// false, any with a session. It is never one that is masked.
func (m *Machine) linkTo(n topo.Neighbour, usable bool) *link {
	var best *link
	for _, d := range n.Dirs {
		l := m.links[d.Index()]
		switch {
		case !l.session || m.masked(l) || usable && !l.usable():
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

// mayHop checks the hop limit: more hops than allowed are the paper's own example of a router
// exception (§IV-B, DNP core sick). A message to a node that nothing leads to ends so too, by rights: after all its
// detours it has no way, and that is nobody's fault on it.
func (m *Machine) mayHop(now time.Time, i int, msg relay.Message) bool {
	if msg.Made < min(msg.Limit, m.cfg.MaxHops) {
		return true
	}
	if msg.Kind == relay.Down {
		m.routed.Ended++
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterNoRoute)
	} else {
		m.raise(now, watchdog.AddrRouter0, watchdog.RouterHopsExceeded)
	}
	if i != none {
		m.hops.slots[i].passed = true // as far as it could go
	}
	return false
}

func (m *Machine) forward(now time.Time, l *link, msg relay.Message) {
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

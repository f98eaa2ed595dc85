package sim

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// service is a node's end of the service network.
type service struct {
	cut           []bool        // by the number of the interface
	lose, corrupt float64       // share of the datagrams, both ways
	deaf, mute    bool          // no datagram arrives; none leaves
	delay         time.Duration // of datagrams that leave, at most: they overtake each other
}

// gone reports whether every interface is cut.
func (s *service) gone() bool { return !slices.Contains(s.cut, false) }

// sure reports whether sent datagrams arrive. A challenge is not repeated: where datagrams are lost, it or its answer
// may be.
func (s *service) sure() bool {
	return !s.gone() && s.lose == 0 && s.corrupt == 0 && !s.deaf && !s.mute && s.delay == 0
}

// spool is a half's log on disk: it outlives the half, and loses nothing.
type spool map[fault.ReportID]keptReport

// keptReport is a report with its creation time by the wall clock, the only clock that survives a restart.
type keptReport struct {
	report fault.Report
	at     time.Time
}

// wallClock returns the time of the node's wall clock.
func (n *node) wallClock() time.Time { return n.w.now.Add(n.host.wall) }

// interfaces names the service interfaces.
func (n *node) interfaces() []string {
	var out []string
	for k := range n.service.cut {
		out = append(out, "eth"+strconv.Itoa(k))
	}
	return out
}

// toService sends a datagram to a supervisor.
func (n *node) toService(to *replica, k uint8, b []byte) {
	if n.service.cut[k] || n.service.mute || !to.sees(n) || n.w.chance(n.service.lose) {
		return
	}
	b, damaged := n.damage(b)
	delay := n.w.between(serviceDelayMin, serviceDelayMax)
	if n.service.delay > 0 {
		delay = n.w.between(delay, n.service.delay)
	}
	to.deliver(delay, func() { to.receive(n, k, b, damaged) })
}

// fromService delivers a datagram of a supervisor to the host half.
func (n *node) fromService(by *replica, k uint8, b []byte) {
	if n.service.cut[k] || n.service.deaf || n.w.chance(n.service.lose) {
		return
	}
	b, damaged := n.damage(b)
	n.host.deliver(n.w.between(serviceDelayMin, serviceDelayMax), func() {
		n.openHost(by.id, b, damaged, hostcore.Received{Path: fault.PathDirect, Interface: k})
	})
}

// damage flips a bit in a share of the datagrams.
func (n *node) damage(b []byte) (out []byte, damaged bool) {
	if !n.w.chance(n.service.corrupt) {
		return b, false
	}
	out = slices.Clone(b)
	out[n.w.rnd.IntN(len(out))] ^= 1 << n.w.rnd.IntN(8)
	return out, true
}

// gossipPeriod is the interval between a host half's probes of gossip members.
func (n *node) gossipPeriod() time.Duration { return n.w.cfg.Periods.DigestPeriod * 8 / 5 }

// probeGossip probes a random gossip member, which may be dead. Before its first probe, a half joins the gossip through a supervisor.
func (n *node) probeGossip() {
	n.joined = n.joined || slices.ContainsFunc(n.w.replicas, n.gossipReturnsFrom)
	switch i := n.w.rnd.IntN(len(n.w.nodes) + len(n.w.replicas)); {
	case !n.joined:
	case i < len(n.w.nodes):
		n.ping(n.w.nodes[i])
	case n.gossipReturnsFrom(n.w.replicas[i-len(n.w.nodes)]):
		n.hearGossip(2)
	}
}

// askGossip pings up to the given number of members: first nodes whose host half runs, in random order, then supervisors that can answer.
func (n *node) askGossip(members int) {
	if members == 0 || !n.joined {
		return
	}
	for _, i := range n.w.rnd.Perm(len(n.w.nodes)) {
		if o := n.w.nodes[i]; o != n && o.host.up() && members > 0 {
			n.ping(o)
			members--
		}
	}
	for _, r := range n.w.replicas {
		if members > 0 && n.gossipReturnsFrom(r) {
			n.hearGossip(2)
			members--
		}
	}
}

// ping sends a gossip message to another node, which answers. Gossip uses interface 0.
func (n *node) ping(o *node) {
	if o == n || !n.gossipReaches(o) {
		return
	}
	o.hearGossip(1)
	if o.gossipReaches(n) {
		n.hearGossip(2)
	}
}

// hearGossip delivers another member's message to the host half after a random delay for each network crossing.
func (n *node) hearGossip(crossings int) {
	var delay time.Duration
	for range crossings {
		delay += n.w.between(serviceDelayMin, serviceDelayMax)
	}
	n.host.deliver(delay, func() { n.stepHost(hostcore.GossipHeard{}) })
}

// gossipReturnsFrom reports whether a supervisor can answer this node's gossip message.
func (n *node) gossipReturnsFrom(r *replica) bool {
	return r.up() && r.sees(n) && !n.service.cut[0] && !n.service.deaf && !n.service.mute
}

// gossipReaches reports whether a gossip message from this node reaches another. The host halves of both must run.
func (n *node) gossipReaches(o *node) bool {
	return n.host.up() && o.host.up() && !n.service.cut[0] && !n.service.mute && !o.service.cut[0] && !o.service.deaf
}

// hearsGossip reports whether any other node's gossip reaches this one.
func (n *node) hearsGossip() bool {
	return slices.ContainsFunc(n.w.nodes, func(o *node) bool { return o != n && o.gossipReaches(n) })
}

// kept returns the content of a half's spool, as a starting half gets it.
func (n *node) kept(h fault.Half) []servicenet.Kept {
	var out []servicenet.Kept
	for _, k := range n.spools[h] {
		out = append(out, servicenet.Kept{Report: k.report, Age: max(0, n.wallClock().Sub(k.at))})
	}
	slices.SortFunc(out, func(a, b servicenet.Kept) int {
		return cmp.Or(cmp.Compare(a.Report.ID.Epoch, b.Report.ID.Epoch), cmp.Compare(a.Report.ID.Seq, b.Report.ID.Seq))
	})
	return out
}

// carryOut does the shells' work besides sending.
func (n *node) carryOut(h fault.Half, e servicenet.SenderEffects) {
	if e.NewEpoch != 0 {
		n.process(h).epoch = e.NewEpoch
	}
	for _, r := range e.Keep {
		n.spools[h][r.ID] = keptReport{r, n.wallClock()}
		n.w.deliveries.logged(r)
	}
	for _, id := range e.Forget {
		if e.NewEpoch == 0 && n.w.deliveries.owes(id) {
			n.w.violate("%s leaves the log, and no supervisor has it", id)
		}
		n.w.deliveries.dropped(id)
		delete(n.spools[h], id)
	}
}

// deliveries follows every report from the log to the store: none is lost, none committed twice. Digests
// are not among them.
type deliveries struct {
	owed  map[fault.ReportID]bool // logged, and not committed yet
	taken map[fault.ReportID]bool
}

func newDeliveries() deliveries {
	return deliveries{owed: map[fault.ReportID]bool{}, taken: map[fault.ReportID]bool{}}
}

func (d *deliveries) logged(r fault.Report) {
	if !d.taken[r.ID] {
		d.owed[r.ID] = true
	}
}

func (d *deliveries) dropped(id fault.ReportID) { delete(d.owed, id) }

func (d *deliveries) owes(id fault.ReportID) bool { return d.owed[id] }

// accept records a report that the store accepted. It returns false for a repeated one.
func (d *deliveries) accept(id fault.ReportID) bool {
	first := !d.taken[id]
	d.taken[id] = true
	delete(d.owed, id)
	return first
}

// of returns the number of reports that a node's halves owe.
func (d *deliveries) of(node fault.NodeID) int {
	n := 0
	for id := range d.owed {
		if id.Origin.Node == node {
			n++
		}
	}
	return n
}

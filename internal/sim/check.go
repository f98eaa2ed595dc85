package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// wrong returns the error in a leader's change, according to the real state and the leader's evidence; "": none. It
// becomes a violation when the store accepts the change.
func (w *World) wrong(t *term, c awareness.Change) string {
	if w.cfg.Fences != nil {
		return "" // delays change what can be known when
	}
	n := w.find(c.Node)
	if why := cmp.Or(w.wronglyMoved(t, n, c), w.wronglyStopped(n, c), w.wronglyRestarted(n, c), w.wronglyBlamed(n, c)); why != "" {
		return why
	}
	d, link := c.Component.LinkDirection()
	switch {
	case link && !n.movedSince(d, relinkTime) && t.witness.flaps(c, t.explainedByStop(c), w.now, w.cfg.Periods.LinkHoldOff):
		return "it changes oftener than the hold-off allows"
	case c.To == fault.Normal && c.From != fault.Normal && !t.heardOf(n, link):
		return "it is called NORMAL, and this leader has heard no node that could know"
	case c.To == fault.Failed && c.From != fault.Failed:
		return w.wronglyFailed(t, n, c)
	case c.From == fault.Failed && c.To != fault.Failed:
		return w.wronglyLifted(n, c)
	}
	return ""
}

// explainedByStop reports whether an announced stop explains the state to which a component changes.
func (t *term) explainedByStop(c awareness.Change) bool {
	st, _ := t.machine.Node(c.Node)
	return slices.ContainsFunc(st.Components, func(now awareness.ComponentStatus) bool {
		return now.Component == c.Component && now.Rule == awareness.RuleStopped
	})
}

// heardOf reports whether this term has heard from a node that can call n good: n itself, or for links and descriptors
// also a neighbour.
func (t *term) heardOf(n *node, link bool) bool {
	if t.witness.heard[n.id()] {
		return true
	}
	return link && slices.ContainsFunc(n.topo.Neighbours, func(nb neighbourOf) bool { return t.witness.heard[nb.ID] })
}

// wronglyFailed compares a verdict with the real state: a living part that some rail can reach is never called FAILED,
// a new leader calls no part FAILED before its grace is over, and a verdict by votes has the votes.
func (w *World) wronglyFailed(t *term, n *node, c awareness.Change) string {
	var alive bool
	switch c.Component {
	case fault.ComponentNode:
		alive = w.reached(t.r, n)
		if quorum := awareness.Quorum(len(n.topo.Neighbours)); c.Kind == fault.KindVotes && !c.SingleWitness && t.witness.accusers(n) < quorum {
			return fmt.Sprintf("it is called FAILED by a quorum of %d, and %d of its neighbours have said so", quorum, t.witness.accusers(n))
		}
	case fault.ComponentHost:
		alive = n.host.ready() && w.reached(t.r, n)
	case fault.ComponentDNP:
		alive = n.dnp.ready() && w.reached(t.r, n)
	default:
		return ""
	}
	switch {
	case w.now.Sub(t.started) < w.cfg.Periods.DigestPeriod:
		return "it is called FAILED by a leader that has just begun"
	case alive && !n.liar && w.now.Sub(w.truth.mended) >= settling:
		return "what lives and can be reached is called FAILED"
	}
	return ""
}

// wronglyLifted: a FAILED part stays so until there is a sign of life from after the verdict, which only a part that
// has lived since can have given.
func (w *World) wronglyLifted(n *node, c awareness.Change) string {
	at := w.store.failed[part{c.Node, c.Component}]
	host, dnp := n.host.livedAfter(at), n.dnp.livedAfter(at)
	if n.liar || c.Component == fault.ComponentNode && (host || dnp) || c.Component == fault.ComponentHost && host ||
		c.Component == fault.ComponentDNP && dnp || c.Component > fault.ComponentDNP {
		return ""
	}
	return "the verdict is lifted, and nothing there has lived since"
}

// linkWatch is how long the cables of a link must have been sound, and the halves of its ends not paused, for a blame of the link to be
// wrong.
const linkWatch = 30 * time.Second

// wronglyBlamed returns an error if a sound link between living nodes is called SICK or FAILED, even if a node has restarted within
// linkWatch; "": there is none. A paused half excuses the verdict. So does a restart that supervisors cannot know of: the node's first
// reports are still under way, or only its DNP half restarted, unannounced. If one end died and nobody could prove it, the link was
// FAILED. After that end's unannounced restart, the link may be SICK before it is NORMAL, because the restart excuses reports for a limited
// time only.
func (w *World) wronglyBlamed(n *node, c awareness.Change) string {
	d, link := c.Component.LinkDirection()
	bad := c.To == fault.Failed || c.To == fault.Sick
	if !link || w.moves != nil || !bad || c.Cause != fault.CauseLink {
		return ""
	}
	peer, since := n.neighbour(d), w.now.Add(-linkWatch)
	if !soundSince(n, peer, d, since) {
		return ""
	}
	paused := func(p *process) bool { return p.started.After(since) && !p.started.Equal(p.born) }
	failed := w.store.failed[part{c.Node, c.Component}]
	fades := func(p *process) bool { return c.From == fault.Failed && c.To == fault.Sick && p.born.After(failed) }
	for _, end := range [...]*node{n, peer} {
		host, dnp := &end.host, &end.dnp
		unknown := w.now.Sub(host.born) < w.cfg.Periods.DigestPeriod || end.alone.After(since)
		if end.liar || end.lied.After(since) || unknown || !host.up() || !dnp.up() || paused(host) || paused(dnp) || fades(host) || fades(dnp) {
			return ""
		}
	}
	return "a sound link between living nodes is blamed"
}

// soundSince reports whether the cables of the link from n in direction d to p, one for each way, have lost no frame since a time.
func soundSince(n, p *node, d grid.Direction, since time.Time) bool {
	there, back := &n.links[d.Index()], &p.links[d.Opposite().Index()]
	return there.sound() && back.sound() && !there.bad.After(since) && !back.bad.After(since)
}

// checkCommit compares a transaction that the store accepts with the store's content.
func (w *World) checkCommit(b *batch) {
	if b.head.term < w.store.head.term {
		w.violate("the store takes a commit of term %d after one of term %d", b.head.term, w.store.head.term)
	}
	now := make(map[fault.NodeID]picture)
	for _, c := range b.changes {
		p, ok := now[c.Node]
		if !ok {
			p = w.store.picture(c.Node)
		}
		if d, link := c.Component.LinkDirection(); link && !slices.Contains(w.find(c.Node).topo.Links, d) {
			continue // the end of a fault of a link that is gone
		}
		if p.state[c.Component] != c.From {
			w.violate("an event is from %s, and the committed map says %s: %s", c.From, p.state[c.Component], Known{c.Change, w.now})
		}
		p.state[c.Component], p.cause[c.Component] = c.To, c.Cause
		now[c.Node] = p
		if c.wrong != "" {
			w.violate("%s: %s", c.wrong, Known{c.Change, w.now})
		}
	}
	for _, st := range b.statuses {
		p, ok := now[st.ID]
		if !ok {
			p = w.store.picture(st.ID)
		}
		got := pictureOf(st)
		for c := fault.ComponentNode; c.Valid(); c++ {
			if got.state[c] != p.state[c] && got.state[c] != 0 {
				w.violate("the events lead to %s %s %s, and %s is stored", st.ID, c, p.state[c], got.state[c])
			}
		}
	}
	for _, g := range b.groups {
		if why := w.wrongGroup(b, g); why != "" {
			w.violate("group fault %s, %s %s: %s", g.ID, g.Kind, g.State, why)
		}
	}
	for _, p := range b.inbox {
		if !covers(w.store.inbox[p.Origin], p) {
			w.violate("the inbox position of %s goes back: %+v to %+v", p.Origin, w.store.inbox[p.Origin], p)
		}
	}
}

// wrongGroup returns the error in a change of a group fault; "": none.
func (w *World) wrongGroup(b *batch, g awareness.GroupStatus) string {
	if g.State == fault.Normal {
		if _, stands := w.store.groups[g.ID]; !stands &&
			!slices.ContainsFunc(b.groups, func(o awareness.GroupStatus) bool { return o.ID == g.ID && o.State != fault.Normal }) {
			return "it ends, and did not stand"
		}
		return ""
	}
	if len(g.Members) == 0 {
		return "it has no members"
	}
	if g.State != fault.Failed || g.Kind == awareness.GroupPartition || w.now.Sub(w.truth.mended) < settling {
		return ""
	}
	members := g.Members
	if old := w.store.groups[g.ID]; fault.State(old.GetState()) == g.State && fault.Cause(old.GetCause()) == g.Cause {
		// A member of the standing fault gets no new verdict. It may have returned, and its first report may still be under way.
		members = slices.DeleteFunc(slices.Clone(members), func(id fault.NodeID) bool { return slices.Contains(old.GetMembers(), string(id)) })
	}
	// A slow store may commit the fault after a member has returned.
	members = slices.DeleteFunc(slices.Clone(members), func(id fault.NodeID) bool { return b.hit[id] })
	return w.spared(members, g.Cause)
}

// spared names a member of a group fault without the fault, as far as any leader can tell; "": none.
func (w *World) spared(members []fault.NodeID, c fault.Cause) string {
	l := w.leading()
	if l == nil {
		return ""
	}
	for _, id := range members {
		if n := w.find(id); !n.liar && n.has(c) && w.reached(l, n) {
			return fmt.Sprintf("%s of %s lives and can be reached", c, id)
		}
	}
	return ""
}

// has reports whether the node, its host or its DNP works; false for other causes.
func (n *node) has(c fault.Cause) bool {
	return c == fault.CauseNode || // a reachable node lives
		c == fault.CauseHost && n.host.ready() || c == fault.CauseDNP && n.dnp.ready()
}

// covers reports whether a later position still includes the newest report of an earlier one.
func covers(old, now servicenet.InboxPosition) bool {
	if old.Epoch != now.Epoch || old.Highest == 0 {
		return now.Epoch >= old.Epoch
	}
	return now.Highest >= old.Highest && knows(now, fault.ReportID{Origin: old.Origin, Epoch: old.Epoch, Seq: old.Highest})
}

// knows reports whether a position covers a report.
func knows(p servicenet.InboxPosition, id fault.ReportID) bool {
	v := servicenet.NewInbox([]servicenet.InboxPosition{p}).Accept(id, false)
	return p.Epoch > 0 && (v == servicenet.Duplicate || v == servicenet.StaleEpoch)
}

// committed records a transaction that the store has accepted.
func (w *World) committed(b *batch) {
	for _, c := range b.changes {
		w.known = append(w.known, Known{c.Change, w.now})
		if c.To == fault.Failed && c.From != fault.Failed {
			w.store.failed[part{c.Node, c.Component}] = w.now
		}
	}
	for _, g := range b.groups {
		if g.State == fault.Normal {
			delete(w.store.groups, g.ID)
		} else {
			w.store.groups[g.ID] = view.StoredGroup(g)
		}
	}
	w.committedIncidents(b)
	for _, id := range b.reports {
		if !w.deliveries.accept(id) {
			w.violate("%s is committed twice", id)
		}
	}
	for _, st := range b.statuses {
		was := w.store.picture(st.ID)
		w.store.normal += count(st.State == fault.Normal) - count(was.state[fault.ComponentNode] == fault.Normal)
		w.store.pictures.put(st)
	}
	w.placeWriters(b)
	for _, r := range w.replicas {
		w.after(w.between(serviceDelayMin, serviceDelayMax), r.follow)
	}
}

// checkAcked compares an acknowledgement as COMMITTED with the store: the store must cover the acknowledged report, so
// that no later event can lose it.
func (w *World) checkAcked(id fault.ReportID) {
	if !knows(w.store.inbox[id.Origin], id) {
		w.violate("%s is acknowledged as COMMITTED, and the store does not have it", id)
	}
}

// checkRestored compares the map at the start of a term with the committed one.
func (w *World) checkRestored(t *term) {
	for _, n := range w.nodes {
		if why := t.mine.picture(w.store, n.id()).differs(w.store.picture(n.id())); why != "" {
			w.violate("%s begins its term with another map than the committed one: %s: %s", t.r.id, n.id(), why)
		}
	}
}

// checkRestoredGroups does so with the group faults.
func (w *World) checkRestoredGroups(t *term) {
	stand := t.machine.Groups()
	if len(stand) != len(w.store.groups) {
		w.violate("%s begins its term with %d group faults, and %d are committed", t.r.id, len(stand), len(w.store.groups))
	}
	for _, g := range stand {
		if w.store.groups[g.ID] == nil {
			w.violate("%s begins its term with group fault %s, which is not committed", t.r.id, g.ID)
		}
	}
}

// checkAgreement holds a leader's own map against the store's, and every copy against the others of the
// same revision.
func (w *World) checkAgreement(t *term, b *batch) {
	if w.store.head != b.head {
		return // another leads by now
	}
	for _, st := range b.statuses {
		if why := t.mine.picture(w.store, st.ID).differs(w.store.picture(st.ID)); why != "" {
			w.violate("%s has another map than the store: %s: %s", t.r.id, st.ID, why)
		}
	}
	for _, r := range w.replicas {
		if r.applied != w.store.rev() {
			continue
		}
		for _, st := range b.statuses {
			if why := r.copied.picture(w.store, st.ID).differs(w.store.picture(st.ID)); why != "" {
				w.violate("the copy of %s at revision %d is not the map: %s: %s", r.id, r.applied, st.ID, why)
			}
		}
	}
}

// apply updates a supervisor's copy of the map to the state of its store member.
func (r *replica) apply() {
	for ; r.applied < r.w.store.rev(); r.applied++ {
		b := r.w.store.log[r.applied]
		delete(r.copied, b.gone)
		for i, st := range b.statuses {
			r.copied.put(st)
			if r.answers != nil {
				r.answers.follow(view.Entry{Status: st, Revision: r.applied + 1, Faults: b.evidence[i], Watchdog: b.stated[i]})
			}
		}
	}
}

// picture returns the committed state of a node: all UNKNOWN before the first commit.
func (s *store) picture(id fault.NodeID) picture {
	if p, ok := s.pictures[id]; ok {
		return s.linked(id, p)
	}
	return s.blank(id)
}

// linked returns a picture with the links that the node has by the committed topology.
func (s *store) linked(id fault.NodeID, p picture) picture {
	if s.w.moves == nil {
		return p
	}
	for _, d := range grid.Directions() {
		c := fault.Link(d)
		switch linked := slices.Contains(s.w.ids[id].topo.Links, d); {
		case !linked:
			p.state[c], p.cause[c] = 0, 0
		case p.state[c] == 0:
			p.state[c], p.cause[c] = fault.Unknown, fault.CauseNone
		}
	}
	return p
}

// picture returns a node's state in a copy.
func (c copied) picture(s *store, id fault.NodeID) picture {
	if p, ok := c[id]; ok {
		return s.linked(id, p)
	}
	return s.blank(id)
}

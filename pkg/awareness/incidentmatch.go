package awareness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Update takes the news of one commit, or none when Wake is reached, and returns the incidents that changed. A time before
// that of the last update counts as that of the last update.
func (l *Incidents) Update(now time.Time, u IncidentUpdate) IncidentOutput {
	l.now, l.changed, l.gone = fault.Later(now, l.now), nil, nil
	clear(l.isChanged)
	l.update(u)
	l.trace(u.Traces)
	slices.SortFunc(l.changed, func(a, b *Incident) int { return strings.Compare(a.ID, b.ID) })
	return IncidentOutput{Changed: l.changed, Gone: l.gone}
}

// update is Update without the traces of machines.
func (l *Incidents) update(u IncidentUpdate) {
	known := make(map[Part]bool)
	for _, c := range u.Changes {
		if c.From != fault.Unknown {
			known[Part{Node: c.Node, Component: c.Component}] = true
		}
	}
	given := make(map[fault.NodeID]*NodeStatus, len(u.Nodes))
	for i := range u.Nodes {
		given[u.Nodes[i].ID] = &u.Nodes[i]
		l.learn(&u.Nodes[i], known)
	}
	same := func(a, b GroupStatus) bool {
		return a.ID == b.ID && a.State == b.State && slices.Equal(a.Members, b.Members)
	}
	if !slices.EqualFunc(l.groups, u.Groups, same) {
		l.groups, l.stale = u.Groups, true
	}
	if !l.stale && (l.wake.IsZero() || l.now.Before(l.wake)) {
		return
	}
	if next := l.folded.Add(foldingPause(len(l.standing), l.parts)); l.now.Before(next) {
		if l.wake.IsZero() || l.wake.After(next) || !l.now.Before(l.wake) {
			l.wake = next
		}
		return
	}
	l.stale, l.folded = false, l.now
	l.statuses = func(id fault.NodeID) (NodeStatus, bool) {
		if st := given[id]; st != nil {
			return *st, true
		}
		if u.Status == nil {
			return NodeStatus{}, false
		}
		return u.Status(id)
	}
	l.match(l.fold())
	l.prune()
	l.statuses, l.wake = nil, time.Time{}
	for _, s := range l.standing {
		l.wake = fault.Earliest(l.wake, s.wake(l.cfg.Settle))
	}
}

// foldingPause returns the least time between two foldings. With many standing incidents, or many faulty parts in the last
// folding, a folding takes tens of milliseconds, which would delay the next commit. So the changes are committed first,
// and their incidents follow within the pause.
func foldingPause(standing, parts int) (pause time.Duration) {
	if standing > manyStanding {
		pause += time.Duration(standing) * pausePerIncident
	}
	if parts > manyParts {
		pause += time.Duration(parts) * pausePerPart
	}
	return pause
}

// match assigns every root cause to an incident: to the one that has this root, or whose root it explains now; else to one
// whose root cause has ended and that covered it; else to a new one.
func (l *Incidents) match(f *folding) {
	l.ended(f)
	var orphans []*incident
	for _, s := range l.standing { // the oldest first
		c := f.of(s.Root)
		if c == nil && s.Root.Group != "" { // another group explains its members now: row → plane, block → rack
			if i := slices.IndexFunc(f.order, func(c *cluster) bool { return c.group != nil && s.covered(c) }); i >= 0 {
				c = f.order[i]
			}
		}
		if c == nil {
			orphans = append(orphans, s)
			continue
		}
		c.claims = append(c.claims, s)
	}
	left := make(map[*incident][]*cluster)
	var fresh []*cluster
	covering := coverers{all: orphans}
	for _, c := range f.order {
		if len(c.claims) > 0 {
			continue
		}
		s := covering.first(c)
		if s == nil {
			key := l.key(c.root)
			if i := slices.IndexFunc(orphans, func(s *incident) bool { return !s.behind[key].IsZero() }); i >= 0 {
				s = orphans[i]
			}
		}
		if s != nil {
			left[s] = append(left[s], c)
			continue
		}
		fresh = append(fresh, c)
	}
	from := make(map[*cluster]string)
	fresh = l.hold(f, l.leaveBehind(f, fresh, from))
	for _, c := range f.order {
		if len(c.claims) == 0 {
			continue
		}
		heir := c.claims[0]
		for _, s := range c.claims[1:] {
			l.merge(s, heir)
		}
		l.stand(heir, c)
	}
	for _, s := range orphans {
		l.recovering(s, left[s])
	}
	for _, c := range fresh {
		l.open(c, from[c])
	}
	l.standing = slices.DeleteFunc(l.standing, func(s *incident) bool { return s.State == IncidentClosed })
	slices.SortFunc(l.standing, older)
}

// coverers finds the incident that covers a root cause. After a storm there are thousands of incidents, so it uses an
// index.
type coverers struct {
	all []*incident            // the oldest first
	on  map[fault.NodeID][]int // indices in all, ascending, by the nodes of the covered parts; nil: not made yet
}

// fewCoverers is the number of incidents up to which an index is not worth its cost.
const fewCoverers = 16

// first returns the oldest incident that covers a root cause; nil: none does.
func (cs *coverers) first(c *cluster) *incident {
	if c.group != nil || len(cs.all) <= fewCoverers {
		if i := slices.IndexFunc(cs.all, func(s *incident) bool { return s.covered(c) }); i >= 0 {
			return cs.all[i]
		}
		return nil
	}
	if cs.on == nil {
		cs.on = make(map[fault.NodeID][]int)
		for i, s := range cs.all {
			for p := range s.covers {
				if on := cs.on[p.Node]; len(on) == 0 || on[len(on)-1] != i {
					cs.on[p.Node] = append(on, i)
				}
			}
		}
	}
	best := len(cs.all)
	nodes := []fault.NodeID{c.root.Node} // the incident covers a part of this node, or all consequences
	if len(c.parts) > 0 {
		nodes = append(nodes, c.parts[0].Node)
	}
	for _, id := range nodes {
		on := cs.on[id]
		if i := slices.IndexFunc(on, func(i int) bool { return cs.all[i].covered(c) }); i >= 0 {
			best = min(best, on[i])
		}
	}
	if best == len(cs.all) {
		return nil
	}
	return cs.all[best]
}

// covered reports whether the incident's root cause explained a root cause: as one of its parts, or all of its
// consequences, or the fault of a member. A link that leads to both is not enough.
func (s *incident) covered(c *cluster) bool {
	if s.covers[c.root] || s.owns(c.root) {
		return true
	}
	if c.group != nil {
		component, _ := memberComponent(c.group)
		return slices.ContainsFunc(c.group.Members, func(id fault.NodeID) bool { return s.covers[Part{Node: id, Component: component}] })
	}
	return len(c.parts) > 0 && !slices.ContainsFunc(c.parts, func(p Consequence) bool {
		return !s.covers[Part{Node: p.Node, Component: p.Component}]
	})
}

// owns reports whether the part belongs to the incident's node or half.
func (s *incident) owns(p Part) bool {
	return slices.ContainsFunc(owners(p), func(owner Part) bool { return s.covers[owner] })
}

// owners returns the node of a part, and the half that reports the part; nil: it is a group fault.
func owners(p Part) []Part {
	if p.Node == "" {
		return nil
	}
	half := fault.ComponentHost
	if _, link := p.Component.LinkDirection(); link || ofDNP(p.Component) {
		half = fault.ComponentDNP
	}
	return []Part{{Node: p.Node, Component: fault.ComponentNode}, {Node: p.Node, Component: half}}
}

// change prepares an incident for a change: readers keep the old one.
func (l *Incidents) change(s *incident) *Incident {
	if !l.isChanged[s.Incident] {
		in := *s.Incident
		in.Version++
		s.Incident = &in
		l.changed = append(l.changed, s.Incident)
		l.isChanged[s.Incident] = true
	}
	return s.Incident
}

// open opens an incident for a root cause, or reopens the one that was merged into another and has the same root.
func (l *Incidents) open(c *cluster, from string) {
	if from != "" {
		i := slices.IndexFunc(l.closed, func(in *Incident) bool { return in.MergedInto == from && l.key(in.Root) == l.key(c.root) })
		if i >= 0 {
			s := &incident{Incident: l.closed[i]}
			l.closed = slices.Delete(l.closed, i, i+1)
			l.change(s).MergedInto = ""
			l.standing = append(l.standing, s)
			l.stand(s, c)
			return
		}
	}
	since := c.since
	if since.IsZero() {
		since = l.now
	}
	// The ID depends on the committed time alone, the stored time on this leader's clock as well.
	id := l.newID(l.key(c.root), since)
	if since.After(l.now) {
		since = l.now
	}
	s := &incident{Incident: &Incident{ID: id, Root: c.root, Since: since, SplitFrom: from, Labels: l.labels(c)}}
	l.standing = append(l.standing, s)
	l.stand(s, c)
}

// stand makes the incident OPEN with a root cause.
func (l *Incidents) stand(s *incident, c *cluster) {
	// A cable keeps the end that it is known by while that end is bad. But both ends see a cut within moments, in any order:
	// then the lower end names it.
	if s.Root != c.root && l.key(s.Root) == l.key(c.root) && (l.now.Sub(s.Since) > 2*l.cfg.Settle || s.Fault > c.state) {
		l.name(c, s.Root)
	}
	parts := c.all()
	shown := parts[:min(len(parts), MaxConsequences)]
	moved := s.Version == 0 || s.Root != c.root
	worse := c.state > s.Fault
	plain := len(s.held)+len(s.behind)+len(c.held)+len(c.behind) == 0
	l.settle(s, c)
	again := s.State == IncidentRecovering || s.State == IncidentClosed
	same := !moved && !worse && s.State == IncidentOpen && s.Count == len(parts) && slices.Equal(s.Consequences, shown)
	if same && plain && s.stood && len(shown) == len(parts) {
		return // covers is up to date
	}
	if !same {
		fresh := s.Version == 0
		in := l.change(s)
		if again {
			l.reopen(s, c)
		}
		if !fresh && (severity(c.root, c.state) > in.Severity || larger(in, c)) {
			l.escalate(in)
		}
		in.State, in.Until = IncidentOpen, time.Time{}
		in.Consequences, in.Count = slices.Clone(shown), len(parts)
		in.Root, in.Coord, in.Peer, in.Cause = c.root, c.coord, c.peer, c.cause
		in.Severity = max(in.Severity, severity(c.root, c.state))
		if moved || worse {
			in.Fault, in.Verdict = c.state, l.reached(c)
		}
		if moved {
			in.dropTraces()
		}
		in.Summary = fault.Cut(sentence(c, in.Fault, in.Verdict.Reason), maxSummary)
	}
	s.covers = make(map[Part]bool, len(c.parts)+1)
	s.covers[c.root] = true
	for _, p := range c.parts {
		s.covers[Part{Node: p.Node, Component: p.Component}] = true
	}
	s.due, s.left, s.stood = time.Time{}, false, true
}

// merge closes an incident that another one continues.
func (l *Incidents) merge(s, heir *incident) {
	in := l.change(s)
	in.State, in.MergedInto = IncidentClosed, heir.ID
	if in.Until.IsZero() {
		in.Until = l.now
	}
	h := l.change(heir)
	for _, id := range append([]string{s.ID}, s.Merged...) {
		if len(h.Merged) < MaxMerged && !slices.Contains(h.Merged, id) {
			h.Merged = append(slices.Clip(h.Merged), id)
		}
	}
	if in.Severity > h.Severity {
		l.escalate(h)
		h.Severity = in.Severity
	}
	l.closed = append(l.closed, in)
	heir.joined, heir.settles = fault.Later(heir.joined, s.joined), fault.Later(heir.settles, s.settles)
}

// escalate records that an incident became graver, at most once per update. Earlier acknowledgements no longer count.
func (l *Incidents) escalate(in *Incident) {
	if !in.Escalated.Equal(l.now) {
		in.Escalations++
		in.Escalated = l.now
	}
}

// larger reports whether a root cause is larger than the present one of an incident: a group fault exceeds a node, a node a
// half, and a half any other part. Of two group faults, the one with more consequences is larger.
func larger(in *Incident, c *cluster) bool {
	was, is := extent(in.Root), extent(c.root)
	return is > was || is == was && c.group != nil && c.root != in.Root && len(c.parts) > in.Count
}

// extent orders root causes by size.
func extent(p Part) int {
	switch {
	case p.Group != "":
		return 3
	case p.Component == fault.ComponentNode:
		return 2
	case p.Component == fault.ComponentHost || p.Component == fault.ComponentDNP:
		return 1
	}
	return 0
}

// recovering handles an incident whose root cause has ended. left are faults that it explained and that still stand.
func (l *Incidents) recovering(s *incident, left []*cluster) {
	l.release(s)
	switch {
	case s.State != IncidentRecovering, s.left != (len(left) > 0):
		in := l.change(s)
		in.State, in.Until = IncidentRecovering, time.Time{}
		s.due = l.now.Add(l.cfg.Recover)
		if len(left) == 0 {
			in.Until, s.due = l.now, l.now.Add(l.cfg.Quiet)
		}
		s.left = len(left) > 0
	case l.now.Before(s.due):
	case len(left) == 0:
		in := l.change(s)
		in.State = IncidentClosed
		l.closed = append(l.closed, in)
		return
	default: // what is left is a fault of its own
		l.stand(s, left[0])
		for _, c := range left[1:] {
			l.open(c, s.ID)
		}
		return
	}
	if len(left) == 0 {
		return
	}
	var parts []Consequence
	for _, c := range left {
		if c.root.Group == "" {
			parts = append(parts, Consequence{c.root.Node, c.root.Component, c.state, c.cause, c.rule})
		}
		parts = append(parts, c.parts...)
	}
	slices.SortStableFunc(parts, worseConsequence)
	shown := parts[:min(len(parts), MaxConsequences)]
	if s.Count != len(parts) || !slices.Equal(s.Consequences, shown) {
		in := l.change(s)
		in.Consequences, in.Count = slices.Clone(shown), len(parts)
	}
}

// prune drops CLOSED incidents beyond the bounds, the oldest first.
func (l *Incidents) prune() {
	drop := max(0, len(l.closed)-l.cfg.KeepClosed)
	for drop < len(l.closed) && l.now.Sub(l.closed[drop].Until) > l.cfg.KeepFor {
		drop++
	}
	if drop == 0 {
		return
	}
	for _, in := range l.closed[:drop] {
		l.gone = append(l.gone, in.ID)
		delete(l.ids, in.ID)
	}
	l.changed = slices.DeleteFunc(l.changed, func(c *Incident) bool { return !l.ids[c.ID] })
	l.closed = slices.Delete(l.closed, 0, drop)
}

// severity returns the severity of a root cause: CRITICAL for a FAILED node and for a group fault. The incident's alert
// has the same severity.
func severity(root Part, s fault.State) IncidentSeverity {
	if root.Group != "" || root.Component == fault.ComponentNode && s != fault.Sick {
		return IncidentCritical
	}
	return IncidentWarning
}

// reached returns why a root cause was declared: if it has waited, the verdict of that time, which is the one that it ended
// with, or else the present one.
func (l *Incidents) reached(c *cluster) IncidentVerdict {
	if c.why != nil {
		return *c.why
	}
	return l.verdict(c)
}

// verdict returns why a root cause was declared, by the present evidence.
func (l *Incidents) verdict(c *cluster) IncidentVerdict {
	v := IncidentVerdict{At: l.now, Rule: c.rule, Supervisor: l.cfg.Supervisor}
	if c.group != nil {
		v.At = c.group.Since
		v.Reason = fmt.Sprintf("%d of %d nodes", len(c.group.Members), c.group.Of)
		return v
	}
	where, component := c.root.Node, c.root.Component
	if c.implied {
		where, component = c.parts[0].Node, c.parts[0].Component
	}
	st, ok := l.statuses(where)
	if !ok {
		return v
	}
	var list []EvidenceStatus
	ports := component == fault.ComponentNode && st.State == fault.Sick && c.cause != st.Cause // bad ports beside a graver fault
	if component == fault.ComponentNode && !ports {
		v.Reason, v.SingleWitness = st.Reason, st.SingleWitness
		if !st.Since.IsZero() {
			v.At = st.Since
		}
	}
	for i := range st.Components {
		s := &st.Components[i]
		switch {
		case s.Component == component:
			v.Reason, list = s.Reason, s.Evidence
			if !s.Since.IsZero() {
				v.At = s.Since
			}
		case component == fault.ComponentNode && bad(s.State) && (s.Cause == c.cause || st.State == fault.Failed):
			if ports && v.Reason == "" {
				v.Reason = s.Reason
			}
			list = append(slices.Clip(list), s.Evidence...)
		}
	}
	v.Reason = fault.Cut(v.Reason, maxSummary)
	l.witnesses(&v, list)
	return v
}

// witnesses adds evidence to a verdict, each statement once.
func (l *Incidents) witnesses(v *IncidentVerdict, list []EvidenceStatus) {
	for _, e := range list {
		if len(v.Evidence) < maxEvidence && !slices.Contains(v.Evidence, e) {
			v.Evidence = append(v.Evidence, e)
		}
		if bad(e.State) && e.Kind != fault.KindGossip && e.Kind != fault.KindVotes && len(v.Witnesses) < maxWitnesses &&
			!slices.Contains(v.Witnesses, e.Observer) {
			v.Witnesses = append(v.Witnesses, e.Observer)
		}
	}
}

// labels returns the labels of the root's node, or those that all members of a group share.
func (l *Incidents) labels(c *cluster) map[string]string {
	ids := []fault.NodeID{c.root.Node}
	if c.group != nil {
		ids = c.group.Members
	}
	out := make(map[string]string)
	for i, id := range ids {
		of := l.cfg.Labels[id]
		if i == 0 {
			maps.Copy(out, of)
		}
		for k, v := range out {
			if of[k] != v {
				delete(out, k)
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// sentence returns one sentence about a root cause and its state at its worst, which the reason is about.
func sentence(c *cluster, worst fault.State, reason string) string {
	what := c.root.Component.String() + " of " + string(c.root.Node)
	state := worst.String()
	switch _, link := c.root.Component.LinkDirection(); {
	case c.group != nil && c.group.Kind == GroupPartition:
		what, state = c.root.Group, "unreachable"
	case c.group != nil:
		what, state = c.root.Group, "FAILED, cause "+c.cause.String()
	case c.root.Component == fault.ComponentNode:
		what = "node " + string(c.root.Node)
	case link:
		what += " to " + string(c.peer)
	}
	out := what + " is " + state
	switch n := len(c.held); {
	case n == 1:
		out += ", with another new fault"
	case n > 1:
		out += fmt.Sprintf(", with %d other new faults", n)
	}
	if reason != "" {
		out += ": " + reason
	}
	return out
}

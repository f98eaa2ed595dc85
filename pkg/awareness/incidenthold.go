package awareness

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A dead rack is found node by node, and the search for group faults comes last. It is nevertheless one incident all
// the time: only the first of its root causes opens one. Another that begins within Settle, and may belong to the same
// group fault, waits below the first as a consequence. Usually the group fault is then found, and continues the
// incident. The wait ends once no other has begun for Settle, and four times Settle after the root cause, or the newest
// member of its group fault, began. Each root cause then opens its own incident, with the ID that it would have had
// without the wait. One that ends while it waits opens its incident as well.
//
// The price: a new fault that may share the cause of another one, and does not, becomes an incident of its own up to Settle
// later (1 s by default), at most four times Settle. Its change is committed at once. A fault never waits below one of
// lower severity, or below one that is older than that.

// maxHeld is the longest wait of a root cause, in multiples of Settle.
const maxHeld = 4

// kinship is something that two root causes may have in common. It is comparable.
type kinship struct {
	link   grid.Direction // of cables: a bundle has one direction; 0: nodes, halves and service networks
	domain domain         // a plane, a row, or (as GroupBlock) a place
	label  string         // a failure domain, "rack=r7"
}

// kin calls f with everything that a root cause may have in common with others. near adds the places beside a node, to find
// a connected set.
func (l *Incidents) kin(root Part, near bool, f func(kinship)) {
	root = l.key(root)
	at, ok := l.coords[root.Node]
	if !ok {
		return
	}
	d, link := root.Component.LinkDirection()
	linesOf(l.cfg.Dims, at, func(line domain) {
		if !link || line.kind == GroupPlane && ups[line.key] == d {
			f(kinship{link: d, domain: line})
		}
	})
	if link {
		return
	}
	for _, key := range l.cfg.DomainLabels {
		if v := l.cfg.Labels[root.Node][key]; v != "" {
			f(kinship{label: key + "=" + v})
		}
	}
	place := func(at grid.Coord) { f(kinship{domain: domain{kind: GroupBlock, at: at}}) }
	place(at)
	if near {
		for _, at := range l.cfg.Dims.Neighbours(at) {
			place(at)
		}
	}
}

// groupable reports whether a root cause may be, or become part of, a group fault.
func (l *Incidents) groupable(c *cluster) bool {
	if c.group != nil {
		return c.group.Kind != GroupPartition
	}
	if c.root.Component == fault.ComponentNode {
		n := l.ill[c.root.Node]
		return n != nil && n.dead()
	}
	return mayBeMember(c.root.Component, c.state)
}

// mayBeMember reports whether a part in this state is, or may soon be, a member of a group fault. A SICK service network
// counts, because it is SICK before it is FAILED.
func mayBeMember(c fault.Component, s fault.State) bool {
	_, link := c.LinkDirection()
	switch {
	case c == fault.ComponentServiceNetwork:
		return bad(s)
	case c == fault.ComponentHost, c == fault.ComponentDNP, link:
		return s == fault.Failed
	}
	return false
}

// below reports whether a root cause is of lower severity than another one, which therefore never waits below it.
func below(a, b *cluster) bool { return severity(a.root, a.state) < severity(b.root, b.state) }

// hosts are the root causes below which others may wait.
type hosts struct {
	l     *Incidents
	of    map[kinship]*cluster
	waits map[Part]*cluster // by key: below which one a root cause waits already
	held  map[Part]bool     // by key: it waits, or has waited
}

func (h *hosts) add(host *cluster, root Part) {
	h.l.kin(root, false, func(k kinship) {
		// Below a SICK service network only others of its kind wait, so anything else is the better host.
		if was := h.of[k]; was == nil || below(was, host) || was.state == fault.Sick && host.state != fault.Sick {
			h.of[k] = host
		}
	})
}

// find returns the one below which a root cause may begin to wait; nil: none.
func (h *hosts) find(c *cluster) (host *cluster) {
	h.l.kin(c.root, true, func(k kinship) {
		if is := h.of[k]; host == nil && is != nil && !below(is, c) && (is.state != fault.Sick || is.root.Component == c.root.Component) {
			host = is
		}
	})
	return host
}

// hosts returns those with an incident that has not settled.
func (l *Incidents) hosts(f *folding) *hosts {
	h := &hosts{l: l, of: make(map[kinship]*cluster), waits: make(map[Part]*cluster), held: make(map[Part]bool)}
	for _, s := range l.standing {
		for p := range s.held {
			h.held[p] = true
		}
	}
	for _, c := range f.order {
		for _, s := range c.claims {
			l.join(s, c)
			if !l.now.Before(s.settles) || !l.groupable(c) {
				continue
			}
			for _, root := range c.members() {
				h.add(c, root)
			}
			for p := range s.held {
				h.waits[p] = c
				if _, root := f.clusters[p]; root {
					h.add(c, p)
				}
			}
		}
	}
	return h
}

// hold lets root causes without an incident wait below others, and returns those that open one now.
func (l *Incidents) hold(f *folding, fresh []*cluster) (open []*cluster) {
	if len(fresh) == 0 {
		return nil
	}
	h := l.hosts(f)
	for _, c := range fresh {
		key := l.key(c.root)
		host, begins := h.waits[key], l.groupable(c) && l.now.Sub(c.since) < maxHeld*l.cfg.Settle
		if host == nil && !h.held[key] && begins {
			host = h.find(c)
		}
		if host != nil && below(host, c) {
			host = nil
		}
		switch {
		case host != nil && begins:
			host.held = append(host.held, c)
			h.add(host, c.root)
			continue
		case !h.held[key] && begins:
			h.add(c, c.root)
		}
		open = append(open, c)
	}
	return open
}

// ended opens the incidents of root causes that ended while they waited, and that no other one explains now.
func (l *Incidents) ended(f *folding) {
	var over []*cluster
	for _, s := range l.standing {
		for p, c := range s.held {
			if c != nil && f.of(p) == nil {
				over = append(over, c)
			}
		}
	}
	slices.SortFunc(over, graver)
	for _, c := range over {
		l.open(&cluster{root: c.root, coord: c.coord, peer: c.peer, state: c.state, cause: c.cause, rule: c.rule, since: c.since,
			parts: c.parts, group: c.group, why: c.why}, "")
	}
	slices.SortFunc(l.standing, older)
}

// mayHaveWaited reports whether a consequence of a stored incident may be a root cause that waited below it. Else the incident
// explained it. Beside a group fault, only whole nodes count: a half of one is rather a straggler.
func mayHaveWaited(in *Incident, c Consequence) bool {
	_, link := c.Component.LinkDirection()
	switch {
	case c.Component == fault.ComponentNode:
		return c.State != fault.Sick
	case in.Root.Group != "" && !link:
		return false
	case c.Node == in.Root.Node, link && c.Cause != fault.CauseLink:
		return false
	}
	return mayBeMember(c.Component, c.State)
}

// leaveBehind keeps a root cause below an incident that explained it until now and still stands, for as long as a
// consequence may outlive a root cause. An example is a dead half of a node that returns from a dead rack before the
// other nodes. It does the same for a part whose half or node has returned, while other nodes still report that half or
// node as faulty. It returns the other root causes. For those whose time is over, it records in from the incident that
// explained them.
func (l *Incidents) leaveBehind(f *folding, fresh []*cluster, from map[*cluster]string) (others []*cluster) {
	if len(fresh) == 0 {
		return nil
	}
	type explanation struct {
		*cluster
		id    string
		until time.Time
	}
	explained := make(map[Part]explanation)
	returned := make(map[Part]explanation) // nodes and halves, while others still report their faults
	for _, c := range f.order {
		for _, s := range c.claims {
			if c.implied {
				if until := l.wellSince(c.root).Add(l.cfg.Recover); l.now.Before(until) {
					returned[c.root] = explanation{c, s.ID, until}
				}
			}
			for p := range s.covers {
				key := l.key(p)
				if _, held := s.held[key]; !held {
					explained[key] = explanation{c, s.ID, l.now.Add(l.cfg.Recover)}
				}
			}
			for p, until := range s.behind {
				explained[p] = explanation{c, s.ID, until}
			}
		}
	}
	for _, c := range fresh {
		key := l.key(c.root)
		was, ok := explained[key]
		// A cable has two ends, and explained has the halves of a returned node.
		if _, link := key.Component.LinkDirection(); !link && extent(key) == 0 {
			for _, owner := range owners(key) {
				if !ok {
					was, ok = returned[owner]
				}
			}
		}
		switch {
		case ok && l.now.Before(was.until):
			was.leave(c, key, was.until)
			continue
		case ok:
			from[c] = was.id
		}
		others = append(others, c)
	}
	return others
}

// wellSince returns since when a node or half has its present state; zero: unknown.
func (l *Incidents) wellSince(p Part) time.Time {
	st, _ := l.statuses(p.Node)
	if p.Component == fault.ComponentNode {
		return st.Since
	}
	for _, c := range st.Components {
		if c.Component == p.Component {
			return c.Since
		}
	}
	return time.Time{}
}

// members returns the root and, of a group fault, its members.
func (c *cluster) members() []Part {
	out := []Part{c.root}
	if c.group != nil {
		component, _ := memberComponent(c.group)
		for _, id := range c.group.Members {
			out = append(out, Part{Node: id, Component: component})
		}
	}
	return out
}

// leave keeps a root cause behind until a time.
func (c *cluster) leave(root *cluster, key Part, until time.Time) {
	if c.until == nil {
		c.until = make(map[Part]time.Time)
	}
	c.behind, c.until[key] = append(c.behind, root), until
}

// all returns the consequences of a root cause and of those that wait below it, the worst first.
func (c *cluster) all() []Consequence {
	if len(c.held)+len(c.behind) == 0 {
		return c.parts
	}
	parts := slices.Clone(c.parts)
	for _, h := range slices.Concat(c.held, c.behind) {
		if h.root.Group == "" {
			parts = append(parts, Consequence{h.root.Node, h.root.Component, h.state, h.cause, h.rule})
		}
		parts = append(parts, h.parts...)
	}
	slices.SortStableFunc(parts, worseConsequence)
	return parts
}

// join restarts the wait below an incident for its root cause, or members of its group fault, that it has not had before.
// The last of them to begin bounds the wait.
func (l *Incidents) join(s *incident, c *cluster) {
	if s.had == nil {
		s.had = make(map[Part]bool)
	}
	joined := false
	add := func(p Part, since time.Time) {
		if key := l.key(p); !s.had[key] {
			s.had[key], joined = true, true
			s.joined = fault.Later(s.joined, since)
		}
	}
	if c.group == nil {
		add(c.root, c.since)
	} else {
		add(c.root, c.group.Since)
		for _, p := range c.members()[1:] {
			if n := l.ill[p.Node]; n == nil {
				continue
			} else if part := n.part(p.Component); part != nil {
				add(p, part.since)
			} else {
				add(p, n.since)
			}
		}
	}
	if joined {
		l.restart(s)
	}
}

// restart lets the wait below an incident begin again, up to maxHeld times Settle after the last member joined.
func (l *Incidents) restart(s *incident) {
	s.settles = fault.Earlier(l.now.Add(l.cfg.Settle), s.joined.Add(maxHeld*l.cfg.Settle))
}

// settle notes the root causes that wait below an incident. The wait restarts with each that it has not had before.
func (l *Incidents) settle(s *incident, c *cluster) {
	l.join(s, c)
	held := make(map[Part]*cluster, len(c.held))
	joined := false
	for _, h := range c.held {
		key := l.key(h.root)
		if was := s.held[key]; was != nil && was.why != nil && was.state == h.state {
			h.why = was.why
		} else {
			why := l.verdict(h)
			h.why = &why
		}
		held[key] = h
		if !s.had[key] {
			s.had[key], joined = true, true
		}
	}
	if joined {
		l.restart(s)
	}
	s.held, s.behind = held, c.until
	if len(held) == 0 && !l.now.Before(s.settles) {
		s.settles = time.Time{}
	}
}

// wake returns when the incident is due without news; zero: never.
func (s *incident) wake(settle time.Duration) time.Time {
	due := s.due
	if s.State == IncidentOpen && len(s.held) > 0 {
		due = s.settles
		for _, c := range s.held {
			if c != nil {
				due = fault.Earlier(due, c.since.Add(maxHeld*settle))
			}
		}
	}
	for _, until := range s.behind {
		due = fault.Earliest(due, until)
	}
	return due
}

// release ends the wait below an incident whose root cause has ended: each waiting root cause has its own incident, or
// is left.
func (l *Incidents) release(s *incident) {
	if len(s.held)+len(s.behind) == 0 {
		return
	}
	for p := range s.behind {
		s.covers[p] = true
	}
	own := slices.DeleteFunc(slices.Clone(s.Consequences), func(c Consequence) bool {
		return !s.covers[Part{Node: c.Node, Component: c.Component}]
	})
	if len(own) < len(s.Consequences) {
		in := l.change(s)
		in.Consequences, in.Count = own, len(s.covers)-1
	}
	s.held, s.behind = nil, nil
}

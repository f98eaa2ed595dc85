package awareness

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// GroupExplanation describes why a group fault stands, and what would change it.
type GroupExplanation struct {
	GroupStatus
	Summary string   // one sentence
	Because []string // the members, the place's other nodes, why this group and no other
	Until   []string // the events that would change it
}

// ExplainGroup explains a group fault; false if no group with that id stands. Ages are those of the last step.
func (m *Machine) ExplainGroup(id string) (GroupExplanation, bool) {
	g, ok := m.group(id)
	if !ok {
		return GroupExplanation{}, false
	}
	m.look()
	x := groupExplainer{explainer: explainer{Machine: m}, g: g, member: make(map[*node]bool, len(g.members))}
	for _, n := range g.members {
		x.member[n] = true
	}
	return GroupExplanation{GroupStatus: g.GroupStatus, Summary: x.summary(), Because: x.because(), Until: x.until()}, true
}

// groupExplainer collects the explanation of one group fault.
type groupExplainer struct {
	explainer
	g      group
	member map[*node]bool
}

// place returns the group's location: "rack=r1", "X=3", "Y=1,Z=2", "0,0,0..9,9,9".
func (x *groupExplainer) place() string {
	_, name, _ := strings.Cut(x.g.ID, "/")
	return strings.TrimSuffix(name, "/"+x.g.Cause.String())
}

// fate describes the fault that the members share.
func (x *groupExplainer) fate() string {
	switch x.g.Cause {
	case fault.CauseNode:
		return "dead"
	case fault.CauseLink:
		return "cut off from the next plane: their links to it have FAILED"
	case fault.CauseDNP:
		return "without their DNP"
	case fault.CauseServiceNetwork:
		return "without their service network"
	default:
		return "without their host"
	}
}

func (x *groupExplainer) summary() string {
	has, of, kind := len(x.g.members), x.g.Of, strings.ToLower(x.g.Kind.String())
	head := fmt.Sprintf("%s is %s: ", x.g.ID, x.g.State)
	switch {
	case x.g.Kind == GroupPartition:
		return head + fmt.Sprintf("no living node and no working link leads to %s, and no message arrives from there", fault.Plural(has, "node"))
	case x.g.Kind == GroupBlock && x.g.loose:
		return head + fmt.Sprintf("%d connected nodes are %s, some of them out of sight of all living nodes", has, x.fate())
	case x.g.Kind == GroupBlock:
		return head + fmt.Sprintf("%d connected nodes that fill a box are %s", has, x.fate())
	case x.g.Kind == GroupLabel:
		return head + fmt.Sprintf("%d of the %d nodes with %s are %s", has, of, x.place(), x.fate())
	}
	return head + fmt.Sprintf("%d of the %d nodes of the %s %s are %s", has, of, kind, x.place(), x.fate())
}

func (x *groupExplainer) because() []string {
	if c := &x.common; !c.look.IsZero() {
		x.say("something has changed since the last check: the next check is in %s", roughly(max(0, c.look.Sub(x.now))))
	}
	x.counted()
	x.spared()
	if x.g.Kind == GroupPartition {
		x.border()
		return x.lines
	}
	x.standing()
	x.rivals()
	return x.lines
}

// counted lists the members with the evidence on each.
func (x *groupExplainer) counted() {
	x.list("counted", x.g.members, func(n *node) string {
		if x.g.Cause == fault.CauseNode || x.g.Cause == fault.CauseNone {
			return x.how(n, fault.ComponentNode)
		}
		if x.g.Cause == fault.CauseLink {
			return "link " + x.how(n, fault.Link(ups[x.axis()]))
		}
		for _, p := range parts {
			if p.component.Cause() == x.g.Cause {
				return x.how(n, p.component)
			}
		}
		return ""
	})
}

// axis returns the axis of a bundle's links.
func (x *groupExplainer) axis() int {
	return max(0, slices.Index(axes[:], x.place()[:1]))
}

// how returns the state of a component, and the rule.
func (x *groupExplainer) how(n *node, c fault.Component) string {
	p := &n.components[c]
	switch {
	case c == fault.ComponentNode && n.inferred:
		return "inferred dead"
	case c == fault.ComponentNode && n.unreachable && p.state == fault.Unknown:
		return "UNKNOWN, unreachable"
	}
	return fmt.Sprintf("%s, %s", p.state, p.rule)
}

// spared lists the nodes of the place that are not members.
func (x *groupExplainer) spared() {
	place := slices.DeleteFunc(x.nodesOf(), func(n *node) bool { return x.member[n] })
	x.list("not counted", place, func(n *node) string {
		if x.g.Cause != fault.CauseNode && n.marks&markDead != 0 {
			return "dead, which does not count against it"
		}
		for _, p := range parts {
			if h, half := halfOf(p.component); half && p.component.Cause() == x.g.Cause && x.returning(n, h, x.now) {
				return "coming back"
			}
		}
		return x.how(n, fault.ComponentNode)
	})
}

// nodesOf returns all nodes of the map at the group's place, members or not, by rank.
func (x *groupExplainer) nodesOf() []*node {
	if x.g.Kind == GroupPartition {
		return nil
	}
	if x.g.Kind == GroupBlock {
		return x.boxed()
	}
	var is domain
	x.domainsOf(x.g.members[0], func(d domain) {
		if groupID(d.kind, x.name(d), x.g.Cause) == x.g.ID {
			is = d
		}
	})
	if is.kind == 0 {
		return nil // the labels have changed
	}
	var out []*node
	for _, n := range x.own {
		x.domainsOf(n, func(d domain) {
			if d == is {
				out = append(out, n)
			}
		})
	}
	return out
}

// boxed returns the nodes of the box that gave a block its name.
func (x *groupExplainer) boxed() []*node {
	from, to, _ := strings.Cut(x.place(), "..")
	lo, err := grid.ParseCoord(from)
	if err != nil {
		return nil
	}
	hi, err := grid.ParseCoord(to)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(x.own), func(n *node) bool {
		at := n.coord
		for axis := range 3 {
			l, h, c := *along(&lo, axis), *along(&hi, axis), *along(&at, axis)
			if inside := l <= c && c <= h || l > h && (c >= l || c <= h); !inside {
				return true
			}
		}
		return false
	})
}

// list describes the nodes; nodes with the same description share a line.
func (x *groupExplainer) list(what string, nodes []*node, how func(*node) string) {
	var order []string
	by := map[string][]fault.NodeID{}
	for _, n := range nodes {
		h := how(n)
		if by[h] == nil {
			order = append(order, h)
		}
		by[h] = append(by[h], n.id)
	}
	for _, h := range order {
		x.say("%s: %s (%s)", what, several(by[h]), h)
	}
}

// several lists a few nodes by name, and gives the number if there are many.
func several(ids []fault.NodeID) string {
	if len(ids) > 8 {
		return fmt.Sprintf("%d nodes, %s to %s", len(ids), ids[0], ids[len(ids)-1])
	}
	return join(ids)
}

// border describes the nodes and links between a partition and the live part of the torus.
func (x *groupExplainer) border() {
	dead, links := map[*node]bool{}, 0
	for _, n := range x.g.members {
		for _, nb := range n.neighbours {
			switch {
			case x.member[nb.node]:
			case nb.node.marks&markDead != 0:
				dead[nb.node] = true
			default:
				links += len(nb.links())
			}
		}
	}
	around := make([]*node, 0, len(dead))
	for n := range dead {
		around = append(around, n)
	}
	sortNodes(around)
	if len(around) > 0 {
		x.say("dead around it: %s", several(ids(around)))
	}
	if links > 0 {
		x.say("FAILED links between it and living nodes: %d", links)
	}
}

// standing explains why the group stands though not all nodes of the place have the fault.
func (x *groupExplainer) standing() {
	switch has := len(x.g.members); {
	case x.g.Kind == GroupBlock && x.g.loose:
		x.say("a connected set with nodes inferred dead is a group whatever its shape")
	case has < x.g.Of:
		x.say("it was found %s: it stands while more than half of the %d have the fault", x.ago(x.g.Since), x.g.Of)
	default:
		x.say("it was found %s: all %d have the fault", x.ago(x.g.Since), x.g.Of)
	}
}

// rivals lists the other explanations for the members' faults, and why each of them does not stand, or stands as well.
func (x *groupExplainer) rivals() {
	if x.g.Cause == fault.CauseLink {
		return
	}
	var all []candidate
	for _, a := range alike {
		if a.cause == x.g.Cause {
			all = x.candidates(byRank(x.common.marked), a)
		}
	}
	slices.SortStableFunc(all, weightier)
	parts, few := 0, ""
	for _, c := range all {
		shared := 0
		for _, n := range c.members {
			if x.member[n] {
				shared++
			}
		}
		_, stands := x.group(c.id)
		switch {
		case c.id == x.g.ID || shared == 0:
		case stands:
			x.say("%s stands as well: %d of its %d members are members here", c.id, shared, len(c.members))
		case c.loose && !x.g.loose:
			x.say("%s are a connected set that fills no box: one that fills a box takes precedence", several(ids(c.members)))
		case len(c.members) == shared && shared == len(x.g.members):
			x.say("%s explains the same %d: among equals, a label precedes a plane, a plane a row, and a row a block", c.id, shared)
		case len(c.members) == shared:
			parts++
			few = c.id
		default:
			x.say("%s explains %d, but at most one fault that no other group explains", c.id, len(c.members))
		}
	}
	switch parts {
	case 0:
	case 1:
		x.say("%s explains a part: the group with most members takes precedence", few)
	default:
		x.say("%d other rows, planes, blocks or labels explain parts: the group with most members takes precedence", parts)
	}
}

func (x *groupExplainer) until() []string {
	switch {
	case x.g.Kind == GroupPartition:
		return []string{"a report from one of its nodes, or from a node on the way there: then that node is no longer a member"}
	case x.g.Cause == fault.CauseLink:
		return []string{"links that carry frames again leave it", fmt.Sprintf("no more than %d of the %d are left: then it "+
			"ends", x.g.Of/2, x.g.Of)}
	}
	out := []string{"members that come back leave it"}
	if !x.g.loose {
		out = append(out, fmt.Sprintf("no more than %d of the %d are left: then it ends", max(1, x.g.Of/2), x.g.Of))
	} else {
		out = append(out, "no member is inferred dead any longer: then it ends")
	}
	return append(out, "another row, plane, block or label explains more: then that one replaces it")
}

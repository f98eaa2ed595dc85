package awareness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Candidate explanations for faults that nodes have in common: a failure domain, a plane, a row, a box. The function
// choose picks the fewest.

// minRow, minPlane and minBlock are the smallest sizes of a row, plane and block. Two neighbours are a row of a 2×2×2
// torus and may well die together by chance; three of three hardly do.
const (
	minRow   = 3
	minPlane = 4
	minBlock = 4
	minLabel = 2
)

// candidate is a possible explanation.
type candidate struct {
	id      string
	kind    GroupKind
	cause   fault.Cause
	rule    ruleName
	members []*node // by rank
	of      int
	loose   bool // a connected set that fills no box and never did
}

// domain is a row, plane or label value; comparable.
type domain struct {
	kind  GroupKind
	key   int // the axis along a row or across a plane; the label's key
	value int // of a plane: its place; of a label: the index
	at    grid.Coord
}

// domainsOf calls f with every domain that the node is in.
func (m *Machine) domainsOf(n *node, f func(domain)) {
	for k, of := range m.domains.of {
		if v := of[n.rank]; v != 0 {
			f(domain{kind: GroupLabel, key: k, value: int(v)})
		}
	}
	linesOf(m.cfg.Dims, n.coord, f)
}

// linesOf calls f with every plane and row through a place.
func linesOf(dims grid.Dims, place grid.Coord, f func(domain)) {
	for axis := range 3 {
		size, at := sizeAlong(dims, axis), place
		if across := dims.Places() / size; across >= minPlane && across > widest(dims, axis) {
			f(domain{kind: GroupPlane, key: axis, value: *along(&at, axis)})
		}
		if size >= minRow {
			*along(&at, axis) = 0
			f(domain{kind: GroupRow, key: axis, at: at})
		}
	}
}

func sizeAlong(d grid.Dims, axis int) int { return [3]int{d.X, d.Y, d.Z}[axis] }

// widest returns the larger size of the two other axes: a plane that is no larger is a row.
func widest(d grid.Dims, axis int) int {
	return max(sizeAlong(d, (axis+1)%3), sizeAlong(d, (axis+2)%3))
}

// along returns the coordinate along an axis.
func along(c *grid.Coord, axis int) *int { return [3]*int{&c.X, &c.Y, &c.Z}[axis] }

var axes = [3]string{"X", "Y", "Z"}

// name returns "rack=r7", "X=3" or "Y=1,Z=2".
func (m *Machine) name(d domain) string {
	if d.kind == GroupLabel {
		return m.domains.name(d.key, int32(d.value))
	}
	if d.kind == GroupPlane {
		return fmt.Sprintf("%s=%d", axes[d.key], d.value)
	}
	var parts []string
	for axis := range 3 {
		if axis != d.key {
			parts = append(parts, fmt.Sprintf("%s=%d", axes[axis], *along(&d.at, axis)))
		}
	}
	return strings.Join(parts, ",")
}

// size returns the domain's number of nodes in the map.
func (m *Machine) size(d domain) int {
	switch {
	case d.kind == GroupLabel:
		return m.domains.sizes[d.key][d.value]
	case m.everywhere() && d.kind == GroupRow:
		return sizeAlong(m.cfg.Dims, d.key)
	case m.everywhere():
		return m.cfg.Dims.Places() / sizeAlong(m.cfg.Dims, d.key)
	}
	if m.sizes == nil {
		m.measure()
	}
	return m.sizes[d]
}

// everywhere reports whether every place of the torus has a node of this map.
func (m *Machine) everywhere() bool {
	return m.cfg.Foreign == nil && m.cfg.Dims.Full()
}

// measure counts the map's nodes in each row and plane.
func (m *Machine) measure() {
	m.sizes = map[domain]int{}
	for _, n := range m.own {
		m.domainsOf(n, func(d domain) { m.sizes[d]++ })
	}
}

// groupID returns "plane/X=3", with the cause after it unless that is NODE.
func groupID(k GroupKind, name string, c fault.Cause) string {
	id := strings.ToLower(k.String()) + "/" + name
	if c != fault.CauseNode && k != GroupPartition {
		id += "/" + c.String()
	}
	return id
}

// domainCandidates returns the domains whose nodes all have the fault. For faults other than death, dead nodes do not
// count against the domain as long as most nodes have the fault. Neither do dead hosts for faults of the service network.
// A standing group continues while more than half of its domain has the fault, so that it does not split up as its
// members recover one by one.
func (m *Machine) domainCandidates(in, dead []*node, cause fault.Cause) []candidate {
	members, without := map[domain][]*node{}, map[domain]int{}
	for _, n := range in {
		m.domainsOf(n, func(d domain) { members[d] = append(members[d], n) })
	}
	if len(in) > 0 {
		for _, n := range dead {
			m.domainsOf(n, func(d domain) { without[d]++ })
		}
	}
	rules := map[GroupKind]ruleName{GroupRow: ruleRow, GroupPlane: rulePlane, GroupLabel: ruleLabel}
	least := map[GroupKind]int{GroupRow: minRow, GroupPlane: minPlane, GroupLabel: minLabel}
	var out []candidate
	for d, has := range members {
		if len(has) < 2 {
			continue
		}
		size := m.size(d)
		if size < least[d.kind] || 2*len(has) <= size {
			continue
		}
		id := groupID(d.kind, m.name(d), cause)
		if _, stands := m.group(id); stands || len(has)+without[d] == size {
			out = append(out, candidate{id: id, kind: d.kind, cause: cause, rule: rules[d.kind], members: has, of: size})
		}
	}
	return out
}

// blockCandidates returns the connected sets of faulty nodes that fill a box or enclose nodes inferred dead. A standing
// block continues while more than half of it remains.
func (m *Machine) blockCandidates(in []*node, mark marks, cause fault.Cause) []candidate {
	seen := map[*node]bool{}
	var sets [][]*node
	for _, n := range in {
		if !seen[n] {
			set := connected(n, seen, func(p *node) bool { return p.marks&mark != 0 })
			slices.SortFunc(set, func(a, b *node) int { return a.rank - b.rank })
			sets = append(sets, set)
		}
	}
	slices.SortStableFunc(sets, func(a, b []*node) int { return len(b) - len(a) })
	claimed := map[string]bool{}
	var out []candidate
	for _, set := range sets {
		name, filled := m.box(set)
		c := candidate{id: groupID(GroupBlock, name, cause), kind: GroupBlock, cause: cause, rule: ruleBlock, members: set, of: len(set),
			loose: !filled}
		if slices.ContainsFunc(set, func(n *node) bool { return n.inferred }) {
			c.rule, filled = ruleEnclosed, true
		}
		if old, ok := m.continues(GroupBlock, cause, set, claimed); ok {
			c.id, c.of = old.ID, max(c.of, old.Of)
			if 2*len(set) > old.Of {
				filled, c.loose = true, c.loose && old.loose // losing members does not make it another block
			}
			claimed[old.ID] = true
		}
		if filled {
			out = append(out, c)
		}
	}
	return out
}

// continues returns the unclaimed standing group of the kind with the most members in the set.
func (m *Machine) continues(k GroupKind, cause fault.Cause, set []*node, claimed map[string]bool) (best group, ok bool) {
	count := map[int]int{}
	for _, n := range set {
		for _, i := range m.common.of[n.rank] {
			count[i]++
		}
	}
	most := 0
	for i, g := range m.common.groups { // by ID: of equal ones the first
		if g.Kind == k && g.Cause == cause && !claimed[g.ID] && count[i] > most {
			best, most, ok = g, count[i], true
		}
	}
	return best, ok
}

// box returns the smallest box around the set, "0,0,0..9,9,9" (in a torus it may wrap around), and whether the set
// fills it, but for places without a node, and is a block: two axes wide.
func (m *Machine) box(set []*node) (name string, filled bool) {
	var lo, hi, lengths grid.Coord
	volume, wide := 1, 0
	for axis := range 3 {
		size := sizeAlong(m.cfg.Dims, axis)
		used := make([]bool, size)
		for _, n := range set {
			c := n.coord
			used[*along(&c, axis)] = true
		}
		from, length := arc(used)
		*along(&lo, axis), *along(&hi, axis), *along(&lengths, axis) = from, (from+length-1)%size, length
		volume *= length
		if length > 1 {
			wide++
		}
	}
	for _, c := range m.empty {
		in := true
		for axis := range 3 {
			size := sizeAlong(m.cfg.Dims, axis)
			in = in && (*along(&c, axis)-*along(&lo, axis)+size)%size < *along(&lengths, axis)
		}
		if in {
			volume--
		}
	}
	return lo.String() + ".." + hi.String(), volume == len(set) && len(set) >= minBlock && wide >= 2
}

// arc returns the shortest stretch of a ring that holds all used places: the ring without its longest gap.
func arc(used []bool) (from, length int) {
	n := len(used)
	gap, gapEnd := 0, 0
	for i := range n {
		if !used[i] {
			continue
		}
		run := 0
		for j := (i - 1 + n) % n; !used[j]; j = (j - 1 + n) % n {
			run++
		}
		if run > gap {
			gap, gapEnd = run, i
		}
	}
	return gapEnd, n - gap
}

// candidates returns the possible explanations for one kind of fault that the marked nodes share.
func (m *Machine) candidates(marked []*node, a likeness) []candidate {
	var in, dead []*node
	for _, n := range marked {
		if n.marks&a.mark != 0 {
			in = append(in, n)
		}
		hides := markDead
		if a.mark == markServiceNetwork {
			hides |= markHost
		}
		if n.marks&a.mark == 0 && n.marks&hides != 0 {
			dead = append(dead, n)
		}
	}
	return append(m.domainCandidates(in, dead, a.cause), m.blockCandidates(in, a.mark, a.cause)...)
}

// groupOrder ranks explanations with equally many members: see choose.
var groupOrder = map[GroupKind]int{GroupLabel: 0, GroupPlane: 1, GroupRow: 2, GroupBlock: 3}

// weightier orders explanations by precedence: see choose.
func weightier(a, b candidate) int {
	if a.loose != b.loose {
		if a.loose {
			return 1
		}
		return -1
	}
	return cmp.Or(len(b.members)-len(a.members), groupOrder[a.kind]-groupOrder[b.kind], strings.Compare(a.id, b.id))
}

// choose picks explanations, the one with most members first, until no other explains two more faults. Among equals, a
// label precedes a plane, a plane a row, and a row a box, because labels reflect the machines' wiring and racks better
// than geometry does. Sets that fill no box come last.
func choose(all []candidate) []candidate {
	slices.SortStableFunc(all, weightier)
	covered := map[*node]bool{}
	var out []candidate
	for _, c := range all {
		fresh := 0
		for _, n := range c.members {
			if !covered[n] {
				fresh++
			}
		}
		if fresh < 2 {
			continue
		}
		for _, n := range c.members {
			covered[n] = true
		}
		out = append(out, c)
	}
	return out
}

// bundleCandidates returns the planes whose links to the next plane have all FAILED: a bundle of cables, or a conduit
// that they share. Links that a dead node or DNP hides do not count against the bundle as long as most have FAILED.
// The members are the nodes of the plane with the links on their positive side.
func (m *Machine) bundleCandidates(marked []*node) []candidate {
	members, without := map[domain][]*node{}, map[domain]map[*node]bool{}
	for _, n := range marked {
		for axis := range 3 {
			plane := func(n *node, f func(domain)) {
				m.domainsOf(n, func(d domain) {
					if d.kind == GroupPlane && d.key == axis {
						f(d)
					}
				})
			}
			if n.marks&(markLinkX<<axis) != 0 {
				plane(n, func(d domain) { members[d] = append(members[d], n) })
			}
			if n.marks&(markDead|markDNP) == 0 {
				continue
			}
			for _, end := range [...]*node{n, n.peers[ups[axis].Opposite().Index()]} { // a dead DNP hides both of its cables
				if end != nil && !m.cfg.Foreign[end.id] && end.ends.has(ups[axis]) && end.marks&(markLinkX<<axis) == 0 {
					plane(end, func(d domain) {
						if without[d] == nil {
							without[d] = map[*node]bool{}
						}
						without[d][end] = true
					})
				}
			}
		}
	}
	var out []candidate
	for d, has := range members {
		id, size := groupID(GroupPlane, m.name(d), fault.CauseLink), m.cables(d)
		all := len(has)+len(without[d]) == size && size >= minPlane
		if _, stands := m.group(id); (all || stands) && 2*len(has) > size {
			out = append(out, candidate{id: id, kind: GroupPlane, cause: fault.CauseLink, rule: ruleBundle, members: has, of: size})
		}
	}
	return out
}

// cables returns the number of the plane's nodes that have a link to the next plane.
func (m *Machine) cables(plane domain) int {
	if m.cfg.Dims.Full() {
		return m.size(plane)
	}
	count := 0
	for _, n := range m.own {
		at := n.coord
		if *along(&at, plane.key) == plane.value && n.ends.has(ups[plane.key]) {
			count++
		}
	}
	return count
}

// partitionCandidates returns the partitions of two or more nodes.
func (m *Machine) partitionCandidates(parts [][]*node) []candidate {
	claimed := map[string]bool{}
	var out []candidate
	for _, set := range parts {
		if len(set) < 2 {
			continue
		}
		c := candidate{
			id: groupID(GroupPartition, set[0].coord.String(), fault.CauseNone), kind: GroupPartition, cause: fault.CauseNone,
			rule: rulePartition, members: set, of: len(set),
		}
		if old, ok := m.continues(GroupPartition, fault.CauseNone, set, claimed); ok {
			c.id, claimed[old.ID] = old.ID, true
		}
		out = append(out, c)
	}
	return out
}

// standingPartitions returns the current partitions: a supervisor without any input has no better knowledge.
func (m *Machine) standingPartitions() []candidate {
	var out []candidate
	for _, g := range m.common.groups {
		if g.Kind == GroupPartition {
			out = append(out, candidate{id: g.ID, kind: g.Kind, cause: g.Cause, rule: rulePartition, members: g.members, of: g.Of})
		}
	}
	return out
}

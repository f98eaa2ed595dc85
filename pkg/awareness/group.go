package awareness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// GroupKind is the kind of place or set that the members of a group fault share.
type GroupKind uint8

// The kinds of groups.
const (
	GroupRow       GroupKind = iota + 1 // a line of the torus
	GroupPlane                          // a plane of the torus, or the bundle of links that leaves one
	GroupBlock                          // a connected set of dead nodes, or one that fills a box
	GroupLabel                          // all nodes of a failure domain: rack, switch, power
	GroupPartition                      // a part of the torus without a live path to it
)

var groupKindNames = [...]string{"", "ROW", "PLANE", "BLOCK", "LABEL", "PARTITION"}

// String returns the kind's name, as in the API.
func (k GroupKind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("GroupKind(%d)", uint8(k))
	}
	return groupKindNames[k]
}

// Valid reports whether k is one of the kinds.
func (k GroupKind) Valid() bool { return k >= GroupRow && k <= GroupPartition }

// ParseGroupKind parses a kind's name as String prints it.
func ParseGroupKind(s string) (GroupKind, error) {
	if i := slices.Index(groupKindNames[1:], s); i >= 0 {
		return GroupKind(i + 1), nil
	}
	return 0, fmt.Errorf("group kind %q: want one of %s", s, strings.Join(groupKindNames[1:], ", "))
}

// GroupStatus is one fault that covers the faults of its members.
type GroupStatus struct {
	// ID stays the same while the group lasts: "row/Y=1,Z=2", "plane/X=3", "block/0,0,0..9,9,9" (the box at its
	// discovery), "label/rack=r7", "partition/0,0,4". A cause other than NODE is appended:
	// "label/rack=r7/SERVICE_NETWORK".
	ID    string
	Kind  GroupKind
	State fault.State // FAILED; UNKNOWN for a partition; NORMAL only in the Output that ends it
	Cause fault.Cause // the failed part of the members; NONE for a partition
	// Members are all nodes whose fault the group explains, by rank. The slice is shared and must not be changed.
	Members []fault.NodeID
	// Of is the number of nodes in the row, plane or label; for a block the most that it ever had.
	Of       int
	Inferred int       // members that no live witness sees: UNKNOWN, inferred dead
	Since    time.Time // when it was found
	Rule     string    // short name of the rule: docs/awareness.md
}

// marks are the properties of one node that the search for groups uses.
type marks uint16

const (
	markDead marks = 1 << iota // FAILED, or inferred dead
	markHost
	markDNP
	markServiceNetwork
	markLinkX // its X+ link has FAILED as a link; Y+ and Z+ follow
	markLinkY
	markLinkZ
	markUnheard
	markInferred // in addition to markDead
)

// likeness is a fault that nodes may have in common, and its name.
type likeness struct {
	mark  marks
	cause fault.Cause
}

// alike lists all likenesses.
var alike = [...]likeness{
	{markDead, fault.CauseNode}, {markHost, fault.CauseHost}, {markDNP, fault.CauseDNP}, {markServiceNetwork, fault.CauseServiceNetwork},
}

// parts are the components whose failure sets a mark.
var parts = [...]struct {
	component fault.Component
	mark      marks
}{{fault.ComponentHost, markHost}, {fault.ComponentDNP, markDNP}, {fault.ComponentServiceNetwork, markServiceNetwork}}

// ups are the directions whose links represent both ends.
var ups = [3]grid.Direction{grid.XPlus, grid.YPlus, grid.ZPlus}

// common is the machine's knowledge of common causes.
type common struct {
	groups   []group       // the standing groups, by ID
	of       map[int][]int // by rank of a member: indices of its groups
	marked   map[int]*node // every node with a mark
	stranded map[int]*node // every node that is unreachable
	mutes    map[int]*node // mute nodes without a judgement: doubt.go

	// The search for groups does not follow every change; it waits for a pause in the changes, so that a block is one
	// event, not a thousand. first is the first change since the last search.
	first, look time.Time
	judge       time.Time // when to judge the mute nodes
}

// group is a group fault and the ranks of its members.
type group struct {
	GroupStatus
	members []*node // by rank
	loose   bool    // see candidate
}

// settleGroups is how long marks must be unchanged before the search for groups; the search starts at most four times
// as long after the first change.
func (m *Machine) settleGroups() time.Duration { return m.cfg.ChallengeNode }

// remark updates a node's marks.
func (m *Machine) remark(n *node, now time.Time) {
	old := n.marks
	n.marks = m.marksOf(n, now)
	if n.marks == old {
		return
	}
	if n.marks == 0 {
		delete(m.common.marked, n.rank)
	} else {
		if m.common.marked == nil {
			m.common.marked = map[int]*node{}
		}
		m.common.marked[n.rank] = n
	}
	c := &m.common
	if c.look.IsZero() {
		c.first = now
	}
	c.look = now.Add(m.settleGroups())
	if last := c.first.Add(4 * m.settleGroups()); c.look.After(last) {
		c.look = last
	}
	c.look = fault.Later(c.look, m.graceEnds())
}

func (m *Machine) marksOf(n *node, now time.Time) marks {
	switch {
	case n.revoked || n.stopped:
		return 0
	case n.inferred:
		return markDead | markInferred
	case n.components[fault.ComponentNode].state == fault.Failed:
		return markDead
	}
	var out marks
	for _, part := range parts {
		h, half := halfOf(part.component)
		if n.components[part.component].state == fault.Failed && (!half || !m.returning(n, h, now)) {
			out |= part.mark
		}
	}
	for axis, d := range ups {
		if n.cut(fault.Link(d)) {
			out |= markLinkX << axis
		}
	}
	if m.missed(n, now) {
		out |= markUnheard
	}
	return out
}

// nextLook returns when to search for groups or judge the mute nodes next; zero for never.
func (c *common) nextLook() time.Time {
	return fault.Earliest(c.look, c.judge)
}

// lookAtGroups judges the mute nodes and searches for groups when these are due. Its changes to nodes are published in
// the same step.
func (m *Machine) lookAtGroups(now time.Time) {
	c := &m.common
	if !c.judge.IsZero() && !now.Before(c.judge) {
		m.judgeMutes(now)
	}
	if c.look.IsZero() || now.Before(c.look) {
		return
	}
	c.first, c.look = time.Time{}, time.Time{}
	m.regroup(now)
}

// regroup recomputes all groups from the marked nodes and publishes the differences. It looks at marked nodes only: the
// cost grows with the faults, not with the torus.
func (m *Machine) regroup(now time.Time) {
	marked := byRank(m.common.marked)
	var found []candidate
	for _, a := range alike {
		found = append(found, choose(m.candidates(marked, a))...)
	}
	found = append(found, m.bundleCandidates(marked)...)
	switch listened := m.listened(); {
	case now.Before(listened):
		found = append(found, m.standingPartitions()...)
		if len(m.common.stranded) > 0 { // if all of them report by then, nothing else will end it
			m.common.first, m.common.look = listened, listened.Add(m.settleGroups())
		}
	case m.cutOff(now):
		found = append(found, m.standingPartitions()...)
	default:
		apart := m.partitions(marked, now)
		m.strand(apart)
		found = append(found, m.partitionCandidates(apart)...)
	}
	m.become(found, now)
}

// become replaces the standing groups by those found. It is the only writer of groups.
func (m *Machine) become(found []candidate, now time.Time) {
	slices.SortStableFunc(found, func(a, b candidate) int { return strings.Compare(a.id, b.id) })
	groups := make([]group, 0, len(found))
	for i, c := range found {
		if i > 0 && c.id == found[i-1].id {
			continue // a new block at the exact place of an old one that still lasts: only one at a time
		}
		g := group{members: c.members, loose: c.loose, GroupStatus: GroupStatus{
			ID: c.id, Kind: c.kind, State: fault.Failed, Cause: c.cause, Members: ids(c.members), Of: c.of, Since: now, Rule: c.rule.String(),
		}}
		if c.kind == GroupPartition {
			g.State = fault.Unknown
		}
		for _, n := range c.members {
			if n.inferred {
				g.Inferred++
			}
		}
		old, stands := m.group(c.id)
		if stands {
			g.Since = old.Since
		}
		if !stands || !same(old, g) {
			m.out.Groups = append(m.out.Groups, g.GroupStatus)
		}
		groups = append(groups, g)
	}
	for _, old := range m.common.groups {
		if !slices.ContainsFunc(groups, func(g group) bool { return g.ID == old.ID }) {
			ended := old.GroupStatus
			ended.State = fault.Normal
			m.out.Groups = append(m.out.Groups, ended)
		}
	}
	slices.SortFunc(m.out.Groups, func(a, b GroupStatus) int { return strings.Compare(a.ID, b.ID) })
	m.setGroups(groups)
}

func same(a, b group) bool {
	return a.Of == b.Of && a.Inferred == b.Inferred && a.Cause == b.Cause && a.Rule == b.Rule && slices.Equal(a.Members, b.Members)
}

func (m *Machine) setGroups(groups []group) {
	m.common.groups, m.common.of = groups, map[int][]int{}
	for i, g := range groups {
		for _, n := range g.members {
			m.common.of[n.rank] = append(m.common.of[n.rank], i)
		}
	}
}

// group returns a standing group.
func (m *Machine) group(id string) (group, bool) {
	i, ok := slices.BinarySearchFunc(m.common.groups, id, func(g group, id string) int { return strings.Compare(g.ID, id) })
	if !ok {
		return group{}, false
	}
	return m.common.groups[i], true
}

// groupsOf returns the ids of the groups that a node is a member of.
func (m *Machine) groupsOf(n *node) []string {
	var out []string
	for _, i := range m.common.of[n.rank] {
		out = append(out, m.common.groups[i].ID)
	}
	return out
}

// Groups returns the group faults that stand, by ID.
func (m *Machine) Groups() []GroupStatus {
	out := make([]GroupStatus, 0, len(m.common.groups))
	for _, g := range m.common.groups {
		out = append(out, g.GroupStatus)
	}
	return out
}

// RestoreGroups restores the groups that were last committed; call it before the first Step. They stand until the
// evidence no longer supports them.
func (m *Machine) RestoreGroups(saved []GroupStatus) error {
	seen := map[string]bool{}
	var groups []group
	for _, s := range saved {
		switch {
		case s.ID == "" || seen[s.ID]:
			return fmt.Errorf("restore group faults: given id %q: want distinct ids that are not empty", s.ID)
		case !s.Kind.Valid() || !s.State.Valid() || s.State == fault.Normal:
			return fmt.Errorf("restore group fault %s: given kind %s and state %s: want a kind and a state other than NORMAL", s.ID, s.Kind, s.State)
		}
		g := group{GroupStatus: s}
		for _, id := range s.Members {
			rank, ok := m.ranks[id]
			if !ok {
				return fmt.Errorf("restore group fault %s: member %q: want one of the nodes of the %s torus", s.ID, id, m.cfg.Dims)
			}
			n := m.nodes[rank]
			g.members = append(g.members, n)
			if s.Kind == GroupPartition {
				m.restoreStranded(n)
			}
		}
		if s.Kind == GroupBlock && len(g.members) == s.Of {
			_, filled := m.box(g.members)
			g.loose = !filled
		}
		seen[s.ID] = true
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b group) int { return strings.Compare(a.ID, b.ID) })
	m.setGroups(groups)
	m.common.first = m.graceEnds()
	m.common.look = m.graceEnds().Add(m.settleGroups())
	return nil
}

package awareness

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"pgregory.net/rapid"
)

// naive finds groups by a simple, independent method, from the statuses of all nodes and the previous groups. It shares
// only the types with group.go and common.go.
type naive struct {
	dims  grid.Dims
	cfg   Config
	nodes []NodeStatus
	old   []GroupStatus
	loose map[string]bool // standing blocks that filled no box
}

// has reports whether the node has the fault.
func (v naive) has(s NodeStatus, cause fault.Cause) bool {
	dead := s.State == fault.Failed || s.Inferred
	if cause == fault.CauseNode || dead {
		return cause == fault.CauseNode && dead
	}
	want := map[fault.Cause]fault.Component{
		fault.CauseHost: fault.ComponentHost, fault.CauseDNP: fault.ComponentDNP, fault.CauseServiceNetwork: fault.ComponentServiceNetwork,
		fault.CauseLink: 0,
	}[cause]
	for _, c := range s.Components {
		if c.Component == want && c.State == fault.Failed {
			return true
		}
	}
	return false
}

// sets returns the domains by the ids of their potential groups, and their kinds.
func (v naive) sets() (members map[string][]int, kinds map[string]GroupKind) {
	members, kinds = map[string][]int{}, map[string]GroupKind{}
	add := func(k GroupKind, id string, i int) { members[id], kinds[id] = append(members[id], i), k }
	for i, s := range v.nodes {
		c := s.Coord
		for _, key := range v.cfg.DomainLabels {
			if val := v.cfg.Labels[s.ID][key]; val != "" {
				add(GroupLabel, "label/"+key+"="+val, i)
			}
		}
		for _, p := range []struct {
			name          string
			size, a, b, x int
			row           string
		}{
			{"X", v.dims.X, v.dims.Y, v.dims.Z, c.X, fmt.Sprintf("row/Y=%d,Z=%d", c.Y, c.Z)},
			{"Y", v.dims.Y, v.dims.X, v.dims.Z, c.Y, fmt.Sprintf("row/X=%d,Z=%d", c.X, c.Z)},
			{"Z", v.dims.Z, v.dims.X, v.dims.Y, c.Z, fmt.Sprintf("row/X=%d,Y=%d", c.X, c.Y)},
		} {
			if p.a > 1 && p.b > 1 {
				add(GroupPlane, fmt.Sprintf("plane/%s=%d", p.name, p.x), i)
			}
			if p.size > 1 {
				add(GroupRow, p.row, i)
			}
		}
	}
	return members, kinds
}

type naiveGroup struct {
	id      string
	kind    GroupKind
	members []int
	of      int
	loose   bool
}

// stood returns the previous group of that id.
func (v naive) stood(id string) *GroupStatus {
	for i := range v.old {
		if v.old[i].ID == id {
			return &v.old[i]
		}
	}
	return nil
}

func (v naive) find(cause fault.Cause) []naiveGroup {
	var all []naiveGroup
	suffix := ""
	if cause != fault.CauseNode {
		suffix = "/" + cause.String()
	}
	sets, kinds := v.sets()
	for name, set := range sets {
		least := map[GroupKind]int{GroupRow: 3, GroupPlane: 4, GroupLabel: 2}[kinds[name]]
		var with []int
		dead := 0
		for _, i := range set {
			if v.has(v.nodes[i], cause) {
				with = append(with, i)
			} else if v.has(v.nodes[i], fault.CauseNode) || cause == fault.CauseServiceNetwork && v.has(v.nodes[i], fault.CauseHost) {
				dead++
			}
		}
		most := 2*len(with) > len(set) && len(with) >= 2
		if len(set) >= least && most && (len(with)+dead == len(set) || v.stood(name+suffix) != nil) {
			all = append(all, naiveGroup{name + suffix, kinds[name], with, len(set), false})
		}
	}
	all = append(all, v.blocks(cause, suffix)...)
	rank := []GroupKind{GroupLabel, GroupPlane, GroupRow, GroupBlock}
	slices.SortFunc(all, func(a, b naiveGroup) int {
		if a.loose != b.loose {
			if a.loose {
				return 1
			}
			return -1
		}
		return cmp.Or(len(b.members)-len(a.members), slices.Index(rank, a.kind)-slices.Index(rank, b.kind), strings.Compare(a.id, b.id))
	})
	explained := map[int]bool{}
	var out []naiveGroup
	for _, g := range all {
		v.loose[g.id] = g.loose
		news := 0
		for _, i := range g.members {
			if !explained[i] {
				news++
			}
		}
		if news >= 2 {
			out = append(out, g)
			for _, i := range g.members {
				explained[i] = true
			}
		}
	}
	return out
}

// blocks joins neighbours with the fault until nothing changes any more.
func (v naive) blocks(cause fault.Cause, suffix string) []naiveGroup {
	part := make([]int, len(v.nodes))
	for i := range part {
		part[i] = i
	}
	for changed := true; changed; {
		changed = false
		for i, s := range v.nodes {
			for _, c := range v.dims.Neighbours(s.Coord) {
				j := v.dims.Index(c)
				if v.has(s, cause) && v.has(v.nodes[j], cause) && part[j] > part[i] {
					part[j], changed = part[i], true
				}
			}
		}
	}
	sets := map[int][]int{}
	for i, s := range v.nodes {
		if v.has(s, cause) {
			sets[part[i]] = append(sets[part[i]], i)
		}
	}
	var order [][]int
	for _, set := range sets {
		order = append(order, set)
	}
	slices.SortFunc(order, func(a, b []int) int { return cmp.Or(len(b)-len(a), a[0]-b[0]) })
	taken := map[string]bool{}
	var out []naiveGroup
	for _, set := range order {
		lo, hi, volume, wide := v.box(set)
		g := naiveGroup{id: "block/" + lo.String() + ".." + hi.String() + suffix, kind: GroupBlock, members: set, of: len(set)}
		is := volume == len(set) && wide >= 2 && len(set) >= 4
		g.loose = !is
		for _, i := range set {
			is = is || v.nodes[i].Inferred
		}
		var best *GroupStatus
		most := 0
		for k := range v.old {
			o := &v.old[k]
			if o.Kind != GroupBlock || o.Cause != cause || taken[o.ID] {
				continue
			}
			common := 0
			for _, i := range set {
				if slices.Contains(o.Members, v.nodes[i].ID) {
					common++
				}
			}
			if common > most {
				best, most = o, common
			}
		}
		if best != nil {
			taken[best.ID] = true
			g.id, g.of = best.ID, max(g.of, best.Of)
			if 2*len(set) > best.Of {
				is, g.loose = true, g.loose && v.loose[best.ID]
			}
		}
		if is {
			out = append(out, g)
		}
	}
	return out
}

// box tries every box around the set and takes the smallest.
func (v naive) box(set []int) (lo, hi grid.Coord, volume, wide int) {
	axis := func(size int, at func(grid.Coord) int) (from, to, length int) {
		for length = 1; length <= size; length++ {
			for from = range size {
				in := true
				for _, i := range set {
					in = in && (at(v.nodes[i].Coord)-from+size)%size < length
				}
				if in {
					return from, (from + length - 1) % size, length
				}
			}
		}
		panic("no box")
	}
	var l [3]int
	lo.X, hi.X, l[0] = axis(v.dims.X, func(c grid.Coord) int { return c.X })
	lo.Y, hi.Y, l[1] = axis(v.dims.Y, func(c grid.Coord) int { return c.Y })
	lo.Z, hi.Z, l[2] = axis(v.dims.Z, func(c grid.Coord) int { return c.Z })
	for _, n := range l {
		if n > 1 {
			wide++
		}
	}
	for x := range l[0] {
		for y := range l[1] {
			for z := range l[2] {
				if v.dims.Contains(grid.Coord{X: (lo.X + x) % v.dims.X, Y: (lo.Y + y) % v.dims.Y, Z: (lo.Z + z) % v.dims.Z}) {
					volume++
				}
			}
		}
	}
	return lo, hi, volume, wide
}

// bundles returns the planes whose links in the positive direction have all failed.
func (v naive) bundles() []naiveGroup {
	sets, kinds := v.sets()
	var out []naiveGroup
	for name, set := range sets {
		if kinds[name] != GroupPlane {
			continue
		}
		dir := map[byte]grid.Direction{'X': grid.XPlus, 'Y': grid.YPlus, 'Z': grid.ZPlus}[name[len("plane/")]]
		link := fault.Link(dir)
		set = slices.DeleteFunc(slices.Clone(set), func(i int) bool {
			_, linked := v.dims.Neighbour(v.nodes[i].Coord, dir)
			return !linked
		})
		silent := func(i int) bool { return v.has(v.nodes[i], fault.CauseNode) || v.has(v.nodes[i], fault.CauseDNP) }
		var with []int
		hidden := 0
		for _, i := range set {
			dead := v.has(v.nodes[i], fault.CauseNode)
			for _, c := range v.nodes[i].Components {
				if c.Component == link && c.State == fault.Failed && c.Cause == fault.CauseLink && !dead {
					with = append(with, i)
				}
			}
			far, linked := v.dims.Neighbour(v.nodes[i].Coord, dir)
			if !slices.Contains(with, i) && (silent(i) || linked && silent(v.dims.Index(far))) {
				hidden++
			}
		}
		all := len(with)+hidden == len(set) && len(set) >= 4
		if (all || v.stood(name+"/LINK") != nil) && 2*len(with) > len(set) {
			out = append(out, naiveGroup{id: name + "/LINK", kind: GroupPlane, members: with, of: len(set)})
		}
	}
	return out
}

// groups returns the groups that should stand, as text.
func (v naive) groups() []string {
	var out []string
	say := func(g naiveGroup) {
		var who []fault.NodeID
		for _, i := range g.members {
			who = append(who, v.nodes[i].ID)
		}
		out = append(out, fmt.Sprintf("%s %s %d %s", g.id, g.kind, g.of, join(who)))
	}
	for _, cause := range []fault.Cause{fault.CauseNode, fault.CauseHost, fault.CauseDNP, fault.CauseServiceNetwork} {
		for _, g := range v.find(cause) {
			say(g)
		}
	}
	for _, g := range v.bundles() {
		say(g)
	}
	slices.Sort(out)
	return slices.CompactFunc(out, func(a, b string) bool { return strings.Fields(a)[0] == strings.Fields(b)[0] })
}

// TestGroupsAgainstNaive gives the map random faults, clustered and scattered, repairs some, and compares the standing
// groups with the naive result. The changes must agree as well.
func TestGroupsAgainstNaive(t *testing.T) {
	shapes := []grid.Dims{{X: 2, Y: 2, Z: 2}, {X: 3, Y: 3, Z: 1}, {X: 5, Y: 1, Z: 1}, {X: 4, Y: 2, Z: 1}, {X: 3, Y: 3, Z: 3},
		{X: 4, Y: 3, Z: 2}, {X: 5, Y: 4, Z: 3}}
	for _, text := range []string{"4x3x2 without 1,1,0 3,2,1", "5x4x3 without 2,0,1..4,1,1 1,3,2", "5x1x1 without 1,0,0",
		"3x3x1 without 2,1,0"} {
		d, err := grid.ParseDims(text)
		if err != nil {
			t.Fatal(err)
		}
		shapes = append(shapes, d)
	}
	rapid.Check(t, func(t *rapid.T) {
		dims := rapid.SampledFrom(shapes).Draw(t, "dims")
		cfg := testConfig(dims)
		if rapid.Bool().Draw(t, "racks") {
			label(&cfg, "rack", func(c grid.Coord) int { return c.Y })
			label(&cfg, "power", func(c grid.Coord) int { return (c.X + c.Z) % 3 })
		}
		m, err := New(cfg, epoch0, nil)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch0.Add(time.Minute)
		m.heard = now
		told, loose := map[string]string{}, map[string]bool{}
		var old []GroupStatus
		for i := range rapid.IntRange(1, 8).Draw(t, "rounds") {
			inflict(t, m, fmt.Sprint(i), now)
			now = now.Add(time.Second)
			m.heard = now
			out := m.Step(now, Tick{})
			for _, g := range out.Groups {
				told[g.ID] = worded(g)
				if g.State == fault.Normal {
					delete(told, g.ID)
				}
			}
			v := naive{dims: dims, cfg: cfg, nodes: m.Nodes(), old: old, loose: loose}
			old = m.Groups()
			var got, story []string
			for _, g := range old {
				got = append(got, worded(g))
			}
			for _, s := range told {
				story = append(story, s)
			}
			slices.Sort(got)
			slices.Sort(story)
			for _, g := range old {
				if x, ok := m.ExplainGroup(g.ID); !ok || !strings.Contains(x.Summary, g.ID) || len(x.Because) < 2 || len(x.Until) < 2 {
					t.Fatalf("explained as %+v", x)
				}
			}
			if want := v.groups(); !slices.Equal(got, want) || !slices.Equal(story, want) {
				t.Fatalf("round %d of %s: stand\n%s\ntold\n%s\non paper\n%s", i, dims, strings.Join(got, "\n"), strings.Join(story, "\n"),
					strings.Join(want, "\n"))
			}
		}
	})
}

func worded(g GroupStatus) string {
	return fmt.Sprintf("%s %s %d %s", g.ID, g.Kind, g.Of, join(g.Members))
}

// inflict changes the map's nodes in a random box, as publishing would.
func inflict(t *rapid.T, m *Machine, name string, now time.Time) {
	dims := m.cfg.Dims
	lo := dims.Node(rapid.IntRange(0, dims.Nodes()-1).Draw(t, name+"at"))
	var size [3]int
	for axis := range 3 {
		size[axis] = rapid.IntRange(1, sizeAlong(dims, axis)).Draw(t, name+"size")
	}
	fate := rapid.SampledFrom([]string{"dead", "dead", "dead", "inferred", "host", "dnp", "service", "links", "well"}).Draw(t, name+"fate")
	spare := rapid.IntRange(0, 4).Draw(t, name+"spare") // one node in this many is spared
	for dx := range size[0] {
		for dy := range size[1] {
			for dz := range size[2] {
				n := m.nodes[dims.Rank(grid.Coord{X: (lo.X + dx) % dims.X, Y: (lo.Y + dy) % dims.Y, Z: (lo.Z + dz) % dims.Z})]
				if n == nil {
					continue
				}
				if spare > 0 && rapid.IntRange(0, 3*spare).Draw(t, name+"spared") == 0 {
					continue
				}
				suffer(m, n, fate)
				m.remark(n, now)
			}
		}
	}
}

func suffer(m *Machine, n *node, fate string) {
	set := func(c fault.Component, s fault.State, cause fault.Cause) {
		n.components[c].state, n.components[c].cause = s, cause
	}
	set(fault.ComponentNode, fault.Normal, fault.CauseNone)
	n.inferred = false
	switch fate {
	case "dead":
		set(fault.ComponentNode, fault.Failed, fault.CauseNode)
	case "inferred":
		set(fault.ComponentNode, fault.Unknown, fault.CauseNone)
		n.inferred = true
	case "host":
		set(fault.ComponentHost, fault.Failed, fault.CauseHost)
	case "dnp":
		set(fault.ComponentDNP, fault.Failed, fault.CauseDNP)
	case "service":
		set(fault.ComponentServiceNetwork, fault.Failed, fault.CauseServiceNetwork)
	case "links":
		for _, d := range n.cfgLinks() {
			if d.Positive() {
				set(fault.Link(d), fault.Failed, fault.CauseLink)
			}
		}
	case "well":
		for c := range n.components {
			set(fault.Component(c), fault.Normal, fault.CauseNone)
		}
	}
}

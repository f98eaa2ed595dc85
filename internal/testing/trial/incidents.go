package trial

import (
	"fmt"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Racks are the failure domains of a cluster, by value of the label "rack".
type Racks map[string][]grid.Coord

// GroupFault is the same fault of several nodes, which the map names by one group fault.
type GroupFault struct {
	Faults []Fault // of its members
	// Group is the id of the group fault that the members form, and no label names: "plane/X=1"; empty: a rack.
	Group string
}

// ground is the ground truth about incidents: the broken parts, and those that others hide.
type ground struct {
	dims                 grid.Dims
	host, dnp, net, dead map[grid.Coord]bool
	covered              map[string]bool // root causes that a group fault explains
	roots                []string
}

// Roots returns the root causes that injected faults leave by docs/awareness.md: one incident must be open for each.
// A cable is named by its lower end, a group fault by its id.
func Roots(dims grid.Dims, racks Racks, faults []Fault, groups []GroupFault) []string {
	g := ground{dims: dims, host: map[grid.Coord]bool{}, dnp: map[grid.Coord]bool{}, net: map[grid.Coord]bool{},
		dead: map[grid.Coord]bool{}, covered: map[string]bool{}}
	all := slices.Clone(faults)
	for _, of := range groups {
		all = append(all, of.Faults...)
	}
	for _, f := range all {
		g.host[f.At] = g.host[f.At] || f.host()
		g.dnp[f.At] = g.dnp[f.At] || f.dnp()
		g.net[f.At] = g.net[f.At] || f.Kind == "cut-service"
	}
	for at, dnp := range g.dnp { // without its DNP and the service network, a host has no rail left
		g.dead[at] = dnp && (g.host[at] || g.net[at])
	}
	roots := map[string]bool{}
	for _, f := range all {
		if root := g.root(f); root != "" {
			roots[root] = true
		}
	}
	g.group(roots, racks, groups)
	for root := range roots {
		if !g.covered[root] {
			g.roots = append(g.roots, root)
		}
	}
	slices.Sort(g.roots)
	return g.roots
}

// root returns the root cause of one fault beside all others; empty: others hide it.
func (g *ground) root(f Fault) string {
	if f.link() {
		peer, _ := g.dims.Neighbour(f.At, f.Dir)
		if g.dnp[f.At] || g.dnp[peer] {
			return ""
		}
		return cable(g.dims, f.At, f.Dir)
	}
	component := f.Kind
	switch {
	case g.dead[f.At]:
		component = "node"
	case f.host():
		component = "host"
	case f.dnp():
		component = "dnp"
	case slices.Contains([]string{"dnp-core", "temperature", "power", "voltage"}, component):
		if g.dnp[f.At] {
			return ""
		}
	case g.host[f.At]:
		return ""
	case component == "cut-service":
		component = "service-network"
	}
	return NodeID(f.At) + "/" + component
}

// candidate is a possible group fault with the root causes of its members.
type candidate struct {
	id      string
	members []string
}

// rackFaults returns the racks whose nodes all have the same fault, unless a graver fault hides it.
func (g *ground) rackFaults(roots map[string]bool, racks Racks) (found []candidate) {
	for name, nodes := range racks {
		for _, kind := range [...]string{"node", "host", "dnp", "service-network"} {
			c := candidate{id: "label/rack=" + name}
			if kind != "node" {
				c.id += "/" + strings.ToUpper(strings.ReplaceAll(kind, "-", "_"))
			}
			without := 0
			for _, at := range nodes {
				if root := NodeID(at) + "/" + kind; roots[root] {
					c.members = append(c.members, root)
				} else if kind != "node" && (g.dead[at] || kind == "service-network" && g.host[at]) {
					without++
				}
			}
			if len(c.members)+without == len(nodes) && 2*len(c.members) > len(nodes) {
				found = append(found, c)
			}
		}
	}
	return found
}

// group replaces the roots of the members of group faults. As in the map, the largest group comes first, and each must
// explain two more roots.
func (g *ground) group(roots map[string]bool, racks Racks, groups []GroupFault) {
	found := g.rackFaults(roots, racks)
	for _, of := range groups {
		if of.Group == "" {
			continue
		}
		c := candidate{id: of.Group}
		for _, f := range of.Faults {
			if root := g.root(f); roots[root] {
				c.members = append(c.members, root)
			}
		}
		found = append(found, c)
	}
	slices.SortFunc(found, func(a, b candidate) int {
		if d := len(b.members) - len(a.members); d != 0 {
			return d
		}
		return strings.Compare(a.id, b.id)
	})
	for _, c := range found {
		more := 0
		for _, root := range c.members {
			if !g.covered[root] {
				more++
			}
		}
		if more < 2 {
			continue
		}
		for _, root := range c.members {
			g.covered[root] = true
		}
		g.roots = append(g.roots, c.id)
	}
}

// cable names a link by its lower end.
func cable(dims grid.Dims, at grid.Coord, d grid.Direction) string {
	if !d.Positive() {
		at, _ = dims.Neighbour(at, d)
		d = d.Opposite()
	}
	return NodeID(at) + "/link/" + d.String()
}

// cablesOf reports whether the roots are cables of the node that another root names.
func cablesOf(dims grid.Dims, roots []string, root string) bool {
	for rank := range dims.Nodes() {
		at := dims.At(rank)
		if NodeID(at)+"/node" != root {
			continue
		}
		var cables []string
		for _, d := range dims.LinksOf(at) {
			cables = append(cables, cable(dims, at, d))
		}
		return !slices.ContainsFunc(roots, func(r string) bool { return !slices.Contains(cables, r) })
	}
	return false
}

// RootOf names the root cause of an incident as Roots does.
func RootOf(dims grid.Dims, in *lofamov1.Incident) string {
	if in.GetGroup() != "" {
		return in.GetGroup()
	}
	at, err := grid.ParseCoord(in.GetCoord())
	d, derr := grid.ParseDirection(strings.TrimPrefix(in.GetComponent(), "link/"))
	if err != nil || derr != nil {
		return in.GetNode() + "/" + in.GetComponent()
	}
	return cable(dims, at, d)
}

// IncidentScore counts how the incidents of many rounds differ from the injected faults.
type IncidentScore struct {
	Where  string        `json:"where"` // the clusters
	Began  time.Time     `json:"began"`
	Took   time.Duration `json:"took"`
	Commit string        `json:"commit"`
	Of     string        `json:"of"`   // the machine
	Load   string        `json:"load"` // of the machine, before and after
	Again  string        `json:"again"`

	Rounds   int `json:"rounds"`
	Several  int `json:"several"` // rounds with several faults
	Leaders  int `json:"leaders"` // rounds in which the leader died
	Faults   int `json:"faults"`
	Missed   int `json:"missed"`
	Spurious int `json:"spurious"`
	Merged   int `json:"merged"` // cables of one node that became an incident of that node

	Kinds []*KindScore `json:"kinds"`
}

// KindScore is the part of a score for one kind of fault.
type KindScore struct {
	Kind   string `json:"kind"`
	Faults int    `json:"faults"`
	Alone  int    `json:"alone"`  // that were the only fault of their round
	Wrong  int    `json:"wrong"`  // rounds with this fault in which something was missed or spurious
	Most   int    `json:"most"`   // of incidents not CLOSED at any one commit, beside no other fault
	Opened int    `json:"opened"` // the most incidents ever opened for one fault, beside no other
}

// kind returns the row of a kind of fault.
func (s *IncidentScore) kind(name string) *KindScore {
	i := slices.IndexFunc(s.Kinds, func(k *KindScore) bool { return k.Kind == name })
	if i < 0 {
		i = len(s.Kinds)
		s.Kinds = append(s.Kinds, &KindScore{Kind: name})
	}
	return s.Kinds[i]
}

// IncidentRound holds the result of one round of faults.
type IncidentRound struct {
	Dims  grid.Dims
	Kinds []string // of its faults
	// Want and Open are the root causes of the faults, and those of the incidents that were not CLOSED at the end.
	Want, Open []string
	Opened     int // incidents that it opened and that no other continues
	Ever       int // all incidents that it opened
	Most       int // the most incidents that were not CLOSED at any one commit; 0: not known
	// Outage: supervisors were down meanwhile. The next leader may call a part SICK for a moment, since it hears of it late. That
	// counts as spurious, and breaks no invariant.
	Outage bool
}

// Add counts a round, and describes the differences.
func (s *IncidentScore) Add(r IncidentRound) (bad []string) {
	s.Rounds++
	s.Faults += len(r.Kinds)
	if len(r.Kinds) > 1 {
		s.Several++
	}
	missed := slices.DeleteFunc(slices.Clone(r.Want), func(root string) bool { return slices.Contains(r.Open, root) })
	spurious := slices.DeleteFunc(slices.Clone(r.Open), func(root string) bool { return slices.Contains(r.Want, root) })
	if len(missed) == 2 && len(spurious) == 1 && cablesOf(r.Dims, missed, spurious[0]) {
		s.Merged++ // two cables of one node: the map blames the node
		missed, spurious = nil, nil
	}
	// A fault may have had an incident before another fault hid it.
	extra := max(len(spurious), r.Opened-max(len(r.Want), len(r.Kinds)))
	s.Missed += len(missed)
	s.Spurious += extra
	for _, root := range missed {
		bad = append(bad, "incident missed: "+root)
	}
	for _, root := range spurious {
		bad = append(bad, "spurious incident: "+root)
	}
	if extra > len(spurious) && !r.Outage {
		bad = append(bad, fmt.Sprintf("%d incidents were opened and continued by no other: want at most %d", r.Opened,
			max(len(r.Want), len(r.Kinds))))
	}
	for _, name := range r.Kinds {
		k := s.kind(name)
		k.Faults++
		if len(bad) > 0 {
			k.Wrong++
		}
		if len(r.Kinds) == 1 {
			k.Alone++
			k.Most, k.Opened = max(k.Most, r.Most), max(k.Opened, r.Ever)
		}
	}
	return bad
}

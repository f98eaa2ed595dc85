package get

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// An ordinary cluster is drawn like this, by the first label of failure domains that a node has:
//
//	rack r1
//	[ n1  ] [Xn2  ] [ n10 ]

// picture draws the map as fits its cluster.
func (m *Map) picture(info *lofamov1.ClusterInfo, p command.Painter, columns int) string {
	if info.GetOrdinary() {
		return m.tiles(info, p, columns)
	}
	return m.draw(p, columns)
}

// tiles draws the nodes of an ordinary cluster in the given number of columns, and lists its faulty links.
func (m *Map) tiles(info *lofamov1.ClusterInfo, p command.Painter, columns int) string {
	lines, _ := m.Tiles(info, p, columns, "")
	return strings.Join(append(lines, fmt.Sprintf("nodes %s %s %s %s", p.State(lofamov1.State_NORMAL, "[ ] NORMAL"),
		p.State(lofamov1.State_SICK, "[!] SICK"), p.State(lofamov1.State_FAILED, "[X] FAILED"),
		p.State(lofamov1.State_UNKNOWN, "[?] UNKNOWN"))), "\n") + "\n"
}

// Tiles returns the lines of the tiles and of the faulty links, and the index of the line with the chosen node; chosen "": none is marked.
func (m *Map) Tiles(info *lofamov1.ClusterInfo, p command.Painter, columns int, chosen string) (lines []string, at int) {
	key, racks, width := m.racks(info.GetDomainLabels())
	perLine := max(1, (columns+1)/(width+6)) // "[", mark, name, " ]", and a space between two
	for _, value := range rackOrder(racks) {
		switch {
		case value != "":
			lines = append(lines, key+" "+command.Printable(value))
		case key != "":
			lines = append(lines, "no "+key)
		}
		for row := range slices.Chunk(racks[value], perLine) {
			var b strings.Builder
			for i, n := range row {
				text := fmt.Sprintf("[%s%-*s ]", NodeMark(n.GetState()), width, n.GetId())
				if n.GetMaintenance() != nil {
					text = "(" + strings.TrimSuffix(text[1:], "]") + ")"
				}
				if n.GetId() == chosen {
					text, at = chosenMark(p, text), len(lines)
				} else {
					text = p.State(n.GetState(), text)
				}
				b.WriteString(strings.Repeat(" ", min(i, 1)) + text)
			}
			lines = append(lines, b.String())
		}
		lines = append(lines, "")
	}
	return append(lines, m.faultyLinks(p)...), at
}

// InTiles returns the nodes in the order of their tiles.
func (m *Map) InTiles(info *lofamov1.ClusterInfo) (all []*lofamov1.Node) {
	_, racks, _ := m.racks(info.GetDomainLabels())
	for _, value := range rackOrder(racks) {
		all = append(all, racks[value]...)
	}
	return all
}

// rackOrder sorts racks as people count; nodes without the label come last.
func rackOrder(racks map[string][]*lofamov1.Node) []string {
	return slices.SortedFunc(maps.Keys(racks), func(a, b string) int {
		return cmp.Or(compareBool(a == "", b == ""), natural(a, b))
	})
}

// racks groups the nodes by the first of the keys that a node has as a label, and sorts each group by name. width is that of the longest
// name.
func (m *Map) racks(keys []string) (key string, racks map[string][]*lofamov1.Node, width int) {
	for _, k := range keys {
		if key == "" && slices.ContainsFunc(m.Nodes, func(n *lofamov1.Node) bool { return n.GetLabels()[k] != "" }) {
			key = k
		}
	}
	racks = map[string][]*lofamov1.Node{}
	for _, n := range m.Nodes {
		if n != nil {
			racks[n.GetLabels()[key]] = append(racks[n.GetLabels()[key]], n)
			width = max(width, utf8.RuneCountInString(n.GetId()))
		}
	}
	for _, nodes := range racks {
		slices.SortFunc(nodes, func(a, b *lofamov1.Node) int { return natural(a.GetId(), b.GetId()) })
	}
	return key, racks, width
}

// faultyLinks lists the links that are SICK or FAILED between two nodes that are neither FAILED nor UNKNOWN.
func (m *Map) faultyLinks(p command.Painter) (out []string) {
	for r, n := range m.Nodes {
		for _, d := range []grid.Direction{grid.XPlus, grid.YPlus, grid.ZPlus} {
			if n == nil || m.Ends[r] == nil {
				continue
			}
			at := m.Dims.At(r)
			next, ok := m.Dims.Neighbour(at, d)
			s, is := m.Cable(at, d)
			if !ok || !is || s != lofamov1.State_SICK && s != lofamov1.State_FAILED {
				continue
			}
			to := m.Nodes[m.Dims.Rank(next)]
			if alive(n) && alive(to) {
				out = append(out, fmt.Sprintf("link %s – %s %s", n.GetId(), to.GetId(), p.State(s, s.String())))
			}
		}
	}
	return out
}

func alive(n *lofamov1.Node) bool {
	return n.GetState() == lofamov1.State_NORMAL || n.GetState() == lofamov1.State_SICK
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// natural compares names as people do: n9 comes before n10.
func natural(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == "" || y == "" {
			if c := cmp.Compare(a[0], b[0]); c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
			continue
		}
		n, o := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Or(cmp.Compare(len(n), len(o)), cmp.Compare(n, o), cmp.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[len(x):], b[len(y):]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the digits at the beginning of a name.
func digits(s string) string {
	return s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
}

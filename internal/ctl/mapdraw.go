package ctl

import (
	"fmt"
	"strings"
	"unicode/utf8"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// A plane is drawn like this, for a size of 2 in X and in Y: the cable that leads round in X shows
// at both edges, the one that leads round in Y above and below.
//
//	         │           │
//	 ─ [ n0-0-0 ] ── [ n1-0-0 ] ─
//	         │           ╳
//	 ─ [ n0-1-0 ] ── [!n1-1-0 ] ─
//	         │           │

// nodeMark is the character before a node's name.
func nodeMark(s lofamov1.State) string {
	switch s {
	case lofamov1.State_NORMAL:
		return " "
	case lofamov1.State_SICK:
		return "!"
	case lofamov1.State_FAILED:
		return "X"
	default:
		return "?"
	}
}

func cableMark(s lofamov1.State, normal string) string {
	switch s {
	case lofamov1.State_NORMAL:
		return normal
	case lofamov1.State_SICK:
		return "~"
	case lofamov1.State_FAILED:
		return "╳"
	default:
		return "?"
	}
}

// style is how much room a drawing takes.
type style struct {
	label func(rank int) string
	width int    // of a label
	close string // after a label
	space string // beside a cable
}

func (s style) cell() int { return 2 + s.width + len(s.close) } // "[", mark, label, close
func (s style) gap() int  { return 2 + 2*len(s.space) }
func (s style) edge() int { return 2 + len(s.space) }

type drawing struct {
	*torusMap
	style
	paint painter
	from  int // columns of nodes drawn together: X from … to-1
	to    int
	// chosen is the rank of a node that is drawn as chosen; -1: none.
	chosen int
	b      strings.Builder
}

// draw draws the torus in so many columns. Labels are ids where they fit, else coordinates in the
// plane, else marks alone; planes too wide even for these are drawn in parts.
func (m *torusMap) draw(p painter, columns int) string {
	d := &drawing{torusMap: m, paint: p, chosen: -1}
	for _, d.style = range m.drawStyles() {
		if d.across(m.dims.X) <= columns {
			break
		}
	}
	perPart := m.dims.X
	for perPart > 1 && d.across(perPart) > columns {
		perPart--
	}
	for z := range m.dims.Z {
		for from := 0; from < m.dims.X; from += perPart {
			d.from, d.to = from, min(m.dims.X, from+perPart)
			d.plane(z)
		}
		d.between(z)
	}
	d.legend()
	return d.b.String()
}

// drawStyles lists the ways to draw, the roomiest first.
func (m *torusMap) drawStyles() []style {
	if m.styles != nil {
		return m.styles
	}
	id := func(r int) string {
		if n := m.nodes[r]; n != nil {
			return n.GetId()
		}
		return "-"
	}
	inPlane := func(r int) string {
		c := m.dims.At(r)
		return fmt.Sprintf("%d,%d", c.X, c.Y)
	}
	out := []style{
		{label: id, close: " ]", space: " "},
		{label: inPlane, close: " ]", space: " "},
		{label: inPlane, close: "]"},
		{label: func(int) string { return "" }, close: "]"},
	}
	for i := range out {
		for r := range m.nodes {
			out[i].width = max(out[i].width, utf8.RuneCountInString(out[i].label(r)))
		}
	}
	m.styles = out
	return out
}

// across returns the columns that so many nodes beside one another take.
func (s style) across(n int) int { return n*s.cell() + (n-1)*s.gap() + 2*s.edge() }

// at returns the coordinate of a column and row in plane z.
func at(x, y, z int) grid.Coord { return grid.Coord{X: x, Y: y, Z: z} }

func (d *drawing) plane(z int) {
	fmt.Fprintf(&d.b, "z=%d", z)
	if d.from > 0 || d.to < d.dims.X {
		fmt.Fprintf(&d.b, ", x=%d to %d", d.from, d.to-1)
	}
	d.b.WriteByte('\n')
	d.verticals(grid.YMinus, 0, z) // leads round from the top
	for y := range d.dims.Y {
		d.row(y, z)
		d.verticals(grid.YPlus, y, z) // down to the next row, at the bottom round to the top
	}
	d.b.WriteByte('\n')
}

func (d *drawing) row(y, z int) {
	var line strings.Builder
	edge := func(c grid.Coord, dir grid.Direction) {
		if d.dims.HasLink(dir) {
			s := d.cable(c, dir)
			line.WriteString(d.paint.state(s, cableMark(s, "─")))
		} else {
			line.WriteByte(' ')
		}
	}
	line.WriteByte(' ')
	edge(at(d.from, y, z), grid.XMinus)
	line.WriteString(d.space)
	for x := d.from; x < d.to; x++ {
		rank := d.dims.Rank(at(x, y, z))
		state := lofamov1.State_UNKNOWN
		if n := d.nodes[rank]; n != nil {
			state = n.GetState()
		}
		text := fmt.Sprintf("[%s%-*s%s", nodeMark(state), d.width, d.label(rank), d.close)
		if d.nodes[rank].GetMaintenance() != nil {
			text = "(" + strings.TrimSuffix(text[1:], "]") + ")"
		}
		if rank == d.chosen {
			line.WriteString(d.paint.chosen(d.chosenMark(text)))
		} else {
			line.WriteString(d.paint.state(state, text))
		}
		if x == d.to-1 {
			break
		}
		s := d.cable(at(x, y, z), grid.XPlus)
		mark := cableMark(s, "─")
		line.WriteString(d.space + d.paint.state(s, mark+mark) + d.space)
	}
	line.WriteString(d.space)
	edge(at(d.to-1, y, z), grid.XPlus)
	d.b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

// chosenMark makes a chosen node be told from the others without colours too.
func (d *drawing) chosenMark(text string) string {
	if d.paint.on {
		return text
	}
	return ">" + text[1:]
}

// verticals draws the cables that leave row y in direction dir.
func (d *drawing) verticals(dir grid.Direction, y, z int) {
	if !d.dims.HasLink(dir) {
		return
	}
	var line strings.Builder
	line.WriteString(strings.Repeat(" ", d.edge()))
	left := d.cell() / 2
	for x := d.from; x < d.to; x++ {
		s := d.cable(at(x, y, z), dir)
		line.WriteString(strings.Repeat(" ", left) + d.paint.state(s, cableMark(s, "│")))
		if x < d.to-1 {
			line.WriteString(strings.Repeat(" ", d.cell()+d.gap()-left-1))
		}
	}
	d.b.WriteString(line.String() + "\n")
}

// between draws the cables from plane z to the next one, round from the last to the first: one
// mark for each node of the plane, or one line when all are alike.
func (d *drawing) between(z int) {
	if !d.dims.HasLink(grid.ZPlus) {
		return
	}
	next := (z + 1) % d.dims.Z
	title := fmt.Sprintf("z=%d to z=%d", z, next)
	if next == 0 {
		title += " (round)"
	}
	first := d.cable(at(0, 0, z), grid.ZPlus)
	alike := true
	for y := range d.dims.Y {
		for x := range d.dims.X {
			alike = alike && d.cable(at(x, y, z), grid.ZPlus) == first
		}
	}
	if alike {
		cables := "the cable is"
		if n := d.dims.X * d.dims.Y; n > 1 {
			cables = fmt.Sprintf("all %d cables are", n)
		}
		fmt.Fprintf(&d.b, "%s: %s %s\n\n", title, cables, d.paint.state(first, stateName(first)))
		return
	}
	fmt.Fprintf(&d.b, "%s:\n", title)
	for y := range d.dims.Y {
		d.b.WriteString("   ")
		for x := range d.dims.X {
			s := d.cable(at(x, y, z), grid.ZPlus)
			d.b.WriteString(" " + d.paint.state(s, cableMark(s, "│")))
		}
		d.b.WriteByte('\n')
	}
	d.b.WriteByte('\n')
}

func (d *drawing) legend() {
	mark := func(s lofamov1.State, text string) string { return d.paint.state(s, text) }
	fmt.Fprintf(&d.b, "nodes %s %s %s %s   cables %s %s %s %s   X+ right, Y+ down, Z+ next plane\n",
		mark(lofamov1.State_NORMAL, "[ ] NORMAL"), mark(lofamov1.State_SICK, "[!] SICK"), mark(lofamov1.State_FAILED, "[X] FAILED"), mark(lofamov1.State_UNKNOWN, "[?] UNKNOWN"),
		mark(lofamov1.State_NORMAL, "─ │ NORMAL"), mark(lofamov1.State_SICK, "~ SICK"), mark(lofamov1.State_FAILED, "╳ FAILED"), mark(lofamov1.State_UNKNOWN, "? UNKNOWN"))
}

package get

import (
	"fmt"
	"strings"
	"unicode/utf8"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
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

// NodeMark is the character before a node's name.
func NodeMark(s lofamov1.State) string {
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

// CableMark returns the mark of a cable in a state.
func CableMark(s lofamov1.State, normal string) string {
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

// Style is the level of detail of a drawing, which determines its size.
type Style struct {
	label func(rank int) string
	width int    // of a label
	close string // after a label
	space string // beside a cable
}

func (s Style) cell() int { return 2 + s.width + len(s.close) } // "[", mark, label, close

func (s Style) gap() int { return 2 + 2*len(s.space) }

func (s Style) edge() int { return 2 + len(s.space) }

// Drawing draws a map as text.
type Drawing struct {
	*Map
	Style
	Paint command.Painter
	from  int // columns of nodes drawn together: X from … to-1
	To    int
	// chosen is the rank of a node that is drawn as chosen; -1: none.
	Chosen int
	B      strings.Builder
}

// draw draws the torus in the given number of columns. Labels are ids if they fit, else coordinates in the plane, else
// only marks; planes too wide even for these are drawn in parts.
func (m *Map) draw(p command.Painter, columns int) string {
	d := &Drawing{Map: m, Paint: p, Chosen: -1}
	for _, d.Style = range m.DrawStyles() {
		if d.Across(m.Dims.X) <= columns {
			break
		}
	}
	perPart := m.Dims.X
	for perPart > 1 && d.Across(perPart) > columns {
		perPart--
	}
	for z := range m.Dims.Z {
		for from := 0; from < m.Dims.X; from += perPart {
			d.from, d.To = from, min(m.Dims.X, from+perPart)
			d.Plane(z)
		}
		d.Between(z)
	}
	d.legend()
	return d.B.String()
}

// DrawStyles lists the ways to draw, the roomiest first.
func (m *Map) DrawStyles() []Style {
	if m.styles != nil {
		return m.styles
	}
	id := func(r int) string {
		if n := m.Nodes[r]; n != nil {
			return n.GetId()
		}
		return "-"
	}
	inPlane := func(r int) string {
		c := m.Dims.At(r)
		return fmt.Sprintf("%d,%d", c.X, c.Y)
	}
	out := []Style{
		{label: id, close: " ]", space: " "},
		{label: inPlane, close: " ]", space: " "},
		{label: inPlane, close: "]"},
		{label: func(int) string { return "" }, close: "]"},
	}
	for i := range out {
		for r := range m.Nodes {
			out[i].width = max(out[i].width, utf8.RuneCountInString(out[i].label(r)))
		}
	}
	m.styles = out
	return out
}

// Across returns the width in columns of n nodes side by side.
func (s Style) Across(n int) int { return n*s.cell() + (n-1)*s.gap() + 2*s.edge() }

// At returns the coordinate of a column and row in plane z.
func At(x, y, z int) grid.Coord { return grid.Coord{X: x, Y: y, Z: z} }

// Plane draws one plane of the torus.
func (d *Drawing) Plane(z int) {
	fmt.Fprintf(&d.B, "z=%d", z)
	if d.from > 0 || d.To < d.Dims.X {
		fmt.Fprintf(&d.B, ", x=%d to %d", d.from, d.To-1)
	}
	d.B.WriteByte('\n')
	d.verticals(grid.YMinus, 0, z) // leads round from the top
	for y := range d.Dims.Y {
		d.row(y, z)
		d.verticals(grid.YPlus, y, z) // down to the next row, at the bottom round to the top
	}
	d.B.WriteByte('\n')
}

func (d *Drawing) row(y, z int) {
	var line strings.Builder
	edge := func(c grid.Coord, dir grid.Direction) { line.WriteString(d.cable(c, dir, "─", 1)) }
	line.WriteByte(' ')
	edge(At(d.from, y, z), grid.XMinus)
	line.WriteString(d.space)
	for x := d.from; x < d.To; x++ {
		rank := d.Dims.Rank(At(x, y, z))
		state := lofamov1.State_UNKNOWN
		if n := d.Nodes[rank]; n != nil {
			state = n.GetState()
		}
		text := fmt.Sprintf("[%s%-*s%s", NodeMark(state), d.width, d.label(rank), d.close)
		if d.Nodes[rank].GetMaintenance() != nil {
			text = "(" + strings.TrimSuffix(text[1:], "]") + ")"
		}
		if !d.Dims.Contains(d.Dims.At(rank)) {
			text = strings.Repeat(" ", d.cell()/2) + "·" + strings.Repeat(" ", d.cell()-d.cell()/2-1)
		}
		if rank == d.Chosen {
			line.WriteString(chosenMark(d.Paint, text))
		} else {
			line.WriteString(d.Paint.State(state, text))
		}
		if x == d.To-1 {
			break
		}
		line.WriteString(d.space + d.cable(At(x, y, z), grid.XPlus, "─", 2) + d.space)
	}
	line.WriteString(d.space)
	edge(At(d.To-1, y, z), grid.XPlus)
	d.B.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

// cable draws a cable with n marks, or n spaces where there is none. line is the mark of a NORMAL one.
func (d *Drawing) cable(c grid.Coord, dir grid.Direction, line string, n int) string {
	s, ok := d.Cable(c, dir)
	if !ok {
		return strings.Repeat(" ", n)
	}
	return d.Paint.State(s, strings.Repeat(CableMark(s, line), n))
}

// chosenMark distinguishes a chosen node, without colours too.
func chosenMark(p command.Painter, text string) string {
	if !p.On {
		text = ">" + text[1:]
	}
	return p.Chosen(text)
}

// verticals draws the cables that leave row y in direction dir.
func (d *Drawing) verticals(dir grid.Direction, y, z int) {
	if !d.Dims.HasLink(dir) {
		return
	}
	var line strings.Builder
	line.WriteString(strings.Repeat(" ", d.edge()))
	left := d.cell() / 2
	for x := d.from; x < d.To; x++ {
		line.WriteString(strings.Repeat(" ", left) + d.cable(At(x, y, z), dir, "│", 1))
		if x < d.To-1 {
			line.WriteString(strings.Repeat(" ", d.cell()+d.gap()-left-1))
		}
	}
	d.B.WriteString(line.String() + "\n")
}

// Between draws the cables from plane z to the next one, round from the last to the first: one
// mark for each node of the plane, or one line when all are alike.
func (d *Drawing) Between(z int) {
	if !d.Dims.HasLink(grid.ZPlus) {
		return
	}
	next := (z + 1) % d.Dims.Z
	title := fmt.Sprintf("z=%d to z=%d", z, next)
	if next == 0 {
		title += " (round)"
	}
	var first lofamov1.State
	alike, n := true, 0
	for y := range d.Dims.Y {
		for x := range d.Dims.X {
			s, ok := d.Cable(At(x, y, z), grid.ZPlus)
			switch {
			case ok && n == 0:
				first, n = s, 1
			case ok:
				alike, n = alike && s == first, n+1
			}
		}
	}
	if n == 0 {
		return
	}
	if alike {
		cables := "the cable is"
		if n > 1 {
			cables = fmt.Sprintf("all %d cables are", n)
		}
		fmt.Fprintf(&d.B, "%s: %s %s\n\n", title, cables, d.Paint.State(first, command.StateName(first)))
		return
	}
	fmt.Fprintf(&d.B, "%s:\n", title)
	for y := range d.Dims.Y {
		d.B.WriteString("   ")
		for x := range d.Dims.X {
			d.B.WriteString(" " + d.cable(At(x, y, z), grid.ZPlus, "│", 1))
		}
		d.B.WriteByte('\n')
	}
	d.B.WriteByte('\n')
}

func (d *Drawing) legend() {
	mark := func(s lofamov1.State, text string) string { return d.Paint.State(s, text) }
	fmt.Fprintf(&d.B, "nodes %s %s %s %s   cables %s %s %s %s   X+ right, Y+ down, Z+ next plane\n",
		mark(lofamov1.State_NORMAL, "[ ] NORMAL"), mark(lofamov1.State_SICK, "[!] SICK"), mark(lofamov1.State_FAILED, "[X] FAILED"),
		mark(lofamov1.State_UNKNOWN, "[?] UNKNOWN"),
		mark(lofamov1.State_NORMAL, "─ │ NORMAL"), mark(lofamov1.State_SICK, "~ SICK"), mark(lofamov1.State_FAILED, "╳ FAILED"),
		mark(lofamov1.State_UNKNOWN, "? UNKNOWN"))
}

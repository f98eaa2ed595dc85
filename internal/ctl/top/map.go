package top

import (
	"fmt"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/get"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// mapWidth returns the width in columns that the map can use.
func (m *topModel) mapWidth() int {
	switch {
	case m.torus == nil:
		return 34
	case !m.app.Words().Torus():
		return m.size.width
	}
	return max(34, m.torus.DrawStyles()[0].Across(m.torus.Dims.X))
}

// mapPane draws the tiles of an ordinary cluster, or planes of the torus: like `lofamoctl map` if there is room, else one character per
// node, around the chosen one.
func (m *topModel) mapPane(w, h int) []string {
	if m.torus == nil {
		return fill([]string{m.title("2 Map", w, m.focus == paneMap)}, w, h)
	}
	n := m.torus.Nodes[m.torus.Dims.Rank(m.at)]
	title := fmt.Sprintf("2 Map  %s", m.at)
	if n != nil {
		title = "2 Map  " + n.GetId() + " " + command.StateName(n.GetState())
	}
	lines := []string{m.title(title, w, m.focus == paneMap)}
	if !m.app.Words().Torus() {
		return fill(append(lines, m.tiles(n.GetId(), w, h-1)...), w, h)
	}
	if m.torus.Dims.Z > 1 {
		lines = append(lines, m.strip(w))
	}
	room := h - len(lines)
	if drawn, ok := m.drawPlanes(w, room); ok {
		lines = append(lines, drawn...)
	} else {
		lines = append(lines, m.dense(w, room)...)
	}
	return fill(lines, w, h)
}

// tiles draws the tiles around the chosen node in w columns and h lines.
func (m *topModel) tiles(chosen string, w, h int) []string {
	if m.focus != paneMap {
		chosen = ""
	}
	lines, at := m.torus.Tiles(m.cluster, m.paint, w, chosen)
	from := max(0, min(at-h/2, len(lines)-h))
	return lines[from:min(len(lines), from+max(0, h))]
}

// fill makes lines a pane.
func fill(lines []string, w, h int) []string {
	for i := range lines {
		lines[i] = fit(lines[i], w)
	}
	for len(lines) < h {
		lines = append(lines, strings.Repeat(" ", w))
	}
	return lines[:h]
}

// strip has a mark for every plane of Z, the worst state of its nodes; the displayed plane's mark is in brackets.
func (m *topModel) strip(w int) string {
	m.topRows()
	var b strings.Builder
	room := max(1, w-10)
	from := max(0, min(m.at.Z-room/2, len(m.planes)-room))
	b.WriteString("z ")
	for z := from; z < min(len(m.planes), from+room); z++ {
		mark := m.paint.State(m.planes[z], denseMark(m.planes[z]))
		if z == m.at.Z {
			mark = "[" + mark + "]"
		}
		b.WriteString(mark)
	}
	return fmt.Sprintf("%s %d", b.String(), m.at.Z)
}

// drawPlanes draws with brackets and cables, as large as the space allows: all planes, or the chosen one and the
// following ones that fit.
func (m *topModel) drawPlanes(w, h int) ([]string, bool) {
	t := m.torus
	for _, s := range t.DrawStyles() {
		if s.Across(t.Dims.X) > w {
			continue
		}
		plane := func(z int) []string {
			d := &get.Drawing{Map: t, Style: s, Paint: m.paint, To: t.Dims.X, Chosen: -1}
			if m.focus == paneMap {
				d.Chosen = t.Dims.Rank(m.at)
			}
			d.Plane(z)
			d.Between(z)
			return strings.Split(strings.TrimRight(strings.ReplaceAll(d.B.String(), "\n\n", "\n"), "\n"), "\n")
		}
		least := 2*t.Dims.Y + 1 // of a plane; with its title and the cables to the next one it may be more
		if least > h {
			return nil, false
		}
		from := m.at.Z
		var all []string
		if least*t.Dims.Z <= h {
			for z := range t.Dims.Z {
				all = append(all, plane(z)...)
			}
			if len(all) <= h {
				return all, true
			}
		}
		all = nil
		for z := from; z < t.Dims.Z; z++ {
			next := plane(z)
			if len(all) > 0 && len(all)+len(next) > h {
				break
			}
			all = append(all, next...)
		}
		if len(all) > h { // of one plane at least its nodes
			all = all[:h]
		}
		return all, len(all) >= least
	}
	return nil, false
}

// denseMark is one character for a node.
func denseMark(s lofamov1.State) string {
	if s == lofamov1.State_NORMAL {
		return "·"
	}
	return get.NodeMark(s)
}

// dense draws the plane with one character for a node. Between two nodes of a row their cable is shown when it is not
// NORMAL; cables in Y and Z are counted below.
func (m *topModel) dense(w, h int) []string {
	t := m.torus
	cols, rows := min(t.Dims.X, (w-1)/2), min(t.Dims.Y, max(1, h-1))
	from := func(at, room, n int) int { return max(0, min(at-room/2, n-room)) }
	x0, y0 := from(m.at.X, cols, t.Dims.X), from(m.at.Y, rows, t.Dims.Y)
	lines := make([]string, 0, rows+1)
	for y := y0; y < y0+rows; y++ {
		var b strings.Builder
		b.WriteByte(' ')
		for x := x0; x < x0+cols; x++ {
			b.WriteString(m.denseNode(get.At(x, y, m.at.Z)))
			b.WriteString(m.denseCable(get.At(x, y, m.at.Z)))
		}
		lines = append(lines, b.String())
	}
	caption := fmt.Sprintf("x %d to %d, y %d to %d", x0, x0+cols-1, y0, y0+rows-1)
	if n := m.brokenAcross(m.at.Z); n > 0 {
		caption += m.paint.State(lofamov1.State_SICK, fmt.Sprintf("; ~ %d in Y, Z", n))
	}
	return append(lines, caption)
}

// denseCable draws the cable in X+ from a place, if it is not NORMAL.
func (m *topModel) denseCable(c grid.Coord) string {
	s, ok := m.torus.Cable(c, grid.XPlus)
	if !ok || s == lofamov1.State_NORMAL {
		return " "
	}
	return m.paint.State(s, get.CableMark(s, " "))
}

func (m *topModel) denseNode(c grid.Coord) string {
	n := m.torus.Nodes[m.torus.Dims.Rank(c)]
	state := lofamov1.State_UNKNOWN
	if n != nil {
		state = n.GetState()
	}
	mark := denseMark(state)
	if !m.torus.Dims.Contains(c) {
		mark = " "
	}
	if state == lofamov1.State_NORMAL && n.GetMaintenance() != nil {
		mark = "m"
	}
	if c == m.at && m.focus == paneMap {
		if !m.paint.On {
			return "@"
		}
		return m.paint.Chosen(mark)
	}
	return m.paint.State(state, mark)
}

// brokenAcross counts the cables of a plane in Y, and from it to the next plane, that are SICK or FAILED.
func (m *topModel) brokenAcross(z int) int {
	t, n := m.torus, 0
	for y := range t.Dims.Y {
		for x := range t.Dims.X {
			for _, d := range []grid.Direction{grid.YPlus, grid.ZPlus} {
				c := get.At(x, y, z)
				if s, ok := t.Cable(c, d); ok && t.Dims.Contains(c) && severity(s) > 1 {
					n++
				}
			}
		}
	}
	return n
}

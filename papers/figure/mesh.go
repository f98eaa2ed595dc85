package figure

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// At is a node's place: column X from the left, row Y from the bottom, both from 0.
type At struct{ X, Y int }

// Link joins two neighbouring nodes.
type Link struct{ A, B At }

// Kind is the kind of hops on a message's way.
type Kind uint8

// The kinds of ways.
const (
	// Route is a hop towards the destination: a dark arrow.
	Route Kind = iota + 1
	// Deroute is one that does not lead nearer: a lighter, broken arrow.
	Deroute
)

// Way is a message's way through nodes that are neighbours of one another.
type Way struct {
	Kind  Kind
	Nodes []At
}

// Tone is the fill of a node.
type Tone uint8

// The tones.
const (
	Plain Tone = iota // white
	Dark              // black, its text white: where something begins
	Light             // coloured: reached, chosen
	Dead              // crossed out, grey
)

// Node says how one node is drawn; those not named are Plain and have no text.
type Node struct {
	At   At
	Text string // one or two letters or digits
	Tone Tone
}

// Note is a text beside a link, such as a probability.
type Note struct {
	Link Link
	Text string
}

// Mesh is a drawing of a two-dimensional mesh.
type Mesh struct {
	Title         string
	Columns, Rows int
	Wraps         bool // the rim's links go on
	Faulty        []Link
	Nodes         []Node
	Ways          []Way
	Notes         []Note
	Shaded        []At    // closed off: on a grey ground
	Cell          float64 // centimetres from node to node; 1 when left out
	Key           bool    // a line that explains the symbols
}

func (m Mesh) cell() float64 {
	if m.Cell == 0 {
		return 1
	}
	return m.Cell
}

const titleHeight, keyHeight = 0.9, 0.8 // centimetres

func (m Mesh) size() (width, height float64) {
	width, height = float64(m.Columns)*m.cell()+0.4, float64(m.Rows)*m.cell()+0.4
	if m.Title != "" {
		height += titleHeight
	}
	if m.Key {
		height += keyHeight
		width = max(width, 9)
	}
	return width, height
}

func (m Mesh) rows() [][]string { return nil }

// sketch is a mesh on its canvas.
type sketch struct {
	Mesh
	c      draw.Canvas
	unit   vg.Length // from node to node
	radius vg.Length
	origin vg.Point // of node 0,0
}

func (m Mesh) draw(c draw.Canvas) error {
	s := sketch{Mesh: m, c: c, unit: vg.Length(m.cell()) * vg.Centimeter}
	s.radius = s.unit / 5
	wide := vg.Length(m.Columns-1) * s.unit
	s.origin = vg.Point{X: (c.Min.X + c.Max.X - wide) / 2, Y: c.Min.Y + s.unit/2 + 0.2*vg.Centimeter}
	if m.Key {
		s.origin.Y += keyHeight * vg.Centimeter
	}
	if err := s.check(); err != nil {
		return err
	}
	s.ground()
	s.links()
	for _, n := range s.nodes() {
		s.node(n)
	}
	for _, w := range m.Ways {
		s.way(w)
	}
	for _, n := range m.Notes {
		s.note(n)
	}
	if m.Title != "" {
		s.text(vg.Point{X: (c.Min.X + c.Max.X) / 2, Y: c.Max.Y - titleHeight/2*vg.Centimeter}, m.Title, 11, black, draw.XCenter)
	}
	if m.Key {
		s.key()
	}
	return nil
}

// check refuses elements outside the mesh, and ways without a link.
func (s *sketch) check() error {
	inside := func(a At) bool { return a.X >= 0 && a.X < s.Columns && a.Y >= 0 && a.Y < s.Rows }
	for _, n := range s.Nodes {
		if !inside(n.At) {
			return fmt.Errorf("node %+v is outside of %d by %d", n.At, s.Columns, s.Rows)
		}
	}
	links := append([]Link(nil), s.Faulty...)
	for _, n := range s.Notes {
		links = append(links, n.Link)
	}
	for _, w := range s.Ways {
		for i := 1; i < len(w.Nodes); i++ {
			links = append(links, Link{w.Nodes[i-1], w.Nodes[i]})
		}
	}
	for _, l := range links {
		dx, dy := l.A.X-l.B.X, l.A.Y-l.B.Y
		if dx*dx+dy*dy != 1 || !inside(l.A) || !inside(l.B) {
			return fmt.Errorf("no link between %+v and %+v is drawn in a mesh of %d by %d", l.A, l.B, s.Columns, s.Rows)
		}
	}
	return nil
}

func (s *sketch) at(a At) vg.Point {
	return vg.Point{X: s.origin.X + vg.Length(a.X)*s.unit, Y: s.origin.Y + vg.Length(a.Y)*s.unit}
}

func (s *sketch) ground() {
	h := s.unit * 0.5
	for _, a := range s.Shaded {
		p := s.at(a)
		s.c.FillPolygon(color.NRGBA{R: 225, G: 225, B: 225, A: 255},
			[]vg.Point{{X: p.X - h, Y: p.Y - h}, {X: p.X + h, Y: p.Y - h}, {X: p.X + h, Y: p.Y + h}, {X: p.X - h, Y: p.Y + h}})
	}
}

func (s *sketch) stroke(tone color.Color, width float64, dashes []vg.Length, points ...vg.Point) {
	s.c.StrokeLines(draw.LineStyle{Color: tone, Width: vg.Points(width), Dashes: dashes}, points)
}

func (s *sketch) links() {
	faulty := map[Link]bool{}
	for _, l := range s.Faulty {
		faulty[l], faulty[Link{l.B, l.A}] = true, true
	}
	for y := range s.Rows {
		for x := range s.Columns {
			a := At{x, y}
			for _, b := range []At{{x + 1, y}, {x, y + 1}} {
				if b.X == s.Columns || b.Y == s.Rows {
					continue
				}
				p, q := s.at(a), s.at(b)
				if !faulty[Link{a, b}] {
					s.stroke(grey, 1, nil, p, q)
					continue
				}
				s.stroke(pale, 0.8, []vg.Length{1.5, 2}, p, q)
				s.cross(vg.Point{X: (p.X + q.X) / 2, Y: (p.Y + q.Y) / 2}, s.unit/9, 1.6)
			}
			if s.Wraps {
				s.stubs(a)
			}
		}
	}
}

// stubs draw the beginnings of links that lead around to the other rim.
func (s *sketch) stubs(a At) {
	p := s.at(a)
	out := func(dx, dy vg.Length) {
		s.stroke(grey, 1, []vg.Length{2, 1.5}, p, vg.Point{X: p.X + dx*s.unit*0.45, Y: p.Y + dy*s.unit*0.45})
	}
	if a.X == 0 {
		out(-1, 0)
	}
	if a.X == s.Columns-1 {
		out(1, 0)
	}
	if a.Y == 0 {
		out(0, -1)
	}
	if a.Y == s.Rows-1 {
		out(0, 1)
	}
}

func (s *sketch) cross(p vg.Point, r vg.Length, width float64) {
	s.stroke(red, width, nil, vg.Point{X: p.X - r, Y: p.Y - r}, vg.Point{X: p.X + r, Y: p.Y + r})
	s.stroke(red, width, nil, vg.Point{X: p.X - r, Y: p.Y + r}, vg.Point{X: p.X + r, Y: p.Y - r})
}

// nodes returns all nodes, those that are named as they are named.
func (s *sketch) nodes() []Node {
	named := map[At]Node{}
	for _, n := range s.Nodes {
		named[n.At] = n
	}
	var out []Node
	for y := range s.Rows {
		for x := range s.Columns {
			n := named[At{x, y}]
			n.At = At{x, y}
			out = append(out, n)
		}
	}
	return out
}

func (s *sketch) node(n Node) {
	p := s.at(n.At)
	fill, line, letters := color.NRGBA{R: 255, G: 255, B: 255, A: 255}, black, black
	switch n.Tone {
	case Dark:
		fill, letters = black, color.NRGBA{R: 255, G: 255, B: 255, A: 255}
	case Light:
		fill = color.NRGBA{R: 190, G: 222, B: 245, A: 255}
	case Dead:
		fill, line, letters = pale, grey, grey
	default:
	}
	var circle vg.Path
	circle.Move(vg.Point{X: p.X + s.radius, Y: p.Y})
	circle.Arc(p, s.radius, 0, 2*math.Pi)
	circle.Close()
	s.c.SetColor(fill)
	s.c.Fill(circle)
	s.c.SetLineStyle(draw.LineStyle{Color: line, Width: vg.Points(0.9)})
	s.c.Stroke(circle)
	if n.Text != "" {
		s.text(p, n.Text, float64(s.radius)*1.25, letters, draw.XCenter)
	}
	if n.Tone == Dead {
		s.cross(p, s.radius*0.9, 1.8)
	}
}

// way draws arrows beside the links, so that a way there and a way back are two.
func (s *sketch) way(w Way) {
	tone, width, dashes := black, 1.8, []vg.Length(nil)
	if w.Kind == Deroute {
		tone, dashes = orange, []vg.Length{3.5, 2.5}
	}
	for i := 1; i < len(w.Nodes); i++ {
		p, q := s.at(w.Nodes[i-1]), s.at(w.Nodes[i])
		dx, dy := (q.X-p.X)/s.unit, (q.Y-p.Y)/s.unit
		aside, from := s.unit*0.07, s.radius+1
		p = vg.Point{X: p.X + dx*from + dy*aside, Y: p.Y + dy*from - dx*aside}
		q = vg.Point{X: q.X - dx*from + dy*aside, Y: q.Y - dy*from - dx*aside}
		tip := s.unit * 0.12
		base := vg.Point{X: q.X - dx*tip, Y: q.Y - dy*tip}
		s.stroke(tone, width, dashes, p, base)
		half := tip * 0.55
		s.c.FillPolygon(tone, []vg.Point{q, {X: base.X + dy*half, Y: base.Y - dx*half}, {X: base.X - dy*half, Y: base.Y + dx*half}})
	}
}

func (s *sketch) note(n Note) {
	p, q := s.at(n.Link.A), s.at(n.Link.B)
	mid := vg.Point{X: (p.X + q.X) / 2, Y: (p.Y + q.Y) / 2}
	if n.Link.A.Y == n.Link.B.Y {
		mid.Y += s.unit * 0.22
	} else {
		mid.X -= s.unit * 0.24
	}
	s.text(mid, n.Text, float64(s.unit)*0.26, black, draw.XCenter)
}

func (s *sketch) text(p vg.Point, words string, size float64, tone color.Color, align text.XAlignment) {
	st := style(size)
	st.Color, st.XAlign, st.YAlign = tone, align, draw.YCenter
	s.c.FillText(st, p, words)
}

// key explains the symbols in the drawing.
func (s *sketch) key() {
	y := s.c.Min.Y + keyHeight*0.6*vg.Centimeter
	x := s.c.Min.X + 0.5*vg.Centimeter
	arrow := vg.Centimeter * 0.8
	entry := func(words string, drawn func()) {
		drawn()
		s.text(vg.Point{X: x + arrow + 4, Y: y}, words, 9, black, draw.XLeft)
		x += arrow + 4 + style(9).Width(words) + 0.5*vg.Centimeter
	}
	kinds := map[Kind]bool{}
	for _, w := range s.Ways {
		kinds[w.Kind] = true
	}
	if len(s.Faulty) > 0 {
		entry("faulty link", func() {
			s.stroke(pale, 0.8, []vg.Length{1.5, 2}, vg.Point{X: x, Y: y}, vg.Point{X: x + arrow, Y: y})
			s.cross(vg.Point{X: x + arrow/2, Y: y}, s.unit/9, 1.6)
		})
	}
	if kinds[Route] {
		entry("route", func() { s.stroke(black, 1.8, nil, vg.Point{X: x, Y: y}, vg.Point{X: x + arrow, Y: y}) })
	}
	if kinds[Deroute] {
		entry("deroute", func() {
			s.stroke(orange, 1.8, []vg.Length{3.5, 2.5}, vg.Point{X: x, Y: y}, vg.Point{X: x + arrow, Y: y})
		})
	}
	if len(s.Shaded) > 0 {
		entry("closed off", func() {
			h := 0.18 * vg.Centimeter
			s.c.FillPolygon(color.NRGBA{R: 225, G: 225, B: 225, A: 255},
				[]vg.Point{{X: x, Y: y - h}, {X: x + arrow, Y: y - h}, {X: x + arrow, Y: y + h}, {X: x, Y: y + h}})
		})
	}
}

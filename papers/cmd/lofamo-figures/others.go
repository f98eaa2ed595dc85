package main

import (
	"fmt"

	"github.com/lofamo/lofamo/papers/diameter"
	"github.com/lofamo/lofamo/papers/figure"
	"github.com/lofamo/lofamo/papers/reliability"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// figure3 draws how a broadcast spreads around faulty links, as in Figure 3, and a node behind faulty links that no
// message reaches, as in Figure 11. The number in a node is after how many hops it is reached.
func figure3(o options) ([]picture, error) {
	dims := grid.Dims{X: 9, Y: 9, Z: 1}
	net, err := diameter.Mesh(dims)
	if err != nil {
		return nil, err
	}
	from := dims.Rank(grid.Coord{X: 4, Y: 4})
	faults := diameter.Order(net, diameter.Links, o.source(3))[:36]
	s := net.Broken(faults)
	spread := figure.Mesh{Title: "A broadcast after four hops, 36 of 144 links faulty", Columns: 9, Rows: 9,
		Faulty: drawn(net, faults), Key: true}
	reached := 0
	for rank := range net.Nodes() {
		path := s.Path(from, rank)
		n := figure.Node{At: place(dims, rank)}
		switch hops := len(path) - 1; {
		case path == nil:
			n.Tone = figure.Dead
		case hops == 0:
			n.Tone = figure.Dark
		case hops <= 4:
			n.Tone, n.Text = figure.Light, fmt.Sprint(hops)
		default:
			n.Text = fmt.Sprint(hops)
		}
		if path != nil {
			reached++
		}
		spread.Nodes = append(spread.Nodes, n)
	}
	o.out.f("\nA broadcast on 9x9 with %d of %d links faulty, seed %d: reaches %d of %d nodes.\n", len(faults), len(net.Links()),
		o.seed, reached, net.Nodes())
	at := func(x, y int) figure.At { return figure.At{X: x, Y: y} }
	alone := figure.Mesh{Title: "A node that cannot be reached", Columns: 5, Rows: 5, Key: true,
		Nodes:  []figure.Node{{At: at(2, 2), Tone: figure.Dark}},
		Faulty: []figure.Link{{A: at(2, 2), B: at(1, 2)}, {A: at(2, 2), B: at(3, 2)}, {A: at(2, 2), B: at(2, 1)}, {A: at(2, 2), B: at(2, 3)}}}
	return []picture{{"figure3", spread}, {"figure11", alone}}, nil
}

// reliabilityOverTime draws R(t) of the paper's network.
func reliabilityOverTime(o options) ([]picture, error) {
	_, chip, _ := reliability.Table2()
	m := reliability.PaperModel(chip, 1.0/3)
	res := m.Evaluate(reliability.Exact)
	base := figure.Series{Name: "not tolerated: MTTF " + one(res.Overall.BaseMTTF) + " h", Look: figure.Line}
	with := make([]figure.Series, len(m.Estimates))
	for e, w := range res.Overall.With {
		with[e] = figure.Series{Name: fmt.Sprintf("%s coverage: MTTF %.0f h", m.Estimates[e], w.MTTF), Look: figure.Line}
	}
	for h := 0.0; h <= 1000; h += 10 {
		base.Points = append(base.Points, figure.Point{X: h, Y: res.Overall.Base.Reliability(h)})
		for e, w := range res.Overall.With {
			with[e].Points = append(with[e].Points, figure.Point{X: h, Y: w.Rate.Reliability(h)})
		}
	}
	return []picture{{"reliability", figure.Plot{
		Title: "Reliability of the paper's network of 1,024 nodes, all faults", X: "t, hours", Y: "R(t), no failure until then",
		Legend: figure.Right,
		XMin:   0, XMax: 1000, YMin: 0, YMax: 1, Series: append([]figure.Series{base}, with...),
	}}}, nil
}

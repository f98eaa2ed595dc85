package main

import (
	"fmt"

	"github.com/lofamo/lofamo/papers/chaos"
	"github.com/lofamo/lofamo/papers/chaos/experiment"
	"github.com/lofamo/lofamo/papers/figure"
)

// obstacles are Figures 14 to 17: walls, pockets and their closing, in two and three dimensions. It prints the
// results of the chain beside those of the model.
func obstacles(o options) ([]picture, error) {
	o.out.f("\n| dims | wall | depth | attempt (paper) | arrives, with routeback | arrives, No Routeback | within 40 hops | in the model " +
		"(95 %%) | closed: nodes, arrives |\n|---|---|---|---|---|---|---|---|---|\n")
	lines := map[string]*figure.Series{}
	order := []string{"paper, two dimensions", "two dimensions, exact", "three dimensions, exact"}
	for i, name := range order {
		lines[name] = &figure.Series{Name: name, Look: []figure.Look{figure.Paper, figure.Marks, figure.Marks}[i]}
	}
	for _, dims := range [][]int{{20, 20}, {18, 10, 10}} {
		for _, ob := range list(o, dims) {
			row, err := obstacleRow(o, dims, ob)
			if err != nil {
				return nil, err
			}
			if ob.Depth == 0 {
				at := func(name string, y float64) {
					lines[name].Points = append(lines[name].Points, figure.Point{X: float64(ob.Length), Y: y})
				}
				if len(dims) == 2 && row.AttemptPaper > 0 {
					at(order[0], row.AttemptPaper)
				}
				at(order[len(dims)-1], row.Attempt)
			}
		}
	}
	var series []figure.Series
	for _, name := range order {
		series = append(series, *lines[name])
	}
	if err := faultyTable(o); err != nil {
		return nil, err
	}
	return append(sketches(), picture{"figure15-attempts", figure.Plot{
		Title: "Getting round a wall before standing at its middle again, No Routeback", X: "length of the wall, links along a side",
		Y:      "probability of one attempt",
		Series: series, Legend: figure.TopRight, YMin: 0, YMax: 1.05, XMin: 0, XMax: 14,
	}}), nil
}

func list(o options, dims []int) []experiment.Obstacle {
	lengths, depths := []int{1, 3, 5, 7, 9, 11, 13}, []int{1, 2, 3}
	if len(dims) == 3 {
		lengths = lengths[:4]
	}
	if o.short {
		lengths, depths = lengths[:2], depths[:1]
	}
	var out []experiment.Obstacle
	for _, l := range lengths {
		out = append(out, experiment.Obstacle{Dims: dims, Length: l})
	}
	for _, d := range depths {
		out = append(out, experiment.Obstacle{Dims: dims, Length: 3, Depth: d})
	}
	return out
}

func obstacleRow(o options, dims []int, ob experiment.Obstacle) (experiment.ObstacleResult, error) {
	with, err := ob.Run(true, 40, min(o.trials, 400), o.seed)
	if err != nil {
		return with, err
	}
	without, err := ob.Run(false, 40, 0, o.seed)
	if err != nil {
		return with, err
	}
	closed := "-"
	if ob.Depth > 0 {
		n, at, err := ob.Build(chaos.Default(dims...))
		if err != nil {
			return with, err
		}
		nodes, err := experiment.ClosePlanar(n, len(dims))
		if err != nil {
			return with, err
		}
		w := n.Walk(at.Dest)
		closed = fmt.Sprintf("%d, %.3f", len(nodes), w.Delivered()[w.At(at.Source)])
	}
	paper := "-"
	if len(dims) == 2 && ob.Depth == 0 && with.AttemptPaper > 0 {
		paper = fmt.Sprintf("%.4f", with.AttemptPaper)
	}
	o.out.f("| %d | %d | %d | %.4f (%s) | %.3f | %.3f | %.3f | %.3f to %.3f | %s |\n",
		len(dims), ob.Length, ob.Depth, with.Attempt, paper, without.Delivered, with.Delivered, with.Within, with.Low, with.High, closed)
	return with, nil
}

// faultyTable has random dead links: between how many of the pairs every packet arrives.
func faultyTable(o options) error {
	o.out.f("\n| network | dead links | pairs certain, with routeback | No Routeback | closed by the local rule | nodes it gives up | runs " +
		"without a concave region |\n|---|---|---|---|---|---|---|\n")
	trials := max(2, min(o.trials/50, 20))
	for _, dims := range [][]int{{12, 12}, {5, 5, 5}} {
		dead := []int{2, 8, 16, 32}
		if o.short {
			dead, dims = dead[:2], []int{4, 4, 4}[:len(dims)]
		}
		for _, k := range dead {
			r, err := experiment.Faulty{Dims: dims, Dead: k, Trials: trials, Seed: o.seed}.Run()
			if err != nil {
				return err
			}
			o.out.f("| %v | %d | %.2f %% | %.2f %% | %.2f %% | %.1f | %d of %d |\n", dims, k, 100*r.Routeback.Mean, 100*r.NoRouteback.Mean,
				100*r.Closed.Mean, r.Lost, r.AllCertain, trials)
		}
	}
	return nil
}

// sketches are Figures 14, 16 and 17, drawn.
func sketches() []picture {
	at := func(x, y int) figure.At { return figure.At{X: x, Y: y} }
	wall := func(x, from, to int) (out []figure.Link) {
		for y := from; y <= to; y++ {
			out = append(out, figure.Link{A: at(x, y), B: at(x+1, y)})
		}
		return out
	}
	named := []figure.Node{{At: at(2, 3), Text: "A"}, {At: at(2, 4), Text: "B"}, {At: at(2, 2), Text: "C"},
		{At: at(5, 3), Text: "D", Tone: figure.Dark}, {At: at(2, 5), Text: "E"}, {At: at(2, 1), Text: "F"}}
	fourteen := figure.Mesh{
		Title: "A wall of three links", Columns: 7, Rows: 7, Faulty: wall(2, 2, 4), Nodes: named, Key: true,
		Ways: []figure.Way{
			{Kind: figure.Route, Nodes: []figure.At{at(0, 3), at(1, 3), at(2, 3)}}, {Kind: figure.Deroute,
				Nodes: []figure.At{at(2, 3), at(2, 4)}}, {Kind: figure.Deroute, Nodes: []figure.At{at(2, 3), at(2, 2)}},
			{Kind: figure.Deroute, Nodes: []figure.At{at(2, 4), at(2, 5)}}, {Kind: figure.Deroute, Nodes: []figure.At{at(2, 4), at(1, 4)}},
		},
		Notes: []figure.Note{{Link: figure.Link{A: at(2, 4), B: at(2, 5)}, Text: "1/2"},
			{Link: figure.Link{A: at(1, 4), B: at(2, 4)}, Text: "1/2"}},
	}
	pocket := wall(3, 2, 4)
	for x := 2; x <= 3; x++ {
		pocket = append(pocket, figure.Link{A: at(x, 4), B: at(x, 5)}, figure.Link{A: at(x, 1), B: at(x, 2)})
	}
	sixteen := func(closed bool) figure.Mesh {
		m := figure.Mesh{Title: "A concave region: caught", Columns: 7, Rows: 7, Faulty: pocket,
			Nodes: []figure.Node{{At: at(0, 3), Text: "S", Tone: figure.Light}, {At: at(5, 3), Text: "D", Tone: figure.Dark}}, Key: true}
		if !closed {
			m.Ways = []figure.Way{
				{Kind: figure.Route, Nodes: []figure.At{at(0, 3), at(1, 3), at(2, 3), at(3, 3)}}, {Kind: figure.Deroute,
					Nodes: []figure.At{at(3, 3), at(3, 4), at(2, 4)}},
				{Kind: figure.Route, Nodes: []figure.At{at(2, 4), at(2, 3)}},
			}
			return m
		}
		m.Title, m.Key = "closed off (grey): a wall, which is passed", false
		for x := 2; x <= 3; x++ {
			for y := 2; y <= 4; y++ {
				m.Shaded = append(m.Shaded, at(x, y))
			}
		}
		m.Ways = []figure.Way{{Kind: figure.Route, Nodes: []figure.At{at(0, 3), at(1, 3)}},
			{Kind: figure.Deroute, Nodes: []figure.At{at(1, 3), at(1, 4), at(1, 5)}}, {Kind: figure.Route,
				Nodes: []figure.At{at(1, 5), at(2, 5), at(3, 5), at(4, 5), at(5, 5), at(5, 4), at(5, 3)}}}
		return m
	}
	seventeen := func(closed bool) figure.Mesh {
		m := figure.Mesh{Title: "Two dead routers", Columns: 6, Rows: 6,
			Nodes: []figure.Node{{At: at(2, 2), Tone: figure.Dead}, {At: at(3, 3), Tone: figure.Dead}}, Key: true}
		if closed {
			m.Title, m.Key, m.Shaded = "closed by the local rule (grey)", false, []figure.At{at(2, 3), at(3, 2)}
			return m
		}
		m.Ways = []figure.Way{{Kind: figure.Route, Nodes: []figure.At{at(0, 2), at(1, 2)}},
			{Kind: figure.Deroute, Nodes: []figure.At{at(1, 2), at(1, 3)}}, {Kind: figure.Route, Nodes: []figure.At{at(1, 3), at(2, 3)}},
			{Kind: figure.Deroute, Nodes: []figure.At{at(2, 3), at(2, 4)}}, {Kind: figure.Route,
				Nodes: []figure.At{at(2, 4), at(3, 4), at(4, 4), at(4, 3), at(4, 2), at(5, 2)}}}
		return m
	}
	return []picture{
		{"figure14", fourteen}, {"figure16", figure.Panels{sixteen(false), sixteen(true)}}, {"figure17",
			figure.Panels{seventeen(false), seventeen(true)}},
	}
}

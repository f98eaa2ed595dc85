package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/lofamo/lofamo/papers/diameter"
	"github.com/lofamo/lofamo/papers/figure"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// source is a stream of chance of its own for each part of a study, so that one does not move another.
func (o options) source(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(o.seed, stream)) }

func one(v float64) string { return fmt.Sprintf("%.1f", v) }

func two(v float64) string { return fmt.Sprintf("%.2f", v) }

// table3 is the paper's Table 3 beside ours, with all definitions of the diameter, and the same with routers that
// fail. It is long as it prints two tables and makes two pictures of the same runs.
func table3(o options) ([]picture, error) {
	rows := diameter.Table3()
	if o.short {
		rows = rows[:3]
	}
	ours := figure.Series{Name: fmt.Sprintf("links, ours, %d runs (±σ)", o.trials), Look: figure.Marks, Shift: -0.12}
	paper := figure.Series{Name: "links, paper, 100 runs (±σ)", Look: figure.Paper, Shift: 0.12}
	routers := figure.Series{Name: fmt.Sprintf("routers, ours, %d runs (±σ)", o.trials), Look: figure.Marks}
	bound := figure.Series{Name: "5 √N, the paper's bound", Look: figure.Dashed}
	var links, routed []map[diameter.Definition]diameter.Figure
	for i, row := range rows {
		side := row.Side()
		net, err := diameter.Mesh(grid.Dims{X: side, Y: side, Z: 1})
		if err != nil {
			return nil, err
		}
		l := diameter.Study(net, diameter.Links, o.trials, o.source(uint64(100+i)))
		r := diameter.Study(net, diameter.Routers, o.trials, o.source(uint64(200+i)))
		links, routed = append(links, l), append(routed, r)
		x, la, ra := float64(side), l[diameter.AnyPair], r[diameter.AnyPair]
		ours.Points = append(ours.Points, figure.Point{X: x, Y: la.Mean, Below: la.Deviation, Above: la.Deviation})
		paper.Points = append(paper.Points, figure.Point{X: x, Y: row.Mean, Below: row.Deviation, Above: row.Deviation})
		routers.Points = append(routers.Points, figure.Point{X: x, Y: ra.Mean, Below: ra.Deviation, Above: ra.Deviation})
		bound.Points = append(bound.Points, figure.Point{X: x, Y: 5 * x})
	}
	printTable3(o, rows, links)
	printRouters(o, rows, links, routed)
	last := rows[len(rows)-1]
	return []picture{
		{"table3", figure.Plot{
			Title: "Greatest diameter of a square mesh while parts of it fail one by one", X: "√N, nodes along a side",
			Y:      "mean greatest diameter, hops",
			Series: []figure.Series{bound, ours, routers, paper}, Legend: figure.TopLeft,
		}},
		{"table3-spread", spread(fmt.Sprintf("Greatest diameter of single runs, %d nodes", last.Nodes), links[len(links)-1],
			routed[len(routed)-1])},
	}, nil
}

func printTable3(o options, rows []diameter.PaperRow, links []map[diameter.Definition]diameter.Figure) {
	o.out.f("\n%d runs each, seed %d; *any pair*, with the standard error, is the paper's column; the two others are other readings.\n",
		o.trials, o.seed)
	o.out.head("N", "paper: mean, σ", "any pair: mean ± s.e., σ", "difference", "in standard errors", "mean+3σ: paper, ours",
		"by √N: paper, ours", "runs above 5 √N", "links gone then", "largest piece", "while whole")
	for i, row := range rows {
		f := links[i][diameter.AnyPair]
		off := f.Mean - row.Mean
		se := math.Hypot(row.Deviation/math.Sqrt(diameter.PaperTrials), f.StandardError())
		side := float64(row.Side())
		above := 0
		for d, n := range f.Count {
			if float64(d) > 5*side {
				above += n
			}
		}
		all := 2 * side * (side - 1)
		o.out.row(fmt.Sprint(row.Nodes), one(row.Mean)+", "+one(row.Deviation),
			fmt.Sprintf("%.2f ± %.2f, %.1f", f.Mean, f.StandardError(), f.Deviation),
			fmt.Sprintf("%+.1f %%", 100*off/row.Mean), fmt.Sprintf("%+.1f",
				off/se), one(row.Bound)+", "+one(f.Bound()), one(row.Ratio)+", "+one(f.Bound()/side),
			fmt.Sprintf("%.1f %%", 100*float64(above)/float64(f.Trials)),
			fmt.Sprintf("%.0f %%", 100*f.Faults/all), two(links[i][diameter.Largest].Mean), two(links[i][diameter.Whole].Mean))
	}
}

func printRouters(o options, rows []diameter.PaperRow, links, routed []map[diameter.Definition]diameter.Figure) {
	o.out.head("N", "router faults: mean ± s.e., σ", "less than with links", "greatest of all runs: links, routers", "routers gone then")
	for i, row := range rows {
		l, r := links[i][diameter.AnyPair], routed[i][diameter.AnyPair]
		o.out.row(fmt.Sprint(row.Nodes), fmt.Sprintf("%.2f ± %.2f, %.1f", r.Mean, r.StandardError(), r.Deviation),
			fmt.Sprintf("%.1f %%", 100*(1-r.Mean/l.Mean)),
			fmt.Sprintf("%d, %d", l.Max, r.Max), fmt.Sprintf("%.0f %%", 100*r.Faults/float64(row.Nodes)))
	}
}

// spread is a histogram of single runs.
func spread(title string, links, routers map[diameter.Definition]diameter.Figure) figure.Plot {
	const width = 5
	bars := func(name string, f diameter.Figure) figure.Series {
		bins := map[int]int{}
		for d, n := range f.Count {
			bins[d/width] += n
		}
		s := figure.Series{Name: name, Look: figure.Bars}
		for b := range slices.Max(keys(bins)) + 1 {
			s.Points = append(s.Points, figure.Point{X: float64(b*width) + width/2.0, Y: float64(bins[b])})
		}
		return s
	}
	return figure.Plot{
		Title: title, X: "greatest diameter of a run, hops", Y: fmt.Sprintf("runs, by %d hops", width), BarWidth: width, Legend: figure.TopRight,
		Series: []figure.Series{bars("link faults", links[diameter.AnyPair]), bars("router faults", routers[diameter.AnyPair])},
	}
}

func keys(m map[int]int) []int {
	var out []int
	for k := range m {
		out = append(out, k)
	}
	return out
}

// figure5 is one run, link by link: the one of 101 whose greatest diameter is the median.
func figure5(o options) ([]picture, error) {
	net, err := diameter.Mesh(grid.Dims{X: 8, Y: 8, Z: 1})
	if err != nil {
		return nil, err
	}
	chance := o.source(5)
	byGreatest := make([][]int, 101)
	for i := range byGreatest {
		byGreatest[i] = diameter.Order(net, diameter.Links, chance)
	}
	slices.SortStableFunc(byGreatest, func(a, b []int) int {
		return diameter.Run(net, diameter.Links, a).AnyPair.Diameter - diameter.Run(net, diameter.Links, b).AnyPair.Diameter
	})
	curve := diameter.Curve(net, diameter.Links, byGreatest[50])
	anyPair := figure.Series{Name: "any two connected nodes", Look: figure.Line}
	largest := figure.Series{Name: "of the largest piece", Look: figure.Dashed}
	whole := 0
	most := curve[0]
	for _, at := range curve {
		anyPair.Points = append(anyPair.Points, figure.Point{X: float64(at.Faults), Y: float64(at.AnyPair)})
		largest.Points = append(largest.Points, figure.Point{X: float64(at.Faults), Y: float64(at.Largest)})
		if at.Pieces == 1 {
			whole = at.Faults
		}
		if at.AnyPair > most.AnyPair {
			most = at
		}
	}
	o.out.f("\nOne run on 8x8, seed %d: 14 hops without faults, %d hops at most, with %d of %d links gone; in one piece up to %d faults.\n",
		o.seed, most.AnyPair, most.Faults, len(net.Links()), whole)
	return []picture{{"figure5", figure.Plot{
		Title: "Diameter of an 8×8 mesh while its links fail one by one", X: "faulty links", Y: "diameter, hops", Legend: figure.TopRight,
		Series: []figure.Series{anyPair, largest},
	}}}, nil
}

func place(d grid.Dims, rank int) figure.At {
	c := d.At(rank)
	return figure.At{X: c.X, Y: c.Y}
}

func drawn(net *diameter.Network, links []int) []figure.Link {
	var out []figure.Link
	for _, i := range links {
		l := net.Links()[i]
		out = append(out, figure.Link{A: place(net.Dims(), l.A), B: place(net.Dims(), l.B)})
	}
	return out
}

// figure6 draws the snake, its formula for other sides, and the cost of a similar one in three dimensions.
func figure6(o options) ([]picture, error) {
	o.out.head("mesh", "faults", "7/2 √N - 1", "diameter without", "with", "5 √N")
	for _, side := range []int{6, 8, 10, 16, 32} {
		net, faults, err := diameter.Snake(side)
		if err != nil {
			return nil, err
		}
		_, _, d, _ := net.Broken(faults).Farthest()
		o.out.row(net.String(), fmt.Sprint(len(faults)), fmt.Sprint(side*7/2-1), fmt.Sprint(2*side-2), fmt.Sprint(d), fmt.Sprint(5*side))
	}
	o.out.head("mesh", "walls", "faults", "of all links", "diameter without", "with", "factor")
	for _, walls := range []int{1, 2, 3, 7} {
		net, faults, err := diameter.Snake3D(8, walls)
		if err != nil {
			return nil, err
		}
		_, _, d, _ := net.Broken(faults).Farthest()
		o.out.row(net.String(), fmt.Sprint(walls), fmt.Sprint(len(faults)),
			fmt.Sprintf("%.0f %%", 100*float64(len(faults))/float64(len(net.Links()))), "21", fmt.Sprint(d), two(float64(d)/21))
	}
	net, faults, err := diameter.Snake(8)
	if err != nil {
		return nil, err
	}
	s := net.Broken(faults)
	a, b, d, _ := s.Farthest()
	way := figure.Way{Kind: figure.Route}
	for _, rank := range s.Path(a, b) {
		way.Nodes = append(way.Nodes, place(net.Dims(), rank))
	}
	return []picture{{"figure6", figure.Mesh{
		Title: fmt.Sprintf("%d faults: from 14 hops to %d", len(faults), d), Columns: 8, Rows: 8, Faulty: drawn(net,
			faults), Ways: []figure.Way{way}, Key: true,
		Nodes: []figure.Node{{At: place(net.Dims(), a), Text: "S", Tone: figure.Dark}, {At: place(net.Dims(), b), Text: "D", Tone: figure.Dark}},
	}}}, nil
}

// shape is a kind of networks of growing size.
type shape struct {
	name  string
	make  func(grid.Dims) (*diameter.Network, error)
	dims  int
	sides []int
}

// diameter3D is the study of Table 3 on tori and in three dimensions.
func diameter3D(o options) ([]picture, error) {
	shapes := []shape{
		{"2D mesh", diameter.Mesh, 2, []int{4, 8, 12, 16, 20}},
		{"2D torus", diameter.Torus, 2, []int{4, 8, 12, 16, 20, 24, 28, 32}},
		{"3D mesh", diameter.Mesh, 3, []int{3, 4, 5, 6, 7, 8}},
		{"3D torus", diameter.Torus, 3, []int{3, 4, 5, 6, 7, 8}},
	}
	o.out.head("network", "N", "without faults", "link faults: mean ± s.e., σ", "mean+3σ", "by the side", "links gone then",
		"router faults: mean ± s.e., σ", "less than with links")
	plots := [2]figure.Plot{}
	for i, p := range []diameter.Parts{diameter.Links, diameter.Routers} {
		plots[i] = figure.Plot{Title: "Greatest diameter while " + p.String() + " fail one by one", X: "nodes",
			Y: "mean greatest diameter, hops (±σ)", Legend: figure.TopLeft}
	}
	for k, sh := range shapes {
		series := [2]figure.Series{{Name: sh.name, Look: figure.Marks}, {Name: sh.name, Look: figure.Marks}}
		if o.short {
			sh.sides = sh.sides[:2]
		}
		for i, side := range sh.sides {
			d := grid.Dims{X: side, Y: side, Z: 1}
			if sh.dims == 3 {
				d.Z = side
			}
			net, err := sh.make(d)
			if err != nil {
				return nil, err
			}
			_, _, sound, _ := net.NewState(true, true).Farthest()
			l := diameter.Study(net, diameter.Links, o.trials, o.source(uint64(1000*(k+1)+i)))[diameter.AnyPair]
			r := diameter.Study(net, diameter.Routers, o.trials, o.source(uint64(1000*(k+1)+100+i)))[diameter.AnyPair]
			for j, f := range []diameter.Figure{l, r} {
				series[j].Points = append(series[j].Points, figure.Point{X: float64(net.Nodes()), Y: f.Mean, Below: f.Deviation, Above: f.Deviation})
			}
			o.out.row(net.String(), fmt.Sprint(net.Nodes()), fmt.Sprint(sound),
				fmt.Sprintf("%.2f ± %.2f, %.1f", l.Mean, l.StandardError(), l.Deviation), one(l.Bound()), one(l.Bound()/float64(side)),
				fmt.Sprintf("%.0f %%", 100*l.Faults/float64(len(net.Links()))), fmt.Sprintf("%.2f ± %.2f, %.1f", r.Mean, r.StandardError(),
					r.Deviation), fmt.Sprintf("%.1f %%", 100*(1-r.Mean/l.Mean)))
		}
		for j := range series {
			plots[j].Series = append(plots[j].Series, series[j])
		}
	}
	return []picture{{"diameter3d-links", plots[0]}, {"diameter3d-routers", plots[1]}}, nil
}

// shares studies the diameter while no more than some share of the links is gone, as in a cluster under repair.
func shares(o options) ([]picture, error) {
	type network struct {
		make func(grid.Dims) (*diameter.Network, error)
		dims grid.Dims
	}
	nets := []network{{diameter.Torus, grid.Dims{X: 4, Y: 4, Z: 4}}, {diameter.Torus, grid.Dims{X: 8, Y: 8, Z: 8}},
		{diameter.Mesh, grid.Dims{X: 8, Y: 8, Z: 8}}, {diameter.Mesh, grid.Dims{X: 16, Y: 16, Z: 1}}}
	if o.short {
		nets = nets[:1]
	}
	percent := []int{0, 10, 20, 30, 40}
	heads := []string{"network"}
	for _, p := range percent {
		heads = append(heads, fmt.Sprintf("%d %% gone: mean, greatest of %d", p, sharesRuns))
	}
	o.out.head(heads...)
	for k, of := range nets {
		net, err := of.make(of.dims)
		if err != nil {
			return nil, err
		}
		chance := o.source(uint64(50 + k))
		cells := []string{net.String()}
		for _, p := range percent {
			sum, greatest := 0, 0
			for range sharesRuns {
				order := diameter.Order(net, diameter.Links, chance)
				_, _, d, _ := net.Broken(order[:len(order)*p/100]).Farthest()
				sum, greatest = sum+d, max(greatest, d)
			}
			cells = append(cells, fmt.Sprintf("%.1f, %d", float64(sum)/sharesRuns, greatest))
		}
		o.out.row(cells...)
	}
	return nil, nil
}

// sharesRuns is the number of failure orders behind each number of shares.
const sharesRuns = 20

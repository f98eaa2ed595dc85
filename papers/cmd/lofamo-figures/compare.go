package main

import (
	"fmt"

	"github.com/lofamo/lofamo/papers/chaos"
	"github.com/lofamo/lofamo/papers/chaos/experiment"
	"github.com/lofamo/lofamo/papers/figure"
)

// compare has throughput and latency against load for the three algorithms, without faults and with 2 % of the links
// dead.
func compare(o options) ([]picture, error) {
	var out []picture
	o.out.f("\n| network | dead links | algorithm | accepted at full load | latency at half load, cycles | lost at half load |\n" +
		"|---|---|---|---|---|---|\n")
	for _, net := range []struct {
		name string
		dims []int
		dead int
	}{{"compare", []int{16, 16}, 0}, {"compare-faults", []int{16, 16}, 10}, {"compare-3d", []int{6, 6, 6}, 0},
		{"compare-3d-faults", []int{6, 6, 6}, 13}} {
		loads := []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}
		c := experiment.Compare{WarmUp: 3000, Measure: 5000, Trials: max(2, min(o.trials/200, 5)), DeadLinks: net.dead}
		if o.short {
			net.dims, loads, c.DeadLinks, c.WarmUp, c.Measure = []int{4, 4, 4}[:len(net.dims)], []float64{0.2, 0.5, 1}, min(c.DeadLinks, 2), 300, 600
		}
		c.Loads = loads
		accepted := figure.Plot{Title: fmt.Sprintf("%v torus, %d links dead", net.dims, c.DeadLinks),
			X: "offered, part of the channels' capacity", Y: "accepted", Width: 12, Height: 8}
		latency := figure.Plot{Title: "latency", X: "offered, part of the channels' capacity", Y: "cycles", Width: 12, Height: 8, YMin: 0,
			YMax: 600}
		for _, a := range []chaos.Algorithm{chaos.Chaotic, chaos.MinimalAdaptive, chaos.DimensionOrder} {
			c.Network = chaos.Default(net.dims...)
			c.Network.Algorithm, c.Network.Seed = a, o.seed*1000
			points, err := c.Run()
			if err != nil {
				return nil, err
			}
			acc, lat := figure.Series{Name: a.String(), Look: figure.Marks}, figure.Series{Name: a.String(), Look: figure.Marks}
			var half experiment.ComparePoint
			for _, p := range points {
				acc.Points = append(acc.Points, figure.Point{X: p.Load, Y: p.Accepted, Below: p.AcceptedError, Above: p.AcceptedError})
				if p.Latency <= 600 {
					lat.Points = append(lat.Points, figure.Point{X: p.Load, Y: p.Latency, Below: p.LatencyError, Above: p.LatencyError})
				}
				if p.Load <= 0.5 {
					half = p
				}
			}
			accepted.Series, latency.Series = append(accepted.Series, acc), append(latency.Series, lat)
			o.out.f("| %v | %d | %s | %.3f ± %.3f | %.0f | %.1f %% |\n", net.dims, c.DeadLinks, a, points[len(points)-1].Accepted,
				points[len(points)-1].AcceptedError, half.Latency, 100*half.Lost)
		}
		out = append(out, picture{net.name, figure.Panels{accepted, latency}})
	}
	return out, nil
}

package main

import (
	"fmt"

	"github.com/lofamo/lofamo/papers/chaos"
	"github.com/lofamo/lofamo/papers/chaos/experiment"
	"github.com/lofamo/lofamo/papers/figure"
)

// drainTrials is the number of runs for each load of Figures 9 and 10: one takes up to two seconds, and the line has
// seven loads.
func (o options) drainTrials(most int) int { return max(2, min(o.trials/50, most)) }

// drainTimes are Figures 9 and 10: drain times of two tori, uniform traffic and hot spots, with the line to the full
// network.
func drainTimes(o options) ([]picture, error) {
	var out []picture
	o.out.f("\n| network | traffic | trials | cycles a packet | R² | full network: ours (95 %%) | paper |\n|---|---|---|---|---|---|---|\n")
	for _, f := range []struct {
		name         string
		radix, paper int
	}{{"figure9", 16, experiment.PaperFull16}, {"figure10", 32, experiment.PaperFull32}} {
		if o.short {
			f.radix /= 4
		}
		var panels figure.Panels
		for _, hot := range []int{0, 10} {
			if o.short {
				hot = min(hot, 1)
			}
			d := experiment.PaperDrain(f.radix, hot, o.drainTrials(20))
			if f.radix >= 32 {
				d.Trials = o.drainTrials(8)
			}
			d.Network.Seed = o.seed * 1000
			got, err := d.Run()
			if err != nil {
				return nil, err
			}
			title := "uniform traffic"
			says := "-"
			if hot > 0 {
				title, says = fmt.Sprintf("%d ten-times hot spots", hot), fmt.Sprint(f.paper)
			}
			panels = append(panels, drainPlot(fmt.Sprintf("Drain of a %dx%d torus, %s", f.radix, f.radix, title), got))
			o.out.f("| %dx%d | %s | %d | %.3f | %.3f | %.0f (%.0f to %.0f) | %s |\n", f.radix, f.radix, title, len(got.Points),
				got.Fit.Slope, got.Fit.R2, got.Full, got.FullLow, got.FullHigh, says)
		}
		out = append(out, picture{f.name, panels})
	}
	return out, nil
}

func drainPlot(title string, d experiment.Drained) figure.Plot {
	dots := figure.Series{Name: "one drain", Look: figure.Dots}
	most := 0
	for _, p := range d.Points {
		dots.Points = append(dots.Points, figure.Point{X: float64(p.Packets), Y: float64(p.Cycles)})
		most = max(most, p.Packets)
	}
	line := figure.Series{Name: fmt.Sprintf("fit: %.0f + %.3f a packet", d.Fit.Intercept, d.Fit.Slope), Look: figure.Dashed}
	for _, x := range []float64{0, float64(most)} {
		y, _, _ := d.Fit.At(x)
		line.Points = append(line.Points, figure.Point{X: x, Y: y})
	}
	return figure.Plot{Title: title, X: "packets in the network", Y: "cycles until it is empty", Series: []figure.Series{line, dots},
		Width: 12, Height: 8}
}

// drainVariants studies the effect of the choices that the text leaves open on the 16x16 torus under hot spots, and
// plays Figure 11.
func drainVariants(o options) ([]picture, error) {
	o.out.f("\n| choice | packets at most | for hot spots | cycles a packet | full network (95 %%) |\n|---|---|---|---|---|\n")
	for _, v := range experiment.Variants() {
		d := experiment.PaperDrain(16, 10, o.drainTrials(6))
		if o.short {
			d = experiment.PaperDrain(6, 1, 2)
		}
		d.Network.Seed = o.seed * 1000
		v.Change(&d)
		got, err := d.Run()
		if err != nil {
			return nil, err
		}
		most, share := 0, 0.0
		for _, p := range got.Points {
			if p.Packets > most {
				most, share = p.Packets, p.HotShare
			}
		}
		o.out.f("| %s | %d | %.0f %% | %.3f | %.0f (%.0f to %.0f) |\n", v.Name, most, 100*share, got.Fit.Slope, got.Full, got.FullLow,
			got.FullHigh)
	}
	if err := sameTime(o); err != nil {
		return nil, err
	}
	o.out.f("\n| Figure 11 | packets when injection stops | of them for it | left at the time-out | given to another processor | cleared | " +
		"by routers | of which beside it |\n|---|---|---|---|---|---|---|---|\n")
	for _, mask := range []bool{false, true} {
		cfg := chaos.Default(16, 16)
		cfg.Mask, cfg.FastDeroute, cfg.NoRouteback, cfg.Seed = mask, mask, mask, o.seed
		if o.short {
			cfg.Dims = []int{8, 8}
		}
		s, err := experiment.Unreachable{Network: cfg, Rate: 0.08, WarmUp: 1000, After: 600, Timeout: 10000, Share: 5}.Run()
		if err != nil {
			return nil, err
		}
		name := "routers do not know the dead links"
		if mask {
			name = "channel mask, fast derouting"
		}
		o.out.f("| %s | %d | %d | %d | %d | %d | %d | %d |\n", name, s.Before, s.ForIt, s.Left, s.Misdelivered, s.Cleared,
			len(s.Reporters), s.Beside)
	}
	return nil, nil
}

// sameTime gives both networks the same time of injection under hot spots, which the paper does not state.
func sameTime(o options) error {
	o.out.f("\n| cycles of injection | network | drains | full network (95 %%) | paper |\n|---|---|---|---|---|\n")
	for _, cycles := range []int{2000, 3000} {
		for _, f := range []struct{ radix, trials, paper int }{{16, 20, experiment.PaperFull16}, {32, 8, experiment.PaperFull32}} {
			d := experiment.PaperDrain(f.radix, 10, o.drainTrials(f.trials))
			if o.short {
				d = experiment.PaperDrain(f.radix/4, 1, 2)
			}
			d.Network.Seed, d.WarmUp = o.seed*1000, cycles
			got, err := d.Run()
			if err != nil {
				return err
			}
			o.out.f("| %d | %dx%d | %d | %.0f (%.0f to %.0f) | %d |\n", cycles, d.Network.Dims[0], d.Network.Dims[1], len(got.Points),
				got.Full, got.FullLow, got.FullHigh, f.paper)
		}
	}
	return nil
}

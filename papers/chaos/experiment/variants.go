package experiment

import "github.com/lofamo/lofamo/papers/chaos"

// PaperDrain is our reading of the experiment of Figures 9 and 10: injection at one of several loads for WarmUp
// cycles, then the drain. The paper names neither the loads nor the time. Our choice is 125 cycles for each node
// along a side, because the time in which a network gets into its state grows with its diameter. Variants shows the
// effect of other times.
func PaperDrain(radix, hotSpots, trials int) Drain {
	loads := []float64{0.03, 0.06, 0.1, 0.15, 0.25, 0.5, 1}
	if radix >= 32 { // twice the distance, so half the packets saturate it
		loads = []float64{0.02, 0.04, 0.06, 0.1, 0.2, 0.5, 1}
	}
	return Drain{Network: chaos.Default(radix, radix), HotSpots: hotSpots, HotFactor: 10, Trials: trials, WarmUp: 125 * radix, Loads: loads}
}

// Variant is a choice that the paper's text leaves open, made otherwise than in Default.
type Variant struct {
	Name   string
	Change func(*Drain)
}

// Variants are the choices, one at a time.
func Variants() []Variant {
	network := func(name string, f func(*chaos.Config)) Variant {
		return Variant{name, func(d *Drain) { f(&d.Network) }}
	}
	return []Variant{
		{"as chosen", func(*Drain) {}},
		{"injection for 1,000 cycles", func(d *Drain) { d.WarmUp = 1000 }},
		{"injection for 3,000 cycles", func(d *Drain) { d.WarmUp = 3000 }},
		{"injection for 6,000 cycles", func(d *Drain) { d.WarmUp = 6000 }},
		{"filled at full rate up to a population", func(d *Drain) { d.WarmUp, d.Rate, d.Levels = 0, 1, []float64{1, 2, 3, 4, 5, 6} }},
		network("full-duplex channels", func(c *chaos.Config) { c.FullDuplex = true }),
		network("turn-around of a channel 2 cycles", func(c *chaos.Config) { c.TurnAround = 2 }),
		network("header decoded in 3 cycles", func(c *chaos.Config) { c.Decode = 3 }),
		network("into the multiqueue at once", func(c *chaos.Config) { c.InputWait = 0 }),
		network("derouting only while one waits", func(c *chaos.Config) { c.DerouteOnDemand = true }),
		network("own packets enter the multiqueue", func(c *chaos.Config) { c.InjectToQueue = true }),
		network("basic router: with routeback", func(c *chaos.Config) { c.NoRouteback, c.FastDeroute = false, false }),
		network("2 cycles between packets to a processor", func(c *chaos.Config) { c.EjectGap = 2 }),
		{"five hot spots", func(d *Drain) { d.HotSpots = 5 }},
	}
}

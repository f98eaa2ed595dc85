package experiment

import (
	"fmt"

	"github.com/lofamo/lofamo/papers/chaos"
)

// Compare offers uniform traffic at several loads to routers by an algorithm.
type Compare struct {
	Network         chaos.Config
	Loads           []float64 // parts of Capacity
	DeadLinks       int       // drawn so that the rest stays connected
	WarmUp, Measure int       // cycles
	Trials          int
}

// ComparePoint is the result of a network at one load, averaged over trials.
type ComparePoint struct {
	Load     float64 // offered, part of Capacity
	Accepted float64 // delivered, the same unit
	Latency  float64 // cycles from a packet's making to its tail, of those delivered in time
	LatencyError,
	AcceptedError float64 // standard errors
	Lost     float64 // part of the injected packets without a way: dimension order and minimal adaptive
	Deroutes float64 // a delivered packet, out of a full multiqueue
	Hops     float64 // a delivered packet
}

// Capacity is the flits that a node of a fault-free network could inject in a cycle if all channels were always busy
// and all ways shortest.
func Capacity(cfg chaos.Config) float64 {
	mean := 0.0
	for _, k := range cfg.Dims {
		sum := 0
		for a := range k {
			for b := range k {
				d := max(a-b, b-a)
				if !cfg.Mesh {
					d = min(d, k-d)
				}
				sum += d
			}
		}
		mean += float64(sum) / float64(k*k)
	}
	channels := 0.0
	for _, k := range cfg.Dims {
		links := 1.0
		if cfg.Mesh {
			links = float64(k-1) / float64(k)
		}
		if cfg.FullDuplex {
			links *= 2
		}
		channels += links
	}
	return channels / mean
}

// Run makes the comparison's curve for one algorithm.
func (c Compare) Run() ([]ComparePoint, error) {
	var out []ComparePoint
	seed := c.Network.Seed
	capacity := Capacity(c.Network)
	for _, load := range c.Loads {
		var accepted, latency []float64
		p := ComparePoint{Load: load}
		for range c.Trials {
			cfg := c.Network
			cfg.Seed = seed
			seed++
			n, err := chaos.New(cfg)
			if err != nil {
				return nil, err
			}
			n.KillRandomLinks(c.DeadLinks)
			if err := n.Reconfigure(); err != nil {
				return nil, err
			}
			if err := n.Offer(chaos.Traffic{Rate: load * capacity / float64(cfg.Flits)}); err != nil {
				return nil, fmt.Errorf("load %g: %w", load, err)
			}
			n.Run(c.WarmUp)
			before := n.Count()
			n.Run(c.Measure)
			now := n.Count()
			delivered := float64(now.Delivered - before.Delivered)
			accepted = append(accepted, delivered*float64(cfg.Flits)/float64(c.Measure)/float64(n.Nodes())/capacity)
			if delivered > 0 {
				latency = append(latency, float64(now.Latency-before.Latency)/delivered)
				p.Deroutes += float64(now.Deroutes-before.Deroutes) / delivered / float64(c.Trials)
				p.Hops += float64(now.Hops-before.Hops) / delivered / float64(c.Trials)
			}
			if injected := now.Injected - before.Injected; injected > 0 {
				p.Lost += float64(now.Lost-before.Lost) / float64(injected) / float64(c.Trials)
			}
		}
		a, l := MeanOf(accepted), MeanOf(latency)
		p.Accepted, p.AcceptedError, p.Latency, p.LatencyError = a.Mean, a.Error, l.Mean, l.Error
		out = append(out, p)
	}
	return out, nil
}

package awareness

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// BenchmarkBlockDeath measures the death of a 10×10×10 block: 600 accusations, doubt that spreads through five layers,
// a thousand verdicts and one group. The cost depends on the block, not on the torus.
func BenchmarkBlockDeath(b *testing.B) {
	for _, dims := range []grid.Dims{{X: 14, Y: 14, Z: 14}, {X: 50, Y: 50, Z: 40}} {
		b.Run(dims.String(), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				w := blockWorld(b, dims)
				b.StartTimer()
				d := dieInWorld(w, 10)
				b.ReportMetric(float64(d.took.Milliseconds()), "virtual-ms")
				b.ReportMetric(float64(d.steps), "steps")
				b.ReportMetric(float64(d.groups), "group-changes")
				b.ReportMetric(float64(d.whole), "challenges")
			}
		})
	}
}

// blockWorld returns a world in which every half has reported once.
func blockWorld(tb testing.TB, dims grid.Dims) *world {
	w, err := newWorld(testConfig(dims))
	if err != nil {
		tb.Fatal(err)
	}
	for _, a := range w.order {
		if a.origin.Half == fault.HalfHost {
			w.boot(a)
			w.m.Step(w.now, w.queue[0].ev)
			w.queue = nil
		}
		a.alive = true
		a.nextDigest = w.now.Add(time.Hour)
	}
	w.now = w.now.Add(w.cfg.Grace)
	w.wake = w.m.Step(w.now, Tick{}).Wake
	return w
}

// blockDeath is what the death of a block took until its group stood.
type blockDeath struct {
	took          time.Duration
	steps, groups int
	whole         int // challenges by all rails
}

// dieInWorld kills the cube with the given edge and advances time until the group stands.
func dieInWorld(w *world, edge int) (d blockDeath) {
	start := w.now
	within := func(c grid.Coord) bool { return c.X < edge && c.Y < edge && c.Z < edge }
	for r := range w.dims.Nodes() {
		if c := w.dims.At(r); within(c) {
			w.actor(w.id(r), fault.HalfHost).alive, w.actor(w.id(r), fault.HalfDNP).alive = false, false
			for _, n := range w.dims.Neighbours(c) {
				if !within(n) {
					w.silenceBy(w.actor(w.cfg.IDs[n], fault.HalfHost), c, false, 80*time.Millisecond)
				}
			}
		}
	}
	w.log = func(_ time.Time, out Output) {
		d.groups += len(out.Groups)
		for _, c := range out.Challenges {
			if !c.Again {
				d.whole++
			}
		}
	}
	for d.groups == 0 && w.now.Sub(start) < 5*time.Second {
		next := w.wake
		if len(w.queue) > 0 && w.queue[0].at.Before(next) {
			next = w.queue[0].at
		}
		w.now = next
		d.steps++
		if len(w.queue) > 0 && !w.queue[0].at.After(w.now) {
			ev := w.queue[0].ev
			w.queue = w.queue[1:]
			w.step(ev)
			continue
		}
		w.step(Tick{})
	}
	d.took = w.now.Sub(start)
	return d
}

// TestBlockIsOneGroup checks that the group appears once, with all its members, within the bound for single witnesses
// and one wait for the verdicts to settle.
func TestBlockIsOneGroup(t *testing.T) {
	w := blockWorld(t, grid.Dims{X: 13, Y: 13, Z: 13})
	d := dieInWorld(w, 10)
	gs := w.m.Groups()
	if d.groups != 1 || len(gs) != 1 || len(gs[0].Members) != 1000 || gs[0].Inferred != 512 || gs[0].ID != "block/0,0,0..9,9,9" {
		t.Fatalf("%d changes of groups: %d stand", d.groups, len(gs))
	}
	if limit := w.cfg.ChallengeSingle + 2*w.cfg.ChallengeNode; d.took > limit {
		t.Errorf("it took %s, want at most %s", d.took, limit)
	}
	// Each costs a signature at every supervisor.
	if d.whole < 2*1000 || d.whole > 3*1000 {
		t.Errorf("%d challenges by all rails, want two or three for each of the dead", d.whole)
	}
}

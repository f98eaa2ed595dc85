package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// hierarchies compares regions under a parent with one level.
func hierarchies(ctx context.Context, o options) error {
	o.out.f("\n### Regions under a parent, and one level\n\nThe same nodes die, scattered: the time until a watcher of the whole "+
		"map knows, who watches the parent if there is one. There is one supervisor each, so that the division is compared, not "+
		"the replication. Digests every %s.\n\n", loadDigests)
	o.out.f("| nodes | supervisors | processor while nothing happens | memory of all | of the one that serves the whole | dead | " +
		"known median | p99 | all |\n|---|---|---|---|---|---|---|---|---|\n")
	sizes, regions, wait := []grid.Dims{{X: 8, Y: 8, Z: 8}, {X: 16, Y: 16, Z: 16}}, 8, 15*time.Second
	if o.short {
		sizes, regions, wait = []grid.Dims{{X: 4, Y: 4, Z: 4}}, 2, 2*time.Second
	}
	for _, d := range sizes {
		for _, n := range []int{0, regions} {
			if !o.rows.want(printed("%s %d regions", d, n)) {
				continue
			}
			err := withSteadyFleet(ctx, fleet.Config{Dims: d, Replicas: 1, Regions: n, Preset: config.PresetDefault, Periods: seldom(loadDigests),
				Seed: o.seed}, func(f *fleet.Fleet) error {
				return hierarchy(ctx, o, f, n, wait)
			})
			if err != nil {
				return fmt.Errorf("%s in %d regions: %w", d, n, err)
			}
		}
	}
	return nil
}

func hierarchy(ctx context.Context, o options, f *fleet.Fleet, regions int, wait time.Duration) error {
	before, _, err := f.Usage()
	if err != nil {
		return err
	}
	begun := time.Now()
	pause(ctx, wait)
	after, each, err := f.Usage()
	if err != nil {
		return err
	}
	used := cores(after.CPU-before.CPU, time.Since(begun))
	victims := scattered(f.Dims(), max(2, len(f.Nodes())/40), o.seed)
	bounded, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d, err := f.Die(bounded, victims, false)
	if err != nil {
		return err
	}
	what := "1, one level"
	if regions > 0 {
		what = printed("%d regions of 1, and a parent", regions)
	}
	o.out.f("| %d | %s | %.2f cores | %d MB | %d MB | %d | %.0f ms | %.0f ms | %.0f ms |\n", len(f.Nodes()), what, used,
		after.Resident>>20, each[0].Resident>>20,
		len(victims), ms(d.Known.Median()), ms(d.Known.P99()), ms(d.Known.Max()))
	return onlyDead(ctx, f, victims)
}

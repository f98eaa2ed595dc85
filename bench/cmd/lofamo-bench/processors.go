package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/internal/config"
)

// fewInTransit keeps the waits below the senders' time-outs, even on one core: a datagram sent again costs processor time.
const fewInTransit = 16

// processors measures the processor time of a change on the cores that this process may use. Under taskset with other
// numbers of cores it tests the model that the time does not depend on them, so that the rate grows with their number.
func processors(ctx context.Context, o options) error {
	o.out.f("\n### Processor time of a change\n\nAs above, with 125 nodes and 16 datagrams in transit, on the cores that " +
		"`taskset` leaves. Processor time is of the three supervisors, the emulated nodes and the kernel.\n\n")
	o.out.f("| cores | changes under one signature | changes | processor time of a change, supervisors | emulated nodes | sent again | " +
		"changes/s | cores in use |\n|---|---|---|---|---|---|---|---|\n")
	side, total := 5, 40_000
	if o.short {
		side, total = 3, 2_000
	}
	c := fleet.Config{Dims: cube(side), Replicas: 3, Preset: config.PresetDefault, Periods: seldom(loadSilence)}
	return withFleet(ctx, c, func(f *fleet.Fleet) error {
		if err := everybodySpeaks(ctx, f); err != nil {
			return err
		}
		for _, under := range []int{64, 1} {
			if !o.rows.want(printed("%d under one", under)) {
				continue
			}
			count := total
			if under == 1 {
				count /= 8
			}
			d, err := deliver(ctx, o, f, under, count, fewInTransit)
			if err != nil {
				return fmt.Errorf("%d changes under one signature: %w", under, err)
			}
			each := func(t float64) string { return printed("%.1f µs", 1e6*t/float64(d.changes)) }
			o.out.f("| %d | %d | %d | %s | %s | %d | %.0f | %.2f |\n", runtime.NumCPU(), under, d.changes, each(d.supervisors.Seconds()),
				each(d.here.Seconds()), d.retries, float64(d.changes)/d.all.Seconds(), cores(d.supervisors+d.here, d.all))
		}
		return nil
	})
}

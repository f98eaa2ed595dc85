package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// takeoverWithin bounds the wait for the next leader, for a verdict and for the return of the killed replica.
const takeoverWithin = 2 * time.Minute

// takeovers measures the time from the leader's death until another replica leads, and until a watcher learns of a node that died at the
// same time.
func takeovers(ctx context.Context, o options) error {
	o.out.f("\n### The leader dies with a node\n\nThe benchmark kills the leading replica of three and at once silences a node. All " +
		"other nodes send their digests meanwhile, each every 500 ms (preset default), and about a third of them must switch to another " +
		"replica. *Leads*: from the kill until a replica names another leader. *Known*: from the silence until a watcher has the event. " +
		"The killed replica then starts again.\n\n")
	o.out.f("| nodes | kills | leads: median | max | known: median | max |\n|---|---|---|---|---|---|\n")
	sizes, kills := []grid.Dims{cube(4), cube(10), {X: 20, Y: 20, Z: 10}, {X: 25, Y: 20, Z: 20}}, 10
	if o.short {
		sizes, kills = []grid.Dims{cube(4)}, 2
	}
	for _, d := range sizes {
		if !o.rows.want(d.String()) {
			continue
		}
		err := withSteadyFleet(ctx, fleet.Config{Dims: d, Replicas: 3, Preset: config.PresetDefault, Seed: o.seed}, func(f *fleet.Fleet) error {
			return takeover(ctx, o, f, kills)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

func takeover(ctx context.Context, o options, f *fleet.Fleet, kills int) error {
	victims := scattered(f.Dims(), kills, o.seed)
	var leads, known measure.Latencies
	for i, victim := range victims {
		led, knew, err := lead(ctx, f, victim)
		if err != nil {
			return fmt.Errorf("kill %d: %w", i+1, err)
		}
		leads, known = append(leads, led), append(known, knew)
		if err := onlyDead(ctx, f, victims[:i+1]); err != nil {
			return fmt.Errorf("kill %d: %w", i+1, err)
		}
	}
	o.out.f("| %d | %d | %.0f ms | %.0f ms | %.0f ms | %.0f ms |\n", len(f.Nodes()), kills, ms(leads.Median()), ms(leads.Max()),
		ms(known.Median()), ms(known.Max()))
	return nil
}

// lead kills the leader and a node, waits for the next leader and for the map, and starts the replica again.
func lead(ctx context.Context, f *fleet.Fleet, victim int) (led, known time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeoverWithin)
	defer cancel()
	old, err := f.Leader(ctx)
	if err != nil {
		return 0, 0, err
	}
	killed := time.Now()
	if err := f.KillReplica(old); err != nil {
		return 0, 0, err
	}
	next := make(chan error, 2)
	go func() { next <- f.Connect(ctx) }()
	go func() {
		_, err := f.Another(ctx, old)
		led = time.Since(killed)
		next <- err
	}()
	d, err := f.Die(ctx, []int{victim}, false)
	if err = errors.Join(err, <-next, <-next); err != nil {
		return 0, 0, err
	}
	if err := f.StartReplica(old); err != nil {
		return 0, 0, err
	}
	return led, d.Known.Max(), f.Back(ctx, old)
}

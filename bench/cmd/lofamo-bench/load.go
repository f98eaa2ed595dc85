package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// loads are the sections on the supervisors' load: emulated agents speak the real protocol to real replicas,
// processes with embedded etcd on this machine's disk.
func loads() []named {
	return []named{{"commits", commits}, {"deaths", deaths}, {"digests", steadies}, {"enrolment", enrolments}, {"map", largeMap},
		{"takeovers", takeovers}, {"regions", hierarchies}, {"processors", processors}, {"model", model}}
}

// rows selects rows of the sections on load: those whose names contain part.
type rows struct {
	part     string
	selected bool     // one was
	others   []string // names of those that were not
}

func (r *rows) want(name string) bool {
	if !strings.Contains(name, r.part) {
		r.others = append(r.others, name)
		return false
	}
	r.selected = true
	return true
}

// check returns an error if part has selected no row.
func (r *rows) check() error {
	if r.selected || r.part == "" {
		return nil
	}
	return fmt.Errorf("rows: given %q: want a part of the name of a row: %s", r.part, cmp.Or(strings.Join(r.others, ", "), "none has names"))
}

// withFleet runs one measurement on a fleet of its own.
func withFleet(ctx context.Context, c fleet.Config, do func(*fleet.Fleet) error) (err error) {
	f, err := fleet.Start(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return do(f)
}

// withSteadyFleet is withFleet for nodes that send their digests meanwhile. do begins when all are NORMAL.
func withSteadyFleet(ctx context.Context, c fleet.Config, do func(*fleet.Fleet) error) error {
	return withFleet(ctx, c, func(f *fleet.Fleet) (err error) {
		steady := f.Steady(ctx)
		defer func() {
			_, failed := steady.Stop()
			err = errors.Join(err, failed)
		}()
		if err := f.Normal(ctx); err != nil {
			return err
		}
		return do(f)
	})
}

// cube is the torus of so many nodes a side.
func cube(side int) grid.Dims { return grid.Dims{X: side, Y: side, Z: side} }

// seldom returns periods at which digests do not disturb a measurement of reports.
func seldom(period time.Duration) *config.PeriodsOverride {
	zero, d := config.Duration(0), config.Duration(period)
	return &config.PeriodsOverride{LinkHoldOff: &zero, DigestPeriod: &d}
}

// commits measures how many changes a second are COMMITTED.
func commits(ctx context.Context, o options) error {
	o.out.f("\n## Load\n\nEmulated host halves in this process, sessions and signatures as agents have them, to three supervisors " +
		"(processes, embedded etcd, this machine's virtual disk). Supervisors, etcd and the emulated nodes share this machine's " +
		"cores.\n\n### Changes committed\n\nEach change turns one component NORMAL or SICK; signed in advance, one datagram in " +
		"transit per node, 128 in all, retried until COMMITTED. No digests meanwhile.\n\n")
	o.out.f("| nodes | changes under one signature | changes | changes/s | COMMITTED median | p99 | sent again | processor, " +
		"supervisors | emulated nodes |\n|---|---|---|---|---|---|---|---|---|\n")
	sides, total := []int{5, 10, 16}, 200_000
	if o.short {
		sides, total = []int{3}, 2_000
	}
	for _, side := range sides {
		row := func(under int) string { return printed("%s %d under one", cube(side), under) }
		under := slices.DeleteFunc([]int{64, 16, 4, 1}, func(n int) bool { return !o.rows.want(row(n)) })
		if len(under) == 0 {
			continue
		}
		err := withFleet(ctx, fleet.Config{Dims: cube(side), Replicas: 3, Preset: config.PresetDefault, Periods: seldom(loadSilence)},
			func(f *fleet.Fleet) error {
				if err := everybodySpeaks(ctx, f); err != nil {
					return err
				}
				for _, under := range under {
					count := total
					if under < 16 {
						count /= 4
					}
					if err := commit(ctx, o, f, under, count); err != nil {
						return fmt.Errorf("%d changes under one signature: %w", under, err)
					}
				}
				return nil
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// everybodySpeaks sends the first digest of every node and waits until all are NORMAL.
func everybodySpeaks(ctx context.Context, f *fleet.Fleet) error {
	if err := f.SpeakOnce(ctx); err != nil {
		return err
	}
	return f.Normal(ctx)
}

func commit(ctx context.Context, o options, f *fleet.Fleet, under, count int) error {
	d, err := deliver(ctx, o, f, under, count, 128)
	if err != nil {
		return err
	}
	o.out.f("| %d | %d | %d | %.0f | %s ms | %s ms | %d | %.2f cores | %.2f cores |\n", len(f.Nodes()), under, d.changes,
		float64(d.changes)/d.all.Seconds(), printed("%.1f", ms(d.took.Median())), printed("%.1f", ms(d.took.P99())), d.retries,
		cores(d.supervisors, d.all), cores(d.here, d.all))
	return nil
}

// delivered are the changes that a fleet has sent until the last was COMMITTED.
type delivered struct {
	changes, retries  int
	took              measure.Latencies // of each datagram
	all               time.Duration
	supervisors, here time.Duration // processor time
}

// deliver signs count changes, so many under one signature, and then sends them, at most window datagrams at a time.
func deliver(ctx context.Context, o options, f *fleet.Fleet, under, count, window int) (d delivered, err error) {
	batches := make([]*fleet.Batch, count/under)
	for i := range batches {
		b, err := f.Nodes()[i%len(f.Nodes())].Changes(under)
		if err != nil {
			return d, err
		}
		batches[i] = b
		if i%1000 == 0 {
			o.progress.f("\rsigned %d/%d   ", i, len(batches))
		}
	}
	before, used, err := consumed(f)
	if err != nil {
		return d, err
	}
	retries := f.Wire().Retries
	begun := time.Now()
	bounded, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := f.Deliver(bounded, batches, window, func(_ *fleet.Batch, t time.Duration) { d.took = append(d.took, t) }); err != nil {
		return d, err
	}
	d.all = time.Since(begun)
	after, usedAfter, err := consumed(f)
	d.changes, d.retries = len(batches)*under, int(f.Wire().Retries-retries)
	d.supervisors, d.here = after-before, usedAfter-used
	return d, err
}

func consumed(f *fleet.Fleet) (supervisors, here time.Duration, err error) {
	u, _, err := f.Usage()
	return u.CPU, measure.ProcessorTime(), err
}

func cores(used, in time.Duration) float64 { return float64(used) / float64(in) }

// deaths measures many deaths at once: scattered, and a block.
func deaths(ctx context.Context, o options) error {
	o.out.f("\n### Many nodes dead at once\n\nFrom the death to the receipt of the event by a watcher: the time-out of the links' " +
		"silence (75 ms), one link period for the neighbours to notice, all their reports, challenges, verdicts, commits. All " +
		"living nodes send their digests meanwhile.\n\n")
	o.out.f("| torus | dead | accusations | known median | p99 | all | group fault | its size | challenges received | sent again | " +
		"processor, supervisors | emulated nodes |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	type plan struct {
		dims  grid.Dims
		count int // scattered; 0: a block
		block int
	}
	large := grid.Dims{X: 25, Y: 20, Z: 20}
	plans := []plan{{large, 10, 0}, {large, 100, 0}, {large, 300, 0}, {large, 1000, 0}, {large, 0, 4}, {large, 0, 7}, {large, 0, 10}}
	if o.short {
		plans = []plan{{cube(4), 4, 0}, {cube(6), 0, 3}}
	}
	for _, p := range plans {
		if !o.rows.want(printed("%s %s", p.dims, whose(p.count, p.block))) {
			continue
		}
		err := withSteadyFleet(ctx, fleet.Config{Dims: p.dims, Replicas: 3, Preset: config.PresetDefault, Periods: seldom(loadDigests),
			Seed: o.seed}, func(f *fleet.Fleet) error {
			return death(ctx, o, f, p.count, p.block)
		})
		if err != nil {
			return fmt.Errorf("%d scattered, block of %d: %w", p.count, p.block, err)
		}
	}
	return nil
}

// whose names the nodes that die.
func whose(count, block int) string {
	if block > 0 {
		return printed("block %d×%d×%d", block, block, block)
	}
	return printed("%d scattered", count)
}

// loadSilence is the digests' period where changes are measured.
const loadSilence = 5 * time.Minute

// loadDigests is the digests' period where deaths are measured: 10,000 nodes leave two cores time to spare.
const loadDigests = 2 * time.Second

func death(ctx context.Context, o options, f *fleet.Fleet, count, block int) error {
	victims := scattered(f.Dims(), count, o.seed)
	if block > 0 {
		victims = blockOf(f.Dims(), block)
	}
	before, used, err := consumed(f)
	if err != nil {
		return err
	}
	begun := f.Wire()
	bounded, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d, err := f.Die(bounded, victims, block > 0)
	if err != nil {
		return err
	}
	after, usedAfter, err := consumed(f)
	if err != nil {
		return err
	}
	if err := onlyDead(ctx, f, victims); err != nil {
		return err
	}
	group, size := "none", "-"
	if d.Group > 0 {
		group, size = printed("%.0f ms", ms(d.Group)), printed("%d (%s)", d.GroupSize, d.GroupID)
	}
	o.out.f("| %s | %s | %d | %.0f ms | %.0f ms | %.0f ms | %s | %s | %d | %d | %.2f s | %.2f s |\n", f.Dims(), whose(count, block),
		d.Accusations, ms(d.Known.Median()), ms(d.Known.P99()), ms(d.Known.Max()), group, size, f.Wire().Challenges-begun.Challenges,
		f.Wire().Retries-begun.Retries, (after - before).Seconds(), (usedAfter - used).Seconds())
	return nil
}

// onlyDead fails if the map calls a living node FAILED, or does not know how it is.
func onlyDead(ctx context.Context, f *fleet.Fleet, victims []int) error {
	dead := make(map[string]bool, len(victims))
	for _, v := range victims {
		dead[string(f.Nodes()[v].ID())] = true
	}
	r, err := f.Client().ListNodes(ctx, &lofamov1.ListNodesRequest{States: []lofamov1.State{lofamov1.State_FAILED, lofamov1.State_UNKNOWN}})
	if err != nil {
		return err
	}
	for _, n := range r.GetNodes() {
		if !dead[n.GetId()] {
			return fmt.Errorf("%s lives and is %s: %s", n.GetId(), n.GetState(), n.GetReason())
		}
	}
	return nil
}

// scattered chooses nodes of which no two are neighbours.
func scattered(d grid.Dims, count int, seed uint64) (out []int) {
	rnd := rand.New(rand.NewPCG(seed, 4))
	near := make(map[int]bool)
	for _, rank := range rnd.Perm(d.Nodes()) {
		if len(out) == count {
			break
		}
		if near[rank] {
			continue
		}
		out = append(out, rank)
		near[rank] = true
		for _, c := range d.Neighbours(d.At(rank)) {
			near[d.Rank(c)] = true
		}
	}
	return out
}

// blockOf is a cube of nodes in the middle of the torus.
func blockOf(d grid.Dims, side int) (out []int) {
	for rank := range d.Nodes() {
		c := d.At(rank)
		inside := func(x, size int) bool { first := (size - side) / 2; return x >= first && x < first+side }
		if inside(c.X, d.X) && inside(c.Y, d.Y) && inside(c.Z, d.Z) {
			out = append(out, rank)
		}
	}
	return out
}

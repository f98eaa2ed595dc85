package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
)

// testIntervals are the rows of the table; the first one is the baseline of the others.
var testIntervals = []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second}

// testedHalf is one row.
type testedHalf struct {
	every time.Duration
	*measure.Tested
	perSecond, median, mean []float64 // by round
	used                    []float64 // processor time a report, of the whole process
}

// selfTests measures the cost of the self-test on the report path, as seed 000 does (Figure 12): pairs of runs with
// and without it, the rows of each round in a new random order.
func selfTests(ctx context.Context, o options) (err error) {
	ids, err := measure.NewIdentities(emulated, measure.ReplicaName)
	if err != nil {
		return err
	}
	var rows []*testedHalf
	defer func() {
		for _, r := range rows {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, every := range testIntervals {
		t, err := measure.NewTested(ids, emulated, oneState(false), every)
		if err != nil {
			return err
		}
		rows = append(rows, &testedHalf{every: every, Tested: t})
	}
	rounds, flow, trips := 30, 5*time.Second, 5*time.Second
	if o.short {
		rounds, flow, trips = 2, 200*time.Millisecond, 200*time.Millisecond
	}
	const window = 32
	rnd := rand.New(rand.NewPCG(o.seed, 12))
	for i := -1; i < rounds; i++ {
		rnd.Shuffle(len(rows), func(a, b int) { rows[a], rows[b] = rows[b], rows[a] })
		for _, r := range rows {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.round(flow, trips, window, i < 0); err != nil {
				return fmt.Errorf("self-test every %s, round %d: %w", r.every, i+1, err)
			}
		}
		o.progress.f("\rself-test %d/%d ", i+1, rounds)
	}
	o.progress.f("\n")
	o.out.f("\n### Cost of the self-test\n\nSigned reports of one change from a half to a replica, both in one process on "+
		"127.0.0.1, with %d on their way (throughput, %s a run) and one by one (latency: the round trip to RECEIVED, %s a run). "+
		"The half tests report path, direct rail and register path at the interval. %d rounds, each with its rows in a new "+
		"random order; the difference is to *off* in the same round: median of the pairs and its 95 %% confidence "+
		"interval, as Figure 12 of seed 000. The processor time is that of both ends and the kernel, in the throughput "+
		"runs: other work on the machine moves it the least.\n\n", window, flow, trips, rounds)
	o.out.f("| interval | reports/s, median | against off | processor time a report, against off | median latency | mean latency " +
		"against off | median latency against off | tests |\n|---|---|---|---|---|---|---|---|\n")
	return printTested(o, rows)
}

// round runs one row once. The first round of all only warms up.
func (r *testedHalf) round(flow, trips time.Duration, window int, warm bool) error {
	r.Run(true)
	defer r.Run(false)
	before := measure.ProcessorTime()
	f, err := r.Saturate(flow, window)
	if err != nil {
		return err
	}
	used := measure.ProcessorTime() - before
	var l measure.Latencies
	var sum time.Duration
	for begun := time.Now(); time.Since(begun) < trips; {
		s, err := r.Once()
		if err != nil {
			return err
		}
		l, sum = append(l, s.RoundTrip), sum+s.RoundTrip
	}
	if warm {
		return nil
	}
	r.perSecond = append(r.perSecond, f.PerSecond(f.Reports))
	r.used = append(r.used, float64(used)/float64(f.Reports))
	r.median = append(r.median, float64(l.Median()))
	r.mean = append(r.mean, float64(sum)/float64(len(l)))
	return nil
}

func printTested(o options, rows []*testedHalf) error {
	var off *testedHalf
	for _, r := range rows {
		if r.every == 0 {
			off = r
		}
	}
	for _, every := range testIntervals {
		for _, r := range rows {
			if r.every != every {
				continue
			}
			name, diff := every.String(), [4]string{"-", "-", "-", "-"}
			n, err := r.Tests()
			if err != nil {
				return fmt.Errorf("self-test every %s: %w", every, err)
			}
			if every == 0 {
				name = "off"
			} else {
				diff = [4]string{against(r.perSecond, off.perSecond), against(r.used, off.used), against(r.mean, off.mean),
					against(r.median, off.median)}
			}
			o.out.f("| %s | %.0f | %s | %s | %.1f µs | %s | %s | %d |\n", name, measure.Quantile(r.perSecond, 0.5), diff[0], diff[1],
				measure.Quantile(r.median, 0.5)/1000, diff[2], diff[3], n)
		}
	}
	return nil
}

// against is the paired difference of two rows in per cent: its median and 95 % interval.
func against(with, without []float64) string {
	p := measure.Paired{Without: without, With: with}
	i := p.Percent()
	return fmt.Sprintf("%+.2f %% (%+.2f to %+.2f)", i.Median, i.Low, i.High)
}

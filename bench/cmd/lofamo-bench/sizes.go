package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// sizedReport is a signed report with a number of observations, each with a detail of some bytes.
func sizedReport(observations, detail int) fault.Report {
	r := fault.Report{Uptime: time.Hour}
	for i := range observations {
		r.Observations = append(r.Observations, fault.Observation{Node: emulated.Node, Component: fault.Component(1 + i), State: fault.Sick,
			Kind: fault.KindSelf, Age: time.Millisecond, Detail: strings.Repeat("d", detail)})
	}
	return r
}

// reportLengths are the rows of the tables by length: observations, and the bytes of each detail. The outbox splits a report of
// more than servicenet.MaxReportSize bytes, so that each part fits a frame of the torus.
var reportLengths = []struct{ observations, detail int }{{1, 0}, {1, 60}, {1, 120}, {3, 40}, {4, 40}, {5, 40}, {8, 60}, {16, 60}, {16, 120}}

// reportLength returns the length of a report before it is split.
func reportLength(r *fault.Report) int { return len(servicenet.AppendReport(nil, r)) }

// sizes measures the report path by the length of the report, with and without the copy by turns, as Figure 13 of seed 000.
func sizes(ctx context.Context, o options) error {
	ids, err := measure.NewIdentities(emulated, measure.ReplicaName)
	if err != nil {
		return err
	}
	blocks, each, flow := 200, 20, 50*time.Millisecond
	if o.short {
		blocks, each, flow = 8, 5, 5*time.Millisecond
	}
	o.out.f("\n### Cost of the copy by message length\n\nFigure 13 of seed 000, on the report path. Each row is measured like the row "+
		"*signed report, nothing else kept* of [Cost of the copy](#cost-of-the-copy), with %d pairs of blocks. A report of more than "+
		"%d bytes is sent in several parts. Its round trip ends with the answer to the last part.\n\n"+
		"| bytes | round trip, µs | difference, %% | processor, µs | difference, %% | "+
		"kB/s | difference, %% |\n|---|---|---|---|---|---|---|\n", blocks, servicenet.MaxReportSize)
	for _, of := range reportLengths {
		report := sizedReport(of.observations, of.detail)
		length := reportLength(&report)
		c := comparison{blocks: blocks, each: each, flow: flow}
		if err := c.run(ctx, o, ids, report, measure.Keeping{}, measure.Keeping{Copy: true}); err != nil {
			return fmt.Errorf("sizes: %d bytes: %w", length, err)
		}
		trip, processor, rate := measure.MedianInterval(c.trip.Without), measure.MedianInterval(c.processor.Without),
			measure.MedianInterval(c.rate.Without)
		o.out.f("| %d | %.1f | %s | %.1f | %s | %.0f | %s |\n", length, trip.Median, c.trip.Percent(), processor.Median, c.processor.Percent(),
			rate.Median*float64(length)/1000, c.rate.Percent())
	}
	o.out.f("\nThe figures are without the copy; the differences are its cost.\n")
	return nil
}

// testedSizes measures the cost of the self-test by the length of the report, as Figure 11 of seed 000 does with and without failure
// detection: pairs of runs, the first of each pair by turns.
func testedSizes(ctx context.Context, o options) error {
	ids, err := measure.NewIdentities(emulated, measure.ReplicaName)
	if err != nil {
		return err
	}
	rounds, run := 10, time.Second
	if o.short {
		rounds, run = 2, 50*time.Millisecond
	}
	every := testIntervals[1]
	o.out.f("\n### Cost of the self-test by message length\n\nFigure 11 of seed 000, on the report path. Runs of signed reports with a "+
		"self-test every %s alternate with runs without: %d pairs a row. Each run sends at full load for %s, and one report at a time for "+
		"%s. A difference is the median over all pairs, with its 95 %% interval.\n\n"+
		"| bytes | median latency, µs, without | difference | kB/s, without | difference | "+
		"processor, difference | tests |\n|---|---|---|---|---|---|---|\n", every, rounds, run, run)
	for _, of := range reportLengths {
		if err := testedSize(ctx, o, ids, sizedReport(of.observations, of.detail), every, rounds, run); err != nil {
			return fmt.Errorf("%d observations with details of %d bytes: %w", of.observations, of.detail, err)
		}
	}
	return nil
}

// testedSize prints one row of testedSizes.
func testedSize(ctx context.Context, o options, ids measure.Identities, report fault.Report, every time.Duration, rounds int,
	run time.Duration) (err error) {
	var two [2]*testedHalf
	for i, e := range []time.Duration{0, every} {
		t, failed := measure.NewTested(ids, emulated, report, e)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, t.Close()) }()
		two[i] = &testedHalf{every: e, Tested: t}
	}
	for n := -1; n < rounds; n++ {
		for turn := range two {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := two[(n+turn+2)%2].round(run, run, inFlight, n < 0); err != nil {
				return err
			}
		}
	}
	tests, err := two[1].Tests()
	if err != nil {
		return err
	}
	length := reportLength(&report)
	off, on := two[0], two[1]
	o.out.f("| %d | %.1f | %s | %.0f | %s | %s | %d |\n", length, measure.Quantile(off.median, 0.5)/1000, against(on.median, off.median),
		measure.Quantile(off.perSecond, 0.5)*float64(length)/1000, against(on.perSecond, off.perSecond), against(on.used, off.used), tests)
	return nil
}

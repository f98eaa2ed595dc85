package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/testing/timeplot"
)

// interval is that of seed 004's Figures 10 and 11.
const interval = 10 * time.Millisecond

// streams sends streams of reports to real supervisors, with and without a failure of the primary path
// in the middle (seed 004, Figures 10 and 11).
func streams(ctx context.Context, o options) (err error) {
	s, err := newStage(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	rate, reports, rounds := 500.0, 3000, 5 // a leader remembers 4,096 reports
	if o.short {
		reports, rounds = 400, 1
	}
	o.out.f("\n### A stream of reports with a path failure (seed 004, Figures 10 and 11)\n\n")
	o.out.f("One half in this process (outbox, codec, direct rail), service interfaces on 127.0.0.1 and 127.0.0.2, to 3 " +
		"supervisors with embedded etcd in processes of their own; every report is signed and changes the fault map. *Cut*: the " +
		"socket of the primary path's interface drops everything both ways, in the middle of the stream, without notice.\n\n")
	if err := s.overhead(ctx, o, rate, reports, rounds); err != nil {
		return err
	}
	o.out.f("| stream | reports | received/s | intervals at zero | longest without RECEIVED | migrations | retries | missing | accepted " +
		"twice | copies dropped | slowest RECEIVED | COMMITTED median | p99 |\n")
	o.out.f("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	var plots []string
	for _, r := range []float64{rate, 0} {
		plot, err := s.failure(ctx, o, r, reports)
		if err != nil {
			return err
		}
		plots = append(plots, plot)
	}
	for _, p := range plots {
		o.out.f("\n%s", p)
	}
	return nil
}

// overhead compares streams without a fault, with and without an alternate, by turns.
func (s *stage) overhead(ctx context.Context, o options, rate float64, reports, rounds int) error {
	type kind struct {
		name        string
		interfaces  int
		rate        float64
		rates       []float64
		received    measure.Latencies
		committed   measure.Latencies
		sent, added uint64
	}
	kinds := []*kind{
		{name: printed("%.0f/s, one interface", rate), interfaces: 1, rate: rate},
		{name: printed("%.0f/s, alternate armed", rate), interfaces: 2, rate: rate},
		{name: "saturated, one interface", interfaces: 1},
		{name: "saturated, alternate armed", interfaces: 2},
	}
	for range rounds {
		for _, k := range kinds {
			plan := measure.StreamPlan{Reports: reports, Rate: k.rate}
			if k.rate > 0 {
				plan.Reports /= 2
			}
			st, err := s.stream(ctx, k.interfaces, plan)
			if err != nil {
				return fmt.Errorf("%s: %w", k.name, err)
			}
			k.rates = append(k.rates, st.Rate())
			k.received, k.committed = append(k.received, st.ToReceived...), append(k.committed, st.ToCommitted...)
			k.sent += st.After.Datagrams - st.Before.Datagrams
			k.added += uint64(len(st.Added))
			o.progress.f("\rstream without a fault, %-28s", k.name)
		}
	}
	o.progress.f("\n")
	o.out.f("Without a fault, by turns, %d times %d reports (paced half as many) each, ms:\n\n"+
		"| stream | received/s, median | RECEIVED median | p99 | COMMITTED median | p99 | reports in a datagram |\n"+
		"|---|---|---|---|---|---|---|\n", rounds, reports)
	for _, k := range kinds {
		o.out.f("| %s | %.0f | %.2f | %.2f | %.2f | %.2f | %.1f |\n", k.name, measure.Quantile(k.rates, 0.5), ms(k.received.Median()),
			ms(k.received.P99()),
			ms(k.committed.Median()), ms(k.committed.P99()), float64(k.added)/float64(k.sent))
	}
	o.out.f("\n")
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// stream sends one stream with a half of its own.
func (s *stage) stream(ctx context.Context, interfaces int, plan measure.StreamPlan) (st *measure.Stream, err error) {
	sp, err := s.speaker(ctx, interfaces)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, sp.stop()) }()
	bounded, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return sp.Sender.Run(bounded, plan)
}

// failure cuts the primary path in the middle of a stream, and returns the plot around the cut.
func (s *stage) failure(ctx context.Context, o options, rate float64, reports int) (plot string, err error) {
	sp, err := s.speaker(ctx, 2)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, sp.stop()) }()
	name := "saturated, cut"
	if rate > 0 {
		name = printed("%.0f/s, cut", rate)
	}
	first := sp.Last() + 1
	bounded, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	st, err := sp.Sender.Run(bounded, measure.StreamPlan{Reports: reports, Rate: rate, Cut: reports / 2})
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	missing, twice, copies, err := s.counted(ctx, sp, first, sp.Last())
	if err != nil {
		return "", err
	}
	if missing > 0 || twice > 0 {
		err = fmt.Errorf("%s: %d reports lost, %d accepted twice", name, missing, twice)
	}
	end := st.Received[len(st.Received)-1]
	counts := timeplot.Intervals(st.Received, interval, end)
	at := int(st.CutAt / interval)
	o.out.f("| %s | %d | %.0f | %d | %.1f ms | %d | %d | %d | %d | %d | %.1f ms | %.1f ms | %.1f ms |\n", name, len(st.Added), st.Rate(),
		timeplot.LongestRun(counts[at:min(len(counts), at+100)]), ms(timeplot.LongestSilence(st.Received, st.CutAt,
			min(end, st.CutAt+time.Second))),
		st.Migrations(), st.Retries(), missing, twice, copies, ms(st.ToReceived.Max()), ms(st.ToCommitted.Median()), ms(st.ToCommitted.P99()))
	from, to := max(0, at-10), min(len(counts), at+25)
	var b strings.Builder
	fmt.Fprintf(&b, "%s: reports RECEIVED by intervals of %s, from %s before the cut of %s on; the cut socket passed %d datagrams and "+
		"dropped %d. The outbox "+
		"said:\n\n", name, interval, time.Duration(at-from)*interval, st.Cut, st.DatagramsWhileCut, st.BlockedWhileCut)
	for _, n := range st.Notes {
		fmt.Fprintf(&b, "- %s\n", n.Text)
	}
	fmt.Fprintf(&b, "\n```\n%s```\n", timeplot.Plot(interval, time.Duration(at-from)*interval, nil,
		timeplot.Column{Values: counts[from:to], Bar: 50}))
	return b.String(), err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/pkg/fault"
)

// copies measures the cost to a half of keeping a copy of its state for its next life, as in Table 2 of seed 000: the
// report path with and without the copy, by turns, in blocks of some exchanges each.
func copies(ctx context.Context, o options) error {
	ids, err := measure.NewIdentities(emulated, measure.ReplicaName)
	if err != nil {
		return err
	}
	blocks, each, flow := 200, 20, 50*time.Millisecond
	if o.short {
		blocks, each, flow = 8, 5, 5*time.Millisecond
	}
	o.out.f("\n### Cost of the copy\n\nSeed 000, Table 2, on the report path: one half and one replica on 127.0.0.1 in this "+
		"process, with and without the copy by turns; %d pairs of blocks of %d exchanges, the medians of the blocks, and %d pairs "+
		"of %s saturated. ", blocks, each, blocks, flow)
	o.out.f("*Sender*: from before the outbox until the datagram is handed to the socket. *Processor*: of the whole process, both " +
		"ends and the kernel. Differences: the median of the pairs', in percent, with its 95 %% interval.\n\n")
	o.out.f("| | round trip, µs | difference, %% | sender, µs | difference, %% | processor, µs | difference, %% | reports/s | " +
		"difference, %% |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range []struct {
		name          string
		report        fault.Report
		without, with measure.Keeping
	}{
		{"signed report, beside the spool", oneState(false), measure.Keeping{Spool: true}, measure.Keeping{Spool: true, Copy: true}},
		{"signed report, nothing else kept", oneState(false), measure.Keeping{}, measure.Keeping{Copy: true}},
		{"digest under a MAC: numbers only", oneState(true), measure.Keeping{}, measure.Keeping{Copy: true}},
	} {
		c := comparison{blocks: blocks, each: each, flow: flow}
		if err := c.run(ctx, o, ids, row.report, row.without, row.with); err != nil {
			return fmt.Errorf("copy: %s: %w", row.name, err)
		}
		o.out.f("| %s", row.name)
		for _, m := range []*measure.Paired{&c.trip, &c.sender, &c.processor, &c.rate} {
			w := measure.MedianInterval(m.Without)
			o.out.f(" | %.1f | %s", w.Median, m.Percent())
		}
		o.out.f(" |\n")
	}
	o.out.f("\nThe figures are without the copy; the differences are its cost.\n")
	return nil
}

// comparison is two halves that differ in the state that they keep.
type comparison struct {
	blocks, each                  int
	flow                          time.Duration
	trip, sender, processor, rate measure.Paired
}

func (c *comparison) run(ctx context.Context, o options, ids measure.Identities, report fault.Report, without,
	with measure.Keeping) (err error) {
	var two [2]measure.Exchange
	for i, k := range [2]measure.Keeping{without, with} {
		r, failed := measure.NewKeeping(ids, emulated, report, k)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		two[i] = r
	}
	for n := range c.blocks {
		var got [2]medians
		for turn := range 2 {
			i := (n + turn) % 2 // either goes first as often
			if err := ctx.Err(); err != nil {
				return err
			}
			if got[i], err = c.block(two[i]); err != nil {
				return err
			}
		}
		c.trip.Add(got[0].trip, got[1].trip)
		c.sender.Add(got[0].sender, got[1].sender)
		c.processor.Add(got[0].processor, got[1].processor)
		c.rate.Add(got[0].rate, got[1].rate)
		if n%10 == 0 {
			o.progress.f("\rcopy %d/%d ", n, c.blocks)
		}
	}
	o.progress.f("\n")
	return nil
}

// medians are the medians of some exchanges, in µs, and the rate of a short saturation.
type medians struct{ trip, sender, processor, rate float64 }

func (c *comparison) block(e measure.Exchange) (medians, error) {
	var trips, senders, processors []float64
	for range c.each {
		used := measure.ProcessorTime()
		s, err := e.Once()
		if err != nil {
			return medians{}, err
		}
		micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
		trips, senders = append(trips, micros(s.RoundTrip)), append(senders, micros(s.Sender))
		processors = append(processors, micros(measure.ProcessorTime()-used))
	}
	f, err := e.Saturate(c.flow, inFlight)
	return medians{measure.Quantile(trips, 0.5), measure.Quantile(senders, 0.5), measure.Quantile(processors, 0.5),
		f.PerSecond(f.Reports)}, err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/pkg/fault"
)

// emulated is the half that speaks in the measurements without a cluster.
var emulated = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}

// oneState is a report of one change, as most are.
func oneState(digest bool) fault.Report {
	return fault.Report{Digest: digest, Uptime: time.Hour, Observations: []fault.Observation{
		{Node: emulated.Node, Component: fault.ComponentTemperature, State: fault.Sick, Kind: fault.KindSelf, Age: time.Millisecond,
			Detail: "board 80 C over 75"},
	}}
}

// fullDigest is a healthy host half's digest of everything it knows.
func fullDigest() fault.Report {
	r := fault.Report{Digest: true, Uptime: time.Hour}
	for c := fault.Component(1); int(c) < fault.NumComponents && len(r.Observations) < 17; c++ {
		r.Observations = append(r.Observations, fault.Observation{Node: emulated.Node, Component: c, State: fault.Normal, Kind: fault.KindDigest})
	}
	return r
}

// variant is one row.
type variant struct {
	name string
	measure.Exchange
	raw     bool
	samples []measure.Sample
	flows   []measure.Flow
}

// deliveries measures reliable reports against raw datagrams, both between two sockets of this process.
func deliveries(ctx context.Context, o options) (err error) {
	ids, err := measure.NewIdentities(emulated, measure.ReplicaName)
	if err != nil {
		return err
	}
	variants, sizes, err := open(ids)
	defer func() {
		for _, v := range variants {
			err = errors.Join(err, v.Close())
		}
	}()
	if err != nil {
		return err
	}
	n, pace, rounds, flow := 500, 10*time.Millisecond, 10, 300*time.Millisecond
	if o.short {
		n, pace, rounds, flow = 25, time.Millisecond, 2, 20*time.Millisecond
	}
	o.out.f("\n### Reliable against raw datagrams\n\nBetween two sockets of one process on 127.0.0.1; %s.\n", sizes)
	if err := paced(ctx, o, variants, n, pace); err != nil {
		return err
	}
	o.out.f("\nPaced: one exchange every %s, the rows by turns; n=%d each, µs. *Sender*: from before the outbox until the datagram "+
		"is handed to the socket; *receiver*: from the socket until the inbox's verdict. *Processor*: the time that the whole "+
		"process used from before the outbox until the answer was decoded, for both ends and the kernel. The answer is "+
		"RECEIVED, under the MAC of the session.\n\n", pace, n)
	printSamples(o, variants)
	for _, v := range variants {
		v.samples = nil
	}
	if err := paced(ctx, o, variants, n*4, 0); err != nil {
		return err
	}
	o.out.f("\nThe same without a pause between two exchanges, n=%d each, so that the caches stay warm.\n\n", n*4)
	printSamples(o, variants)
	if err := saturated(o, ids, variants, rounds, flow); err != nil {
		return err
	}
	return committed(ctx, o, variants[len(variants)-1], n, pace)
}

func open(ids measure.Identities) (out []*variant, sizes string, err error) {
	add := func(name string, e measure.Exchange, raw bool, failed error) {
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, failed))
			return
		}
		out = append(out, &variant{name: name, Exchange: e, raw: raw})
	}
	small, failed := measure.NewReliable(ids, emulated, oneState(true))
	if failed != nil {
		return nil, "", failed
	}
	size, answer, failed := small.Size(ids)
	if failed != nil {
		return nil, "", errors.Join(failed, small.Close())
	}
	e, failed := measure.NewEcho(false, size, answer)
	add("raw UDP", e, true, failed)
	e, failed = measure.NewEcho(true, size, answer)
	add("raw, on the direct rail's sockets", e, true, failed)
	add("reliable, digest of 1 state, MAC", small, false, nil)
	full, failed := measure.NewReliable(ids, emulated, fullDigest())
	add("reliable, digest of 17 states, MAC", full, false, failed)
	signed, failed := measure.NewReliable(ids, emulated, oneState(false))
	add("reliable, report of 1 state, signature", signed, false, failed)
	if err == nil {
		fullSize, _, _ := full.Size(ids)
		signedSize, _, _ := signed.Size(ids)
		sizes = fmt.Sprintf("datagrams of %d bytes, raw and with a digest of 1 state under a MAC, of %d with one of 17, of %d with "+
			"a signed "+
			"report; answers of %d bytes under a MAC", size, fullSize, signedSize, answer)
	}
	return out, sizes, err
}

// paced takes n samples of each variant by turns.
func paced(ctx context.Context, o options, variants []*variant, n int, pace time.Duration) error {
	for i := range n {
		for _, v := range variants {
			if pace > 0 {
				pause(ctx, pace)
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			used := measure.ProcessorTime()
			s, err := v.Once()
			if err != nil {
				return fmt.Errorf("%s, sample %d: %w", v.name, i+1, err)
			}
			s.Processor = measure.ProcessorTime() - used
			v.samples = append(v.samples, s)
		}
		if i%50 == 0 && n > 1 {
			o.progress.f("\rdelivery %d/%d ", i, n)
		}
	}
	return nil
}

func printSamples(o options, variants []*variant) {
	o.out.f("| | round trip median | p99 | against raw | sender median | receiver median | both, median | p99 | of a raw round trip | " +
		"processor, median |\n|---|---|---|---|---|---|---|---|---|---|\n")
	bound := trips(variants[0].samples).Median()
	for _, v := range variants {
		rt := trips(v.samples)
		o.out.f("| %s | %s | %s | %+.0f %% "+
			"|", v.name, measure.Micros(rt.Median()), measure.Micros(rt.P99()), measure.Over(rt.Median(), bound))
		if v.raw {
			o.out.f(" - | - | - | - | - | %s |\n", measure.Micros(processor(v.samples).Median()))
			continue
		}
		var sender, receiver, both measure.Latencies
		for _, s := range v.samples {
			sender, receiver, both = append(sender, s.Sender), append(receiver, s.Receiver), append(both, s.Added())
		}
		o.out.f(" %s | %s | %s | %s | %.0f %% | %s |\n", measure.Micros(sender.Median()), measure.Micros(receiver.Median()),
			measure.Micros(both.Median()), measure.Micros(both.P99()), 100*float64(both.Median())/float64(bound),
			measure.Micros(processor(v.samples).Median()))
	}
}

func processor(samples []measure.Sample) (l measure.Latencies) {
	for _, s := range samples {
		l = append(l, s.Processor)
	}
	return l
}

func trips(samples []measure.Sample) (l measure.Latencies) {
	for _, s := range samples {
		l = append(l, s.RoundTrip)
	}
	return l
}

// committed sends signed reports to the store of real supervisors, by turns with the variant of the same report that
// knows no store.
func committed(ctx context.Context, o options, signed *variant, n int, pace time.Duration) (err error) {
	s, err := newStage(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	sp, err := s.speaker(ctx, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sp.stop()) }()
	signed.samples = nil
	var received, stored measure.Latencies
	for range n {
		if err := paced(ctx, o, []*variant{signed}, 1, pace); err != nil {
			return err
		}
		pause(ctx, pace)
		st, err := sp.Sender.Run(ctx, measure.StreamPlan{Reports: 1})
		if err != nil {
			return err
		}
		received, stored = append(received, st.ToReceived...), append(stored, st.ToCommitted...)
	}
	o.out.f("\nWith three real supervisors, processes with embedded etcd, instead of the replica in this process, which stores "+
		"nothing; one "+
		"signed report that changes the map every %s, by turns, n=%d each, µs. COMMITTED waits up to 5 ms for something on which "+
		"it can be "+
		"carried, and for the virtual disk of this machine three times over.\n\n", pace, n)
	o.out.f("| | median | p99 |\n|---|---|---|\n")
	for _, row := range []struct {
		name string
		l    measure.Latencies
	}{{"replica in this process: RECEIVED", trips(signed.samples)}, {"real supervisors: RECEIVED", received},
		{"real supervisors: COMMITTED", stored}} {
		o.out.f("| %s | %s | %s |\n", row.name, measure.Micros(row.l.Median()), measure.Micros(row.l.P99()))
	}
	return nil
}

// inFlight is the number of datagrams or reports in flight when a sender is saturated: as many as an outbox leaves
// unanswered.
const inFlight = 32

// saturated measures the throughput of the variants, by turns.
func saturated(o options, ids measure.Identities, variants []*variant, rounds int, flow time.Duration) (err error) {
	all := variants
	for _, k := range []struct {
		size   int
		digest bool
	}{{1, false}, {8, false}, {0, false}, {0, true}} {
		b, failed := measure.NewBatches(ids, emulated, oneState(k.digest), k.size)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		name := fmt.Sprintf("no outbox, %d reports under one signature", b.Size())
		if k.digest {
			name = fmt.Sprintf("no outbox, %d digests under one MAC", b.Size())
		}
		if k.size == 0 {
			name += ", a full datagram"
		}
		all = append(all, &variant{name: name, Exchange: b})
	}
	for i := range rounds {
		for _, v := range all {
			f, err := v.Saturate(flow, inFlight)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", v.name, i+1, err)
			}
			v.flows = append(v.flows, f)
		}
		o.progress.f("\rsaturated %d/%d ", i+1, rounds)
	}
	o.progress.f("\n")
	o.out.f("\nSaturated: %d on their way at any time, %d rounds of %s by turns, median; both ends share this machine's cores.\n\n",
		inFlight, rounds, flow)
	o.out.f("| | datagrams/s | against raw | reports/s | reports in a datagram |\n|---|---|---|---|---|\n")
	bound := 0.0
	for _, v := range all {
		var datagrams, reports, each []float64
		for _, f := range v.flows {
			datagrams, reports = append(datagrams, f.PerSecond(f.Datagrams)), append(reports, f.PerSecond(f.Reports))
			each = append(each, float64(f.Reports)/float64(f.Datagrams))
		}
		d := measure.Quantile(datagrams, 0.5)
		if bound == 0 {
			bound = d
		}
		if v.raw {
			o.out.f("| %s | %.0f | %+.0f %% | - | - |\n", v.name, d, 100*(d/bound-1))
			continue
		}
		o.out.f("| %s | %.0f | %+.0f %% | %.0f | %.1f |\n", v.name, d, 100*(d/bound-1), measure.Quantile(reports, 0.5),
			measure.Quantile(each, 0.5))
	}
	return nil
}

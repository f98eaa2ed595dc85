package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/fleet"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// steadies measures the cost of digests while nothing happens.
func steadies(ctx context.Context, o options) error {
	o.out.f("\n### Digests while nothing happens\n\nEvery node's digest of 21 states each 500 ms (preset default), under the MAC of its " +
		"session, answered RECEIVED under a MAC. Processor time of all three supervisors together.\n\n")
	o.out.f("| nodes | digests/s | processor, supervisors | the leader | others | emulated nodes | answered | memory, the leader | changes " +
		"meanwhile |\n|---|---|---|---|---|---|---|---|---|\n")
	sizes, wait := []grid.Dims{cube(10), {X: 20, Y: 20, Z: 10}, {X: 20, Y: 20, Z: 15}, {X: 25, Y: 20, Z: 20}}, 20*time.Second
	if o.short {
		sizes, wait = []grid.Dims{cube(4)}, 2*time.Second
	}
	for _, d := range sizes {
		if !o.rows.want(d.String()) {
			continue
		}
		err := withFleet(ctx, fleet.Config{Dims: d, Replicas: 3, Preset: config.PresetDefault}, func(f *fleet.Fleet) error {
			return steady(ctx, o, f, wait)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

func steady(ctx context.Context, o options, f *fleet.Fleet, wait time.Duration) (err error) {
	s := f.Steady(ctx)
	stopped := false
	defer func() {
		if !stopped {
			_, failed := s.Stop()
			err = errors.Join(err, failed)
		}
	}()
	if err := f.Normal(ctx); err != nil {
		return err
	}
	first, err := f.Client().ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		return err
	}
	_, eachBefore, err := f.Usage()
	if err != nil {
		return err
	}
	here, wire, begun := measure.ProcessorTime(), f.Wire(), time.Now()
	pause(ctx, wait)
	all := time.Since(begun)
	_, each, err := f.Usage()
	if err != nil {
		return err
	}
	used := measure.ProcessorTime() - here
	after := f.Wire()
	stopped = true
	late, err := s.Stop()
	if err != nil {
		return err
	}
	last, err := f.Client().ListEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: first.GetRevision(), Limit: 10_000})
	if err != nil {
		return err
	}
	leader, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	var sum, leads time.Duration
	for i := range each {
		sum += each[i].CPU - eachBefore[i].CPU
	}
	leads = each[leader].CPU - eachBefore[leader].CPU
	o.out.f("| %d | %.0f | %.2f cores | %.2f | %.2f | %.2f cores | %.1f %% | %d MB | %d |\n", len(f.Nodes()),
		float64(after.Sent-wire.Sent)/all.Seconds(),
		cores(sum, all), cores(leads, all), cores(sum-leads, all), cores(used,
			all), 100*float64(after.Answered-wire.Answered)/float64(after.Sent-wire.Sent),
		each[leader].Resident>>20, len(last.GetEvents()))
	if late > f.Periods().DigestPeriod {
		o.out.f("\nThe emulated nodes were %s late: they, not the supervisors, were the limit.\n\n", late.Round(time.Millisecond))
	}
	return nil
}

// largeMap measures a large map: its memory, its queries, and how a change reaches many watchers.
func largeMap(ctx context.Context, o options) error {
	sizes := []grid.Dims{cube(10), {X: 30, Y: 20, Z: 20}, {X: 40, Y: 40, Z: 20}, {X: 50, Y: 50, Z: 40}}
	fan := fanning{watchers: 1000, changes: 200, idle: 20 * time.Second}
	if o.short {
		sizes, fan = []grid.Dims{cube(6)}, fanning{watchers: 20, changes: 20, idle: 2 * time.Second}
	}
	o.out.f("\n### A large map\n\n*Not normal*: `ListNodes` with `not_normal`, asked of the leader by one client over its connection; one "+
		"node in a hundred is SICK, pages of 500. *Fan-out*: %d watchers on 20 connections to one replica; one change every 50 ms, from the "+
		"sending of its report to the receipt by each watcher, and from the first receipt to each. *All watch*: from the first connection until "+
		"all have received the first change. *Idle watchers*: processor time of that replica while they all wait for %v.\n\n",
		fan.watchers, fan.idle)
	o.out.f("| nodes | leader's memory | others | first digests of all | not normal | median | p99 | summary median | p99 | all watch | " +
		"watch median | p99 | behind the first, p99 | idle watchers |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, d := range sizes {
		if !o.rows.want(d.String()) {
			continue
		}
		err := withFleet(ctx, fleet.Config{Dims: d, Replicas: 3, Preset: config.PresetDefault, Periods: seldom(5 * time.Minute),
			Adjust: func(c *config.Supervisor) { c.Etcd.QuotaBytes = largeQuota }},
			func(f *fleet.Fleet) error {
				return oneMap(ctx, o, f, fan)
			})
		if err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}

// largeQuota is the store's quota for large maps: 100,000 nodes that start within minutes commit two million first states.
const largeQuota = 4 << 30

func oneMap(ctx context.Context, o options, f *fleet.Fleet, fan fanning) error {
	begun := time.Now()
	if err := everybodySpeaks(ctx, f); err != nil {
		return err
	}
	spoke := time.Since(begun)
	var batches []*fleet.Batch
	for rank := 0; rank < len(f.Nodes()); rank += 100 {
		b, err := f.Nodes()[rank].Changes(1)
		if err != nil {
			return err
		}
		batches = append(batches, b)
	}
	if err := f.Deliver(ctx, batches, 128, nil); err != nil {
		return err
	}
	leader, err := f.Leader(ctx)
	if err != nil {
		return err
	}
	c, err := f.ClientOf(leader, "reader")
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	calls := 1000
	if o.short {
		calls = 20
	}
	var list, summary measure.Latencies
	found := 0
	for range calls {
		at := time.Now()
		r, err := c.ListNodes(ctx, &lofamov1.ListNodesRequest{NotNormal: true, Brief: true, Limit: 500})
		if err != nil {
			return err
		}
		list = append(list, time.Since(at))
		found = len(r.GetNodes()) + int(r.GetRemaining())
		at = time.Now()
		if _, err := c.GetSummary(ctx, &lofamov1.GetSummaryRequest{}); err != nil {
			return err
		}
		summary = append(summary, time.Since(at))
	}
	_, each, err := f.Usage()
	if err != nil {
		return err
	}
	out, err := fanOut(ctx, f, leader, fan)
	if err != nil {
		return err
	}
	others := int64(0)
	for i, u := range each {
		if i != leader {
			others = max(others, u.Resident)
		}
	}
	o.out.f("| %d | %d MB | %d MB | %.1f s | %d | %.2f ms | %.2f ms | %.2f ms | %.2f ms | %.1f s | %.1f ms | %.1f ms | %.1f ms | "+
		"%.2f cores |\n", len(f.Nodes()), each[leader].Resident>>20, others>>20, spoke.Seconds(),
		found, ms(list.Median()), ms(list.P99()), ms(summary.Median()), ms(summary.P99()),
		out.begin.Seconds(), ms(out.end.Median()), ms(out.end.P99()), ms(out.late.P99()), out.idle)
	return nil
}

// fanning holds the parameters of a fan-out: the watchers, the changes, and the idle time after the last change.
type fanning struct {
	watchers, changes int
	idle              time.Duration
}

// fanned holds the latencies that the watchers saw, and their cost.
type fanned struct {
	begin     time.Duration // until all watched
	end, late measure.Latencies
	idle      float64 // processor time of the replica while nothing changed, in cores
}

// receipts are when each watcher received each change, by the change's number.
type receipts struct {
	mu    sync.Mutex
	first map[uint64]time.Time
	sent  time.Time
	end   measure.Latencies
	late  measure.Latencies
	count int
	more  chan struct{}
}

// fanOut starts the watchers, makes one change after another, and then measures an idle period.
func fanOut(ctx context.Context, f *fleet.Fleet, replica int, fan fanning) (out fanned, err error) {
	const connections = 20
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	now, err := f.Client().ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	if err != nil {
		return out, err
	}
	r := &receipts{first: make(map[uint64]time.Time), more: make(chan struct{}, 1)}
	node := f.Nodes()[1]
	broken := make(chan error, 1) // why a watch ended
	begun := time.Now()
	for i := range connections {
		c, err := f.ClientOf(replica, fmt.Sprintf("watcher-%d", i))
		if err != nil {
			return out, err
		}
		defer func() { _ = c.Close() }()
		for range fan.watchers / connections {
			wg.Go(func() {
				err := c.Watch(ctx, client.WatchOptions{After: now.GetRevision()}, func(w *lofamov1.WatchResponse) error {
					r.note(w, string(node.ID()))
					return nil
				})
				select {
				case broken <- err:
				default:
				}
			})
		}
	}
	all := fan.watchers / connections * connections
	for i := range fan.changes + 1 { // the first shows that all are there
		b, err := node.Changes(1)
		if err != nil {
			return out, err
		}
		r.begin()
		if err := f.Deliver(ctx, []*fleet.Batch{b}, 1, nil); err != nil {
			return out, err
		}
		if err := r.await(ctx, all, broken); err != nil {
			return out, fmt.Errorf("change %d: %w", i, err)
		}
		if i == 0 {
			out.begin = time.Since(begun)
			r.forget()
		}
		pause(ctx, 50*time.Millisecond)
	}
	out.end, out.late = r.end, r.late
	out.idle, err = load(ctx, f, replica, fan.idle)
	return out, err
}

// load returns the average use of the processor by a replica over a period, in cores.
func load(ctx context.Context, f *fleet.Fleet, replica int, period time.Duration) (float64, error) {
	_, before, err := f.Usage()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	pause(ctx, period)
	_, after, err := f.Usage()
	if err != nil {
		return 0, err
	}
	return cores(after[replica].CPU-before[replica].CPU, time.Since(begun)), nil
}

func (r *receipts) note(w *lofamov1.WatchResponse, node string) {
	at := time.Now()
	for _, ev := range w.GetEvents() {
		if ev.GetNode() != node || ev.GetComponent() != "node" {
			continue
		}
		r.mu.Lock()
		if _, ok := r.first[w.GetRevision()]; !ok {
			r.first[w.GetRevision()] = at
		}
		r.end = append(r.end, at.Sub(r.sent))
		r.late = append(r.late, at.Sub(r.first[w.GetRevision()]))
		r.count++
		r.mu.Unlock()
		select {
		case r.more <- struct{}{}:
		default:
		}
	}
}

func (r *receipts) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent, r.count = time.Now(), 0
}

func (r *receipts) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end, r.late = nil, nil
}

func (r *receipts) await(ctx context.Context, count int, broken <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		r.mu.Lock()
		have := r.count
		r.mu.Unlock()
		if have >= count {
			return nil
		}
		select {
		case <-r.more:
		case err := <-broken:
			return fmt.Errorf("%d of %d watchers have seen it, and a watch ended: %w", have, count, err)
		case <-ctx.Done():
			return fmt.Errorf("%d of %d watchers have seen it: %w", have, count, ctx.Err())
		}
	}
}

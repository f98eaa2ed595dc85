package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
	"github.com/lofamo/lofamo/pkg/jobs"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// eurekas measures eurekas and barriers of jobs on a cluster of 64 nodes, with and without dead links. Its preset is
// relaxed: at another one two cores have enough to do with the heartbeats of 64 nodes. A eureka on links that lose
// nothing waits for no period.
func eurekas(ctx context.Context, o options) error {
	torus, ring := grid.Dims{X: 4, Y: 4, Z: 4}, grid.Dims{X: 16, Y: 1, Z: 1}
	preset, samples := config.PresetRelaxed, 200
	if o.short {
		torus, ring, preset, samples = grid.Dims{X: 2, Y: 2, Z: 2}, grid.Dims{X: 4, Y: 1, Z: 1}, config.PresetDefault, 5
	}
	err := onEurekas(ctx, o, torus, preset, func(e *eurekaBench) error { return e.table(ctx, preset, samples) })
	if err != nil {
		return err
	}
	return onEurekas(ctx, o, ring, preset, func(e *eurekaBench) error { return e.hops(ctx, preset, 2*samples) })
}

// onEurekas has a cluster, with a process at each node that listens.
func onEurekas(ctx context.Context, o options, dims grid.Dims, preset string, do func(*eurekaBench) error) (err error) {
	o.dims, o.supervisors = dims, 1 // more would use the two cores that 64 nodes need
	l, dir, err := start(ctx, o, preset)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(dir)) }()
	e := &eurekaBench{o: o, lab: l, rnd: rand.New(rand.NewPCG(o.seed, 4)), news: make(chan arrival, 1<<14)}
	if err := e.listen(ctx); err != nil {
		return err
	}
	defer e.close()
	return do(e)
}

// table measures both with shares of the links dead.
func (e *eurekaBench) table(ctx context.Context, preset string, samples int) error {
	e.o.out.f("\n### Eurekas and barriers\n\nOn %s, %d nodes, one supervisor, preset %s, %d eurekas from nodes drawn at random and as many "+
		"barriers of all that are connected, of each kind, 30 ms apart, for each row, which begins when nothing has changed in the fault map "+
		"for %s. Times are a job's: from the call of `RaiseEureka` to the last process at another node that has it; from the call of the last "+
		"to arrive at a barrier, drawn at random, 100 ms after the others, to the last return; and where all arrive at once, from the first "+
		"call to the last return. Host halves, mailboxes and sockets are included.\n\n",
		e.o.dims, len(e.nodes), preset, samples, e.o.calm())
	e.o.out.f("| links dead | nodes reached | eureka: median | p99 | barrier, last arrival: median | p99 | all at once: median | p99 |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	for _, share := range []float64{0, 0.1, 0.2, 0.3} {
		if err := e.row(ctx, share, samples); err != nil {
			return fmt.Errorf("%.0f %% of the links dead: %w", 100*share, err)
		}
	}
	return nil
}

// hops measures the cost of a hop of distance on a ring: there a eureka has long ways, and few nodes work on it at
// once. On a torus whose nodes share two cores the nearest wait as long as the farthest, for a turn.
func (e *eurekaBench) hops(ctx context.Context, preset string, samples int) error {
	if err := e.cut(ctx, 0); err != nil {
		return err
	}
	var last measure.Latencies
	byHops := map[int]measure.Latencies{}
	for i := range samples {
		if err := e.eureka(ctx, e.rnd.IntN(len(e.nodes)), &last, byHops); err != nil {
			return fmt.Errorf("eureka %d on a ring: %w", i, err)
		}
		pause(ctx, 30*time.Millisecond)
		e.o.progress.f("\reureka on a ring: %d/%d ", i+1, samples)
	}
	e.o.progress.f("\n")
	far := len(e.nodes) / 2
	e.o.out.f("\nA hop costs %d µs: so much later, in the mean of %d eurekas on a ring of %d nodes (preset %s), one comes to a node that is "+
		"a hop farther away. The neighbours had it after %s ms (median; p99 %s), the nodes %d hops away after %s ms (p99 %s).\n",
		hopCost(byHops).Microseconds(), samples, len(e.nodes), preset, measure.Millis(byHops[1].Median()), measure.Millis(byHops[1].P99()), far,
		measure.Millis(byHops[far].Median()), measure.Millis(byHops[far].P99()))
	return nil
}

type eurekaBench struct {
	o       options
	lab     *lab.Lab
	rnd     *rand.Rand
	nodes   []cluster.NodeInfo // by rank
	clients []*jobs.Client
	stop    context.CancelFunc
	done    sync.WaitGroup
	news    chan arrival
	raised  int
	dead    map[grid.Coord]map[grid.Direction]bool
}

// arrival is a eureka at a node.
type arrival struct {
	rank int
	body string
	at   time.Time
}

const benchJob = "bench"

// eurekaPatience bounds every wait.
const eurekaPatience = 20 * time.Second

func (e *eurekaBench) listen(ctx context.Context) error {
	e.nodes = e.lab.Cluster.Info().Nodes
	ctx, e.stop = context.WithCancel(ctx)
	ready := make(chan struct{}, len(e.nodes))
	for rank, n := range e.nodes {
		c, err := jobs.Dial(filepath.Join(n.StateDir, config.LocalSocket))
		if err != nil {
			return err
		}
		e.clients = append(e.clients, c)
		e.done.Go(func() {
			_ = c.WatchEureka(ctx, benchJob, func(h jobs.Heard) error {
				if h.Eureka == nil {
					ready <- struct{}{}
					return nil
				}
				e.news <- arrival{rank, string(h.Eureka.Body), time.Now()}
				return nil
			})
		})
	}
	for range e.nodes {
		select {
		case <-ready:
		case <-time.After(eurekaPatience):
			return errors.New("not all nodes let jobs watch eurekas")
		}
	}
	return nil
}

func (e *eurekaBench) close() {
	e.stop()
	e.done.Wait()
	for _, c := range e.clients {
		_ = c.Close()
	}
}

// row measures with a share of the links dead.
func (e *eurekaBench) row(ctx context.Context, share float64, samples int) (err error) {
	defer func() { err = errors.Join(err, e.lab.Cluster.HealAll(ctx)) }()
	if err := e.cut(ctx, share); err != nil {
		return err
	}
	if err := e.settled(ctx); err != nil {
		return err
	}
	from := e.component()
	var last measure.Latencies
	for i := range samples {
		if err := e.eureka(ctx, from[e.rnd.IntN(len(from))], &last, map[int]measure.Latencies{}); err != nil {
			return fmt.Errorf("eureka %d: %w", i, err)
		}
		pause(ctx, 30*time.Millisecond)
		e.o.progress.f("\reureka %.0f %%: %d/%d ", 100*share, i+1, samples)
	}
	var passed [2]measure.Latencies
	for kind, apart := range []time.Duration{barrierApart, 0} {
		for i := range samples {
			if err := e.barrier(ctx, fmt.Sprintf("b%d", int(100*share)), from, apart, &passed[kind]); err != nil {
				return fmt.Errorf("barrier %d: %w", i, err)
			}
			pause(ctx, 30*time.Millisecond)
			e.o.progress.f("\rbarrier %.0f %%: %d/%d ", 100*share, i+1, samples)
		}
	}
	e.o.progress.f("\n")
	e.o.out.f("| %.0f %% | %d of %d | %s | %s | %s | %s | %s | %s |\n", 100*share, len(from), len(e.nodes),
		measure.Millis(last.Median()), measure.Millis(last.P99()),
		measure.Millis(passed[0].Median()), measure.Millis(passed[0].P99()), measure.Millis(passed[1].Median()), measure.Millis(passed[1].P99()))
	return nil
}

// calm is how long the fault map must be unchanged before a row of eurekas begins. After a start, or when links have
// just been cut, nodes report, negotiate and ask, and a measurement would no longer cover eurekas alone.
func (o options) calm() time.Duration {
	if o.short {
		return time.Second
	}
	return 5 * time.Second
}

// settled waits until nothing has changed for a while.
func (e *eurekaBench) settled(ctx context.Context) error {
	limit := time.Now().Add(2 * time.Minute)
	for seen, since := e.lab.Mark(), time.Now(); time.Since(since) < e.o.calm(); pause(ctx, 100*time.Millisecond) {
		if time.Now().After(limit) {
			return errors.New("the fault map changes all the time")
		}
		if n := e.lab.Mark(); n != seen {
			seen, since = n, time.Now()
		}
	}
	return ctx.Err()
}

// cut kills a share of the links, both ways.
func (e *eurekaBench) cut(ctx context.Context, share float64) error {
	e.dead = map[grid.Coord]map[grid.Direction]bool{}
	type linkEnd struct {
		rank int
		dir  grid.Direction
	}
	var all []linkEnd
	for rank := range e.nodes {
		for _, d := range e.o.dims.Links() {
			if d.Positive() {
				all = append(all, linkEnd{rank, d})
			}
		}
	}
	e.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, l := range all[:int(share*float64(len(all)))] {
		c := e.o.dims.At(l.rank)
		to, _ := e.o.dims.Neighbour(c, l.dir)
		for at, d := range map[grid.Coord]grid.Direction{c: l.dir, to: l.dir.Opposite()} {
			if e.dead[at] == nil {
				e.dead[at] = map[grid.Direction]bool{}
			}
			e.dead[at][d] = true
		}
		if _, err := e.lab.Cluster.Inject(ctx, string(e.nodes[l.rank].ID), cluster.Fault{Kind: cluster.CutLink, Dir: l.dir}); err != nil {
			return err
		}
	}
	return nil
}

// distances returns the hops from a node by live links, -1 where there is no way.
func (e *eurekaBench) distances(from int) []int {
	out := make([]int, len(e.nodes))
	for i := range out {
		out[i] = -1
	}
	out[from] = 0
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		at := e.o.dims.At(queue[0])
		for _, d := range e.o.dims.Links() {
			c, _ := e.o.dims.Neighbour(at, d)
			if to := e.o.dims.Rank(c); !e.dead[at][d] && out[to] < 0 {
				out[to] = out[queue[0]] + 1
				queue = append(queue, to)
			}
		}
	}
	return out
}

// component is the largest part of the torus that is connected.
func (e *eurekaBench) component() (best []int) {
	for rank := range e.nodes {
		var part []int
		for to, hops := range e.distances(rank) {
			if hops >= 0 {
				part = append(part, to)
			}
		}
		if len(part) > len(best) {
			best = part
		}
	}
	return best
}

// eureka raises one, and waits until all that are connected have it.
func (e *eurekaBench) eureka(ctx context.Context, from int, last *measure.Latencies, byHops map[int]measure.Latencies) error {
	e.raised++
	body := fmt.Sprint(e.raised)
	hops := e.distances(from)
	missing := map[int]bool{}
	for rank, h := range hops {
		if h > 0 {
			missing[rank] = true
		}
	}
	begin := time.Now()
	if err := e.clients[from].RaiseEureka(ctx, benchJob, jobs.Eureka{Topic: "bench", Body: []byte(body), Priority: 3}); err != nil {
		return err
	}
	var latest time.Duration
	for late := time.After(eurekaPatience); len(missing) > 0; {
		select {
		case a := <-e.news:
			if a.body != body || !missing[a.rank] {
				continue
			}
			delete(missing, a.rank)
			took := a.at.Sub(begin)
			latest = max(latest, took)
			byHops[hops[a.rank]] = append(byHops[hops[a.rank]], took)
		case <-late:
			return fmt.Errorf("from %s: not at %v after %s", e.nodes[from].ID, e.names(missing), eurekaPatience)
		}
	}
	*last = append(*last, latest)
	return nil
}

func (e *eurekaBench) names(ranks map[int]bool) string {
	var out []string
	for _, r := range slices.Sorted(maps.Keys(ranks)) {
		out = append(out, string(e.nodes[r].ID))
	}
	return strings.Join(out, ", ")
}

// barrierApart is the delay of the last arrival after the others, where that is measured.
const barrierApart = 100 * time.Millisecond

// barrier makes a process at each node arrive: one process, drawn at random, apart from the others. The time starts
// at the call of that one.
func (e *eurekaBench) barrier(ctx context.Context, name string, ranks []int, apart time.Duration, passed *measure.Latencies) error {
	e.raised++
	generation := uint64(e.raised)
	var members []string
	for _, r := range ranks {
		members = append(members, string(e.nodes[r].ID))
	}
	ctx, cancel := context.WithTimeout(ctx, eurekaPatience)
	defer cancel()
	errs := make([]error, len(ranks))
	begin := time.Now()
	var wait sync.WaitGroup
	arrive := func(i int) {
		m := e.clients[ranks[i]].Job(jobs.Job{Name: benchJob, Members: members, Participant: "p"})
		errs[i] = m.BarrierAt(ctx, name, generation)
	}
	last := e.rnd.IntN(len(ranks))
	for i := range ranks {
		if i != last {
			wait.Go(func() { arrive(i) })
		}
	}
	if apart > 0 {
		pause(ctx, apart)
		begin = time.Now()
	}
	arrive(last)
	wait.Wait()
	*passed = append(*passed, time.Since(begin))
	return errors.Join(errs...)
}

// hopCost is by how much later a eureka is a hop farther away, between the nearest and the farthest nodes.
func hopCost(byHops map[int]measure.Latencies) time.Duration {
	hops := slices.Sorted(maps.Keys(byHops))
	if len(hops) < 2 {
		return 0
	}
	first, last := hops[0], hops[len(hops)-1]
	return (mean(byHops[last]) - mean(byHops[first])) / time.Duration(last-first)
}

func mean(l measure.Latencies) time.Duration {
	var sum time.Duration
	for _, d := range l {
		sum += d
	}
	return sum / time.Duration(max(1, len(l)))
}

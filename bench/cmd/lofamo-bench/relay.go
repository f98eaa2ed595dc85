package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/lab"
)

// hot is the fault that is reported: only the node itself can see it.
var hot = cluster.Fault{Kind: cluster.SensorValue, Sensor: "temperature", Value: 110}

var cutService = cluster.Fault{Kind: cluster.CutService}

// relays measures how long a report takes through the torus when its node's service network is cut,
// beside the same report on the direct path.
func relays(ctx context.Context, o options) (err error) {
	l, dir, err := start(ctx, o, config.PresetDefault)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(), os.RemoveAll(dir)) }()
	together, fresh := 5, 2 // reports for each cut, and cuts at the moment of the fault
	if o.short {
		together, fresh = 1, 0
	}
	known := (o.relays + together - 1) / together
	r := &relay{o: o, lab: l, dir: dir, rnd: rand.New(rand.NewPCG(o.seed, 1)), hops: map[string]int{}}
	for i := range known {
		if err := r.round(ctx, together, fresh); err != nil {
			return fmt.Errorf("round %d of %d: %w", i+1, known, err)
		}
		o.progress.f("\rrelay %d/%d ", i+1, known)
	}
	o.progress.f("\n")
	r.print()
	return nil
}

type relay struct {
	o                  options
	lab                *lab.Lab
	dir                string
	rnd                *rand.Rand
	direct, cut, fresh series
	held               measure.Latencies // by the hops, of each report
	hops               map[string]int    // ways
	// While the service network was cut.
	cuts            int
	onWire, arrived int64 // bytes from and to the ports of the node's service network, by a packet socket
	unseen          bool  // no packet socket is allowed
	passed, blocked uint64
}

// round takes samples of one node, each kind in turn.
func (r *relay) round(ctx context.Context, n, fresh int) error {
	nodes := r.lab.Cluster.Info().Nodes
	node := string(nodes[r.rnd.IntN(len(nodes))].ID)
	for range n {
		if err := r.sample(ctx, node, &r.direct, nil); err != nil {
			return fmt.Errorf("direct: %w", err)
		}
	}
	mark := r.lab.Mark()
	err := r.whileCut(ctx, node, func() error {
		waiting, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		if _, err := r.lab.Wait(waiting, mark, lab.Becomes(node, "service-network", lofamov1.State_FAILED)); err != nil {
			return err
		}
		for range n {
			if err := r.sample(ctx, node, &r.cut, nil); err != nil {
				return fmt.Errorf("cut: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for range fresh {
		cut := func() error {
			_, err := r.lab.Cluster.Inject(ctx, node, cutService)
			return err
		}
		if err := r.sample(ctx, node, &r.fresh, cut); err != nil {
			return fmt.Errorf("cut at the same time: %w", err)
		}
		if err := r.free(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// sample makes the sensor hot, calls also, waits until the map shows the change, and restores the sensor.
func (r *relay) sample(ctx context.Context, node string, s *series, also func() error) error {
	pause(ctx, time.Duration(r.rnd.Int64N(int64(200*time.Millisecond))))
	mark := r.lab.Mark()
	at, err := r.lab.Cluster.Inject(ctx, node, hot)
	if err != nil {
		return err
	}
	if also != nil {
		if err := also(); err != nil {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	seen, err := r.lab.Wait(waiting, mark, lab.Becomes(node, "temperature", lofamov1.State_FAILED))
	if err != nil {
		return err
	}
	s.add(time.Duration(seen.At-at), seen)
	if s != &r.direct {
		if err := r.prove(waiting, node, seen); err != nil {
			return err
		}
	}
	if err := r.lab.Cluster.Undo(ctx, node, hot); err != nil {
		return err
	}
	_, err = r.lab.Wait(waiting, mark, lab.Becomes(node, "temperature", lofamov1.State_NORMAL))
	return err
}

// prove looks the report up at the leader: by which hops it came, and how long they held it.
func (r *relay) prove(ctx context.Context, node string, seen lab.Seen) error {
	if seen.GetPath() != lofamov1.Path_TORUS {
		return fmt.Errorf("reported while the service network was cut: %s: want it by the torus", seen)
	}
	resp, err := r.lab.Client.ListReports(ctx, &lofamov1.ListReportsRequest{Node: node, Limit: 20})
	if err != nil {
		return err
	}
	for _, rep := range resp.GetReports() { // newest first
		if !slices.Contains(rep.GetSays(), node+" temperature FAILED") {
			continue
		}
		if rep.GetPath() != lofamov1.Path_TORUS || len(rep.GetHops()) < 2 {
			return fmt.Errorf("report %d of %s: path %s, hops %v: want it by the torus", rep.GetSeq(), node, rep.GetPath(), rep.GetHops())
		}
		var way []string
		var held time.Duration
		for _, h := range rep.GetHops() {
			whose := "neighbour's "
			if h.GetNode() == node {
				whose = "own "
			}
			way, held = append(way, whose+h.GetHalf()), held+h.GetHeld().AsDuration()
		}
		r.hops[strings.Join(way, " → ")]++
		r.held = append(r.held, held)
		return nil
	}
	return fmt.Errorf("the leader has no report of %s on its temperature", node)
}

// whileCut cuts a node's service network during work, and counts the datagrams that pass meanwhile: by the sockets'
// own counters and by a packet socket.
func (r *relay) whileCut(ctx context.Context, node string, work func() error) error {
	ports, err := r.servicePorts(node)
	if err != nil {
		return err
	}
	if _, err := r.lab.Cluster.Inject(ctx, node, cutService); err != nil {
		return err
	}
	before, err := r.lab.Cluster.Sockets(ctx, node)
	if err != nil {
		return err
	}
	counting, stop := context.WithCancel(ctx)
	type bytes struct {
		sent, received int64
		err            error
	}
	counted := make(chan bytes, 1)
	go func() {
		var b bytes
		b.sent, b.received, b.err = measure.Traffic(counting, ports)
		counted <- b
	}()
	workErr := work()
	stop()
	b := <-counted
	after, err := r.lab.Cluster.Sockets(ctx, node)
	if err = errors.Join(workErr, err); err != nil {
		return err
	}
	if b.err != nil && !errors.Is(b.err, unix.EPERM) {
		return b.err
	}
	r.unseen = b.err != nil
	r.cuts++
	r.onWire, r.arrived = r.onWire+b.sent, r.arrived+b.received
	for k := range after {
		r.passed += after[k].Sent - before[k].Sent + after[k].Received - before[k].Received
		r.blocked += after[k].Blocked - before[k].Blocked
	}
	return r.free(ctx, node)
}

// free ends the cut.
func (r *relay) free(ctx context.Context, node string) error {
	if err := r.lab.Cluster.Undo(ctx, node, cutService); err != nil {
		return err
	}
	settling, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return r.lab.Settle(settling)
}

// servicePorts returns the ports of a node's service network, gossip among them.
func (r *relay) servicePorts(node string) (map[uint16]bool, error) {
	cfg, err := config.LoadAgent(filepath.Join(r.dir, "nodes", node, "agent.yaml"), nil)
	if err != nil {
		return nil, err
	}
	ports := map[uint16]bool{}
	for _, addr := range []string{cfg.Service.Listen, cfg.Service.GossipListen} {
		at, err := netip.ParseAddrPort(addr)
		if err != nil {
			return nil, err
		}
		ports[at.Port()] = true
	}
	return ports, nil
}

func (r *relay) print() {
	r.o.out.f("\n### Service network cut: reports through the torus\n\n")
	r.o.out.f("`sensor temperature 110` on a node of the %s torus, by one monotonic clock from the injection to the receipt of the "+
		"committed change, ms; sensors are read every 500 ms, which is in the first columns. *Own*: `awarenessLatency` of the change: from the "+
		"reading that showed it, by the clocks of the half, the hops and the supervisor, to the commit. The rows by turns, on nodes and at "+
		"phases chosen by chance.\n\n", r.o.dims)
	r.o.out.f("| service network | n | median | p99 | max | own median | own p99 | own max | path |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, k := range []struct {
		name string
		*series
	}{{"whole", &r.direct}, {"cut, and known to be", &r.cut}, {"cut at the moment of the fault", &r.fresh}} {
		if len(k.clock) == 0 {
			continue
		}
		p99, own99 := "-", "-"
		if len(k.clock) >= 100 {
			p99, own99 = measure.Millis(k.clock.P99()), measure.Millis(k.own.P99())
		}
		var paths []string
		for _, p := range slices.Sorted(maps.Keys(k.paths)) {
			paths = append(paths, fmt.Sprintf("%s %d", p, k.paths[p]))
		}
		r.o.out.f("| %s | %d | %s | %s | %s | %s | %s | %s | %s |\n", k.name, len(k.clock), measure.Millis(k.clock.Median()), p99,
			measure.Millis(k.clock.Max()),
			measure.Millis(k.own.Median()), own99, measure.Millis(k.own.Max()), strings.Join(paths, ", "))
	}
	r.o.out.f("\nThe way, as the leader noted it: ")
	for i, way := range slices.SortedFunc(maps.Keys(r.hops), func(a, b string) int { return r.hops[b] - r.hops[a] }) {
		if i > 0 {
			r.o.out.f("; ")
		}
		r.o.out.f("%s %d times", way, r.hops[way])
	}
	r.o.out.f(". All hops together held a report for %s ms, median, at most %s ms.\n", measure.Millis(r.held.Median()),
		measure.Millis(r.held.Max()))
	r.o.out.f("\nDuring the %d cuts of the second row the sockets of the cut service networks passed %d datagrams and dropped %d",
		r.cuts, r.passed, r.blocked)
	if r.unseen {
		r.o.out.f(" (no packet socket is allowed here).\n")
		return
	}
	r.o.out.f("; a packet socket saw %d bytes leave their UDP ports, gossip's among them, and %d bytes of others reach them, to be dropped "+
		"there.\n", r.onWire, r.arrived)
}

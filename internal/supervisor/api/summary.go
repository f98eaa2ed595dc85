package api

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// maxTallies is the maximum number of keys that one summary counts by.
const maxTallies = 8

// checkTally refuses a key that summaries cannot count by.
func checkTally(key string) error {
	switch kind, name, _ := strings.Cut(key, "/"); kind {
	case "label":
		if err := checkLabelKey(name); err != nil {
			return invalid("by", "given %q: %v", key, err)
		}
		return nil
	case "dimension":
		if name == "X" || name == "Y" || name == "Z" {
			return nil
		}
	case "region":
		if key == "region" {
			return nil
		}
	}
	return invalid("by", "given %q: want label/KEY, dimension/X, dimension/Y, dimension/Z or region", key)
}

// division assigns each node one of the values of a key.
type division struct {
	values []string
	of     []uint32 // index into values by rank
}

// divide groups the nodes of a snapshot by the value of a key. It sorts numbers as numbers and all else as text.
func divide(s snapshot, key string) division {
	kind, name, _ := strings.Cut(key, "/")
	value := make([]string, s.Len())
	for rank := range value {
		switch at := s.Coord(rank); {
		case kind == "label":
			value[rank] = s.labels(rank)[name]
		case key == "region":
			value[rank] = s.region(rank)
		case name == "X":
			value[rank] = strconv.Itoa(at.X)
		case name == "Y":
			value[rank] = strconv.Itoa(at.Y)
		default:
			value[rank] = strconv.Itoa(at.Z)
		}
	}
	d := division{values: slices.Clone(value), of: make([]uint32, len(value))}
	slices.SortFunc(d.values, compareValues)
	d.values = slices.Compact(d.values)
	index := make(map[string]uint32, len(d.values))
	for i, v := range d.values {
		index[v] = uint32(i)
	}
	for rank, v := range value {
		d.of[rank] = index[v]
	}
	return d
}

// compareValues puts numbers before words, and the empty value first.
func compareValues(a, b string) int {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	if errX == nil && errY == nil {
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a, b))
	}
	return strings.Compare(a, b)
}

// divisions caches the divisions of one topology, computed on first use: counting by them is one pass over numbers.
type divisions struct {
	mu    sync.Mutex
	topo  *topology.Topology
	known map[string]division
	match map[string][]bool // by label selector

	single []*lofamov1.SingleWitness
	rated  bool // single is known
}

// maxDivisions bounds the cached divisions, and the cached selectors.
const maxDivisions = 32

func (d *divisions) renew(topo *topology.Topology) {
	if d.topo != topo || len(d.known) >= maxDivisions || len(d.match) >= maxDivisions {
		d.topo, d.known, d.match = topo, make(map[string]division), make(map[string][]bool)
		d.single, d.rated = nil, false
	}
}

func (d *divisions) by(s snapshot, key string) division {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.renew(s.topo)
	if _, ok := d.known[key]; !ok {
		d.known[key] = divide(s, key)
	}
	return d.known[key]
}

// chosen reports for each rank whether a selector matches; nil: all do.
func (d *divisions) chosen(s snapshot, labels labelSelector) []bool {
	if labels.Empty() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.renew(s.topo)
	key := labels.String()
	if _, ok := d.match[key]; !ok {
		match := make([]bool, s.Len())
		for rank := range match {
			match[rank] = labels.Matches(s.labels(rank))
		}
		d.match[key] = match
	}
	return d.match[key]
}

// singleWitness returns the nodes of the topology that have a single witness; find rates a topology.
func (d *divisions) singleWitness(topo *topology.Topology,
	find func(*topology.Topology) []*lofamov1.SingleWitness) []*lofamov1.SingleWitness {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.renew(topo)
	if !d.rated {
		d.single, d.rated = find(topo), true
	}
	return d.single
}

// GetSummary implements the service.
func (s *Server) GetSummary(ctx context.Context, req *lofamov1.GetSummaryRequest) (*lofamov1.GetSummaryResponse, error) {
	if n := len(req.GetBy()); n > maxTallies {
		return nil, invalid("by", "given %d keys: want at most %d", n, maxTallies)
	}
	for _, key := range req.GetBy() {
		if err := checkTally(key); err != nil {
			return nil, err
		}
	}
	labels, err := parseLabelSelector(req.GetLabelSelector())
	if err != nil {
		return nil, invalid("label_selector", "%v", err)
	}
	return answer(ctx, s, func(snap snapshot) (*lofamov1.GetSummaryResponse, error) {
		resp := s.summary(snap, req.GetBy(), s.divisions.chosen(snap, labels))
		resp.Revision, resp.Cluster = snap.Revision, s.info(ctx, snap)
		if !snap.Stale {
			resp.LostPaths = s.lostPaths(ctx, snap, s.divisions.chosen(snap, labels))
		}
		return resp, nil
	}, func(ctx context.Context, c lofamov1.FaultSupervisorClient) (*lofamov1.GetSummaryResponse, error) {
		return c.GetSummary(ctx, req)
	})
}

// tally counts by state.
type tally [int(fault.Failed) + 1]int

func (t *tally) count() *lofamov1.Count {
	return &lofamov1.Count{
		Unknown: uint32(t[fault.Unknown]), Normal: uint32(t[fault.Normal]), Sick: uint32(t[fault.Sick]), Failed: uint32(t[fault.Failed]),
	}
}

// summary counts the chosen nodes (nil: all).
func (s *Server) summary(snap snapshot, by []string, chosen []bool) *lofamov1.GetSummaryResponse {
	counts := snap.Counts()
	nodes, links := tally(counts.Nodes), tally(counts.Links)
	if chosen != nil {
		nodes, links = tally{}, tally{}
	}
	divided := make([]division, len(by))
	tallies := make([][]tally, len(by))
	for i, key := range by {
		divided[i] = s.divisions.by(snap, key)
		tallies[i] = make([]tally, len(divided[i].values))
	}
	if chosen != nil || len(by) > 0 {
		for rank := range snap.Len() {
			if chosen != nil && !chosen[rank] {
				continue
			}
			state := snap.State(rank)
			if chosen != nil {
				nodes[state]++
				addLinks(&links, snap, rank)
			}
			for i := range divided {
				tallies[i][divided[i].of[rank]][state]++
			}
		}
	}
	resp := &lofamov1.GetSummaryResponse{Nodes: nodes.count(), Links: links.count()}
	marks, _ := s.cfg.Marks.All()
	snap.countMarks(resp, chosen, marks)
	resp.Stopped = snap.stopped(chosen, time.Now())
	for _, w := range s.divisions.singleWitness(snap.topo, s.singleWitness) {
		if rank, ok := snap.Rank(fault.NodeID(w.GetNode())); ok && (chosen == nil || chosen[rank]) {
			resp.SingleWitness = append(resp.SingleWitness, w)
		}
	}
	for i, key := range by {
		for k, value := range divided[i].values {
			if t := tallies[i][k]; t != (tally{}) {
				resp.By = append(resp.By, &lofamov1.Tally{Key: key, Value: value, Nodes: t.count()})
			}
		}
	}
	return resp
}

// maxLostPaths is the maximum number of nodes with lost service paths in a summary.
const maxLostPaths = 64

// lostPaths returns the chosen nodes (nil: all) that have lost service paths, by reports that are not old.
func (s *Server) lostPaths(ctx context.Context, snap snapshot, chosen []bool) []*lofamov1.LostPaths {
	v, err := s.cfg.Engine.Reports(ctx, engine.ReportQuery{Lost: true})
	if err != nil {
		return nil // it no longer leads
	}
	var ranks []int
	for id, sender := range v.Senders {
		if rank, ok := snap.Rank(id); ok && (chosen == nil || chosen[rank]) && !view.Old(sender.OldAt, time.Now()) {
			ranks = append(ranks, rank)
		}
	}
	slices.Sort(ranks)
	var out []*lofamov1.LostPaths
	for _, rank := range ranks[:min(len(ranks), maxLostPaths)] {
		lost, of := servicenet.LostPaths(v.Senders[snap.ID(rank)].Status)
		out = append(out, &lofamov1.LostPaths{Node: string(snap.ID(rank)), Interfaces: lost, Of: uint32(of)})
	}
	return out
}

// addLinks counts the link ends of one node.
func addLinks(links *tally, snap snapshot, rank int) {
	for c, state := range snap.Components(rank) {
		if _, ok := c.LinkDirection(); ok {
			links[state]++
		}
	}
}

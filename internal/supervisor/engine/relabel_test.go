package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// edited returns a topology with its nodes edited.
func edited(t *topology.Topology, edit func(*topology.Node)) *topology.Topology {
	nodes := slices.Clone(t.Nodes)
	for i := range nodes {
		edit(&nodes[i])
	}
	return topology.New(t.Dims, nodes, t.DomainLabels, 0)
}

// TestLabelsWithinTerm: the machine keeps its evidence when labels change, when a spare is added, marked and
// removed again, and when a node is marked.
func TestLabelsWithinTerm(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	h.report(1, false, fault.ComponentMemory, fault.Sick)
	h.box.await(t, 1)
	whole := fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 2, Seq: 2}
	h.Submit(Input{
		Reports: &servicenet.Reports{Path: fault.PathDirect, Words: 7, List: []fault.Report{{ID: whole, Digest: true,
			Observations: []fault.Observation{
				{Node: "n1-0-0", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf},
			}}}},
		To: To{Addr: "127.0.0.1:1"}, Answerer: h.box, Arrived: time.Now(),
	})
	h.taken(t)
	before, began := h.node(t, "n1-0-0"), h.term.Load()
	if before.Status.Life.IsZero() {
		t.Fatal("it has given no sign of life")
	}
	goesOn := func(what string) {
		t.Helper()
		if now := h.node(t, "n1-0-0"); h.term.Load() != began || !now.Status.Life.Equal(before.Status.Life) || now.Status.State != fault.Sick {
			t.Errorf("%s: another term %t, it is %s and was heard at %s, want %s at %s", what, h.term.Load() != began,
				now.Status.State, now.Status.Life, before.Status.State, before.Status.Life)
		}
	}
	change := func(what string, to *topology.Topology) {
		t.Helper()
		rev, err := h.apply(t.Context(), to)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		m, err := h.Map(t.Context())
		if err != nil || m.Revision < rev || m.Topology().Revision != rev || len(topology.Diff(m.Topology(), to)) != 0 {
			t.Errorf("%s: the map of revision %d is of the topology of %d, want %d: %v, %v", what, m.Revision, m.Topology().Revision, rev,
				topology.Diff(m.Topology(), to), err)
		}
		if now := h.cfg.Names.Topology(); now.Revision != rev {
			t.Errorf("%s: names are of revision %d, want %d", what, now.Revision, rev)
		}
		goesOn(what)
	}
	labelled := edited(withSpare(false), func(n *topology.Node) { n.Labels = map[string]string{"rack": fmt.Sprint("r", n.Coord.X)} })
	change("labels", labelled)
	change("a spare more", topology.New(labelled.Dims, append(slices.Clone(labelled.Nodes), topology.Node{ID: "y", Spare: true}),
		[]string{"rack", "power"}, 0))
	for _, node := range []string{"n1-0-0", "y"} {
		if _, err := h.Change(t.Context(), func(store.Topology) ([]store.Write, error) {
			return []store.Write{marked(t, node, time.Time{})},
				nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	goesOn("a mark")
	change("a spare less", edited(labelled, func(n *topology.Node) { n.Labels = nil }))
	if _, err := h.Write(t.Context(), store.Write{}); err != nil { // commits garbage collection first
		t.Fatal(err)
	}
	snap, err := h.store.Load(t.Context())
	if err != nil || len(snap.Maintenance) != 1 || snap.Maintenance[0].GetNode() != "n1-0-0" || h.cfg.Marks.Of("y") != nil {
		t.Errorf("marks: %v, %v", snap.Maintenance, err)
	}
	// A restated digest is still recognised.
	again := whole
	again.Seq++
	asked := make(wanted, 1)
	h.Submit(Input{Restated: []Restated{{ID: again, Words: 7, Path: fault.PathDirect, Arrived: time.Now()}}, Requester: asked})
	h.taken(t)
	if now := h.node(t, "n1-0-0"); len(asked) > 0 || !now.Status.Life.After(before.Status.Life) {
		t.Errorf("the whole is wanted: %t; last heard %s, before %s", len(asked) > 0, now.Status.Life, before.Status.Life)
	}
	before = h.node(t, "n1-0-0")
	// A change that comes too late has no effect.
	if _, err := h.Change(t.Context(), func(have store.Topology) ([]store.Write, error) {
		have.Topology = have.At(1)
		return store.TopologyWrites(have, labelled, nil)
	}); err == nil {
		t.Error("a change of what there is no more is taken")
	}
	goesOn("a change that was refused")
	change("labels", labelled)
}

// wanted receives the origins whose full digest is requested.
type wanted chan []fault.Origin

func (w wanted) RequestFull(origins []fault.Origin) { w <- origins }

// TestLabelsOfAll: a change that is too large for one transaction also stays within the term, and leaves no keys of
// the previous generation.
func TestLabelsOfAll(t *testing.T) {
	dims := grid.Dims{X: 8, Y: 8, Z: 1}
	var nodes []topology.Node
	for r := range dims.Nodes() {
		nodes = append(nodes, topology.Node{ID: fault.DefaultNodeID(dims.At(r)), Coord: dims.At(r)})
	}
	h := start(t, memstore.New(100), func(cfg *Config) {
		big(dims)(cfg)
		cfg.Seed, cfg.Marks = topology.New(dims, nodes, []string{"rack"}, 0), view.NewMarks()
	})
	began := h.term.Load()
	for i := range 3 {
		to := edited(h.cfg.Seed, func(n *topology.Node) { n.Labels = map[string]string{"rack": fmt.Sprintf("r%d-%d", i, n.Coord.X)} })
		if _, err := h.apply(t.Context(), to); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Write(t.Context(), store.Write{}); err != nil {
			t.Fatal(err)
		}
		snap, err := h.store.Load(t.Context())
		if err != nil || len(snap.Topology.Garbage) != 0 || len(topology.Diff(snap.Topology.Topology, to)) != 0 ||
			snap.Topology.Generation != uint64(i+2) {
			t.Errorf("change %d: generation %d, %d keys of others, %v", i, snap.Topology.Generation, len(snap.Topology.Garbage), err)
		}
	}
	if h.term.Load() != began {
		t.Error("another term has begun")
	}
}

// TestGroupsFollowLabels: dead nodes become a rack's group fault once labels assign them to that rack.
func TestGroupsFollowLabels(t *testing.T) {
	st := memstore.New(100)
	var dead []*lofamov1.Node
	for x := range 2 {
		at := grid.Coord{X: x}
		dead = append(dead, view.Stored(awareness.NodeStatus{ID: fault.DefaultNodeID(at), Coord: at, State: fault.Failed, Cause: fault.CauseNode,
			Since: time.Now()}))
	}
	w, err := st.Writer(st.Campaign(), testConfig(nil).Meta, store.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(t.Context(), store.Batch{Nodes: dead}); err != nil {
		t.Fatal(err)
	}
	h := start(t, st, func(cfg *Config) {
		seeded(cfg)
		cfg.Awareness.ChallengeNode = time.Millisecond
	})
	if _, err := h.apply(t.Context(), edited(withSpare(false), func(n *topology.Node) {
		n.Labels = map[string]string{"rack": fmt.Sprint("r", n.Coord.Y)}
	})); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		m, err := h.Map(t.Context())
		if err == nil && len(m.Groups) == 1 && m.Groups[0].ID == "label/rack=r0" && m.Groups[0].State == fault.Failed {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("groups %v, %v", m.Groups, err)
		}
	}
	if x, err := h.ExplainGroup(t.Context(), "label/rack=r0"); err != nil || !strings.Contains(x.Summary, "with rack=r0 are dead") ||
		len(x.Because) == 0 {
		t.Errorf("explained: %+v, %v", x, err)
	}
	if _, err := h.ExplainGroup(t.Context(), "label/rack=r1"); !errors.Is(err, ErrUnknown) {
		t.Errorf("explained: %v", err)
	}
	if _, err := (&Engine{}).ExplainGroup(t.Context(), "label/rack=r0"); !errors.Is(err, ErrNotLeading) {
		t.Errorf("explained without a term: %v", err)
	}
}

// TestTopologyThatCannotBeFollowedEndsNoTerm: a topology that the machine refuses is not committed, and the leader goes on.
func TestTopologyThatCannotBeFollowedEndsNoTerm(t *testing.T) {
	reg := prometheus.NewRegistry()
	h := start(t, memstore.New(100), func(cfg *Config) {
		seeded(cfg)
		cfg.Metrics = metrics.New(reg)
	})
	began := h.term.Load()
	nodes := slices.DeleteFunc(slices.Clone(withSpare(false).Nodes), func(n topology.Node) bool { return n.ID == "n1-1-0" })
	_, err := h.apply(t.Context(), topology.New(h.cfg.Seed.Dims, nodes, nil, 0)) // its place has no node
	if !errors.Is(err, ErrTopology) {
		t.Errorf("refused: %v", err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, f := range families {
		if f.GetName() == "lofamo_topologies_refused_total" {
			counted = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if counted != 1 {
		t.Errorf("counted %v times", counted)
	}
	snap, err := h.store.Load(t.Context())
	if err != nil || len(topology.Diff(snap.Topology.Topology, h.cfg.Seed)) != 0 {
		t.Errorf("stored: %v, %v", topology.Diff(snap.Topology.Topology, h.cfg.Seed), err)
	}
	if _, err := h.apply(t.Context(), withSpare(true)); err != nil || h.term.Load() != began {
		t.Errorf("the next change: %v; another term %t", err, h.term.Load() != began)
	}
}

// TestRelinkedLinksAreStored: the next leader knows which links wait since a change of places, also of nodes that nobody has
// heard yet.
func TestRelinkedLinksAreStored(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	if _, err := h.apply(t.Context(), withSpare(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Write(t.Context(), store.Write{}); err != nil { // commits the documents first
		t.Fatal(err)
	}
	snap, err := h.store.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stored := make(map[string]int)
	for _, doc := range snap.Nodes {
		entry, err := view.Restore(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range entry.Status.Components {
			if _, link := c.Component.LinkDirection(); link && c.Rule == "relinked" {
				stored[doc.GetId()]++
			}
		}
	}
	if len(stored) != 3 || stored["x"] != 4 { // of a 2x2 torus: both ways to each of its two neighbours
		t.Errorf("links that wait in the store: %v", stored)
	}
}

// TestNextLeaderKnowsFormerEpochsOfMovedNode: a leader that ends right after a node got another place leaves the boot epochs of the
// former place to the next one, which does not take late reports for those of the new place.
func TestNextLeaderKnowsFormerEpochsOfMovedNode(t *testing.T) {
	const id = "n1-0-0"
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprintf("map committed %t", committed), func(t *testing.T) {
			st := memstore.New(100)
			to := edited(withSpare(false), func(n *topology.Node) {
				switch n.ID {
				case id:
					n.Coord = grid.Coord{Y: 1}
				case "n0-1-0":
					n.Coord = grid.Coord{X: 1}
				}
			})
			h := start(t, st, seeded)
			h.report(1, false, fault.ComponentMemory, fault.Sick)
			h.box.await(t, 1)
			commit := func() {
				t.Helper()
				if _, err := h.Write(t.Context(), store.Write{}); err != nil { // commits the documents first
					t.Fatal(err)
				}
			}
			for deadline := time.Now().Add(wait); h.node(t, id).Status.State != fault.Sick; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("it is %s", h.node(t, id).Status.State)
				}
			}
			commit()
			if committed {
				if _, err := h.apply(t.Context(), to); err != nil {
					t.Fatal(err)
				}
				commit()
			}
			h.stop()
			if !committed { // the change is the last that the leader does
				commitTopology(t, st, to, nil)
			}
			h = start(t, st, seeded)
			for seq := range fault.Seq(2) {
				h.taken(t)
				if n := h.node(t, id).Status; n.Coord != (grid.Coord{Y: 1}) || n.State != fault.Unknown || !n.Life.IsZero() {
					t.Fatalf("it is %s at %s, heard at %s: want UNKNOWN and unheard", n.State, n.Coord, n.Life)
				}
				h.report(2+seq, true, fault.ComponentMemory, fault.Sick)
			}
		})
	}
}

// TestNodeThatHasLeftIsForgotten: its sender's status and digest take no memory, even if a late digest comes.
func TestNodeThatHasLeftIsForgotten(t *testing.T) {
	h := start(t, memstore.New(100), seeded)
	digest := func(seq fault.Seq) {
		h.Submit(Input{
			Reports: &servicenet.Reports{Path: fault.PathDirect, Words: 7, Status: &lofamov1.DeliveryStatus{}, List: []fault.Report{{
				ID: fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 2, Seq: seq}, Digest: true,
			}}},
			To: To{Addr: "127.0.0.1:1"}, Answerer: h.box, Arrived: time.Now(),
		})
	}
	known := func() (senders, words int) {
		t.Helper()
		v, err := h.Reports(t.Context(), ReportQuery{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		return len(v.Senders), len(h.term.Load().words)
	}
	digest(1)
	h.taken(t)
	if s, w := known(); s != 1 || w != 1 {
		t.Fatalf("%d senders, %d digests after a digest: want 1 and 1", s, w)
	}
	if _, err := h.apply(t.Context(), withSpare(true)); err != nil {
		t.Fatal(err)
	}
	for seq := range fault.Seq(2) {
		if s, w := known(); s+w != 0 {
			t.Errorf("%d senders, %d digests of a node without a place", s, w)
		}
		digest(seq + 2)
		for deadline := time.Now().Add(wait); len(h.in)+len(h.digests) > 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
}

package notify

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// jobNode is the host half of n0-0-0, with a job on some nodes.
type jobNode struct {
	mu    sync.Mutex
	view  *hostcore.FaultView
	wants bool // a replica wants the list of these nodes
	lost  bool // all updates to this node are lost
}

func (j *jobNode) lose(updates bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lost = updates
}

func (j *jobNode) Notify(node fault.NodeID, update *lofamov1.FaultUpdate) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if node == "n0-0-0" && !j.lost {
		_, wants := j.view.Take(update)
		j.wants = j.wants || wants
	}
}

func (*jobNode) Deny(fault.NodeID, *lofamov1.DenyPart) {}

// digests sends n digests to a replica, and the list of the nodes of the job if it wants that.
func (j *jobNode) digests(to *Notifier, n int) {
	for range n {
		j.mu.Lock()
		d := Digest{Node: "n0-0-0", Epoch: 1, Revision: j.view.DigestRevision(), List: j.view.Serial()}
		var lists []*lofamov1.Interest
		if j.wants {
			lists, j.wants = j.view.Interest(1), false
		}
		j.mu.Unlock()
		for _, l := range lists {
			to.Interest(l)
		}
		to.Digest(d)
		time.Sleep(500 * time.Millisecond)
	}
}

// expect compares the states that the half has for nodes of the job.
func (j *jobNode) expect(t *testing.T, when string, want map[fault.NodeID]lofamov1.State) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.view.Pending() {
		t.Errorf("%s: updates are missing", when)
	}
	for id, s := range want {
		if got := j.view.Node(id).GetState(); got != s {
			t.Errorf("%s: %s is told as %v, want %v", when, id, got, s)
		}
	}
}

// mapOf returns a map in which all nodes of the topology are NORMAL, except for some.
func mapOf(names *view.Names, revision uint64, failed ...fault.NodeID) view.Map {
	b := view.NewBuilder(names, time.Now())
	for _, n := range names.Topology().Placed() {
		st := awareness.NodeStatus{ID: n.ID, Coord: n.Coord, State: fault.Normal, Cause: fault.CauseNone}
		if slices.Contains(failed, n.ID) {
			st.State, st.Cause = fault.Failed, fault.CauseNode
		}
		b.Set(view.Entry{Status: st, Revision: revision})
	}
	return b.Map(revision)
}

// TestDepartedNodeOfJobIsUnknown: a node of a job dies, and then leaves the torus. Neither this replica nor one that the half reaches
// later reports the dead node as NORMAL.
func TestDepartedNodeOfJobIsUnknown(t *testing.T) {
	dims := grid.Dims{X: 8, Y: 1, Z: 1}
	for name, c := range map[string]struct {
		nodes    func(all []topology.Node) []topology.Node
		revision uint64 // of the next map; 2 is that of the former one
		lost     bool   // the first update about the departure
	}{
		"a spare has its place":               {replaced, 3, false},
		"it has left":                         {left, 3, false},
		"the update is lost":                  {left, 3, true},
		"no part of the map changes":          {replaced, 2, false},
		"no part of the map changes, is lost": {left, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ids := idsOf(dims)
				names := view.NewNames(dims, ids)
				half := &jobNode{view: hostcore.NewFaultView("n0-0-0", []fault.NodeID{"n1-0-0", "n7-0-0"})}
				// The job also runs on a node of another region.
				half.view.Watch([]fault.NodeID{"n0-0-0", "n3-0-0", "n5-0-0", "far"})
				n := running(t, names, view.NewMarks(), half)
				n.Changed(mapOf(names, 1), nil)
				half.digests(n, 4)
				half.expect(t, "at first", map[fault.NodeID]lofamov1.State{"n0-0-0": lofamov1.State_NORMAL, "n3-0-0": lofamov1.State_NORMAL,
					"n5-0-0": lofamov1.State_NORMAL, "far": lofamov1.State_UNKNOWN})
				n.Changed(mapOf(names, 2, "n3-0-0"), []fault.NodeID{"n3-0-0"})
				half.digests(n, 1)
				half.expect(t, "dead", map[fault.NodeID]lofamov1.State{"n3-0-0": lofamov1.State_FAILED})

				names.Set(topology.New(dims, c.nodes(slices.Clone(names.Topology().Nodes)), fault.DomainLabels(), 1))
				half.lose(c.lost)
				n.Changed(mapOf(names, c.revision), nil)
				synctest.Wait()
				half.lose(false)
				half.digests(n, 4)
				want := map[fault.NodeID]lofamov1.State{"n3-0-0": lofamov1.State_UNKNOWN, "n5-0-0": lofamov1.State_NORMAL,
					"far": lofamov1.State_UNKNOWN}
				half.expect(t, "departed", want)

				other := running(t, names, view.NewMarks(), half)
				other.Changed(mapOf(names, c.revision), nil)
				half.digests(other, 4)
				half.expect(t, "by another replica", want)
			})
		})
	}
}

// replaced puts a spare in the place of n3-0-0, which becomes one.
func replaced(all []topology.Node) []topology.Node {
	i := slices.IndexFunc(all, func(n topology.Node) bool { return n.ID == "n3-0-0" })
	all = append(all, topology.Node{ID: "spare-0", Coord: all[i].Coord})
	all[i].Coord, all[i].Spare = grid.Coord{}, true
	return all
}

func left(all []topology.Node) []topology.Node { return without("n3-0-0", all) }

func without(id fault.NodeID, all []topology.Node) []topology.Node {
	return slices.DeleteFunc(all, func(n topology.Node) bool { return n.ID == id })
}

// TestNodeWithoutPlaceIsUnknownToItself: the job of a replaced node lists the node itself.
func TestNodeWithoutPlaceIsUnknownToItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dims := grid.Dims{X: 8, Y: 1, Z: 1}
		names := view.NewNames(dims, idsOf(dims))
		names.Set(topology.New(dims, without("n0-0-0", slices.Clone(names.Topology().Nodes)), fault.DomainLabels(), 1))
		half := &jobNode{view: hostcore.NewFaultView("n0-0-0", nil)}
		half.view.Watch([]fault.NodeID{"n0-0-0", "n5-0-0"})
		n := running(t, names, view.NewMarks(), half)
		n.Changed(mapOf(names, 2), nil)
		half.digests(n, 4)
		half.expect(t, "without a place", map[fault.NodeID]lofamov1.State{"n0-0-0": lofamov1.State_UNKNOWN, "n5-0-0": lofamov1.State_NORMAL})
	})
}

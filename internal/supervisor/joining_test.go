package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// heard is what the leader has heard of nodes' ends of links.
type heard map[fault.NodeID]bool

func (h heard) Ends(id fault.NodeID) (uint8, bool) { return 0x3f, h[id] }
func (h heard) Follows(fault.NodeID) bool          { return true }
func (h heard) Moves(fault.NodeID) bool            { return true }
func (h heard) Heard(id fault.NodeID) bool         { return h[id] }

// ring is a ring of nodes, with nodes that have enrolled beside it.
func ring(nodes, joining int) *topology.Topology {
	var all []topology.Node
	for i := range nodes {
		all = append(all, topology.Node{ID: fault.NodeID(fmt.Sprintf("n%02d", i)), Coord: grid.Coord{X: i}})
	}
	for i := range joining {
		all = append(all, topology.Node{ID: fault.NodeID(fmt.Sprintf("j%02d", i)), Spare: true, Joining: true})
	}
	all = append(all, topology.Node{ID: "spare", Spare: true})
	dims := grid.Dims{}
	if nodes > 0 {
		dims = grid.Dims{X: nodes, Y: 1, Z: 1}
	}
	return topology.New(dims, all, nil, 1)
}

// noMap are reads that fail.
var noMap = joinReads{
	mapped: func() (mapNow, error) { return mapNow{}, errors.New("not needed") },
	listed: func() (map[string]bool, error) { return nil, errors.New("not needed") },
}

func TestOnlyHeardNodesGetPlaces(t *testing.T) {
	t.Parallel()
	j, now := newJoining(0), time.Unix(1000, 0)
	if s := j.step(now, ring(4, 2), heard{"spare": true, "n00": true}, noMap); len(s.place)+len(s.forget) != 0 {
		t.Errorf("step %+v: want nothing: no enrolled node has reported", s)
	}
	s := j.step(now, ring(4, 2), heard{"j01": true, "spare": true}, noMap)
	if !slices.Equal(s.place, []fault.NodeID{"j01"}) {
		t.Errorf("placed %v: want j01 alone, for an operator's spare waits for an operator", s.place)
	}
	if s := j.step(now.Add(placeAgain/2), ring(4, 2), heard{"j01": true}, noMap); len(s.place) != 0 {
		t.Errorf("placed %v: want a pause after a try", s.place)
	}
	if s := j.step(now.Add(placeAgain), ring(4, 2), heard{"j01": true}, noMap); len(s.place) != 1 {
		t.Errorf("placed %v: want another try", s.place)
	}
}

// heardLongAgo has the ends of nodes that have not reported lately.
type heardLongAgo struct{ heard }

func (heardLongAgo) Heard(fault.NodeID) bool { return false }

func TestNodeThatWasHeardLongAgoGetsNoPlace(t *testing.T) {
	t.Parallel()
	j, now := newJoining(0), time.Unix(1000, 0)
	all := heard{"j00": true, "j01": true}
	for d := time.Duration(0); d <= unheardFor; d += time.Minute {
		if s := j.step(now.Add(d), ring(4, 2), heardLongAgo{all}, noMap); len(s.place)+len(s.forget) != 0 {
			t.Fatalf("after %s: %+v: want nothing: the reports of the nodes are old", d, s)
		}
	}
	if s := j.step(now.Add(unheardFor+time.Second), ring(4, 2), heardLongAgo{all}, noMap); len(s.forget) != 1 {
		t.Errorf("%+v: want that a node is removed, as one that never reported", s)
	}
	if s := j.step(now.Add(unheardFor+2*time.Second), ring(4, 2), all, noMap); len(s.place) != 2 {
		t.Errorf("placed %v: want both: they have reported again", s.place)
	}
}

// TestWaitingNodesAreNotLoggedAllTheTime plays nodes that cannot get a place. The leader takes a step every 200 ms, and tries each node
// once a second.
func TestWaitingNodesAreNotLoggedAllTheTime(t *testing.T) {
	t.Parallel()
	all := heard{}
	for i := range 20 { // more than one step tries
		all[fault.NodeID(fmt.Sprintf("j%02d", i))] = true
	}
	j, began := newJoining(0), time.Unix(1000, 0)
	lines := 0
	for at := time.Duration(0); at < time.Hour; at += placeEvery {
		var err error
		if s := j.step(began.Add(at), ring(4, 20), all, noMap); len(s.place) > 0 {
			err = fmt.Errorf("node %s: no place", s.place[0])
		}
		if j.news(began.Add(at), err) {
			lines++
		}
	}
	if lines < 2 || lines > 2*int(time.Hour/sayAgain) {
		t.Errorf("%d lines in the log in an hour: want each of the two reasons once in %s", lines, sayAgain)
	}
	if other := errors.New("node j00: another reason"); !j.news(began.Add(time.Hour), other) {
		t.Error("a new reason was not logged")
	}
}

func TestFirstNodesGetPlacesTogether(t *testing.T) {
	t.Parallel()
	j, now := newJoining(0), time.Unix(1000, 0)
	if s := j.step(now, ring(0, 2), heard{"j00": true}, noMap); len(s.place) != 0 {
		t.Errorf("placed %v: want none: one node alone has no neighbour", s.place)
	}
	if s := j.step(now, ring(0, 2), heard{"j00": true, "j01": true}, noMap); len(s.place) != 2 {
		t.Errorf("placed %v: want both", s.place)
	}
}

func TestManyNodesGetPlacesInParts(t *testing.T) {
	t.Parallel()
	all := heard{}
	for i := range 40 {
		all[fault.NodeID(fmt.Sprintf("j%02d", i))] = true
	}
	j, now := newJoining(0), time.Unix(1000, 0)
	seen := map[fault.NodeID]bool{}
	for range 3 {
		s := j.step(now, ring(4, 40), all, noMap)
		if len(s.place) > maxPlaced {
			t.Errorf("%d placed at once: want at most %d", len(s.place), maxPlaced)
		}
		for _, id := range s.place {
			seen[id] = true
		}
	}
	if len(seen) != 40 {
		t.Errorf("%d of 40 nodes were tried: want each before any is tried again", len(seen))
	}
}

func TestUnheardNodeIsRemovedInTime(t *testing.T) {
	t.Parallel()
	j, now := newJoining(0), time.Unix(1000, 0)
	for d := time.Duration(0); d <= unheardFor; d += time.Minute {
		if s := j.step(now.Add(d), ring(4, 2), heard{"j01": true}, noMap); len(s.forget) != 0 {
			t.Fatalf("after %s: %+v is forgotten", d, s.forget)
		}
	}
	s := j.step(now.Add(unheardFor+time.Second), ring(4, 2), heard{"j01": true}, noMap)
	if len(s.forget) != 1 || s.forget[0].id != "j00" {
		t.Errorf("forgotten: %+v: want j00", s.forget)
	}
	if s := j.step(now.Add(unheardFor+2*time.Second), ring(4, 1), heard{}, noMap); len(s.forget) != 1 {
		t.Errorf("forgotten: %+v: want j00 again, because it is still there", s.forget)
	}
	if s := j.step(now.Add(unheardFor+3*time.Second), ring(4, 0), heard{}, noMap); len(s.forget) != 0 {
		t.Errorf("forgotten: %+v: want nobody", s.forget)
	}
	if s := j.step(now.Add(unheardFor+4*time.Second), ring(4, 1), heard{}, noMap); len(s.forget) != 0 {
		t.Errorf("forgotten: %+v: want nobody: it has enrolled again just now", s.forget)
	}
}

func TestFailedNodeIsForgottenInTime(t *testing.T) {
	t.Parallel()
	const after = 10 * time.Minute
	now := time.Unix(1000, 0)
	run := func(nodes int, steps ...[]fault.NodeID) (out []forgotten) {
		j := newJoining(after)
		for i, failed := range steps {
			s := j.step(now.Add(time.Duration(i)*after/2), ring(nodes, 0), heard{}, joinReads{mapped: func() (mapNow, error) {
				m := mapNow{failed: map[fault.NodeID]bool{}, out: len(failed)}
				for _, id := range failed {
					m.failed[id] = true
				}
				return m, nil
			}})
			out = append(out, s.forget...)
		}
		return out
	}
	one := []fault.NodeID{"n01"}
	if got := run(8, one, one, one); len(got) != 1 || got[0].id != "n01" {
		t.Errorf("forgotten: %+v: want n01", got)
	}
	if got := run(8, one, nil, one, one); len(got) != 0 {
		t.Errorf("forgotten: %+v: want nobody: it came back meanwhile", got)
	}
	two := []fault.NodeID{"n01", "n02"}
	if got := run(8, one, two, two, two[1:]); len(got) != 2 || got[0].id != "n01" || got[1].id != "n02" {
		t.Errorf("forgotten: %+v: want n01, and then n02", got)
	}
	if got := run(7, two, two, two, two); len(got) != 0 {
		t.Errorf("forgotten: %+v: want nobody: more than a quarter is FAILED", got)
	}
	j := newJoining(0)
	reads := joinReads{mapped: func() (mapNow, error) {
		return mapNow{failed: map[fault.NodeID]bool{"n01": true}}, nil
	}}
	for i := range 3 {
		if s := j.step(now.AddDate(0, 0, i), ring(8, 0), heard{}, reads); len(s.forget) != 0 {
			t.Errorf("forgotten: %+v: want nobody without forgetAfter", s.forget)
		}
	}
}

// TestNodeThatLeavesGivesUpItsPlace: without forgetAfter too. A node that cannot leave is tried again later.
func TestNodeThatLeavesGivesUpItsPlace(t *testing.T) {
	t.Parallel()
	j, now := newJoining(0), time.Unix(1000, 0)
	reads := joinReads{mapped: func() (mapNow, error) { return mapNow{leave: []fault.NodeID{"n01", "n02"}}, nil }}
	step := func(after time.Duration) []fault.NodeID {
		return j.step(now.Add(after), ring(8, 0), heard{}, reads).leave
	}
	if got := step(0); !slices.Equal(got, []fault.NodeID{"n01", "n02"}) {
		t.Errorf("leave %v: want n01 and n02", got)
	}
	j.kept("n01", now)
	if got := step(forgetEvery); !slices.Equal(got, []fault.NodeID{"n02"}) {
		t.Errorf("leave %v: want n02 alone, because n01 could not", got)
	}
	if got := step(stayFor); len(got) != 2 {
		t.Errorf("leave %v: want both again", got)
	}
}

func TestNodeThatKubernetesRemovedIsForgotten(t *testing.T) {
	t.Parallel()
	var all []topology.Node
	for i, by := range []string{topology.EnrolledByKubernetes, topology.EnrolledByKubernetes, ""} {
		n := topology.Node{ID: fault.NodeID(fmt.Sprintf("n%d", i)), Coord: grid.Coord{X: i}}
		if by != "" {
			n.Labels = map[string]string{topology.EnrolledBy: by}
		}
		all = append(all, n)
	}
	top := topology.New(grid.Dims{X: 3, Y: 1, Z: 1}, all, nil, 1)
	j, now := newJoining(0), time.Unix(1000, 0)
	j.listEvery = time.Minute
	list := func(at time.Duration, err error, names ...string) []forgotten {
		return j.step(now.Add(at), top, heard{}, joinReads{mapped: noMap.mapped, listed: func() (map[string]bool, error) {
			m := map[string]bool{}
			for _, n := range names {
				m[n] = true
			}
			return m, err
		}}).forget
	}
	for i, step := range []struct {
		err   error
		names []string
		want  fault.NodeID
	}{
		{names: []string{"n0", "n1"}}, {names: []string{"n0"}}, {names: []string{"n0", "n1"}}, {names: []string{"n0"}}, {err: errors.New("away")},
		{names: []string{"n0"}, want: "n1"}, {}, {},
	} {
		got := list(time.Duration(i)*time.Minute, step.err, step.names...)
		if len(got) > 1 || (len(got) == 1) != (step.want != "") || len(got) == 1 && got[0].id != step.want {
			t.Errorf("list %d of %v: forgotten %+v: want %q", i, step.names, got, step.want)
		}
	}
}

// TestFailedListOfNodesIsNamed: without the right to list nodes, the leader removes none, and its log must say why, but not every time.
func TestFailedListOfNodesIsNamed(t *testing.T) {
	t.Parallel()
	j, now := newJoining(0), time.Unix(1000, 0)
	j.listEvery = time.Minute
	for _, tt := range []struct {
		after time.Duration
		named bool
	}{{0, true}, {time.Minute, false}, {sayAgain - 2*time.Minute, false}, {time.Minute, true}} {
		now = now.Add(tt.after)
		forbidden := fmt.Errorf("nodes is forbidden at %s", now)
		step := j.step(now, ring(3, 0), heard{}, joinReads{mapped: noMap.mapped, listed: func() (map[string]bool, error) {
			return nil,
				forbidden
		}})
		if named := errors.Is(step.unlisted, forbidden); named != tt.named {
			t.Errorf("at %s: the step names %v, want it to name the error: %t", now, step.unlisted, tt.named)
		}
	}
}

// Many nodes that are missing at once may be a mistake of the API server. They are removed after stayFor, one after the other.
func TestManyRemovedNodesStayForAWhile(t *testing.T) {
	var all []topology.Node
	for i := range 4 {
		all = append(all, topology.Node{ID: fault.NodeID(fmt.Sprintf("n%d", i)), Coord: grid.Coord{X: i},
			Labels: map[string]string{topology.EnrolledBy: topology.EnrolledByKubernetes}})
	}
	top := topology.New(grid.Dims{X: 4, Y: 1, Z: 1}, all, nil, 1)
	j, now := newJoining(0), time.Unix(1000, 0)
	j.listEvery = time.Minute
	var got []string
	for i := range 13 {
		step := j.step(now.Add(time.Duration(i)*time.Minute), top, heard{}, joinReads{mapped: noMap.mapped, listed: func() (map[string]bool,
			error) {
			return map[string]bool{"n0": true, "n1": true}, nil
		}})
		for _, f := range step.forget {
			got = append(got, fmt.Sprintf("%d %s", i, f.id))
		}
	}
	if want := []string{"10 n2", "11 n2", "12 n2"}; !slices.Equal(got, want) { // the topology of this test stays the same
		t.Errorf("minutes of removals %q: want %q", got, want)
	}
}

// TestNodeUnderMaintenanceIsNotGone: it may be away for longer than forgetAfter. A node that stops leaves only if it announced that.
func TestNodeUnderMaintenanceIsNotGone(t *testing.T) {
	dims := grid.Dims{X: 5, Y: 1, Z: 1}
	ids := map[grid.Coord]fault.NodeID{{X: 0}: "a", {X: 1}: "b", {X: 2}: "c", {X: 3}: "d", {X: 4}: "e"}
	b := view.NewBuilder(view.NewNames(dims, ids), time.Now())
	for at, id := range ids {
		e, ok := b.At(id)
		if !ok {
			t.Fatalf("no node %s", id)
		}
		e.Status.Coord = at
		if e.Status.State = fault.Failed; id == "c" {
			e.Status.State = fault.Normal
		}
		if stop := map[fault.NodeID]fault.Stop{"d": fault.StopLeave, "e": fault.StopShutdown}[id]; stop != 0 {
			e.Status.State, e.Status.Stop = fault.Unknown, awareness.Stop{Reason: stop, Since: time.Unix(1, 0), Until: time.Unix(601, 0)}
		}
		b.Set(e)
	}
	marks := view.NewMarks()
	marks.Replace([]*lofamov1.Maintenance{{Node: "a"}}, 1)
	got := nodesIn(b.Map(1), marks)
	if len(got.failed) != 1 || !got.failed["b"] || got.out != 4 || !slices.Equal(got.leave, []fault.NodeID{"d"}) {
		t.Errorf("%+v: want b alone to be gone, d to leave, and 4 nodes out", got)
	}
}

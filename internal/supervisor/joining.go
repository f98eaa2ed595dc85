package supervisor

import (
	"fmt"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// joining decides which nodes get a place, and which are forgotten, while this replica leads. It does no input or output.
type joining struct {
	forgetAfter time.Duration // 0: never

	since  map[fault.NodeID]time.Time // since when a node has waited for its place without a report
	failed map[fault.NodeID]time.Time // since when it is FAILED
	looked time.Time                  // when the map was last read

	listEvery time.Duration              // interval of lists of Kubernetes' nodes; 0: none
	listed    time.Time                  // when they were last listed
	absent    map[fault.NodeID]bool      // nodes that the last list did not have
	tried     map[fault.NodeID]time.Time // when a place was last looked for
}

// joinStep is the next step of the leader.
type joinStep struct {
	place  []fault.NodeID // at most maxPlaced
	forget []forgotten    // at most one
}

type forgotten struct {
	id  fault.NodeID
	why string
}

// joinReads are what joining reads from outside.
type joinReads struct {
	failed func() (map[fault.NodeID]bool, error) // nodes that the map calls FAILED
	listed func() (map[string]bool, error)       // nodes of Kubernetes
}

const (
	// maxPlaced bounds the nodes that one change gives places.
	maxPlaced = 16
	// placeAgain is the pause after a node got no place.
	placeAgain = time.Second
	// mostFailed is the part of all nodes, as a divisor, above which no node is forgotten: an outage is no departure.
	mostFailed = 4
)

func newJoining(forgetAfter time.Duration) *joining {
	return &joining{forgetAfter: forgetAfter, since: make(map[fault.NodeID]time.Time), failed: make(map[fault.NodeID]time.Time),
		tried: make(map[fault.NodeID]time.Time)}
}

// step returns the next step. It reads the map only when it needs it.
func (j *joining) step(now time.Time, t *topology.Topology, ends topology.Ends, read joinReads) (out joinStep) {
	out.place = j.places(now, t, ends)
	for _, n := range t.Spares() {
		if !n.Joining {
			continue
		}
		if at := j.since[n.ID]; len(out.forget) == 0 && now.Sub(at) > unheardFor {
			out.forget = append(out.forget, forgotten{n.ID, fmt.Sprintf("it has enrolled, and was not heard for %s", unheardFor)})
		}
	}
	if j.forgetAfter > 0 && now.Sub(j.looked) >= forgetEvery {
		j.looked = now
		if failed, err := read.failed(); err == nil {
			out.forget = append(out.forget, j.gone(now, t, failed)...)
		}
	}
	if j.listEvery > 0 && now.Sub(j.listed) >= j.listEvery {
		j.listed = now
		if listed, err := read.listed(); err == nil {
			out.forget = append(out.forget, j.removed(t, listed)...)
		}
	}
	out.forget = out.forget[:min(1, len(out.forget))]
	return out
}

// places returns nodes that have enrolled and reported their ends of links. The first nodes of a torus get their places
// together, because one alone has no neighbour.
func (j *joining) places(now time.Time, t *topology.Topology, ends topology.Ends) (out []fault.NodeID) {
	waiting := make(map[fault.NodeID]bool)
	for _, n := range t.Spares() {
		if !n.Joining {
			continue
		}
		waiting[n.ID] = true
		if _, heard := ends.Ends(n.ID); heard {
			j.since[n.ID] = now
			if now.Sub(j.tried[n.ID]) >= placeAgain && len(out) < maxPlaced {
				out = append(out, n.ID)
			}
		} else if _, known := j.since[n.ID]; !known {
			j.since[n.ID] = now
		}
	}
	for _, m := range []map[fault.NodeID]time.Time{j.since, j.tried} {
		for id := range m {
			if !waiting[id] {
				delete(m, id)
			}
		}
	}
	if len(t.Placed()) == 0 && len(out) < topology.MinNodes {
		return nil
	}
	for _, id := range out {
		j.tried[id] = now
	}
	return out
}

// gone returns the node that has been FAILED for longest, if that is long enough.
func (j *joining) gone(now time.Time, t *topology.Topology, failed map[fault.NodeID]bool) []forgotten {
	for id := range j.failed {
		if !failed[id] {
			delete(j.failed, id)
		}
	}
	var out []fault.NodeID
	for id := range failed {
		at, known := j.failed[id]
		if !known {
			j.failed[id] = now
		} else if now.Sub(at) >= j.forgetAfter {
			out = append(out, id)
		}
	}
	if len(out) == 0 || len(failed)*mostFailed > len(t.Placed()) {
		return nil
	}
	id := slices.MinFunc(out, func(a, b fault.NodeID) int {
		if d := j.failed[a].Compare(j.failed[b]); d != 0 {
			return d
		}
		return slices.Compare([]byte(a), []byte(b))
	})
	return []forgotten{{id, fmt.Sprintf("it has been FAILED for %s", now.Sub(j.failed[id]).Round(time.Second))}}
}

// removed returns a node that enrolled from Kubernetes, and that two lists of its nodes in a row did not have. An empty list
// proves nothing.
func (j *joining) removed(t *topology.Topology, listed map[string]bool) (out []forgotten) {
	absent := make(map[fault.NodeID]bool)
	for _, n := range t.Nodes {
		if n.Labels[topology.EnrolledBy] != topology.EnrolledByKubernetes || listed[string(n.ID)] || len(listed) == 0 {
			continue
		}
		absent[n.ID] = true
		if j.absent[n.ID] {
			out = append(out, forgotten{n.ID, "Kubernetes has removed it"})
		}
	}
	j.absent = absent
	return out
}

package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
	absent    map[fault.NodeID]time.Time // nodes that the last list did not have, since when
	tried     map[fault.NodeID]time.Time // when a place was last looked for
	stays     map[fault.NodeID]time.Time // until when a node is not removed, because the last attempt failed
	said      map[string]time.Time       // when the log last named each reason of a failure
}

// joinStep is the next step of the leader.
type joinStep struct {
	place  []fault.NodeID // at most maxPlaced
	leave  []fault.NodeID // they announced that they leave; at most maxPlaced
	forget []forgotten    // at most one
	// unlisted is why the nodes of Kubernetes could not be listed; nil if the step has listed them, or has named the reason within sayAgain.
	unlisted error
}

type forgotten struct {
	id     fault.NodeID
	why    string
	unless func(topology.Node) bool // it stays, as the topology is when it is removed
	absent bool                     // from Kubernetes
}

// kept notes that a node could not be removed, or proved to be there.
func (j *joining) kept(id fault.NodeID, now time.Time) { j.stays[id] = now.Add(stayFor) }

// news reports whether a step failed for a reason that the log has not named within sayAgain.
func (j *joining) news(now time.Time, err error) bool {
	if err == nil {
		return false
	}
	maps.DeleteFunc(j.said, func(_ string, at time.Time) bool { return now.Sub(at) >= sayAgain })
	_, said := j.said[err.Error()]
	if !said {
		j.said[err.Error()] = now
	}
	return !said
}

// errUnlisted stands for all failures of lists of Kubernetes' nodes.
var errUnlisted = errors.New("the nodes of Kubernetes cannot be listed")

// joinReads are what joining reads from outside.
type joinReads struct {
	mapped func() (mapNow, error)          // from the leader's map
	listed func() (map[string]bool, error) // nodes of Kubernetes
}

// mapNow has the nodes that the map calls FAILED, the number of those that are FAILED or UNKNOWN, and the nodes that announced that they
// leave.
type mapNow struct {
	failed map[fault.NodeID]bool
	out    int
	leave  []fault.NodeID
}

const (
	// stayFor is the pause before another attempt to remove a node, and before the removal of many nodes that disappeared at once.
	stayFor = 10 * time.Minute
	// maxPlaced bounds the nodes that one change gives places, or takes them from.
	maxPlaced = 16
	// sayAgain is the time after which the log names the same reason again.
	sayAgain = 10 * time.Minute
	// placeAgain is the pause after a node got no place.
	placeAgain = time.Second
	// No node is removed while more than 1/mostFailed of all nodes are FAILED or UNKNOWN: that is an outage.
	mostFailed = 4
)

func newJoining(forgetAfter time.Duration) *joining {
	return &joining{forgetAfter: forgetAfter, since: make(map[fault.NodeID]time.Time), failed: make(map[fault.NodeID]time.Time),
		tried: make(map[fault.NodeID]time.Time), stays: make(map[fault.NodeID]time.Time), said: make(map[string]time.Time)}
}

// agents has the reports of nodes' agents.
type agents interface {
	topology.Ends
	// Heard reports whether a node's agent has reported lately. Ends may be from long ago.
	Heard(fault.NodeID) bool
}

// step returns the next step.
func (j *joining) step(now time.Time, t *topology.Topology, ends agents, read joinReads) (out joinStep) {
	out.place = j.places(now, t, ends)
	for _, n := range t.Spares() {
		if !n.Joining {
			continue
		}
		if at := j.since[n.ID]; now.Sub(at) > unheardFor {
			out.forget = append(out.forget, forgotten{id: n.ID, why: fmt.Sprintf("it has enrolled, and sent no report for %s", unheardFor),
				unless: func(n topology.Node) bool { return !n.Joining }})
		}
	}
	if now.Sub(j.looked) >= forgetEvery {
		j.looked = now
		if m, err := read.mapped(); err == nil {
			out.forget = append(out.forget, j.gone(now, t, m)...)
			m.leave = slices.DeleteFunc(m.leave, func(id fault.NodeID) bool { return now.Before(j.stays[id]) })
			out.leave = m.leave[:min(maxPlaced, len(m.leave))]
		}
	}
	if j.listEvery > 0 && now.Sub(j.listed) >= j.listEvery {
		j.listed = now
		listed, err := read.listed()
		switch {
		case err == nil:
			out.forget = append(out.forget, j.removed(now, t, listed)...)
		case j.news(now, errUnlisted): // instead of err, whose text may differ each time
			out.unlisted = err
		}
	}
	out.forget = slices.DeleteFunc(out.forget, func(f forgotten) bool { return now.Before(j.stays[f.id]) })
	out.forget = out.forget[:min(1, len(out.forget))]
	return out
}

// places returns nodes that have enrolled, have reported their ends of links, and have been heard lately. The first nodes of a torus
// get their places together, because one alone has no neighbour.
func (j *joining) places(now time.Time, t *topology.Topology, ends agents) (out []fault.NodeID) {
	waiting := make(map[fault.NodeID]bool)
	for _, n := range t.Spares() {
		if !n.Joining {
			continue
		}
		waiting[n.ID] = true
		if _, known := ends.Ends(n.ID); known && ends.Heard(n.ID) {
			j.since[n.ID] = now
			if now.Sub(j.tried[n.ID]) >= placeAgain {
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
	slices.SortStableFunc(out, func(a, b fault.NodeID) int { return j.tried[a].Compare(j.tried[b]) }) // so that each gets its turn
	out = out[:min(maxPlaced, len(out))]
	for _, id := range out {
		j.tried[id] = now
	}
	return out
}

// gone returns the nodes that have been FAILED for forgetAfter, the longest first, unless there is an outage.
func (j *joining) gone(now time.Time, t *topology.Topology, m mapNow) (gone []forgotten) {
	failed := m.failed
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
		} else if j.forgetAfter > 0 && now.Sub(at) >= j.forgetAfter {
			out = append(out, id)
		}
	}
	if len(out) == 0 || m.out*mostFailed > len(t.Placed()) {
		return nil
	}
	slices.SortFunc(out, func(a, b fault.NodeID) int { return cmp.Or(j.failed[a].Compare(j.failed[b]), cmp.Compare(a, b)) })
	for _, id := range out {
		gone = append(gone, forgotten{id: id, why: fmt.Sprintf("it has been FAILED for %s", now.Sub(j.failed[id]).Round(time.Second))})
	}
	return gone
}

// removed returns nodes that enrolled from Kubernetes and are missing from two consecutive lists of nodes there. Lists that
// lack more than one of them, and more than 1/mostFailed of all, prove nothing until they have lacked a node for stayFor.
func (j *joining) removed(now time.Time, t *topology.Topology, listed map[string]bool) (out []forgotten) {
	absent := make(map[fault.NodeID]time.Time)
	all := 0
	for _, n := range t.Nodes {
		if n.Labels[topology.EnrolledBy] != topology.EnrolledByKubernetes {
			continue
		}
		all++
		if listed[string(n.ID)] {
			continue
		}
		since, before := j.absent[n.ID]
		if !before {
			since = now
		}
		absent[n.ID] = since
		if before {
			out = append(out, forgotten{id: n.ID, why: "its Node object in Kubernetes does not exist any more", absent: true})
		}
	}
	j.absent = absent
	if len(listed) == 0 {
		return nil
	}
	if len(absent) > max(1, all/mostFailed) {
		out = slices.DeleteFunc(out, func(f forgotten) bool { return now.Sub(absent[f.id]) < stayFor })
	}
	return out
}

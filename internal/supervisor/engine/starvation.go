package engine

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// starvation is a half that gets too little processor time, or gets enough again, and needs an event. The published
// state is stored in the node's document, as recoveries are.
type starvation struct {
	node      fault.NodeID
	half      fault.Half
	time      *lofamov1.ProcessorTime // nil: it has ended
	published bool                    // it was published as starved before
	was       fault.State             // the present state of the half
	path      fault.Path
	by        fault.Origin
}

// noteStarvation reports whether there is an event to commit: a half's newest health differs from the published state.
func (t *term) noteStarvation(now time.Time, d *fault.Delivery, half fault.Half, h *lofamov1.HalfHealth) bool {
	node := d.Report.ID.Origin.Node
	all, is := t.reported[node], h.GetProcessor().GetStarved()
	if all[halfOf(half)].starved == is {
		return false
	}
	all[halfOf(half)].starved = is
	t.reported[node] = all
	t.touch(node)
	s := &starvation{node: node, half: half, published: !is, was: t.halfState(node, half), path: d.Path, by: d.Report.ID.Origin}
	if is {
		s.time = h.GetProcessor()
	}
	t.change(timedChange{starved: s, at: now})
	return true
}

// halfState returns the present state of a half.
func (t *term) halfState(node fault.NodeID, half fault.Half) fault.State {
	if st, ok := t.machine.Node(node); ok {
		for _, c := range st.Components {
			if c.Component == half.Component() {
				return c.State
			}
		}
	}
	return fault.Unknown
}

// words describes the starvation for people.
func (s *starvation) words() string {
	if s.time == nil {
		return "gets enough processor time again"
	}
	return fmt.Sprintf("starved of processor time: late by up to %d ms, for %d %% of the time", s.time.GetLongestMs(),
		s.time.GetSharePermille()/10)
}

// event renders the event.
func (s *starvation) event(at time.Time, names *view.Names) *lofamov1.Event {
	ev := &lofamov1.Event{
		Kind: lofamov1.EventKind_STARVATION_CHANGED, Node: string(s.node), Component: s.half.String(), From: lofamov1.State(s.was),
		To: lofamov1.State(s.was), Cause: lofamov1.Cause_NONE, Path: lofamov1.Path(s.path), Observer: s.by.String(), Reason: s.words(),
		Ended: s.time == nil, Time: timestamppb.New(at), Labels: names.Labels(s.node),
	}
	if at, ok := names.Coord(s.node); ok { // the node may have left its place
		ev.Coord = at.String()
	}
	return ev
}

package responder

import (
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Told is what an engine was told of nodes: from what is committed of one it makes what the engine is told next, each change once. It is a value and a
// function of what it is given: leaders in the simulator are told by it too. It is for one goroutine.
//
// The components of a node that is UNKNOWN are told of only where they stood in another state before: of a cluster that starts cold
// nothing else is known than that its nodes are UNKNOWN.
type Told map[fault.NodeID]toldNode

// toldNode is what the engine was told of a node.
type toldNode struct {
	revision uint64
	epoch    fault.Epoch
	faults   []response.Fault // not NORMAL, by component
}

func (n toldNode) of(c fault.Component) (response.Fault, bool) {
	for _, f := range n.faults {
		if f.Component == c {
			return f, true
		}
	}
	return response.Fault{}, false
}

// has says whether a node was told of as it was committed at that revision, or later.
func (t Told) has(id fault.NodeID, revision uint64) bool {
	was, known := t[id]
	return known && revision <= was.revision
}

// Changes are the events of what was committed of a node at a revision: none where that, or something newer, was told before. e knows what the faults rest on.
func (t Told) Changes(st awareness.NodeStatus, revision uint64, e *response.Engine) []response.Event {
	if t.has(st.ID, revision) {
		return nil
	}
	was, known := t[st.ID]
	now := toldNode{revision: revision, epoch: st.HostEpoch, faults: faultsOf(st, func(c fault.Component) bool { _, told := was.of(c); return told })}
	t[st.ID] = now
	var out []response.Event
	if now.epoch > was.epoch {
		out = append(out, response.Booted{Node: st.ID, Epoch: now.epoch})
	}
	for _, n := range now.faults {
		old, told := was.of(n.Component)
		if told && same(old, n) {
			continue
		}
		if told && old.State == n.State {
			single := n.Evidence.SingleWitness
			n.Evidence, _ = e.Evidence(n.Target())
			if n.Component == fault.ComponentNode {
				n.Evidence.SingleWitness = single
			}
		}
		out = append(out, response.FaultChanged{Fault: n, Stood: !known})
	}
	for _, old := range was.faults {
		if _, stands := now.of(old.Component); !stands {
			out = append(out, ended(old, since(st, old.Component)))
		}
	}
	return out
}

// Lead adds to what an engine is told that begins to lead all of a node, as it was committed at a revision. before is what was told until then; open are targets
// of responses: of their faults it is told in any case.
func (t Told) Lead(led *response.Led, st awareness.NodeStatus, revision uint64, before Told, open map[response.Target]bool) {
	was := before[st.ID]
	n := toldNode{revision: revision, epoch: st.HostEpoch, faults: faultsOf(st, func(c fault.Component) bool {
		_, told := was.of(c)
		return told || open[response.Target{Node: st.ID, Component: c}]
	})}
	t[st.ID] = n
	led.Faults = append(led.Faults, n.faults...)
	if n.epoch > 0 {
		led.Epochs = append(led.Epochs, response.Booted{Node: st.ID, Epoch: n.epoch})
	}
}

// faultsOf are the components of a node that are not NORMAL. keep says of which it has to be told though they are UNKNOWN as the node is.
func faultsOf(st awareness.NodeStatus, keep func(fault.Component) bool) []response.Fault {
	var out []response.Fault
	if st.State != fault.Normal {
		out = append(out, response.Fault{
			Node: st.ID, Component: fault.ComponentNode, State: st.State, Cause: st.Cause, Since: st.Since, Inferred: st.Inferred, Unreachable: st.Unreachable,
			Platform: st.Platform,
			Accusers: accusers(st), Evidence: response.Evidence{SingleWitness: st.SingleWitness}, // the rest of the evidence is requested when it matters
		})
	}
	for _, c := range st.Components {
		if c.State == fault.Normal || c.State == fault.Unknown && st.State == fault.Unknown && !keep(c.Component) {
			continue
		}
		out = append(out, response.Fault{Node: st.ID, Component: c.Component, State: c.State, Cause: c.Cause, Since: c.Since, Flapping: c.Flapping, Platform: st.Platform})
	}
	return out
}

// same says whether two faults that were told say the same. Of what they rest on only the mark of a single witness is told: that it goes is news.
func same(a, b response.Fault) bool {
	return a.State == b.State && a.Cause == b.Cause && a.Since.Equal(b.Since) && a.Inferred == b.Inferred && a.Unreachable == b.Unreachable && a.Flapping == b.Flapping && a.Platform == b.Platform &&
		a.Evidence.SingleWitness == b.Evidence.SingleWitness
}

// ended is the end of a fault, at a time that may not be known.
func ended(f response.Fault, at time.Time) response.FaultChanged {
	return response.FaultChanged{Fault: response.Fault{Node: f.Node, Component: f.Component, State: fault.Normal, Cause: fault.CauseNone, Since: at}}
}

// since is when the state of a component began.
func since(st awareness.NodeStatus, c fault.Component) time.Time {
	for _, s := range st.Components {
		if s.Component == c {
			return s.Since
		}
	}
	return st.Since
}

// OpenTargets are the targets of those responses that are open.
func OpenTargets(records []response.Record) map[response.Target]bool {
	list, _ := apart(records)
	open := make(map[response.Target]bool, len(list))
	for _, rec := range list {
		if rec.Closed.IsZero() {
			open[rec.Target] = true
		}
	}
	return open
}

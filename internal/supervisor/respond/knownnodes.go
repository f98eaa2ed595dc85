package respond

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// KnownNodes is the state of nodes that an engine has received. From a node's committed status it derives the next events,
// each change once. It depends only on its inputs: the simulator uses it for its leaders too. It is not safe for
// concurrent use.
//
// For an UNKNOWN node, KnownNodes reports a component only if it was in another state before: in a cold start, the engine
// knows only that the nodes are UNKNOWN.
type KnownNodes map[fault.NodeID]knownNode

// knownNode is the state of a node that the engine has received.
type knownNode struct {
	revision uint64
	epoch    fault.Epoch
	faults   []response.Fault // not NORMAL, by component
}

func (n knownNode) of(c fault.Component) (response.Fault, bool) {
	for _, f := range n.faults {
		if f.Component == c {
			return f, true
		}
	}
	return response.Fault{}, false
}

// has reports whether the engine has received the node as of that revision or a later one.
func (k KnownNodes) has(id fault.NodeID, revision uint64) bool {
	was, known := k[id]
	return known && revision <= was.revision
}

// Changes returns the events of a node's committed entry, or none if the engine has received that or a newer one. The
// faults carry the evidence of the entry. e knows the evidence that was gathered since.
func (k KnownNodes) Changes(in view.Entry, e *response.Engine) []response.Event {
	st, revision := in.Status, in.Revision
	if k.has(st.ID, revision) {
		return nil
	}
	was, known := k[st.ID]
	now := knownNode{revision: revision, epoch: st.HostEpoch,
		faults: faultsOf(in, func(c fault.Component) bool { _, told := was.of(c); return told })}
	k[st.ID] = now
	var out []response.Event
	if now.epoch > was.epoch {
		out = append(out, response.Booted{Node: st.ID, Epoch: now.epoch})
	}
	for _, n := range now.faults {
		old, told := was.of(n.Component)
		if told && same(old, n) {
			continue
		}
		single := n.Evidence.SingleWitness
		var gathered response.Evidence
		if told && old.State == n.State {
			gathered, _ = e.Evidence(n.Target())
		}
		n.Evidence = newest(in.Faults, n, gathered)
		n.NoLife = !n.Evidence.At.IsZero() && n.Evidence.Life.IsZero()
		if n.Component == fault.ComponentNode {
			n.Evidence.SingleWitness = single
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

// newest returns the newer of the committed evidence for a fault and the gathered one.
func newest(committed []view.FaultEvidence, of response.Fault, gathered response.Evidence) response.Evidence {
	for _, c := range committed {
		if c.Component == of.Component && c.State == of.State && c.At.After(gathered.At) {
			return c.Evidence
		}
	}
	return gathered
}

// Lead adds to led the full state of a node as committed at a revision, for an engine that begins to lead. before is
// the state that it has received until then. open are the targets of open responses, whose faults Lead always
// includes.
func (k KnownNodes) Lead(led *response.Led, in view.Entry, revision uint64, before KnownNodes, open map[response.Target]bool) {
	st := in.Status
	was := before[st.ID]
	n := knownNode{revision: revision, epoch: st.HostEpoch, faults: faultsOf(in, func(c fault.Component) bool {
		_, told := was.of(c)
		return told || open[response.Target{Node: st.ID, Component: c}]
	})}
	k[st.ID] = n
	led.Faults = append(led.Faults, n.faults...)
	if n.epoch > 0 {
		led.Epochs = append(led.Epochs, response.Booted{Node: st.ID, Epoch: n.epoch})
	}
}

// faultsOf returns the faults of a node: the node and its components that are not NORMAL. keep selects components to
// include although they are UNKNOWN like their node.
func faultsOf(in view.Entry, keep func(fault.Component) bool) []response.Fault {
	var out []response.Fault
	st, watchdog := in.Status, watchdogOf(in.Watchdog)
	if st.State != fault.Normal {
		out = append(out, response.Fault{
			Node: st.ID, Component: fault.ComponentNode, State: st.State, Cause: st.Cause, Since: st.Since, Inferred: st.Inferred,
			Unreachable: st.Unreachable,
			Stopped:     st.Stop.Reason != 0,
			Platform:    st.Platform,
			Watchdog:    watchdog,
			KernelDead:  in.KernelDead(fault.ComponentNode).Dead,
			Accusers:    view.Accusers(st), Evidence: response.Evidence{SingleWitness: st.SingleWitness}, // other evidence is requested
		})
	}
	for _, c := range st.Components {
		if c.State == fault.Normal || c.State == fault.Unknown && st.State == fault.Unknown && !keep(c.Component) {
			continue
		}
		out = append(out, response.Fault{Node: st.ID, Component: c.Component, State: c.State, Cause: c.Cause, Since: c.Since,
			Flapping: c.Flapping, Platform: st.Platform, Watchdog: watchdog, KernelDead: in.KernelDead(c.Component).Dead})
	}
	return out
}

// watchdogOf converts a node's committed statement.
func watchdogOf(w *lofamov1.HardwareWatchdog) response.Watchdog {
	if w == nil {
		return response.Watchdog{}
	}
	return response.Watchdog{Armed: w.GetArmed(), Timeout: time.Duration(w.GetTimeoutMs()) * time.Millisecond,
		ContactWithin: time.Duration(w.GetContactWithinMs()) * time.Millisecond, Boot: w.GetBoot()}
}

// same reports whether two faults are equal for the engine. Of the evidence it compares only the single-witness mark,
// because its end is news.
func same(a, b response.Fault) bool {
	return a.State == b.State && a.Cause == b.Cause && a.Since.Equal(b.Since) && a.Inferred == b.Inferred &&
		a.Unreachable == b.Unreachable && a.Stopped == b.Stopped && a.Flapping == b.Flapping && a.Platform == b.Platform &&
		a.Watchdog == b.Watchdog && a.KernelDead == b.KernelDead &&
		a.Evidence.SingleWitness == b.Evidence.SingleWitness
}

// ended returns the end of a fault, at a time that may be unknown.
func ended(f response.Fault, at time.Time) response.FaultChanged {
	return response.FaultChanged{Fault: response.Fault{Node: f.Node, Component: f.Component, State: fault.Normal,
		Cause: fault.CauseNone, Since: at}}
}

// since returns when the state of a component began.
func since(st awareness.NodeStatus, c fault.Component) time.Time {
	for _, s := range st.Components {
		if s.Component == c {
			return s.Since
		}
	}
	return st.Since
}

// OpenTargets returns the targets of the open responses.
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

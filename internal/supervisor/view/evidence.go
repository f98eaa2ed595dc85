package view

import (
	"slices"
	"strings"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Gather returns the evidence for a fault of a component, from the leader's status of its node. life returns the time
// of a node's newest report: a node's statement holds until it changes, so it is as new as that report. Missing
// answers to the supervisors count as of now.
func Gather(st awareness.NodeStatus, c fault.Component, life func(fault.NodeID) time.Time, now time.Time) response.Evidence {
	out := response.Evidence{SingleWitness: st.SingleWitness, Restarting: st.Restart.Until}
	var newest time.Time // when the deciding evidence began
	for _, e := range supporting(st, c) {
		id, heard := e.node(), now
		if id != "" {
			heard = life(id)
		}
		if heard.After(out.At) {
			out.At = heard
		}
		if e.Kind != fault.KindVotes { // which counts other statements
			out.Witnesses = appendOnce(out.Witnesses, e.Observer)
		}
		measured, before := id == st.ID && measures(e), out.Own || out.Port
		if out.Kind == 0 || measured && !before || measured == before && e.At.After(newest) {
			out.Kind, newest = e.Kind, e.At
		}
		_, link := e.component.LinkDirection()
		out.Own = out.Own || measured && !link
		out.Port = out.Port || measured && link
		if at := accusedLife(st, e.component); at.After(out.Life) {
			out.Life = at
		}
	}
	return out
}

// FaultEvidence is the evidence for one fault of a node as it stood when the fault was committed. It travels in the
// node's record, so that the gates of responses need not ask for it. SingleWitness and Restarting are those of the
// node's status.
type FaultEvidence struct {
	Component fault.Component
	State     fault.State // that the evidence supports
	response.Evidence
}

// GatherAll returns the evidence for the faults of a node: for the node itself and for its components. It leaves out
// faults without evidence, and UNKNOWN components of an UNKNOWN node.
func GatherAll(st awareness.NodeStatus, life func(fault.NodeID) time.Time, now time.Time) []FaultEvidence {
	var out []FaultEvidence
	add := func(c fault.Component, s fault.State) {
		if ev := Gather(st, c, life, now); len(ev.Witnesses) > 0 {
			ev.Witnesses = ev.Witnesses[:min(len(ev.Witnesses), storedWitnesses)]
			out = append(out, FaultEvidence{c, s, ev})
		}
	}
	if st.State != fault.Normal {
		add(fault.ComponentNode, st.State)
	}
	for _, c := range st.Components {
		if c.State != fault.Normal && (c.State != fault.Unknown || st.State != fault.Unknown) {
			add(c.Component, c.State)
		}
	}
	return out
}

// storedWitnesses is the largest number of stored witnesses of a fault: more than a torus node has neighbours and
// supervisors together.
const storedWitnesses = 16

// PutEvidence adds evidence to a stored node.
func PutEvidence(n *lofamov1.Node, list []FaultEvidence) {
	for _, e := range list {
		n.FaultEvidence = append(n.FaultEvidence, &lofamov1.FaultEvidence{
			Component: e.Component.String(), State: lofamov1.State(e.State), At: Timestamp(e.At), Kind: e.Kind.String(),
			Witnesses: e.Witnesses, Own: e.Own, Port: e.Port, Life: Timestamp(e.Life),
		})
	}
}

// faultEvidence is the inverse of PutEvidence. It ignores entries that only a later version understands.
func faultEvidence(n *lofamov1.Node, st awareness.NodeStatus) []FaultEvidence {
	var out []FaultEvidence
	for _, e := range n.GetFaultEvidence() {
		c, err := fault.ParseComponent(e.GetComponent())
		if err != nil {
			continue
		}
		kind, err := fault.ParseKind(e.GetKind())
		if state := fault.State(e.GetState()); err == nil && state.Valid() {
			out = append(out, FaultEvidence{c, state, response.Evidence{
				At: fromTimestamp(e.GetAt()), Kind: kind, Witnesses: e.GetWitnesses(), Own: e.GetOwn(), Port: e.GetPort(),
				Life: fromTimestamp(e.GetLife()), SingleWitness: st.SingleWitness, Restarting: st.Restart.Until,
			}})
		}
	}
	return out
}

// StateOf returns the state of a component of a node; 0: the node lacks it.
func StateOf(st awareness.NodeStatus, c fault.Component) fault.State {
	if c == fault.ComponentNode {
		return st.State
	}
	for _, s := range st.Components {
		if s.Component == c {
			return s.State
		}
	}
	return 0
}

// measures reports whether a statement is a half's measurement of its own node. Silence and lost handshakes are
// measurements of the node's own ports. The watchdog's statement concerns the other half, which may live.
func measures(e statement) bool {
	switch e.Kind {
	case fault.KindSelf, fault.KindErrorRatio:
		return true
	case fault.KindSilence, fault.KindHandshake:
		_, link := e.component.LinkDirection()
		return link
	default:
		return false
	}
}

// accusedLife returns the time of the newest report of the component's half, or of either half for other components.
// A committed status has none.
func accusedLife(st awareness.NodeStatus, c fault.Component) time.Time {
	switch {
	case st.State == fault.Failed:
		return st.Life
	case c == fault.ComponentHost:
		return st.HalfLife[0]
	case c == fault.ComponentDNP:
		return st.HalfLife[1]
	default:
		return st.Life
	}
}

func appendOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// statement is a piece of evidence on a component.
type statement struct {
	awareness.EvidenceStatus
	component fault.Component
}

// node returns the node whose half makes the statement, and "" for the supervisors.
func (e statement) node() fault.NodeID {
	if e.Kind.OfSupervisors() {
		return ""
	}
	who, _, _ := strings.Cut(e.Observer, "/")
	return fault.NodeID(who)
}

// supporting returns the evidence for the state of a component. For a node it returns the evidence for the components
// that determine its state: those in the same state and, if there are any, with the same cause. A node is also SICK
// if a part of it is FAILED.
func supporting(st awareness.NodeStatus, c fault.Component) []statement {
	if c != fault.ComponentNode {
		for _, s := range st.Components {
			if s.Component == c {
				return speakFor(s)
			}
		}
		return nil
	}
	var cause, state []statement
	for _, s := range st.Components {
		if s.State != st.State && (st.State != fault.Sick || s.State != fault.Failed) {
			continue
		}
		list := speakFor(s)
		state = append(state, list...)
		if s.Cause == st.Cause {
			cause = append(cause, list...)
		}
	}
	if cause != nil {
		return cause
	}
	return state
}

// speakFor returns the statements that call a component bad, or, for an UNKNOWN component, the statements that it is
// UNKNOWN.
func speakFor(s awareness.ComponentStatus) []statement {
	var out []statement
	for _, e := range s.Evidence {
		if e.Kind == fault.KindGossip {
			continue // a hint, never proof
		}
		if s.State == fault.Unknown && e.State == fault.Unknown || s.State != fault.Unknown &&
			(e.State == fault.Sick || e.State == fault.Failed) {
			out = append(out, statement{e, s.Component})
		}
	}
	return out
}

// Accusers returns the nodes whose statements alone make a node bad, or nil if its own halves or the supervisors
// support the fault.
func Accusers(st awareness.NodeStatus) []fault.NodeID {
	var out []fault.NodeID
	for _, e := range supporting(st, fault.ComponentNode) {
		if id := e.node(); id == "" || id == st.ID {
			return nil
		} else if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// Observers returns the nodes whose statements support a state.
func Observers(st awareness.NodeStatus, c fault.Component) []fault.NodeID {
	var out []fault.NodeID
	for _, e := range supporting(st, c) {
		if id := e.node(); id != "" {
			out = append(out, id)
		}
	}
	return out
}

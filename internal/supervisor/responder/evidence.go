package responder

import (
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Gather says what a fault of a component rests on, from what the leader's machine has of its node. life is the last sign of life of a
// node: what a node has said stands for as long as it says nothing else, so it is as new as the node's last word. What the supervisors
// themselves miss they miss now.
func Gather(st awareness.NodeStatus, c fault.Component, life func(fault.NodeID) time.Time, now time.Time) response.Evidence {
	out := response.Evidence{SingleWitness: st.SingleWitness}
	var newest time.Time // when what decided began
	own := false
	for _, e := range supporting(st, c) {
		who, _, _ := strings.Cut(e.Observer, "/")
		id, heard := fault.NodeID(who), now
		if who != "supervisor" {
			heard = life(id)
		}
		if heard.After(out.At) {
			out.At = heard
		}
		if e.Kind != fault.KindVotes { // which is what others say, counted
			out.Witnesses = appendOnce(out.Witnesses, e.Observer)
		}
		measured := id == st.ID && (e.Kind == fault.KindSelf || e.Kind == fault.KindErrorRatio)
		switch {
		case own && !measured:
		case measured && !own, out.Kind == 0, e.At.After(newest):
			out.Kind, newest = e.Kind, e.At
		}
		own = own || measured
	}
	return out
}

func appendOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// supporting is the evidence that speaks for the state of a component. What speaks for a node's is what does for the components that
// its state follows from: those in the same state, of the same cause if there are such. A node is SICK also where a part of it is FAILED.
func supporting(st awareness.NodeStatus, c fault.Component) []awareness.EvidenceStatus {
	if c != fault.ComponentNode {
		for _, s := range st.Components {
			if s.Component == c {
				return speakFor(s.Evidence, s.State)
			}
		}
		return nil
	}
	var cause, state []awareness.EvidenceStatus
	for _, s := range st.Components {
		if s.State != st.State && (st.State != fault.Sick || s.State != fault.Failed) {
			continue
		}
		list := speakFor(s.Evidence, s.State)
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

// speakFor are those of a list that say of something that it is not well; of what is UNKNOWN, that nothing is known of it.
func speakFor(list []awareness.EvidenceStatus, s fault.State) []awareness.EvidenceStatus {
	var out []awareness.EvidenceStatus
	for _, e := range list {
		if e.Kind == fault.KindGossip {
			continue // a hint, never proof
		}
		if s == fault.Unknown && e.State == fault.Unknown || s != fault.Unknown && (e.State == fault.Sick || e.State == fault.Failed) {
			out = append(out, e)
		}
	}
	return out
}

// Observers are the nodes whose word supports a state.
func Observers(st awareness.NodeStatus, c fault.Component) []fault.NodeID {
	var out []fault.NodeID
	for _, e := range supporting(st, c) {
		if who, _, _ := strings.Cut(e.Observer, "/"); who != "supervisor" {
			out = append(out, fault.NodeID(who))
		}
	}
	return out
}

package view

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// maxMembers bounds the members of a group that the API lists.
const maxMembers = 4096

// Group renders a group fault.
func Group(g awareness.GroupStatus) *lofamov1.Group {
	out := StoredGroup(g)
	out.Members = out.Members[:min(len(out.Members), maxMembers)]
	return out
}

// StoredGroup renders a group fault for the store: with all of its members.
func StoredGroup(g awareness.GroupStatus) *lofamov1.Group {
	out := &lofamov1.Group{
		Id: g.ID, Kind: lofamov1.GroupKind(g.Kind), State: lofamov1.State(g.State), Cause: lofamov1.Cause(g.Cause),
		Members: make([]string, len(g.Members)), Size: uint32(len(g.Members)), Of: uint32(g.Of), Inferred: uint32(g.Inferred),
		Since: Timestamp(g.Since), Reason: g.Rule,
	}
	for i, id := range g.Members {
		out.Members[i] = string(id)
	}
	return out
}

// RestoreGroup is the inverse of StoredGroup.
func RestoreGroup(g *lofamov1.Group) (awareness.GroupStatus, error) {
	out := awareness.GroupStatus{
		ID: g.GetId(), Kind: awareness.GroupKind(g.GetKind()), State: fault.State(g.GetState()), Cause: fault.Cause(g.GetCause()),
		Members: make([]fault.NodeID, len(g.GetMembers())), Of: int(g.GetOf()), Inferred: int(g.GetInferred()),
		Since: fromTimestamp(g.GetSince()), Rule: g.GetReason(),
	}
	for i, id := range g.GetMembers() {
		out.Members[i] = fault.NodeID(id)
	}
	if !out.Kind.Valid() || !out.State.Valid() {
		return out, fmt.Errorf("restore group fault %q: kind %v, state %v", g.GetId(), g.GetKind(), g.GetState())
	}
	return out, nil
}

// GroupEvent renders the change of a group fault; was is its earlier state, UNKNOWN for a new one.
func GroupEvent(g awareness.GroupStatus, was fault.State, at time.Time) *lofamov1.Event {
	return &lofamov1.Event{
		Kind: lofamov1.EventKind_GROUP_CHANGED, Group: Group(g), From: lofamov1.State(was), To: lofamov1.State(g.State),
		Cause: lofamov1.Cause(g.Cause), Reason: g.Rule, Time: timestamppb.New(at),
	}
}

// Warning renders a warning.
func Warning(w awareness.WarningStatus) *lofamov1.Warning {
	return &lofamov1.Warning{
		Component: w.Component.String(), Quantity: w.Quantity.String(), Value: w.Value, Threshold: w.Threshold, Slope: w.Slope,
		TimeToThreshold: durationpb.New(w.Left), Since: Timestamp(w.Since), Reason: w.Rule,
	}
}

// RestoreWarning is the inverse of Warning.
func RestoreWarning(node fault.NodeID, w *lofamov1.Warning) (awareness.WarningStatus, error) {
	out := awareness.WarningStatus{
		Node: node, Value: w.GetValue(), Threshold: w.GetThreshold(), Slope: w.GetSlope(), Left: w.GetTimeToThreshold().AsDuration(),
		Since: fromTimestamp(w.GetSince()), Rule: w.GetReason(),
	}
	var err error
	if out.Component, err = fault.ParseComponent(w.GetComponent()); err == nil {
		out.Quantity, err = fault.ParseQuantity(w.GetQuantity())
	}
	if err != nil {
		return out, fmt.Errorf("restore warning on %s: %w", node, err)
	}
	return out, nil
}

// WarningEvent renders the change of a warning.
func WarningEvent(w awareness.WarningStatus, names *Names, at time.Time) *lofamov1.Event {
	ev := &lofamov1.Event{
		Kind: lofamov1.EventKind_WARNING_CHANGED, Node: string(w.Node), Component: w.Component.String(),
		Warning: Warning(w), Ended: w.Ended, Reason: w.Rule, Time: timestamppb.New(at), Labels: names.Labels(w.Node),
	}
	if at, ok := names.Coord(w.Node); ok { // it may have left its place
		ev.Coord = at.String()
	}
	return ev
}

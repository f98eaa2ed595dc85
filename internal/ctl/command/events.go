package command

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Subject names an event's subject: the node and its component, the group fault, or another changed object.
func (w Words) Subject(e *lofamov1.Event) (node, component string) {
	switch e.GetKind() {
	case lofamov1.EventKind_GROUP_CHANGED:
		return w.Group(e.GetGroup().GetId()), "group"
	case lofamov1.EventKind_WARNING_CHANGED:
		return e.GetNode(), e.GetComponent()
	case lofamov1.EventKind_MAINTENANCE_CHANGED:
		return e.GetNode(), "maintenance"
	case lofamov1.EventKind_TOPOLOGY_CHANGED:
		return Dash(e.GetNode()), "topology"
	case lofamov1.EventKind_REGION_CHANGED:
		return Dash(e.GetRegion()), "region"
	case lofamov1.EventKind_DIAGNOSIS_ENDED:
		return Dash(e.GetNode()), "diagnosis"
	case lofamov1.EventKind_PROCEDURE_ENDED:
		return Dash(e.GetNode()), "procedure"
	case lofamov1.EventKind_POLICY_CHANGED:
		return e.GetPolicy(), "policy"
	default:
		return e.GetNode(), e.GetComponent()
	}
}

// Change returns the old and the new state.
func Change(e *lofamov1.Event) (from, to string) {
	ended := func(word string) (string, string) {
		if e.GetEnded() {
			return word, "ended"
		}
		return "-", word
	}
	switch e.GetKind() {
	case lofamov1.EventKind_GROUP_CHANGED:
		if e.GetTo() == lofamov1.State_NORMAL {
			return StateName(e.GetFrom()), "ended"
		}
	case lofamov1.EventKind_WARNING_CHANGED:
		return ended("warning")
	case lofamov1.EventKind_MAINTENANCE_CHANGED:
		return ended("marked")
	case lofamov1.EventKind_MASK_CHANGED:
		return ended("masked")
	case lofamov1.EventKind_TOPOLOGY_CHANGED:
		return "-", "changed"
	case lofamov1.EventKind_POLICY_CHANGED:
		if e.GetEnded() {
			return "-", "withdrawn"
		}
		return "-", "changed"
	case lofamov1.EventKind_RECOVERY_CHANGED:
		if e.GetRecovery().GetState() == lofamov1.RecoveryState_GIVEN_UP {
			return "-", "given up"
		}
		if e.GetRecovery() == nil { // of the machine, not of a half
			return "-", "booted"
		}
		return "-", "recovered"
	case lofamov1.EventKind_STARVATION_CHANGED:
		return ended("starved")
	case lofamov1.EventKind_DIAGNOSIS_ENDED:
		return "-", "made"
	case lofamov1.EventKind_PROCEDURE_ENDED:
		switch {
		case e.GetNode() != "":
			return "-", "too many"
		case e.GetClear():
			return "-", "clear"
		}
		return "-", "not clear"
	default:
	}
	return StateName(e.GetFrom()), StateName(e.GetTo())
}

// EventNotes returns remarks that complete the states of an event. A warning that is over has none.
func EventNotes(a *App, e *lofamov1.Event) []string {
	var out []string
	if e.GetSingleWitness() {
		out = append(out, "single witness")
	}
	if e.GetFlapping() {
		out = append(out, "flapping")
	}
	if g := e.GetGroup(); g != nil {
		size := fault.Plural(g.GetSize(), "node")
		if a.Words().Group(g.GetId()) == g.GetId() {
			size = g.GetKind().String() + " of " + size
		}
		out = append(out, size)
		if g.GetInferred() > 0 {
			out = append(out, fmt.Sprintf("%d inferred dead", g.GetInferred()))
		}
	}
	switch e.GetKind() {
	case lofamov1.EventKind_TOPOLOGY_CHANGED, lofamov1.EventKind_RECOVERY_CHANGED, lofamov1.EventKind_DIAGNOSIS_ENDED,
		lofamov1.EventKind_STARVATION_CHANGED,
		lofamov1.EventKind_PROCEDURE_ENDED,
		lofamov1.EventKind_POLICY_CHANGED:
		if e.GetReason() != "" {
			out = append(out, Printable(e.GetReason()))
		}
	default:
	}
	if w := e.GetWarning(); w != nil && !e.GetEnded() {
		out = append(out, Warning(w))
	}
	if m := e.GetMaintenance(); m != nil && !e.GetEnded() {
		out = append(out, mark(a, m, func(t *timestamppb.Timestamp) string { return "until " + a.Clock(t) }))
	}
	if m := e.GetMask(); m != nil && !e.GetEnded() {
		out = append(out, Printable(m.GetReason()))
	}
	return out
}

// EventRows returns the table of events.
func EventRows(a *App, events []*lofamov1.Event, wide bool) [][]string {
	head := []string{"REVISION", "TIME", "NODE", "COMPONENT", "FROM", "TO", "CAUSE", "PATH", "LATENCY", "NOTES"}
	if wide {
		head = append(head, "COORD", "OBSERVER", "REASON")
	}
	rows := [][]string{head}
	for _, e := range events {
		node, component := a.Words().Subject(e)
		from, to := Change(e)
		r := []string{
			strconv.FormatUint(e.GetRevision(), 10), a.Clock(e.GetTime()), node, component, from, to,
			CauseName(e.GetCause()), PathName(e.GetPath()), ProtoDuration(e.GetAwarenessLatency()),
			Dash(strings.Join(EventNotes(a, e), ", ")),
		}
		if wide {
			r = append(r, Dash(e.GetCoord()), Dash(Printable(e.GetObserver())),
				Dash(Printable(e.GetReason())))
		}
		rows = append(rows, r)
	}
	return a.Words().Columns(rows)
}

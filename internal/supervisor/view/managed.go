package view

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of the findings in an event: characters, and names.
const (
	maxConcerned = 64
	maxNamed     = 4
)

// Wrong reports whether a diagnosis found any problem.
func Wrong(r *lofamov1.DiagnosisReport) bool {
	return len(r.GetFaults())+len(r.GetOpen())+len(r.GetSilent()) > 0 ||
		slices.ContainsFunc(r.GetLinks(), func(l *lofamov1.DiagnosedLink) bool { return l.GetVerdict() != lofamov1.LinkVerdict_LINK_GOOD })
}

// FaultPart describes the faulty part that a diagnosis found.
func FaultPart(x *lofamov1.DiagnosisFault) string {
	switch x.GetPart() {
	case lofamov1.DiagnosisPart_PART_HOST_HALF:
		return "host half of " + x.GetNode()
	case lofamov1.DiagnosisPart_PART_DNP_HALF:
		return "DNP half of " + x.GetNode()
	case lofamov1.DiagnosisPart_PART_NODE:
		return "node " + x.GetNode()
	case lofamov1.DiagnosisPart_PART_LINK:
		return fmt.Sprintf("link %s %s to %s", x.GetNode(), x.GetDirection(), x.GetPeer())
	default:
		return "something of " + x.GetNode() // of a later version
	}
}

// DiagnosisEvent reports a diagnosis: its requester and its findings. node is the diagnosed node; empty: all.
func DiagnosisEvent(r *lofamov1.DiagnosisReport, node fault.NodeID, at time.Time) *lofamov1.Event {
	var found, concerned []string
	for _, x := range r.GetFaults() {
		found, concerned = append(found, FaultPart(x)), append(concerned, x.GetNode())
		if x.GetPeer() != "" {
			concerned = append(concerned, x.GetPeer())
		}
	}
	text := "nothing is wrong"
	if len(found) > 0 {
		text = "at fault: " + some(found)
	} else if Wrong(r) {
		text = "nothing is proven"
	}
	bad := 0
	for _, l := range r.GetLinks() {
		if l.GetVerdict() != lofamov1.LinkVerdict_LINK_GOOD {
			bad++
			concerned = append(concerned, l.GetNode(), l.GetPeer())
		}
	}
	if bad > 0 {
		text += fmt.Sprintf("; links that are not good: %d", bad)
	}
	var open []string
	for _, q := range r.GetOpen() {
		open = append(open, q.GetNode())
	}
	if len(open) > 0 {
		text += "; open: " + some(open)
	}
	if len(r.GetSilent()) > 0 {
		text += "; silent: " + some(r.GetSilent())
	}
	return &lofamov1.Event{
		Kind: lofamov1.EventKind_DIAGNOSIS_ENDED, Node: string(node), Time: timestamppb.New(at), Observer: r.GetSubject(),
		Reason: "diagnosis of " + r.GetScope() + ": " + text, Concerned: concernedOf(concerned, open, r.GetSilent()),
	}
}

// ProcedureEvent reports the end of a fault management procedure: its requester, and whether the torus was empty.
func ProcedureEvent(r *lofamov1.ProcedureReport, at time.Time) *lofamov1.Event {
	text := "clear"
	if !r.GetClear() {
		text = "not clear"
	}
	if len(r.GetHolding()) > 0 {
		text += "; messages held: " + some(r.GetHolding())
	}
	if len(r.GetSilent()) > 0 {
		text += "; silent: " + some(r.GetSilent())
	}
	text += fmt.Sprintf("; rounds: %d, in %d ms", r.GetRounds(), r.GetTookMs())
	if r.GetReason() != "" {
		text += "; " + r.GetReason()
	}
	return &lofamov1.Event{
		Kind: lofamov1.EventKind_PROCEDURE_ENDED, Time: timestamppb.New(at), Observer: r.GetSubject(),
		Reason: "procedure begun by " + r.GetStarter() + ": " + text,
		Clear:  r.GetClear(), Concerned: concernedOf(r.GetHolding(), r.GetSilent(), nil),
	}
}

// StarterEvent reports a node that begins too many procedures by itself.
func StarterEvent(node fault.NodeID, text, supervisor string, at time.Time) *lofamov1.Event {
	return &lofamov1.Event{
		Kind: lofamov1.EventKind_PROCEDURE_ENDED, Node: string(node), Time: timestamppb.New(at), Observer: "supervisor/" + supervisor,
		Reason: text, Concerned: []string{string(node)},
	}
}

// DiagnosedAs describes a diagnosis' findings on a component of a node, or returns none. A finding on the node
// applies to all its components, and one on a half to the node as well.
func DiagnosedAs(r *lofamov1.DiagnosisReport, id fault.NodeID, c fault.Component) (out []string) {
	for _, x := range r.GetFaults() {
		if concernsComponent(x, string(id), c) {
			out = append(out, fmt.Sprintf("diagnosis of %s by %s at %s: %s is at fault: %s", r.GetScope(), r.GetSubject(),
				r.GetStarted().AsTime().Format(time.RFC3339), FaultPart(x), x.GetExplanation()))
		}
	}
	return out
}

func concernsComponent(x *lofamov1.DiagnosisFault, id string, c fault.Component) bool {
	if x.GetPart() == lofamov1.DiagnosisPart_PART_LINK {
		d, ok := c.LinkDirection()
		if !ok {
			return false
		}
		return x.GetNode() == id && x.GetDirection() == d.String() || x.GetPeer() == id && x.GetDirection() == d.Opposite().String()
	}
	if x.GetNode() != id {
		return false
	}
	switch x.GetPart() {
	case lofamov1.DiagnosisPart_PART_HOST_HALF:
		return c == fault.ComponentHost || c == fault.ComponentNode
	case lofamov1.DiagnosisPart_PART_DNP_HALF:
		return c == fault.ComponentDNP || c == fault.ComponentNode
	default:
		return true
	}
}

// concernedOf are the nodes of these lists, each once, in order, and no more than an event has room for.
func concernedOf(lists ...[]string) []string {
	out := slices.Concat(lists...)
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), maxConcerned)]
}

// some names the first of a list.
func some(list []string) string {
	if n := len(list) - maxNamed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), n)
	}
	return strings.Join(list, ", ")
}

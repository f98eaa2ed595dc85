package get

import (
	"fmt"
	"slices"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Bounds of the status, so that it fits a screen.
const (
	statusFull      = 3 // incidents in full
	statusRows      = 5 // further incidents, one line each
	statusResponses = 3 // responses of one incident
	statusSingle    = 3 // nodes with a single witness
)

// text prints the status for people.
func (st *clusterStatus) text(a *command.App) error {
	a.Printf("%s\n", st.headline())
	full := min(len(st.incidents), statusFull)
	for _, in := range st.incidents[:full] {
		a.Printf("\n")
		st.printFull(a, in)
	}
	if rest := st.incidents[full:]; len(rest) > 0 {
		a.Printf("\n")
		if err := a.Table(incidentRows(a, rest[:min(len(rest), statusRows)], false)); err != nil {
			return err
		}
		if more := len(rest) - statusRows; more > 0 {
			a.Printf("%s more: lofamoctl get incidents\n", fault.Plural(more, "incident"))
		}
	}
	a.Printf("\n")
	st.printCluster(a)
	return nil
}

// headline says in one sentence whether anything is broken.
func (st *clusterStatus) headline() string {
	parts := st.broken()
	if len(parts) == 0 {
		all := "nothing is broken"
		if len(st.missing) > 0 {
			all += " in the parts below"
		}
		parts = append(parts, all)
	}
	if stopped := int(st.summary.GetStopped()); stopped > 0 {
		parts = append(parts, fault.Plural(stopped, "node")+" stopped as announced")
	}
	return strings.Join(parts, "; ")
}

// broken names everything that is broken or unknown. Nodes that were stopped as announced are neither.
func (st *clusterStatus) broken() []string {
	var parts []string
	var open, critical int
	for _, in := range st.incidents {
		if in.GetState() != lofamov1.IncidentState_OPEN {
			continue
		}
		open++
		if in.GetSeverity() == lofamov1.IncidentSeverity_CRITICAL {
			critical++
		}
	}
	if open > 0 {
		parts = append(parts, fmt.Sprintf("%s open, %d CRITICAL", fault.Plural(open, "incident"), critical))
	}
	if n := len(st.incidents) - open; n > 0 {
		parts = append(parts, fault.Plural(n, "incident")+" recovering")
	}
	add := func(is bool, text string) {
		if is {
			parts = append(parts, text)
		}
	}
	c := st.summary.GetCluster()
	add(st.breaker.GetOpen(), "circuit breaker OPEN")
	bad := 0
	for _, s := range st.supervisors {
		if command.Unhealthy(s) {
			bad++
		}
	}
	add(bad > 0, fault.Plural(bad, "supervisor")+" unhealthy")
	add(c.GetLeader() == "", "no leader")
	add(c.GetStale(), "this answer is STALE")
	add(slices.ContainsFunc(c.GetRegions(), func(r *lofamov1.Region) bool { return r.GetState() != lofamov1.State_NORMAL }),
		"regions cut off")
	add(c.GetVerdictsHeld() != "", "verdicts are held back")
	silent := int(st.summary.GetNodes().GetUnknown()) - int(st.summary.GetStopped())
	add(silent > 0, fault.Plural(silent, "node")+" UNKNOWN")
	add(len(st.summary.GetLostPaths()) > 0, fault.Plural(len(st.summary.GetLostPaths()), "node")+" with a lost service path")
	return parts
}

// printFull prints one incident: the questions of an operator, each with its answer.
func (st *clusterStatus) printFull(a *command.App, in *lofamov1.Incident) {
	line := func(name, format string, args ...any) { a.Printf("  %-13s %s\n", name, fmt.Sprintf(format, args...)) }
	a.Printf("%s %s %s: %s\n", in.GetState(), in.GetSeverity(), in.GetId(), Summary(in, a.Words()))
	line("since", "%s, %s ago%s", a.Clock(in.GetSince()), a.Since(in.GetSince()), returned(in))
	line("cause", "%s", causeInWords(in, a.Words()))
	if in.GetVerdict().GetSingleWitness() {
		line("", "single witness: no destructive response rests on this verdict")
	}
	for i, text := range servicenet.DeathNotes(in) {
		line([]string{"machine", ""}[min(i, 1)], "%s", command.Printable(text))
	}
	line("consequences", "%s", consequencesInWords(in))
	for i, text := range st.doing(a, in) {
		line([]string{"being done", ""}[min(i, 1)], "%s", text)
	}
	for i, text := range st.toDo(a, in) {
		line([]string{"what to do", ""}[min(i, 1)], "%s", text)
	}
	if r := in.GetRunbook(); r != "" {
		line("runbook", "docs/runbooks/%s.md, on the web page /runbooks/%s", r, r)
	}
}

// returned says how often the fault of an incident has returned; empty: never.
func returned(in *lofamov1.Incident) string {
	if in.GetReopened() == 0 {
		return ""
	}
	return fmt.Sprintf("; the fault has returned: %d", in.GetReopened()) + map[bool]string{true: " time",
		false: " times"}[in.GetReopened() == 1]
}

// causeInWords says which kind of fault an incident is, for people who do not know the terms.
func causeInWords(in *lofamov1.Incident, words command.Words) string {
	failed := in.GetFault() == lofamov1.State_FAILED
	kind, name, _ := strings.Cut(strings.TrimPrefix(in.GetGroup(), in.GetRegion()+"/"), "/")
	switch kind {
	case "":
	case "label":
		label, _, _ := strings.Cut(name, "/") // a cause may follow
		return "nodes with " + label + " have the same fault: look for a shared cause, such as power or a switch"
	case "partition":
		return words.Partition
	case "plane":
		if strings.HasSuffix(name, "/LINK") { // a bundle of cables
			return words.Plane
		}
		fallthrough
	default:
		return "neighbouring nodes have the same fault: look for a shared cause, such as power or a switch"
	}
	switch part, _, _ := strings.Cut(in.GetComponent(), "/"); part {
	case "node":
		if failed && in.GetKernel().GetDead() == lofamov1.KernelDead_KERNEL_DEAD_NO {
			return "both halves of the node are dead, and its kernel lives"
		}
		if failed {
			return words.NodeFailed
		}
		return words.NodeSick
	case "host":
		if failed {
			return words.HostFailed
		}
	case "dnp", "dnp-core":
		if failed {
			return words.DNPFailed
		}
		return words.DNPSick
	case "link":
		if failed {
			return words.LinkFailed
		}
		return words.LinkSick
	case "service-network":
		return words.ServiceNetwork
	case "bus":
		return "the path between the two halves of the node is cut; both halves are alive"
	case "memory":
		return "the memory of the host has too many errors"
	case "peripheral":
		return "a peripheral of the host does not work"
	case "temperature", "power", "voltage":
		return "the " + part + " is beyond its threshold"
	}
	return command.CauseName(in.GetCause())
}

// consequencesInWords counts the consequences of an incident by kind and state.
func consequencesInWords(in *lofamov1.Incident) string {
	if in.GetConsequenceCount() == 0 {
		return "none"
	}
	type kind struct {
		one, many string
		state     lofamov1.State
	}
	var kinds []kind
	count := map[kind]int{}
	for _, c := range in.GetConsequences() {
		k := kind{"part", "parts", c.GetState()}
		switch name, _, _ := strings.Cut(c.GetComponent(), "/"); name {
		case "node":
			k.one, k.many = "node", "nodes"
		case "host", "dnp":
			k.one, k.many = "half", "halves"
		case "link":
			k.one, k.many = "link end", "link ends"
		}
		if count[k]++; count[k] == 1 {
			kinds = append(kinds, k)
		}
	}
	var words []string
	for _, k := range kinds {
		name := k.many
		if count[k] == 1 {
			name = k.one
		}
		words = append(words, fmt.Sprintf("%d %s %s", count[k], name, command.StateName(k.state)))
	}
	if more := int(in.GetConsequenceCount()) - len(in.GetConsequences()); more > 0 {
		words = append(words, fmt.Sprintf("%d not listed", more))
	}
	return fmt.Sprintf("%d: %s", in.GetConsequenceCount(), strings.Join(words, ", "))
}

// underWay returns the open responses to the faults of an incident. Earlier supervisors do not list the responses of an
// incident, so it adds those to its root cause and listed consequences.
func (st *clusterStatus) underWay(in *lofamov1.Incident) []*lofamov1.Response {
	listed := map[string]bool{}
	for _, r := range in.GetResponses() {
		listed[r.GetId()] = true
	}
	of := map[[2]string]bool{{in.GetNode(), in.GetComponent()}: in.GetNode() != ""}
	for _, c := range in.GetConsequences() {
		of[[2]string{c.GetNode(), c.GetComponent()}] = true
	}
	var out []*lofamov1.Response
	for _, r := range st.responses {
		group := r.GetGroup() != "" && r.GetGroup() == in.GetGroup()
		if r.GetClosed() == nil && (group || listed[r.GetId()] || of[[2]string{r.GetNode(), r.GetComponent()}]) {
			out = append(out, r)
		}
	}
	return out
}

// responseInWords returns what an open response does: its state, its step and the reason why it waits.
func responseInWords(a *command.App, r *lofamov1.Response) string {
	text := command.ResponseState(r)
	if r.GetMode() == lofamov1.PolicyMode_OBSERVE_ONLY {
		return text + ", nothing is done"
	}
	if int(r.GetStep()) < len(r.GetSteps()) {
		text += ", step " + command.ResponseStep(r)
	}
	if why := command.ResponseWhy(a, r); why != "-" {
		text += ", " + why
	}
	return text
}

// doing returns the actions of programs and people about an incident, one line each.
func (st *clusterStatus) doing(a *command.App, in *lofamov1.Incident) []string {
	ids, alike := map[string][]string{}, []string(nil) // IDs of the responses that have the same text, and these texts in order
	for _, r := range st.underWay(in) {
		text := fmt.Sprintf("policy %s: %s", r.GetPolicy(), responseInWords(a, r))
		if len(ids[text]) == 0 {
			alike = append(alike, text)
		}
		ids[text] = append(ids[text], r.GetId())
	}
	var out []string
	for _, text := range alike[:min(len(alike), statusResponses)] {
		out = append(out, fmt.Sprintf("%s (%s)", text, command.Some(ids[text], 1)))
	}
	if more := len(alike) - statusResponses; more > 0 {
		out = append(out, fmt.Sprintf("%d other kinds of response: lofamoctl get responses", more))
	}
	switch ack := in.GetAcknowledgement(); {
	case ack.GetOutdated():
		out = append(out, fmt.Sprintf("%s acknowledged it before it escalated at %s", command.Printable(ack.GetBy()), a.Clock(in.GetEscalated())))
	case ack != nil:
		out = append(out, fmt.Sprintf("%s has been dealing with it since %s", command.Printable(ack.GetBy()), a.Clock(ack.GetTime())))
	}
	if notes := in.GetNotes(); len(notes) > 0 {
		n := notes[len(notes)-1]
		out = append(out, fmt.Sprintf("newest note, by %s at %s: %s", command.Printable(n.GetBy()), a.Clock(n.GetTime()),
			command.Printable(n.GetText())))
	}
	if len(out) == 0 {
		return []string{"nothing: no response is open, and no person has acknowledged the incident"}
	}
	return out
}

// recovery describes the wait of a RECOVERING incident.
func recovery(a *command.App, in *lofamov1.Incident) string {
	const closes = "the incident closes after incidentQuiet of the supervisors without a fault (1m by default)"
	switch {
	case in.GetUntil() != nil:
		return "wait: all faults ended " + a.Since(in.GetUntil()) + " ago; " + closes
	case in.GetConsequenceCount() > 0:
		return "wait: the root cause has ended, but its consequences have not: " + closes
	}
	return "wait: the root cause has ended; " + closes
}

// toDo returns the next commands for a person.
func (st *clusterStatus) toDo(a *command.App, in *lofamov1.Incident) []string {
	if in.GetState() == lofamov1.IncidentState_RECOVERING {
		return []string{recovery(a, in)}
	}
	var out []string
	id, keeper := in.GetId(), "lofamoctl " // of the supervisors that keep the incident and its responses
	region := in.GetRegion()
	if region != "" {
		id, keeper = strings.TrimPrefix(id, region+"/"), "lofamoctl --server SUPERVISORS-OF-"+region+" "
		if st.local {
			keeper = "lofamoctl --region " + region + " "
		}
	}
	for _, r := range st.underWay(in) {
		switch {
		case r.GetState() == lofamov1.ResponseState_RESPONSE_WAITING && r.GetReason() == "approval":
			out = append(out, keeper+"response approve "+r.GetId())
		case r.GetState() == lofamov1.ResponseState_RESPONSE_FAILED:
			out = append(out, keeper+"get response "+r.GetId())
		}
	}
	out = out[:min(len(out), statusResponses)]
	subject := in.GetGroup()
	if subject != "" && region != "" && !strings.HasPrefix(subject, region+"/") { // a parent of an earlier version
		subject = region + "/" + subject
	}
	if subject == "" {
		subject = in.GetNode()
		if in.GetComponent() != "node" {
			subject += " " + in.GetComponent()
		}
	}
	if words := command.WordsOf(st.summary.GetCluster()); words.Group(subject) != subject {
		out = append(out, keeper+"get incidents "+id) // the id of the group says nothing to the readers
	} else {
		out = append(out, "lofamoctl explain "+subject)
	}
	if in.GetComponent() == "node" && in.GetFault() == lofamov1.State_FAILED && in.GetGroup() == "" && region == "" {
		out = append(out, "if the machine does not come back: lofamoctl node leave "+subject+" --forget")
	}
	if ack := in.GetAcknowledgement(); ack == nil || ack.GetOutdated() {
		out = append(out, keeper+"acknowledge "+id+" --note NOTE")
	}
	return out
}

// observeOnly counts the open responses of observe-only policies.
func (st *clusterStatus) observeOnly() (n int) {
	for _, r := range st.responses {
		if r.GetMode() == lofamov1.PolicyMode_OBSERVE_ONLY {
			n++
		}
	}
	return n
}

// printCluster prints the circuit breaker, the supervisors and the counts.
func (st *clusterStatus) printCluster(a *command.App) {
	line := func(name, format string, args ...any) { a.Printf("%-15s %s\n", name, fmt.Sprintf(format, args...)) }
	if b := st.breaker; b.GetOpen() {
		line("circuit breaker", "OPEN since %s: %s", a.Clock(b.GetAt()), command.Printable(b.GetDetail()))
		line("", "only notifications begin until a person closes it: %s", command.BreakerHint)
	} else if b != nil {
		line("circuit breaker", "closed")
	}
	if n := len(st.responses); n > 0 {
		waiting, observing := 0, ""
		for _, r := range st.responses {
			if r.GetState() == lofamov1.ResponseState_RESPONSE_WAITING && r.GetMode() != lofamov1.PolicyMode_OBSERVE_ONLY {
				waiting++
			}
		}
		if k := st.observeOnly(); k > 0 {
			observing = fmt.Sprintf(", %d observe-only", k)
		}
		line("responses", "%d open, %d of them waiting%s: lofamoctl get responses", n, waiting, observing)
	}
	line("supervisors", "%s", st.supervisorsInWords())
	for _, s := range st.supervisors {
		for _, alarm := range s.GetAlarms() {
			line("", "%s: %s", s.GetId(), command.Printable(alarm))
		}
	}
	c := st.summary.GetCluster()
	name := "-"
	if c.GetCluster() != "" {
		name = command.Printable(c.GetCluster())
	}
	line("cluster", "%s, %s", name, command.Size(c, countOf(st.summary.GetNodes())))
	line("nodes", "%s", countInWords(st.summary.GetNodes()))
	line("link ends", "%s", countInWords(st.summary.GetLinks()))
	if n := st.summary.GetMaintenance(); n > 0 {
		line("maintenance", "%s: lofamoctl maintenance list", fault.Plural(n, "node"))
	}
	if n := st.summary.GetStopped(); n > 0 {
		line("stopped", "%d of the UNKNOWN nodes: lofamoctl get nodes --state unknown", n)
	}
	if n := st.summary.GetWarnings(); n > 0 {
		line("warnings", "%d: lofamoctl get nodes --not-normal --with-parts", n)
	}
	single := st.summary.GetSingleWitness()
	for i, text := range command.SingleWitnessLines(single[:min(len(single), statusSingle)]) {
		line([]string{"single witness", ""}[min(i, 1)], "%s", text)
	}
	if more := len(single) - statusSingle; more > 0 {
		line("", "%s more: lofamoctl get topology", fault.Plural(more, "node"))
	}
	lost := st.summary.GetLostPaths()
	for i, l := range lost[:min(len(lost), statusRows)] {
		line([]string{"service paths", ""}[min(i, 1)], "%s has %s", l.GetNode(),
			command.Printable(servicenet.LostPathsWords(l.GetInterfaces(), int(l.GetOf()))))
	}
	if more := len(lost) - statusRows; more > 0 {
		line("", "%d more: lofamoctl get nodes", more)
	}
	for _, m := range st.missing {
		line("not here", "%s", command.Printable(m))
	}
}

// supervisorsInWords counts the unhealthy supervisors, and names them and the leader.
func (st *clusterStatus) supervisorsInWords() string {
	normal, bad := 0, []string{}
	for _, s := range st.supervisors {
		if s.GetState() == lofamov1.State_NORMAL {
			normal++
		} else {
			bad = append(bad, s.GetId()+" "+command.StateName(s.GetState()))
		}
	}
	out := fmt.Sprintf("%d of %d NORMAL", normal, len(st.supervisors))
	if len(bad) > 0 {
		out += ", " + strings.Join(bad, ", ")
	}
	c := st.summary.GetCluster()
	if out += "; " + command.Leader(c); c.GetLeader() == "" || c.GetStale() {
		out += ": docs/runbooks/LofamoNoLeader.md"
	}
	return out
}

// countOf returns the number of nodes or link ends in all states.
func countOf(c *lofamov1.Count) int {
	return int(c.GetFailed() + c.GetSick() + c.GetUnknown() + c.GetNormal())
}

// countInWords counts nodes or link ends by state, the worst first, without states that nothing has.
func countInWords(c *lofamov1.Count) string {
	var parts []string
	for _, n := range []struct {
		n     uint32
		state lofamov1.State
	}{
		{c.GetFailed(), lofamov1.State_FAILED}, {c.GetSick(), lofamov1.State_SICK}, {c.GetUnknown(), lofamov1.State_UNKNOWN},
		{c.GetNormal(), lofamov1.State_NORMAL},
	} {
		if n.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n.n, n.state))
		}
	}
	return command.Dash(strings.Join(parts, ", "))
}

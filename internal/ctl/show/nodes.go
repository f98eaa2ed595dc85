// Package show prints the messages of the API as text for people: tables of nodes, links, events, group faults and
// responses, one node with its evidence, and warnings about stale answers. It makes no calls and has no commands.
package show

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// NodeRows returns the table of nodes.
func NodeRows(a *command.App, nodes []*lofamov1.Node, wide bool) [][]string {
	head := []string{"NODE", "COORD", "STATE", "CAUSE", "SINCE", "HEARD", "NOTES", "NOT NORMAL"}
	if wide {
		head = append(head[:6:6], "HOST EPOCH", "DNP EPOCH", "REVISION", "WITNESSES", "DELIVERY", "RESTARTS", "SELF-TESTS", "RULE", "LABELS", "NOTES", "NOT NORMAL")
	}
	regions := wide && slices.ContainsFunc(nodes, func(n *lofamov1.Node) bool { return n.GetRegion() != "" })
	if regions {
		head = slices.Insert(head, 6, "REGION")
	}
	rows := [][]string{head}
	for _, n := range nodes {
		r := []string{n.GetId(), command.Dash(n.GetCoord()), command.StateName(n.GetState()), command.CauseName(n.GetCause()), a.Since(n.GetSince()), command.ProtoDuration(n.GetAge())}
		if regions {
			r = append(r, command.Dash(n.GetRegion()))
		}
		if wide {
			r = append(r, strconv.FormatUint(n.GetHostEpoch(), 10), strconv.FormatUint(n.GetDnpEpoch(), 10), strconv.FormatUint(n.GetRevision(), 10),
				witnesses(n), delivery(n), restarts(n), tested(n), command.Dash(command.Printable(n.GetReason())), command.Dash(labels(n.GetLabels())))
		}
		rows = append(rows, append(r, command.Dash(strings.Join(notes(n), ", ")), command.Dash(notNormal(n))))
	}
	return rows
}

// notes returns remarks that complete the state of a node.
func notes(n *lofamov1.Node) []string {
	var out []string
	add := func(is bool, text string) {
		if is {
			out = append(out, text)
		}
	}
	add(n.GetSpare(), "spare")
	add(n.GetMaintenance() != nil, "maintenance")
	add(n.GetRestarting() != nil, "restarting "+n.GetRestarting().GetHalf())
	add(n.GetInferred(), "inferred dead")
	add(n.GetUnreachable(), "unreachable")
	add(n.GetSingleWitness(), "single witness")
	for _, c := range n.GetComponents() {
		add(c.GetFlapping(), c.GetName()+" flapping")
	}
	for _, w := range n.GetWarnings() {
		add(true, "warning: "+w.GetComponent())
	}
	for _, g := range n.GetGroups() {
		add(true, "in "+g)
	}
	return out
}

func witnesses(n *lofamov1.Node) string {
	if n.GetSingleWitness() {
		return "single"
	}
	return "-"
}

// notNormal lists the components of a node that are not NORMAL.
func notNormal(n *lofamov1.Node) string {
	var parts []string
	for _, c := range n.GetComponents() {
		if c.GetState() != lofamov1.State_NORMAL {
			parts = append(parts, c.GetName()+" "+command.StateName(c.GetState()))
		}
	}
	const most = 6
	if len(parts) > most {
		parts = append(parts[:most], fmt.Sprintf("and %d more", len(parts)-most))
	}
	return strings.Join(parts, ", ")
}

// LinkRows returns the table of link ends.
func LinkRows(a *command.App, links []*lofamov1.Link, wide bool) [][]string {
	head := []string{"NODE", "COORD", "LINK", "PEER", "STATE", "CAUSE", "SINCE", "NOTES"}
	if wide {
		head = append(head, "PEER COORD", "RULE", "EVIDENCE")
	}
	rows := [][]string{head}
	for _, l := range links {
		r := []string{l.GetNode(), l.GetCoord(), l.GetDirection(), l.GetPeer(), command.StateName(l.GetState()), command.CauseName(l.GetCause()), a.Since(l.GetSince()), "-"}
		var notes []string
		if l.GetReason() == awareness.RulePeerRestarting {
			notes = append(notes, "peer restarting")
		}
		if l.GetFlapping() {
			notes = append(notes, "flapping")
		}
		if m := l.GetMask(); m != nil {
			notes = append(notes, masked(a, m))
		}
		r[7] = command.Dash(strings.Join(notes, ", "))
		if wide {
			why := "-"
			if e := Deciding(l.GetEvidence(), l.GetState()); e != nil {
				why = evidence(e)
			}
			r = append(r, l.GetPeerCoord(), command.Dash(command.Printable(l.GetReason())), why)
		}
		rows = append(rows, r)
	}
	return rows
}

// Deciding returns the newest evidence for the state, else the newest evidence, else nil.
func Deciding(all []*lofamov1.Evidence, s lofamov1.State) *lofamov1.Evidence {
	for _, e := range all {
		if e.GetState() == s {
			return e
		}
	}
	if len(all) > 0 {
		return all[0]
	}
	return nil
}

// evidence prints one piece of evidence in one line.
func evidence(e *lofamov1.Evidence) string {
	s := fmt.Sprintf("%s %s by %s", e.GetKind(), command.StateName(e.GetState()), command.Dash(e.GetObserver()))
	if e.GetPath() != lofamov1.Path_PATH_UNSPECIFIED {
		s += " via " + e.GetPath().String()
	}
	if e.GetAge() != nil {
		s += ", " + command.ProtoDuration(e.GetAge()) + " ago"
	}
	if e.GetDetail() != "" {
		s += ": " + command.Printable(e.GetDetail())
	}
	return s
}

// SupervisorRows returns the table of supervisors.
func SupervisorRows(sups []*lofamov1.Supervisor, wide bool) [][]string {
	head := []string{"ID", "ADDRESS", "LEADER", "STATE", "PID", "ALARMS"}
	if wide {
		head = append(head, "REPORTS (UDP)", "HTTP", "ETCD MEMBER", "QUORUM")
	}
	rows := [][]string{head}
	for _, s := range sups {
		leader, pid := "-", "-"
		if s.GetLeader() {
			leader = "yes"
		}
		if s.GetPid() != 0 {
			pid = strconv.Itoa(int(s.GetPid()))
		}
		r := []string{s.GetId(), command.Dash(s.GetAddress()), leader, command.StateName(s.GetState()), pid, command.Dash(command.Printable(strings.Join(s.GetAlarms(), ", ")))}
		if wide {
			r = append(r, command.Dash(s.GetReportAddress()), command.Dash(s.GetHttpAddress()), etcdMember(s), quorum(s))
		}
		rows = append(rows, r)
	}
	return rows
}

func etcdMember(s *lofamov1.Supervisor) string {
	if s.GetEtcdLearner() {
		return s.GetEtcdMember() + " (learner)"
	}
	return command.Dash(s.GetEtcdMember())
}

func quorum(s *lofamov1.Supervisor) string {
	if s.GetQuorumAge() == nil {
		return "-"
	}
	return "lost " + command.ProtoDuration(s.GetQuorumAge()) + " ago"
}

// PrintNode prints everything known of a node. wide prints all evidence, not just the newest.
func PrintNode(a *command.App, n *lofamov1.Node, wide bool) error {
	where := " at " + n.GetCoord()
	if n.GetSpare() {
		where = ", a spare"
	}
	head := [][]string{
		{"Node", n.GetId() + where},
		{"State", nodeVerdict(n) + ", since " + a.Since(n.GetSince()) + " ago (" + a.Clock(n.GetSince()) + "), revision " + strconv.FormatUint(n.GetRevision(), 10)},
	}
	head = append(head, nodeNotes(a, n)...)
	heard := "nothing since this leader took over"
	if n.GetAge() != nil {
		heard = "last sign of life " + command.ProtoDuration(n.GetAge()) + " ago"
	}
	head = append(head, []string{"Heard", heard},
		[]string{"Boot epochs", epochs(n)})
	if err := command.Table(a.Env.Stdout, head); err != nil {
		return err
	}
	a.Printf("\n")
	rows := [][]string{{"COMPONENT", "STATE", "SINCE", "EVIDENCE"}}
	for _, c := range n.GetComponents() {
		state := command.StateName(c.GetState())
		if c.GetFlapping() {
			state += " (flapping)"
		}
		r := []string{c.GetName(), state, a.Since(c.GetSince())}
		ev := c.GetEvidence()
		if len(ev) == 0 {
			rows = append(rows, append(r, "-"))
		}
		for i, e := range ev {
			if i > 0 && !wide && c.GetState() == lofamov1.State_NORMAL {
				break
			}
			rows = append(rows, append(r, evidence(e)))
			r = []string{"", "", ""}
		}
	}
	if err := command.Table(a.Env.Stdout, rows); err != nil {
		return err
	}
	if err := printDelivery(a, n); err != nil {
		return err
	}
	if err := printHealth(a, n); err != nil {
		return err
	}
	printRegisters(a, n)
	return nil
}

// nodeNotes returns the lines of properties that few nodes have.
func nodeNotes(a *command.App, n *lofamov1.Node) [][]string {
	var out [][]string
	add := func(is bool, name, text string) {
		if is {
			out = append(out, []string{name, text})
		}
	}
	add(n.GetReason() != "", "Rule", command.Printable(n.GetReason()))
	add(n.GetPlatform() != 0, "Platform", platform(n.GetPlatform()))
	add(n.GetSingleWitness(), "Witnesses", "fewer than the quorum: no destructive response may rest on this verdict")
	add(n.GetInferred(), "Inferred", "taken for dead: no living node could see it")
	add(n.GetUnreachable(), "Unreachable", "no living path from the supervisors leads to it")
	add(len(n.GetGroups()) > 0, "Member of", strings.Join(n.GetGroups(), ", "))
	if m := n.GetMaintenance(); m != nil {
		add(true, "Maintenance", Maintenance(a, m))
	}
	if r := n.GetRestarting(); r != nil {
		add(true, "Restarting", "its "+command.Printable(r.GetHalf())+" half, as announced; until "+a.Clock(r.GetUntil())+" at most its states stand as they were")
	}
	for _, w := range n.GetWarnings() {
		add(true, "Warning", Warning(w))
	}
	add(len(n.GetLabels()) > 0, "Labels", labels(n.GetLabels()))
	add(n.GetRegion() != "", "Region", n.GetRegion())
	return out
}

// platform describes the platform of a node's halves.
func platform(p lofamov1.Platform) string {
	switch f := fault.Platform(p); f {
	case fault.PlatformSharedKernel:
		return f.String() + ": one kernel under both halves, so a dead half is a dead process"
	case fault.PlatformDPU:
		return f.String() + ": the DNP half outlives the host"
	}
	return p.String()
}

// Maintenance prints a mark in one line.
func Maintenance(a *command.App, m *lofamov1.Maintenance) string {
	s := command.Printable(m.GetReason())
	if m.GetBy() != "" {
		s += ", by " + command.Printable(m.GetBy())
	}
	if m.GetSince() != nil {
		s += ", since " + a.Clock(m.GetSince())
	}
	if m.GetUntil() != nil {
		return s + ", until " + a.Clock(m.GetUntil())
	}
	return s + ", until ended"
}

// Warning prints a warning in one line.
func Warning(w *lofamov1.Warning) string {
	s := command.Printable(w.GetReason()) // the whole, if it begins with the quantity
	if !strings.HasPrefix(s, w.GetQuantity()+" ") {
		unit := ""
		if q, err := fault.ParseQuantity(w.GetQuantity()); err == nil {
			unit = q.Unit()
		}
		more := ""
		if s != "" {
			more = " (" + s + ")"
		}
		s = fmt.Sprintf("%s is %.3g%s and reaches %.4g%s in %s%s", w.GetQuantity(), w.GetValue(), unit, w.GetThreshold(), unit, command.ProtoDuration(w.GetTimeToThreshold()), more)
	}
	if w.GetComponent() == w.GetQuantity() {
		return s
	}
	return w.GetComponent() + ": " + s
}

func nodeVerdict(n *lofamov1.Node) string {
	s := command.StateName(n.GetState())
	if c := command.CauseName(n.GetCause()); c != "-" {
		s += ", cause " + c
	}
	return s
}

// epochs describes the last known boot epochs. A DNP half reports its own only while its host half cannot.
func epochs(n *lofamov1.Node) string {
	s := fmt.Sprintf("host %s, dnp %s", Epoch(n.GetHostEpoch()), Epoch(n.GetDnpEpoch()))
	if n.GetDnpEpoch() == 0 && n.GetHostEpoch() != 0 {
		s += " (its host speaks for it)"
	}
	return s
}

// Epoch prints a boot epoch, or "not heard" for 0.
func Epoch(v uint64) string {
	if v == 0 {
		return "not heard"
	}
	return strconv.FormatUint(v, 10)
}

// NodeRegisters returns the three words of a node.
func NodeRegisters(r *lofamov1.Registers) []watchdog.Word {
	return watchdog.ReadNode(r.GetDnpWatchdog(), r.GetHostWatchdog(), r.GetRemoteFaultDescriptor())
}

func printRegisters(a *command.App, n *lofamov1.Node) {
	if n.GetRegisters() == nil {
		a.Printf("\nRegisters: none received since this leader took over\n")
		return
	}
	a.Printf("\nRegisters, as last sent %s ago; what is set in them:\n", command.ProtoDuration(n.GetRegisters().GetAge()))
	for _, r := range NodeRegisters(n.GetRegisters()) {
		a.Printf("  %s  %s  %s\n", r.Address, r.Value, r.Name)
		for _, f := range r.Fields {
			if f.Value != 0 {
				a.Printf("      %-28s %s\n", f.Name, f.Text)
			}
		}
		if r.Error != "" {
			a.Printf("      invalid: %s\n", r.Error)
		}
	}
}

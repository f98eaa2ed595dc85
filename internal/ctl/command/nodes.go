package command

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// NodeRows returns the table of nodes.
func NodeRows(a *App, nodes []*lofamov1.Node, wide bool) [][]string {
	head := []string{"NODE", "COORD", "STATE", "CAUSE", "SINCE", "HEARD", "NOTES", "NOT NORMAL"}
	if wide {
		head = append(head[:6:6], "HOST EPOCH", "DNP EPOCH", "REVISION", "WITNESSES", "DELIVERY", "RESTARTS", "SELF-TESTS", "PLATFORM",
			"WATCHDOG", "RULE", "LABELS",
			"NOTES", "NOT NORMAL")
	}
	regions := wide && slices.ContainsFunc(nodes, func(n *lofamov1.Node) bool { return n.GetRegion() != "" })
	if regions {
		head = slices.Insert(head, 6, "REGION")
	}
	rows := [][]string{head}
	for _, n := range nodes {
		r := []string{n.GetId(), Dash(n.GetCoord()), StateName(n.GetState()), CauseName(n.GetCause()),
			a.Since(n.GetSince()), ProtoDuration(n.GetAge())}
		if regions {
			r = append(r, Dash(n.GetRegion()))
		}
		if wide {
			r = append(r, strconv.FormatUint(n.GetHostEpoch(), 10), strconv.FormatUint(n.GetDnpEpoch(), 10), strconv.FormatUint(n.GetRevision(), 10),
				witnesses(n), delivery(n), restarts(n), tested(n), Dash(fault.Platform(n.GetPlatform()).String()),
				Dash(servicenet.WatchdogState(n.GetHardwareWatchdog())),
				Dash(Printable(n.GetReason())), Dash(labels(n.GetLabels())))
		}
		rows = append(rows, append(r, Dash(strings.Join(notes(n, a.Words()), ", ")), Dash(notNormal(n))))
	}
	return a.Words().Columns(rows)
}

// starvedFor returns the measure of a starved half.
func starvedFor(s *lofamov1.Starved) string {
	return fmt.Sprintf("%d ms, %d %% of the time", s.GetLongestMs(), s.GetSharePermille()/10)
}

// overBudget reports whether a half gives up work, by a report that is not old.
func overBudget(h halfHealth) bool { return h.GetProcessor().GetBudgetLevel() > 0 && !h.GetOld() }

// notRealtime reports whether a half lacks real-time scheduling, by a report that is not old.
func notRealtime(h halfHealth) bool { return h.GetProcessor().GetNotRealtime() && !h.GetOld() }

// lostPaths names the service interfaces that a node has lost, by a report that is not old; empty: none.
func lostPaths(n *lofamov1.Node) string {
	if n.GetDeliveryOld() {
		return ""
	}
	return Printable(servicenet.LostPathsWords(servicenet.LostPaths(n.GetDelivery())))
}

// stoppedFor returns the remark on an announced stop.
func stoppedFor(s *lofamov1.Stopped) string {
	if s.GetReason() == fault.StopDaemon.String() {
		return "stopped"
	}
	return "stopped: " + Printable(s.GetReason())
}

// Restarting names the halves of an announced restart.
func Restarting(r *lofamov1.Restarting) string {
	if r.GetOtherUntil() != nil {
		return "both halves"
	}
	return Printable(r.GetHalf()) + " half"
}

// notes returns remarks that complete the state of a node.
func notes(n *lofamov1.Node, words Words) []string {
	var out []string
	add := func(is bool, text string) {
		if is {
			out = append(out, text)
		}
	}
	add(n.GetSpare(), words.Spare)
	add(n.GetMaintenance() != nil, "maintenance")
	add(n.GetRestarting() != nil, "restarting "+Restarting(n.GetRestarting()))
	add(n.GetStopped() != nil, stoppedFor(n.GetStopped()))
	add(n.GetStarved() != nil, "starved "+n.GetStarved().GetHalf()+" "+starvedFor(n.GetStarved()))
	for _, h := range halves(n) {
		add(overBudget(h), fmt.Sprintf("%s over budget, level %d", h.name, h.GetProcessor().GetBudgetLevel()))
	}
	if all := slices.DeleteFunc(halves(n), func(h halfHealth) bool { return !notRealtime(h) }); len(all) == 2 {
		add(true, "not real-time")
	} else if len(all) == 1 {
		add(true, all[0].name+" not real-time")
	}
	add(lostPaths(n) != "", lostPaths(n))
	add(n.GetInferred(), "inferred dead")
	add(n.GetUnreachable(), "unreachable")
	add(n.GetSingleWitness(), "single witness")
	for _, c := range n.GetComponents() {
		add(c.GetFlapping(), c.GetName()+" flapping")
	}
	for _, w := range n.GetWarnings() {
		add(true, "warning: "+w.GetComponent())
	}
	for _, g := range words.Groups(n.GetGroups()) {
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

// WorstFirst sorts components by state: FAILED, SICK, UNKNOWN, NORMAL, ABSENT. The sort is stable.
func WorstFirst(all []*lofamov1.Component) []*lofamov1.Component {
	order := []lofamov1.State{lofamov1.State_FAILED, lofamov1.State_SICK, lofamov1.State_UNKNOWN, lofamov1.State_NORMAL}
	weight := func(c *lofamov1.Component) int {
		if i := slices.Index(order, c.GetState()); i >= 0 {
			return i
		}
		return len(order)
	}
	return slices.SortedStableFunc(slices.Values(all), func(a, b *lofamov1.Component) int { return weight(a) - weight(b) })
}

// notNormal lists the components of a node that are not NORMAL.
func notNormal(n *lofamov1.Node) string {
	var parts []string
	for _, c := range WorstFirst(n.GetComponents()) {
		if s := c.GetState(); s != lofamov1.State_NORMAL && s != lofamov1.State_ABSENT {
			parts = append(parts, c.GetName()+" "+StateName(s))
		}
	}
	const most = 6
	if len(parts) > most {
		parts = append(parts[:most], fmt.Sprintf("and %d more", len(parts)-most))
	}
	return strings.Join(parts, ", ")
}

// LinkRows returns the table of link ends.
func LinkRows(a *App, links []*lofamov1.Link, wide bool) [][]string {
	head := []string{"NODE", "COORD", "LINK", "PEER", "STATE", "CAUSE", "SINCE", "NOTES"}
	if wide {
		head = append(head, "PEER COORD", "RULE", "EVIDENCE")
	}
	rows := [][]string{head}
	for _, l := range links {
		r := []string{l.GetNode(), l.GetCoord(), l.GetDirection(), l.GetPeer(), StateName(l.GetState()), CauseName(l.GetCause()),
			a.Since(l.GetSince()), "-"}
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
		r[7] = Dash(strings.Join(notes, ", "))
		if wide {
			why := "-"
			if e := Deciding(l.GetEvidence(), l.GetState()); e != nil {
				why = evidence(e)
			}
			r = append(r, l.GetPeerCoord(), Dash(Printable(l.GetReason())), why)
		}
		rows = append(rows, r)
	}
	return a.Words().Columns(rows)
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
	s := fmt.Sprintf("%s %s by %s", e.GetKind(), StateName(e.GetState()), Dash(e.GetObserver()))
	if e.GetPath() != lofamov1.Path_PATH_UNSPECIFIED {
		s += " via " + e.GetPath().String()
	}
	if e.GetAge() != nil {
		s += ", " + ProtoDuration(e.GetAge()) + " ago"
	}
	if e.GetDetail() != "" {
		s += ": " + Printable(e.GetDetail())
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
		r := []string{s.GetId(), Dash(s.GetAddress()), leader, StateName(s.GetState()), pid,
			Dash(Printable(strings.Join(s.GetAlarms(), ", ")))}
		if wide {
			r = append(r, Dash(s.GetReportAddress()), Dash(s.GetHttpAddress()), etcdMember(s), quorum(s))
		}
		rows = append(rows, r)
	}
	return rows
}

func etcdMember(s *lofamov1.Supervisor) string {
	if s.GetEtcdLearner() {
		return s.GetEtcdMember() + " (learner)"
	}
	return Dash(s.GetEtcdMember())
}

func quorum(s *lofamov1.Supervisor) string {
	if s.GetQuorumAge() == nil {
		return "-"
	}
	return "lost " + ProtoDuration(s.GetQuorumAge()) + " ago"
}

// PrintNode prints everything known of a node. wide prints all evidence, not just the newest.
func PrintNode(a *App, n *lofamov1.Node, wide bool) error {
	where := a.Words().At(n.GetCoord())
	if n.GetSpare() {
		where = ", " + a.Words().Spare
	}
	state := nodeVerdict(n)
	if n.GetSince() != nil { // a spare has no committed state
		state += fmt.Sprintf(", for %s (since %s), revision %d", a.Since(n.GetSince()), a.Clock(n.GetSince()), n.GetRevision())
	}
	head := append([][]string{{"Node", n.GetId() + where}, {"State", state}}, nodeNotes(a, n)...)
	heard := "nothing since this leader took over"
	switch {
	case n.GetStale():
		heard = "unknown: only the leader knows it"
	case n.GetAge() != nil:
		heard = "last sign of life " + ProtoDuration(n.GetAge()) + " ago"
	}
	head = append(head, []string{"Heard", heard},
		[]string{"Boot epochs", epochs(n)})
	if err := a.Table(head); err != nil {
		return err
	}
	rows := [][]string{{"COMPONENT", "STATE", "SINCE", "EVIDENCE"}}
	var absent []string
	for _, c := range WorstFirst(n.GetComponents()) {
		if c.GetState() == lofamov1.State_ABSENT && !wide {
			absent = append(absent, c.GetName())
			continue
		}
		state := StateName(c.GetState())
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
	if len(rows) > 1 {
		a.Printf("\n")
		if err := a.Table(rows); err != nil {
			return err
		}
	}
	if len(absent) > 0 {
		a.Printf("Absent (-o wide lists them): %s\n", strings.Join(absent, ", "))
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
func nodeNotes(a *App, n *lofamov1.Node) [][]string {
	var out [][]string
	add := func(is bool, name, text string) {
		if is {
			out = append(out, []string{name, text})
		}
	}
	add(n.GetReason() != "", "Rule", Printable(n.GetReason()))
	add(n.GetPlatform() != 0, "Platform", platform(n.GetPlatform()))
	add(n.GetHardwareWatchdog() != nil, "Watchdog", servicenet.WatchdogWords(n.GetHardwareWatchdog()))
	for _, k := range []struct {
		name string
		v    *lofamov1.KernelVerdict
	}{{"Host kernel", n.GetHostKernel()}, {"DNP kernel", n.GetDnpKernel()}} {
		add(k.v.GetWhy() != "", k.name, Printable(k.v.GetWhy()))
	}
	add(n.GetSingleWitness(), "Witnesses", "fewer than the quorum: no destructive response may rest on this verdict")
	add(n.GetInferred(), "Inferred", "taken for dead: no living node could see it")
	add(n.GetUnreachable(), "Unreachable", "no living path from the supervisors leads to it")
	add(len(n.GetGroups()) > 0, "Member of", strings.Join(a.Words().Groups(n.GetGroups()), ", "))
	for i, line := range controllerLines(n.GetController()) {
		add(true, map[bool]string{true: "Controller"}[i == 0], line)
	}
	if m := n.GetMaintenance(); m != nil {
		add(true, "Maintenance", Maintenance(a, m))
	}
	if r := n.GetRestarting(); r != nil {
		add(true, "Restarting", Restarting(r)+", as announced; "+a.Until(r.GetUntil())+
			" at most the node's states stay unchanged")
	}
	if s := n.GetStopped(); s != nil {
		add(true, "Stopped", "announced a "+Printable(s.GetReason())+" at "+a.Clock(s.GetSince())+"; its silence is no fault "+
			a.Until(s.GetUntil())+" at the latest")
	}
	if s := n.GetStarved(); s != nil {
		add(true, "Starved", "its "+Printable(s.GetHalf())+" half gets too little processor time: late by up to "+starvedFor(s)+
			"; it gives no verdicts while it is late")
	}
	for _, h := range halves(n) {
		add(overBudget(h), "Processor", "its "+h.name+" half "+servicenet.BudgetWords(h.GetProcessor()))
		add(notRealtime(h), "Scheduling", "its "+h.name+" half "+servicenet.RealtimeWords(h.GetProcessor()))
	}
	add(lostPaths(n) != "", "Service", lostPaths(n))
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

// Maintenance prints a mark in one line, with the time that is left.
func Maintenance(a *App, m *lofamov1.Maintenance) string { return mark(a, m, a.Until) }

// mark prints a mark in one line; until formats its end.
func mark(a *App, m *lofamov1.Maintenance, until func(*timestamppb.Timestamp) string) string {
	s := Printable(m.GetReason())
	if m.GetBy() != "" {
		s += ", by " + Printable(m.GetBy())
	}
	if m.GetSince() != nil {
		s += ", since " + a.Clock(m.GetSince())
	}
	if m.GetUntil() != nil {
		return s + ", " + until(m.GetUntil())
	}
	return s + ", until ended"
}

// Warning prints a warning in one line.
func Warning(w *lofamov1.Warning) string {
	s := Printable(w.GetReason()) // the whole, if it begins with the quantity
	if !strings.HasPrefix(s, w.GetQuantity()+" ") {
		unit := ""
		if q, err := fault.ParseQuantity(w.GetQuantity()); err == nil {
			unit = q.Unit()
		}
		more := ""
		if s != "" {
			more = " (" + s + ")"
		}
		s = fmt.Sprintf("%s is %.3g%s and reaches %.4g%s in %s%s", w.GetQuantity(), w.GetValue(), unit, w.GetThreshold(), unit,
			ProtoDuration(w.GetTimeToThreshold()), more)
	}
	if w.GetComponent() == w.GetQuantity() {
		return s
	}
	return w.GetComponent() + ": " + s
}

func nodeVerdict(n *lofamov1.Node) string {
	s := StateName(n.GetState())
	if c := CauseName(n.GetCause()); c != "-" {
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

func printRegisters(a *App, n *lofamov1.Node) {
	switch {
	case n.GetRegisters() != nil:
	case n.GetStale():
		a.Printf("\nRegisters: unknown: only the leader has them\n")
		return
	default:
		a.Printf("\nRegisters: none received since this leader took over\n")
		return
	}
	a.Printf("\nRegisters, as last sent %s ago; set fields:\n", ProtoDuration(n.GetRegisters().GetAge()))
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

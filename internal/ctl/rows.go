package ctl

import (
	"fmt"
	"strconv"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

func (a *app) nodeRows(nodes []*lofamov1.Node, wide bool) [][]string {
	head := []string{"NODE", "COORD", "STATE", "CAUSE", "SINCE", "HEARD", "NOT NORMAL"}
	if wide {
		head = append(head[:6:6], "HOST EPOCH", "DNP EPOCH", "REVISION", "WITNESSES", "DELIVERY", "NOT NORMAL")
	}
	rows := [][]string{head}
	for _, n := range nodes {
		r := []string{n.GetId(), n.GetCoord(), stateName(n.GetState()), causeName(n.GetCause()), a.since(n.GetSince()), protoDuration(n.GetAge())}
		if wide {
			r = append(r, strconv.FormatUint(n.GetHostEpoch(), 10), strconv.FormatUint(n.GetDnpEpoch(), 10), strconv.FormatUint(n.GetRevision(), 10), witnesses(n), delivery(n))
		}
		rows = append(rows, append(r, dash(notNormal(n))))
	}
	return rows
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
			parts = append(parts, c.GetName()+" "+stateName(c.GetState()))
		}
	}
	const most = 6
	if len(parts) > most {
		parts = append(parts[:most], fmt.Sprintf("and %d more", len(parts)-most))
	}
	return strings.Join(parts, ", ")
}

func (a *app) linkRows(links []*lofamov1.Link, wide bool) [][]string {
	head := []string{"NODE", "COORD", "LINK", "PEER", "STATE", "CAUSE", "SINCE"}
	if wide {
		head = append(head, "PEER COORD", "EVIDENCE")
	}
	rows := [][]string{head}
	for _, l := range links {
		r := []string{l.GetNode(), l.GetCoord(), l.GetDirection(), l.GetPeer(), stateName(l.GetState()), causeName(l.GetCause()), a.since(l.GetSince())}
		if wide {
			why := "-"
			if e := deciding(l.GetEvidence(), l.GetState()); e != nil {
				why = evidence(e)
			}
			r = append(r, l.GetPeerCoord(), why)
		}
		rows = append(rows, r)
	}
	return rows
}

// deciding returns the newest evidence that speaks for the state, else the newest, else nil.
func deciding(all []*lofamov1.Evidence, s lofamov1.State) *lofamov1.Evidence {
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
	s := fmt.Sprintf("%s %s by %s", e.GetKind(), stateName(e.GetState()), dash(e.GetObserver()))
	if e.GetPath() != lofamov1.Path_PATH_UNSPECIFIED {
		s += " via " + e.GetPath().String()
	}
	if e.GetAge() != nil {
		s += ", " + protoDuration(e.GetAge()) + " ago"
	}
	if e.GetDetail() != "" {
		s += ": " + printable(e.GetDetail())
	}
	return s
}

// printable keeps what came over the network from moving the cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
}

func (a *app) eventRows(events []*lofamov1.Event, wide bool) [][]string {
	head := []string{"REVISION", "TIME", "NODE", "COMPONENT", "FROM", "TO", "CAUSE", "PATH", "LATENCY"}
	if wide {
		head = append(head, "COORD", "OBSERVER", "WITNESSES", "REASON")
	}
	rows := [][]string{head}
	for _, e := range events {
		r := []string{
			strconv.FormatUint(e.GetRevision(), 10), a.clock(e.GetTime()), e.GetNode(), e.GetComponent(),
			stateName(e.GetFrom()), stateName(e.GetTo()), causeName(e.GetCause()), pathName(e.GetPath()), protoDuration(e.GetAwarenessLatency()),
		}
		if wide {
			w := "-"
			if e.GetSingleWitness() {
				w = "single"
			}
			r = append(r, e.GetCoord(), dash(e.GetObserver()), w, dash(printable(e.GetReason())))
		}
		rows = append(rows, r)
	}
	return rows
}

func supervisorRows(sups []*lofamov1.Supervisor, wide bool) [][]string {
	head := []string{"ID", "ADDRESS", "LEADER", "STATE", "PID"}
	if wide {
		head = append(head, "REPORTS (UDP)", "HTTP")
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
		r := []string{s.GetId(), dash(s.GetAddress()), leader, stateName(s.GetState()), pid}
		if wide {
			r = append(r, dash(s.GetReportAddress()), dash(s.GetHttpAddress()))
		}
		rows = append(rows, r)
	}
	return rows
}

// printNode prints everything known of a node. wide prints all evidence, not just the newest.
func (a *app) printNode(n *lofamov1.Node, wide bool) error {
	head := [][]string{
		{"Node", n.GetId() + " at " + n.GetCoord()},
		{"State", nodeVerdict(n) + ", since " + a.since(n.GetSince()) + " ago (" + a.clock(n.GetSince()) + "), revision " + strconv.FormatUint(n.GetRevision(), 10)},
	}
	if n.GetSingleWitness() {
		head = append(head, []string{"Witnesses", "fewer than the quorum: no destructive response may rest on this verdict"})
	}
	heard := "nothing since this leader took over"
	if n.GetAge() != nil {
		heard = "last sign of life " + protoDuration(n.GetAge()) + " ago"
	}
	head = append(head, []string{"Heard", heard},
		[]string{"Boot epochs", epochs(n)})
	if err := table(a.env.Stdout, head); err != nil {
		return err
	}
	a.printf("\n")
	rows := [][]string{{"COMPONENT", "STATE", "SINCE", "EVIDENCE"}}
	for _, c := range n.GetComponents() {
		r := []string{c.GetName(), stateName(c.GetState()), a.since(c.GetSince())}
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
	if err := table(a.env.Stdout, rows); err != nil {
		return err
	}
	if err := a.printDelivery(n); err != nil {
		return err
	}
	a.printRegisters(n)
	return nil
}

func nodeVerdict(n *lofamov1.Node) string {
	s := stateName(n.GetState())
	if c := causeName(n.GetCause()); c != "-" {
		s += ", cause " + c
	}
	return s
}

// epochs tells the boot epochs last heard. A DNP half speaks for itself only while its host cannot.
func epochs(n *lofamov1.Node) string {
	s := fmt.Sprintf("host %s, dnp %s", epoch(n.GetHostEpoch()), epoch(n.GetDnpEpoch()))
	if n.GetDnpEpoch() == 0 && n.GetHostEpoch() != 0 {
		s += " (its host speaks for it)"
	}
	return s
}

func epoch(v uint64) string {
	if v == 0 {
		return "not heard"
	}
	return strconv.FormatUint(v, 10)
}

// nodeRegisters pairs the three words of a node with their addresses.
func nodeRegisters(r *lofamov1.Registers) []registerValue {
	return []registerValue{
		{watchdog.AddrDNPWatchdog, r.GetDnpWatchdog()},
		{watchdog.AddrHostWatchdog, r.GetHostWatchdog()},
		{watchdog.AddrRemoteFaultDescriptor, r.GetRemoteFaultDescriptor()},
	}
}

func (a *app) printRegisters(n *lofamov1.Node) {
	if n.GetRegisters() == nil {
		a.printf("\nRegisters: none received since this leader took over\n")
		return
	}
	a.printf("\nRegisters, as last sent %s ago; what is set in them:\n", protoDuration(n.GetRegisters().GetAge()))
	for _, r := range nodeRegisters(n.GetRegisters()) {
		reg, fields, err := watchdog.Describe(r.addr, r.value)
		a.printf("  %s  0x%08x  %s\n", r.addr, r.value, reg.Name)
		for _, f := range fields {
			if f.Value != 0 {
				a.printf("      %-28s %s\n", f.Name, f.Text)
			}
		}
		if err != nil {
			a.printf("      invalid: %v\n", err)
		}
	}
}

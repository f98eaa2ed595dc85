package command

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// PathText prints a file's path, or "-" for none.
func PathText(s string) string { return Dash(Printable(s)) }

// PathState prints the state of a half's rails.
func PathState(d *lofamov1.DeliveryStatus) string {
	if d.GetState() == lofamov1.PathState_PATH_STATE_UNSPECIFIED {
		return "-"
	}
	return d.GetState().String()
}

// LastReported returns the age of a sender's delivery status.
func LastReported(age *durationpb.Duration, old bool) string {
	if old {
		return ProtoDuration(age) + " OLD"
	}
	return ProtoDuration(age)
}

// delivery is the state of a node's paths and the primary, in one cell.
func delivery(n *lofamov1.Node) string {
	d := n.GetDelivery()
	s := PathState(d)
	if d.GetPrimary() != "" {
		s += " " + Printable(d.GetPrimary())
	}
	if n.GetDeliveryOld() {
		s += " OLD"
	}
	return s
}

// logged describes the waiting reports in a sender's log.
func logged(d *lofamov1.DeliveryStatus) string {
	if d.GetLogged() == 0 {
		return "nothing waits"
	}
	return fmt.Sprintf("%d not committed, %d of them not received, the oldest %s old", d.GetLogged(), d.GetUnanswered(), Oldest(d))
}

func nanos(ns uint64) string { return Duration(time.Duration(min(ns, 1<<62))) }

// Oldest prints the age of the oldest report that waits.
func Oldest(d *lofamov1.DeliveryStatus) string {
	if d.GetLogged() == 0 {
		return "-"
	}
	return nanos(d.GetOldestNs())
}

// RailShort prints a rail in few words.
func RailShort(r *lofamov1.RailStatus) string {
	s := Printable(r.GetName())
	switch {
	case r.GetDown():
		s += " down"
	case r.GetRttNs() > 0:
		s += " " + nanos(r.GetRttNs())
	}
	return s
}

// Troubles returns the parts of a sender's state that need attention.
func Troubles(d *lofamov1.DeliveryStatus) []string {
	var out []string
	if d.GetIsolatedNs() > 0 {
		out = append(out, "reaches no supervisor for "+nanos(d.GetIsolatedNs()))
	}
	if d.GetSpool() != "" {
		out = append(out, "not kept on disk: "+Printable(d.GetSpool()))
	}
	if d.GetShortened() > 0 {
		out = append(out, "history shortened by "+fault.Plural(d.GetShortened(), "report"))
	}
	return out
}

// ways describes the state of a node's paths, with their names if the node has reported them.
func ways(d *lofamov1.DeliveryStatus) string {
	s := PathState(d)
	if d.GetPrimary() != "" {
		s += ", by " + Printable(d.GetPrimary())
	}
	if d.GetAlternate() != "" {
		s += ", alternate " + Printable(d.GetAlternate())
	}
	return s
}

// printDelivery prints how a node's reports fare, by its newest digest.
func printDelivery(a *App, n *lofamov1.Node) error {
	d := n.GetDelivery()
	if d == nil && n.GetStale() {
		a.Printf("\nDelivery: unknown: only the leader knows how the node's reports fare\n")
		return nil
	}
	if d == nil {
		a.Printf("\nDelivery: the node has not said how its reports fare since this leader took over\n")
		return nil
	}
	a.Printf("\nDelivery of its reports\n")
	rows := [][]string{{"  Said", ProtoDuration(n.GetDeliveryAge()) + " ago"}}
	if n.GetDeliveryOld() {
		rows[0][1] += ": OLD, it may be otherwise by now"
	}
	rows = append(rows, [][]string{
		{"  Path", ways(d)},
		{"  Log", logged(d)},
		{"  Since its start", fault.Plural(d.GetMigrations(), "migration") + ", " + fault.Plural(d.GetRetries(), "retry")},
	}...)
	for _, t := range Troubles(d) {
		rows = append(rows, []string{"  Trouble", t})
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	if len(d.GetRails()) == 0 {
		a.Printf("  its rails are not known: it says so only by the direct way\n")
		return nil
	}
	rows = [][]string{{"  RAIL", "STATE", "RTT", "IN FLIGHT", "SENT", "ANSWERED"}}
	for _, r := range d.GetRails() {
		state, rtt := "up", "-"
		if r.GetDown() {
			state = "down"
		}
		if r.GetRttNs() > 0 {
			rtt = nanos(r.GetRttNs())
		}
		rows = append(rows, []string{"  " + Printable(r.GetName()), state, rtt, Count(r.GetInFlight()),
			Count(r.GetSent()), Count(r.GetAnswered())})
	}
	return a.Table(rows)
}

package ctl

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// maxReports is the most that one answer of the supervisors holds.
const maxReports = 4096

func (a *app) getReportsCommand() *cobra.Command {
	var limit uint
	var digests bool
	cmd := &cobra.Command{
		Use:   "reports [NODE]",
		Short: "How the reports of each node fare, and those that came last",
		Long: `Prints two tables: for each node how its reports fare, as it said itself, and the reports that the
leader has received since it took over, newest first.

AGE is how long ago it said so: OLD when that is more than three periods of its digests, so that its
reports may fare otherwise by now. A node that only the torus reaches says less: neither rails nor paths.
STATE of the paths: MIGRATED reports go by the primary and no alternate is loaded, REARM an alternate is
being loaded, ARMED the alternate is ready, REESTABLISHING neither works and reports go by other rails.
A path is INTERFACE>SUPERVISOR. LOGGED are reports that are not committed, UNANSWERED those of them that
nobody has received, OLDEST is the age of the oldest.

RAIL is the one by which a report came first; HOPS are the stations on its way through the torus and how
long each held it. LATENCY is the time from the first sign of what a report tells to its arrival, by the
clocks of those who saw and passed it on; COMMITTED how long its commit took from then; COPIES how often
it came.`,
		Example:           "  lofamoctl get reports\n  lofamoctl get reports 1,0,1 --limit 10 -o wide\n  lofamoctl get reports --digests -o json",
		Args:              between(0, "NODE"),
		ValidArgsFunction: a.completeFirstNode,
	}
	o := allFormats(cmd)
	cmd.Flags().UintVar(&limit, "limit", 0, "at most so many reports, the newest: 1 to 4096 (default 100)")
	cmd.Flags().BoolVar(&digests, "digests", false, "also the digests, which are not committed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit > maxReports || (limit == 0 && cmd.Flags().Changed("limit")) {
			return usagef("--limit %d: want 1 to %d", limit, maxReports)
		}
		req := &lofamov1.ListReportsRequest{Limit: uint32(limit), Digests: digests}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.ListReports(ctx, req)
			if err != nil {
				return fmt.Errorf("get reports: %w", plain(err))
			}
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			return a.printReports(resp, o.format == formatWide)
		})
	}
	return cmd
}

func (a *app) printReports(resp *lofamov1.ListReportsResponse, wide bool) error {
	a.printf("SENDERS\n")
	if err := table(a.env.Stdout, senderRows(resp.GetSenders(), wide)); err != nil {
		return err
	}
	a.printf("\nREPORTS\n")
	return table(a.env.Stdout, reportRows(resp.GetReports(), wide))
}

func senderRows(senders []*lofamov1.SenderStatus, wide bool) [][]string {
	head := []string{"NODE", "AGE", "STATE", "PRIMARY", "ALTERNATE", "LOGGED", "UNANSWERED", "OLDEST", "MIGRATIONS", "RETRIES"}
	if wide {
		head = append(head, "COORD", "SHORTENED", "RAILS", "NOTE")
	}
	rows := [][]string{head}
	for _, s := range senders {
		d := s.GetDelivery()
		r := []string{
			s.GetNode(), said(s.GetAge(), s.GetOld()), pathState(d), path(d.GetPrimary()), path(d.GetAlternate()), count(d.GetLogged()), count(d.GetUnanswered()),
			oldest(d), count(d.GetMigrations()), count(d.GetRetries()),
		}
		if wide {
			var rails []string
			for _, rail := range d.GetRails() {
				rails = append(rails, railShort(rail))
			}
			r = append(r, s.GetCoord(), count(d.GetShortened()), dash(strings.Join(rails, ", ")),
				dash(strings.Join(troubles(d), "; ")))
		}
		rows = append(rows, r)
	}
	return rows
}

func reportRows(reports []*lofamov1.ReportStatus, wide bool) [][]string {
	head := []string{"REPORT", "RAIL", "HOPS", "AGE", "LATENCY", "COMMITTED", "COPIES", "SAYS"}
	if wide {
		head = append(head[:7:7], "FROM", "SAYS")
	}
	rows := [][]string{head}
	for _, r := range reports {
		committed := "no"
		switch {
		case r.GetCommitted():
			committed = protoDuration(r.GetCommit())
		case r.GetDigest():
			committed = "digest"
		}
		row := []string{
			fmt.Sprintf("%s/%s@%d#%d", r.GetNode(), r.GetHalf(), r.GetEpoch(), r.GetSeq()), pathName(r.GetPath()), dash(hops(r.GetHops())),
			protoDuration(r.GetAge()), protoDuration(r.GetLatency()), committed, count(r.GetCopies()),
		}
		if wide {
			row = append(row, dash(r.GetFrom()))
		}
		rows = append(rows, append(row, dash(says(r.GetSays(), wide))))
	}
	return rows
}

// says joins what a report said; without wide only the first things.
func says(all []string, wide bool) string {
	const most = 3
	list := all
	if !wide && len(list) > most {
		list = list[:most]
	}
	s := printable(strings.Join(list, ", "))
	if n := len(all) - len(list); n > 0 {
		s += fmt.Sprintf(", and %d more", n)
	}
	return s
}

func hops(list []*lofamov1.ReportHop) string {
	var parts []string
	for _, h := range list {
		parts = append(parts, fmt.Sprintf("%s/%s %s", h.GetNode(), h.GetHalf(), protoDuration(h.GetHeld())))
	}
	return strings.Join(parts, " > ")
}

func count[N uint32 | uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }

func path(s string) string { return dash(printable(s)) }

func pathState(d *lofamov1.DeliveryStatus) string {
	if d.GetState() == lofamov1.PathState_PATH_STATE_UNSPECIFIED {
		return "-"
	}
	return d.GetState().String()
}

// said is how long ago a sender said how its reports fare.
func said(age *durationpb.Duration, old bool) string {
	if old {
		return protoDuration(age) + " OLD"
	}
	return protoDuration(age)
}

// delivery is the state of a node's paths and the primary, in one cell.
func delivery(n *lofamov1.Node) string {
	d := n.GetDelivery()
	s := pathState(d)
	if d.GetPrimary() != "" {
		s += " " + printable(d.GetPrimary())
	}
	if n.GetDeliveryOld() {
		s += " OLD"
	}
	return s
}

// logged is what waits in a sender's log.
func logged(d *lofamov1.DeliveryStatus) string {
	if d.GetLogged() == 0 {
		return "nothing waits"
	}
	return fmt.Sprintf("%d not committed, %d of them not received, the oldest %s old", d.GetLogged(), d.GetUnanswered(), oldest(d))
}

func nanos(ns uint64) string { return duration(time.Duration(min(ns, 1<<62))) }

func oldest(d *lofamov1.DeliveryStatus) string {
	if d.GetLogged() == 0 {
		return "-"
	}
	return nanos(d.GetOldestNs())
}

func railShort(r *lofamov1.RailStatus) string {
	s := printable(r.GetName())
	switch {
	case r.GetDown():
		s += " down"
	case r.GetRttNs() > 0:
		s += " " + nanos(r.GetRttNs())
	}
	return s
}

// troubles are what of a sender's state somebody should look at.
func troubles(d *lofamov1.DeliveryStatus) []string {
	var out []string
	if d.GetIsolatedNs() > 0 {
		out = append(out, "reaches nobody for "+nanos(d.GetIsolatedNs()))
	}
	if d.GetSpool() != "" {
		out = append(out, "not kept on disk: "+printable(d.GetSpool()))
	}
	if d.GetShortened() > 0 {
		out = append(out, fmt.Sprintf("history shortened by %d reports", d.GetShortened()))
	}
	return out
}

// ways is the state of a node's paths, and their names where the node has said them.
func ways(d *lofamov1.DeliveryStatus) string {
	s := pathState(d)
	if d.GetPrimary() != "" {
		s += ", by " + printable(d.GetPrimary())
	}
	if d.GetAlternate() != "" {
		s += ", alternate " + printable(d.GetAlternate())
	}
	return s
}

// printDelivery prints how a node's reports fare, by its newest digest.
func (a *app) printDelivery(n *lofamov1.Node) error {
	d := n.GetDelivery()
	if d == nil {
		a.printf("\nDelivery: the node has not said how its reports fare since this leader took over\n")
		return nil
	}
	a.printf("\nDelivery of its reports\n")
	rows := [][]string{{"  Said", protoDuration(n.GetDeliveryAge()) + " ago"}}
	if n.GetDeliveryOld() {
		rows[0][1] += ": OLD, it may be otherwise by now"
	}
	rows = append(rows, [][]string{
		{"  Path", ways(d)},
		{"  Log", logged(d)},
		{"  Since its start", fmt.Sprintf("%d migrations, %d retries", d.GetMigrations(), d.GetRetries())},
	}...)
	for _, t := range troubles(d) {
		rows = append(rows, []string{"  Trouble", t})
	}
	if err := table(a.env.Stdout, rows); err != nil {
		return err
	}
	if len(d.GetRails()) == 0 {
		a.printf("  its rails are not known: it says so only by the direct way\n")
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
		rows = append(rows, []string{"  " + printable(r.GetName()), state, rtt, count(r.GetInFlight()), count(r.GetSent()), count(r.GetAnswered())})
	}
	return table(a.env.Stdout, rows)
}

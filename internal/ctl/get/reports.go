package get

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

// maxReports is the most that one answer of the supervisors holds.
const maxReports = 4096

func getReportsCommand(a *command.App) *cobra.Command {
	var limit uint
	var digests bool
	cmd := &cobra.Command{
		Use:     "reports [NODE]",
		Aliases: []string{"report"},
		Short:   "Delivery of each node's reports, and the last reports",
		Long: `Prints two tables: for each node the delivery of its reports, as the node states it, and the reports that the leader
has received since its term began, newest first.

AGE is the time since the node stated this; OLD means more than three digest periods, so the values may have changed
since. A node that only the torus reaches states neither rails nor paths. STATE of the paths: MIGRATED reports go by
the primary and no alternate is loaded, REARM an alternate is being loaded, ARMED the alternate is ready,
REESTABLISHING neither works and reports go by other rails. A path is INTERFACE>SUPERVISOR. LOGGED counts reports that
are not committed, UNANSWERED those of them that no supervisor has received, OLDEST is the age of the oldest.

RAIL is the rail by which a report arrived first; HOPS are the stations on its way through the torus and the time that
each held it. LATENCY is the time from the first sign of the fault to the arrival of its report, by the clocks of the
nodes that measured and forwarded it; COMMITTED is the duration of the commit after that; COPIES counts how often the
report arrived.`,
		Example:           "  lofamoctl get reports\n  lofamoctl get reports 1,0,1 --limit 10 -o wide\n  lofamoctl get reports --digests -o json",
		Args:              command.Between(0, "NODE"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.GetFormats(cmd)
	cmd.Flags().UintVar(&limit, "limit", 0, "at most so many reports, the newest: 1 to 4096 (default 100)")
	cmd.Flags().BoolVar(&digests, "digests", false, "also the digests, which are not committed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if limit > maxReports || (limit == 0 && cmd.Flags().Changed("limit")) {
			return command.Usagef("--limit %d: want 1 to %d", limit, maxReports)
		}
		req := &lofamov1.ListReportsRequest{Limit: uint32(limit), Digests: digests}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return command.Query(a, cmd, "get reports", o,
			func(ctx context.Context, s command.Session) (*lofamov1.ListReportsResponse, error) {
				return s.ListReports(ctx, req)
			}, func(resp *lofamov1.ListReportsResponse) error {
				return printReports(a, resp, o.Format == command.FormatWide)
			})
	}
	return cmd
}

func printReports(a *command.App, resp *lofamov1.ListReportsResponse, wide bool) error {
	a.Printf("SENDERS\n")
	if err := a.Table(senderRows(resp.GetSenders(), wide)); err != nil {
		return err
	}
	a.Printf("\nREPORTS\n")
	return a.Table(reportRows(resp.GetReports(), wide))
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
			s.GetNode(), command.LastReported(s.GetAge(), s.GetOld()), command.PathState(d), command.PathText(d.GetPrimary()),
			command.PathText(d.GetAlternate()),
			command.Count(d.GetLogged()), command.Count(d.GetUnanswered()),
			command.Oldest(d), command.Count(d.GetMigrations()), command.Count(d.GetRetries()),
		}
		if wide {
			var rails []string
			for _, rail := range d.GetRails() {
				rails = append(rails, command.RailShort(rail))
			}
			r = append(r, s.GetCoord(), command.Count(d.GetShortened()), command.Dash(strings.Join(rails, ", ")),
				command.Dash(strings.Join(command.Troubles(d), "; ")))
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
			committed = command.ProtoDuration(r.GetCommit())
		case r.GetDigest():
			committed = "digest"
		}
		row := []string{
			fmt.Sprintf("%s/%s@%d#%d", r.GetNode(), r.GetHalf(), r.GetEpoch(), r.GetSeq()), command.PathName(r.GetPath()),
			command.Dash(hops(r.GetHops())),
			command.ProtoDuration(r.GetAge()), command.ProtoDuration(r.GetLatency()), committed, command.Count(r.GetCopies()),
		}
		if wide {
			row = append(row, command.Dash(r.GetFrom()))
		}
		rows = append(rows, append(row, command.Dash(says(r.GetSays(), wide))))
	}
	return rows
}

// says joins a report's contents; without wide only the first ones.
func says(all []string, wide bool) string {
	const most = 3
	list := all
	if !wide && len(list) > most {
		list = list[:most]
	}
	s := command.Printable(strings.Join(list, ", "))
	if n := len(all) - len(list); n > 0 {
		s += fmt.Sprintf(", and %d more", n)
	}
	return s
}

func hops(list []*lofamov1.ReportHop) string {
	var parts []string
	for _, h := range list {
		parts = append(parts, fmt.Sprintf("%s/%s %s", h.GetNode(), h.GetHalf(), command.ProtoDuration(h.GetHeld())))
	}
	return strings.Join(parts, " > ")
}

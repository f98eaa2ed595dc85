package get

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/show"
)

func getEventsCommand(a *command.App) *cobra.Command {
	var after uint64
	var limit uint
	var f command.SelectFlags
	cmd := &cobra.Command{
		Use:   "events [NODE]",
		Short: "Committed changes of the fault map, oldest first",
		Long: `Prints committed changes, oldest first: the newest, or with --since-revision all that followed it. LATENCY is
the time from the fault to its commit in the fault map, by the clocks of those who saw and passed it on; '-' when
no age is known.
` + command.EventSelectors,
		Example:           "  lofamoctl get events\n  lofamoctl get events 1,0,1 --limit 10 -o wide\n  lofamoctl get events --since-revision 120 -l rack=r7 -o json",
		Args:              command.Between(0, "NODE"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.AllFormats(cmd)
	command.AddSelectFlags(cmd, &f, "component=node,to=FAILED")
	fl := cmd.Flags()
	fl.Uint64Var(&after, "since-revision", 0, "all changes after this revision")
	fl.Uint64Var(&after, "after-revision", 0, "the same")
	fl.UintVar(&limit, "limit", 0, "at most so many, 1 to 10000 (default the newest 1000): the newest, with --since-revision the oldest (default all)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := command.CheckLimit(cmd, limit); err != nil {
			return err
		}
		req := &lofamov1.ListEventsRequest{AfterRevision: after, Limit: uint32(limit), LabelSelector: f.Labels, FieldSelector: f.Fields}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			list := s.AllEvents
			if limit > 0 {
				list = s.ListEvents
			}
			resp, err := list(ctx, req)
			if err != nil {
				return fmt.Errorf("get events: %w", command.Plain(err))
			}
			show.WarnCluster(a, resp.GetCluster())
			if resp.GetContinue() != "" {
				a.Warnf("lofamoctl: more changes follow: a larger --limit shows them\n")
			}
			if oldest := resp.GetOldestRevision(); after > 0 && oldest > after+1 {
				a.Warnf("lofamoctl: changes before revision %d are no longer kept: some after %d may be missing\n", oldest, after)
			}
			if o.Format == command.FormatJSON || o.Format == command.FormatYAML {
				return a.PrintMessage(o.Format, resp)
			}
			return command.Table(a.Env.Stdout, show.EventRows(a, resp.GetEvents(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

// HistoryCommand returns `lofamoctl history`.
func HistoryCommand(a *command.App) *cobra.Command {
	var since time.Duration
	var limit uint
	cmd := &cobra.Command{
		Use:   "history NODE|GROUP [COMPONENT]",
		Short: "The past states of a node, a component or a group fault",
		Long: `Prints how long a node, or one of its components, was in which state, and its changes, newest first, as far back as
the supervisors keep them; of a node also the group faults that it was a member of. Of a group fault, when it stood: NORMAL is
the time in which it did not.`,
		Example:           "  lofamoctl history 1,0,1\n  lofamoctl history n1-0-1 link/X+ --since 24h\n  lofamoctl history label/rack=r1",
		Args:              command.Between(1, nodeOrGroup, "COMPONENT (such as host, X+ or link/X+)"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.AllFormats(cmd)
	cmd.Flags().DurationVar(&since, "since", 0, "only the last so long, such as 24h (default: as far back as is kept)")
	cmd.Flags().UintVar(&limit, "limit", 0, "at most so many changes, the newest: 1 to 10000 (default 100)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since < 0 {
			return command.Usagef("--since %v: want a positive time such as 24h", since)
		}
		if err := command.CheckLimit(cmd, limit); err != nil {
			return err
		}
		req := &lofamov1.GetHistoryRequest{Limit: uint32(limit)}
		var err error
		if req.Node, req.Component, req.Group, err = subjectOf(args); err != nil {
			return err
		}
		if since > 0 {
			req.Since = timestamppb.New(a.Env.Now().Add(-since))
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.GetHistory(ctx, req)
			if err != nil {
				return fmt.Errorf("history: %w", command.Plain(err))
			}
			show.WarnCluster(a, resp.GetCluster())
			if o.Format == command.FormatJSON || o.Format == command.FormatYAML {
				return a.PrintMessage(o.Format, resp)
			}
			return printHistory(a, resp, o.Format == command.FormatWide)
		})
	}
	return cmd
}

func printHistory(a *command.App, h *lofamov1.GetHistoryResponse, wide bool) error {
	if h.GetFrom() == nil {
		a.Printf("No changes are kept.\n")
		return nil
	}
	a.Printf("Since %s, %s ago:\n\n", a.Clock(h.GetFrom()), a.Since(h.GetFrom()))
	rows := [][]string{{"STATE", "TIME", "SHARE", "ENTERED"}}
	var total time.Duration
	for _, t := range h.GetTimeIn() {
		total += t.GetTime().AsDuration()
	}
	for _, t := range h.GetTimeIn() {
		share := "-"
		if total > 0 {
			share = fmt.Sprintf("%.2f%%", 100*float64(t.GetTime().AsDuration())/float64(total))
		}
		rows = append(rows, []string{command.StateName(t.GetState()), command.ProtoDuration(t.GetTime()), share, strconv.FormatUint(uint64(t.GetTimes()), 10)})
	}
	if err := command.Table(a.Env.Stdout, rows); err != nil {
		return err
	}
	if len(h.GetEvents()) == 0 {
		a.Printf("\nNo changes.\n")
		return nil
	}
	a.Printf("\n")
	return command.Table(a.Env.Stdout, show.EventRows(a, h.GetEvents(), wide))
}

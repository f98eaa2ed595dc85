package ctl

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// maxEvents is the most that one answer of the supervisors holds.
const maxEvents = 10000

// checkLimit refuses a --limit that an answer cannot have; 0 stands for the supervisors' own.
func checkLimit(cmd *cobra.Command, limit uint) error {
	if limit > maxEvents || limit > math.MaxUint32 || (limit == 0 && cmd.Flags().Changed("limit")) {
		return usagef("--limit %d: want 1 to %d", limit, maxEvents)
	}
	return nil
}

func (a *app) getEventsCommand() *cobra.Command {
	var after uint64
	var limit uint
	var f selectFlags
	cmd := &cobra.Command{
		Use:   "events [NODE]",
		Short: "Committed changes of the fault map, oldest first",
		Long: `Prints committed changes, oldest first: the newest, or with --since-revision all that followed it. LATENCY is
the time from the fault to its commit in the fault map, by the clocks of those who saw and passed it on; '-' when
no age is known.
` + eventSelectors,
		Example:           "  lofamoctl get events\n  lofamoctl get events 1,0,1 --limit 10 -o wide\n  lofamoctl get events --since-revision 120 -l rack=r7 -o json",
		Args:              between(0, "NODE"),
		ValidArgsFunction: a.completeFirstNode,
	}
	o := allFormats(cmd)
	addSelectFlags(cmd, &f, "component=node,to=FAILED")
	fl := cmd.Flags()
	fl.Uint64Var(&after, "since-revision", 0, "all changes after this revision")
	fl.Uint64Var(&after, "after-revision", 0, "the same")
	fl.UintVar(&limit, "limit", 0, "at most so many, 1 to 10000 (default the newest 1000): the newest, with --since-revision the oldest (default all)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkLimit(cmd, limit); err != nil {
			return err
		}
		req := &lofamov1.ListEventsRequest{AfterRevision: after, Limit: uint32(limit), LabelSelector: f.labels, FieldSelector: f.fields}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			list := s.AllEvents
			if limit > 0 {
				list = s.ListEvents
			}
			resp, err := list(ctx, req)
			if err != nil {
				return fmt.Errorf("get events: %w", plain(err))
			}
			a.warnCluster(resp.GetCluster())
			if resp.GetContinue() != "" {
				a.warnf("lofamoctl: more changes follow: a larger --limit shows them\n")
			}
			if oldest := resp.GetOldestRevision(); after > 0 && oldest > after+1 {
				a.warnf("lofamoctl: changes before revision %d are no longer kept: some after %d may be missing\n", oldest, after)
			}
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			return table(a.env.Stdout, a.eventRows(resp.GetEvents(), o.format == formatWide))
		})
	}
	return cmd
}

func (a *app) historyCommand() *cobra.Command {
	var since time.Duration
	var limit uint
	cmd := &cobra.Command{
		Use:   "history NODE|GROUP [COMPONENT]",
		Short: "How a node, a part of it or a group fault came to be what it is",
		Long: `Prints how long a node, or one of its components, was in which state, and its changes, newest first, as far back as
the supervisors keep them; of a node also the group faults that it was a member of. Of a group fault, when it stood: NORMAL is
the time in which it did not.`,
		Example:           "  lofamoctl history 1,0,1\n  lofamoctl history n1-0-1 link/X+ --since 24h\n  lofamoctl history label/rack=r1",
		Args:              between(1, nodeOrGroup, "COMPONENT (such as host, X+ or link/X+)"),
		ValidArgsFunction: a.completeFirstNode,
	}
	o := allFormats(cmd)
	cmd.Flags().DurationVar(&since, "since", 0, "only the last so long, such as 24h (default: as far back as is kept)")
	cmd.Flags().UintVar(&limit, "limit", 0, "at most so many changes, the newest: 1 to 10000 (default 100)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if since < 0 {
			return usagef("--since %v: want a positive time such as 24h", since)
		}
		if err := checkLimit(cmd, limit); err != nil {
			return err
		}
		req := &lofamov1.GetHistoryRequest{Limit: uint32(limit)}
		var err error
		if req.Node, req.Component, req.Group, err = subjectOf(args); err != nil {
			return err
		}
		if since > 0 {
			req.Since = timestamppb.New(a.env.Now().Add(-since))
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.GetHistory(ctx, req)
			if err != nil {
				return fmt.Errorf("history: %w", plain(err))
			}
			a.warnCluster(resp.GetCluster())
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			return a.printHistory(resp, o.format == formatWide)
		})
	}
	return cmd
}

func (a *app) printHistory(h *lofamov1.GetHistoryResponse, wide bool) error {
	if h.GetFrom() == nil {
		a.printf("No changes are kept.\n")
		return nil
	}
	a.printf("Since %s, %s ago:\n\n", a.clock(h.GetFrom()), a.since(h.GetFrom()))
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
		rows = append(rows, []string{stateName(t.GetState()), protoDuration(t.GetTime()), share, strconv.FormatUint(uint64(t.GetTimes()), 10)})
	}
	if err := table(a.env.Stdout, rows); err != nil {
		return err
	}
	if len(h.GetEvents()) == 0 {
		a.printf("\nNo changes.\n")
		return nil
	}
	a.printf("\n")
	return table(a.env.Stdout, a.eventRows(h.GetEvents(), wide))
}

package get

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
)

// eventFlags are the flags of `lofamoctl get events`.
type eventFlags struct {
	command.SelectFlags
	after       uint64
	limit, tail uint
	since       string
	from        time.Time // of --since
	all         bool
	output      *command.OutputFlag
	between     command.Documents
	seen        map[part]bool // parts with a printed change
}

// part is what an event is about.
type part struct{ node, component string }

func getEventsCommand(a *command.App) *cobra.Command {
	f := &eventFlags{seen: map[part]bool{}}
	cmd := &cobra.Command{
		Use:     "events [NODE]",
		Aliases: []string{"event", "ev"},
		Short:   "Committed changes of the fault map, oldest first",
		Long: `Prints committed changes, oldest first: the newest ones, or with --since or --since-revision all later ones. LATENCY
is the time from the fault to its commit in the fault map, by the clocks of the nodes that measured and forwarded it;
'-' means that no age is known.

Tables leave out first reports (from UNKNOWN to NORMAL, without an earlier change of that part) and changes of the
cause alone; --all prints them too. Formats for programs have every change.
` + command.EventSelectors,
		Example: "  lofamoctl get events\n  lofamoctl get events --since 10m\n  lofamoctl get events 1,0,1 --tail 10 -o wide\n" +
			"  lofamoctl get events --since-revision 120 -l rack=r7 -o json",
		Args:              command.Between(0, "NODE"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	f.output = command.GetFormats(cmd)
	command.AddSelectFlags(cmd, &f.SelectFlags, "component=node,to=FAILED")
	fl := cmd.Flags()
	fl.StringVar(&f.since, "since", "", "all changes since then: "+momentForms)
	fl.UintVar(&f.tail, "tail", 0, "print only this many of the newest matching changes, 1 to 10000 (default all)")
	fl.BoolVar(&f.all, "all", false, "also first reports, and changes of the cause alone")
	fl.Uint64Var(&f.after, "since-revision", 0, "all changes after this revision")
	fl.Uint64Var(&f.after, "after-revision", 0, "the same as --since-revision")
	fl.UintVar(&f.limit, "limit", 0, "fetch at most this many, 1 to 10000 (default the newest 1000): the newest, with --since-revision the "+
		"oldest (default all)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(a, cmd); err != nil {
			return err
		}
		req := &lofamov1.ListEventsRequest{AfterRevision: f.after, Limit: uint32(f.limit), LabelSelector: f.Labels, FieldSelector: f.Fields}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := f.fetch(ctx, s, req)
			if err != nil {
				return fmt.Errorf("get events: %w", command.Plain(err))
			}
			if !f.output.Format.Structured() {
				a.LearnCluster(ctx, s)
			}
			begin, err := f.missingBefore(ctx, s, resp)
			if err != nil {
				a.Warnf("lofamoctl: whether earlier changes are no longer kept is not known: %v\n", command.Plain(err))
			}
			f.warn(a, resp, begin)
			if err := f.print(a, resp, true); err != nil || !f.output.Watch {
				return err
			}
			return f.follow(a, ctx, s, req, resp.GetRevision())
		})
	}
	return cmd
}

func (f *eventFlags) check(a *command.App, cmd *cobra.Command) (err error) {
	if err := command.CheckLimit(cmd, f.limit); err != nil {
		return err
	}
	if f.tail > command.MaxEvents || f.tail == 0 && cmd.Flags().Changed("tail") {
		return command.Usagef("--tail %d: want 1 to %d", f.tail, command.MaxEvents)
	}
	if !cmd.Flags().Changed("since") {
		return nil
	}
	if f.after > 0 {
		return command.Usagef("--since and --since-revision: want only one")
	}
	f.from, err = moment(a, "--since", f.since)
	return err
}

// newestEvents is the number of events in an answer to a request without limit and revision.
const newestEvents = 1000

// fetch returns the events that the flags select. It asks for all kept events only if the newest do not suffice.
func (f *eventFlags) fetch(ctx context.Context, s command.Session, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	list := s.AllEvents
	if f.limit > 0 {
		list = s.ListEvents
	}
	resp, err := list(ctx, req)
	if err != nil {
		return nil, err
	}
	got := resp.GetEvents()
	short := !f.from.IsZero() && len(got) > 0 && got[0].GetTime().AsTime().After(f.from)
	if f.after == 0 && f.limit == 0 && len(got) >= newestEvents && (short || uint(len(f.shown(got, map[part]bool{}))) < f.tail) {
		all := proto.CloneOf(req)
		all.AfterRevision = 1
		if resp, err = s.AllEvents(ctx, all); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// shown returns the events that are printed, and adds their parts to seen.
func (f *eventFlags) shown(events []*lofamov1.Event, seen map[part]bool) []*lofamov1.Event {
	if !f.from.IsZero() {
		i := slices.IndexFunc(events, func(e *lofamov1.Event) bool { return !e.GetTime().AsTime().Before(f.from) })
		if i < 0 {
			i = len(events)
		}
		events = events[i:]
	}
	if !f.all && !f.output.Format.Structured() {
		events = withoutNoise(events, seen)
	}
	if f.tail > 0 && uint(len(events)) > f.tail {
		events = events[uint(len(events))-f.tail:]
	}
	return events
}

// withoutNoise drops first reports of parts, and changes from a state to itself, which have another cause only. A NORMAL
// after UNKNOWN is a first report unless an earlier change of the same part was seen.
func withoutNoise(events []*lofamov1.Event, seen map[part]bool) []*lofamov1.Event {
	var out []*lofamov1.Event
	for _, e := range events {
		of := part{e.GetNode(), e.GetComponent()}
		first := !seen[of]
		if k := e.GetKind(); k != lofamov1.EventKind_COMPONENT_CHANGED && k != lofamov1.EventKind_EVENT_KIND_UNSPECIFIED {
			out = append(out, e)
			continue
		}
		switch from, to := e.GetFrom(), e.GetTo(); {
		case from == to && !e.GetFlapping():
		case first && from == lofamov1.State_UNKNOWN && to == lofamov1.State_NORMAL:
		default:
			seen[of] = true
			out = append(out, e)
		}
	}
	return out
}

// missingBefore returns the time of the oldest kept change if --since reaches further back; nil: it does not.
func (f *eventFlags) missingBefore(ctx context.Context, s command.Session,
	resp *lofamov1.ListEventsResponse) (*timestamppb.Timestamp, error) {
	reaches := func(events []*lofamov1.Event) bool {
		return len(events) > 0 && !events[0].GetTime().AsTime().After(f.from)
	}
	if f.from.IsZero() || resp.GetOldestRevision() <= 1 || reaches(resp.GetEvents()) {
		return nil, nil //nolint:nilnil // nothing is missing
	}
	kept, err := s.ListEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: 1, Limit: 1})
	if err != nil || len(kept.GetEvents()) == 0 || reaches(kept.GetEvents()) {
		return nil, err
	}
	return kept.GetEvents()[0].GetTime(), nil
}

// warn names changes that the list lacks: also those before begin, if it is set.
func (f *eventFlags) warn(a *command.App, resp *lofamov1.ListEventsResponse, begin *timestamppb.Timestamp) {
	command.WarnCluster(a, resp.GetCluster())
	if resp.GetContinue() != "" {
		a.Warnf("lofamoctl: more changes follow: a larger --limit shows them\n")
	}
	if oldest := resp.GetOldestRevision(); f.after > 0 && oldest > f.after+1 {
		a.Warnf("lofamoctl: changes before revision %d are no longer kept: some after %d may be missing\n", oldest, f.after)
	}
	if begin != nil {
		a.Warnf("lofamoctl: changes before %s are no longer kept\n", a.Clock(begin))
	}
}

// print prints events, with the heading of the table if they are the first.
func (f *eventFlags) print(a *command.App, resp *lofamov1.ListEventsResponse, first bool) error {
	out := proto.CloneOf(resp)
	out.Events = f.shown(resp.GetEvents(), f.seen)
	switch form := f.output.Format; {
	case form == command.FormatJSON && f.output.Watch:
		b, err := command.ProtoJSON(out)
		if err != nil {
			return err
		}
		a.Printf("%s\n", b)
		return nil
	case form.Structured():
		f.between.Format = form
		f.between.Next(a)
		return a.PrintMessage(form, out)
	}
	rows := command.EventRows(a, out.GetEvents(), f.output.Format == command.FormatWide)
	switch {
	case !first:
		rows = rows[1:]
	case f.Labels+f.Fields != "" && !f.output.Watch:
		return a.List("events", rows)
	}
	return a.Table(rows)
}

// follow prints the events after a revision, until ctx ends.
func (f *eventFlags) follow(a *command.App, ctx context.Context, s command.Session, req *lofamov1.ListEventsRequest, after uint64) error {
	defer a.Attend(ctx, s)()
	f.tail, f.from = 0, time.Time{}
	opts := client.WatchOptions{After: after, Node: req.GetNode(), Labels: f.Labels, Fields: f.Fields, Progress: watchProgress(a, false),
		Gap: func(after, until uint64) { a.Warnf("lofamoctl: %s\n", gapText(after, until)) }}
	err := s.Watch(ctx, opts, func(r *lofamov1.WatchResponse) error {
		if len(r.GetEvents()) == 0 {
			return nil
		}
		return f.print(a, &lofamov1.ListEventsResponse{Revision: r.GetRevision(), Events: r.GetEvents()}, false)
	})
	if ctx.Err() != nil {
		err = nil // the person has seen enough
	}
	if err != nil {
		err = fmt.Errorf("get events: %w", command.Plain(err))
	}
	return err
}

// HistoryCommand returns `lofamoctl history`.
func HistoryCommand(a *command.App) *cobra.Command {
	var since time.Duration
	var limit uint
	cmd := &cobra.Command{
		Use:   "history NODE|GROUP [COMPONENT]",
		Short: "The past states of a node, a component or a group fault",
		Long: `Prints how long a node, or one of its components, was in each state, and its changes, newest first, as far back as the
supervisors keep them; for a node also the group faults that it was a member of. For a group fault it prints when the
fault stood: NORMAL is the time without it.`,
		Example:           "  lofamoctl history 1,0,1\n  lofamoctl history n1-0-1 link/X+ --since 24h\n  lofamoctl history label/rack=r1",
		Args:              command.Between(1, nodeOrGroup, "COMPONENT (such as host, X+ or link/X+)"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.AllFormats(cmd)
	program.DurationVar(cmd.Flags(), &since, "since", 0, "only this last period, such as 2d (default: the whole kept history)")
	cmd.Flags().UintVar(&limit, "limit", 0, "the newest changes, at most this many: 1 to 10000 (default 100)")
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
		return command.Query(a, cmd, "history", o, func(ctx context.Context, s command.Session) (*lofamov1.GetHistoryResponse, error) {
			if !o.Format.Structured() {
				a.LearnCluster(ctx, s)
			}
			return s.GetHistory(ctx, req)
		}, func(resp *lofamov1.GetHistoryResponse) error {
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
		rows = append(rows, []string{command.StateName(t.GetState()), command.ProtoDuration(t.GetTime()), share,
			strconv.FormatUint(uint64(t.GetTimes()), 10)})
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	if len(h.GetEvents()) == 0 {
		a.Printf("\nNo changes.\n")
		return nil
	}
	a.Printf("\n")
	return a.Table(command.EventRows(a, h.GetEvents(), wide))
}

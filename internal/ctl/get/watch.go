package get

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
)

type watchFlags struct {
	command.SelectFlags
	asSeen  bool
	initial bool
	after   uint64
	index   uint32
	limit   time.Duration
	outage  time.Duration
	count   uint
	colour  string
	output  *command.OutputFlag
}

// WatchCommand returns `lofamoctl watch`.
func WatchCommand(a *command.App) *cobra.Command {
	f := &watchFlags{}
	cmd := &cobra.Command{
		Use:   "watch [NODE]",
		Short: "Print changes of the fault map when they are committed",
		Long: `Prints one line for each change of the fault map when it is committed, until --count changes have arrived, --for has
passed, or Ctrl-C. All three count as success, unless no supervisor has answered within --for.

When a supervisor fails, the watch continues with the next one, after the last revision printed: no committed change
is lost or printed twice. It waits through an outage of all supervisors of any length, or as long as --timeout allows.
If changes were dropped meanwhile, a line on standard error names their revisions. --as-seen also prints changes
before they are committed, marked as such; each is printed again when it is committed. --initial first prints all
current faults.
` + command.EventSelectors,
		Example: "  lofamoctl watch\n  lofamoctl watch --initial -l rack=r7\n  lofamoctl watch --after-revision 120 --count 1 --for " +
			"10s -o json\n  lofamoctl watch 1,0,1 --as-seen",
		Args:              command.Between(0, "NODE"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	f.output = command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSON)
	fl := cmd.Flags()
	fl.BoolVar(&f.asSeen, "as-seen", false, "also print changes before they are committed, marked as such")
	command.AddSelectFlags(cmd, &f.SelectFlags, "component=node,to=FAILED")
	fl.BoolVar(&f.initial, "initial", false, "first print all current faults, as changes from UNKNOWN")
	fl.Uint64Var(&f.after, "after-revision", 0, "all changes after this revision (default: only new changes)")
	fl.Uint32Var(&f.index, "after-index", 0, "with --after-revision: also the changes of that revision with a greater index (see -o json)")
	program.DurationVar(fl, &f.limit, "for", 0, "stop after this time, such as 10s (default: never)")
	program.DurationVar(fl, &f.outage, "timeout", 0,
		"fail when no supervisor has answered for this time, such as 5m (default: never, but one must "+
			"answer at the start)")
	fl.UintVar(&f.count, "count", 0, "stop after this many changes (default: never)")
	command.AddColorFlag(cmd, &f.colour)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.limit < 0 {
			return command.Usagef("--for %v: want a positive time such as 10s", f.limit)
		}
		if f.outage < 0 {
			return command.Usagef("--timeout %v: want a positive time such as 5m", f.outage)
		}
		if f.index > 0 && f.after == 0 {
			return command.Usagef("--after-index %d: want --after-revision too, the revision of the change", f.index)
		}
		if f.initial && f.after > 0 {
			return command.Usagef("--initial and --after-revision: want only one, the list has its own revision")
		}
		p, err := a.Painter(f.colour)
		if err != nil {
			return err
		}
		node := ""
		if len(args) > 0 {
			node = args[0]
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error { return watch(a, ctx, s, node, f, p) })
	}
	return cmd
}

func watch(a *command.App, ctx context.Context, s command.Session, node string, f *watchFlags, p command.Painter) error {
	outer := ctx
	if f.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.limit)
		defer cancel()
	}
	defer a.Attend(ctx, s)()
	left, served := f.count, false
	if f.output.Format != command.FormatJSON {
		a.LearnCluster(ctx, s)
	}
	progress := watchProgress(a, f.initial)
	opts := client.WatchOptions{After: f.after, AfterIndex: f.index, AsSeen: f.asSeen, Node: node, Labels: f.Labels, Fields: f.Fields,
		Initial: f.initial, Outage: f.outage, Progress: func(target string, err error) {
			served = served || err == nil
			progress(target, err)
		}, Gap: func(after, until uint64) { a.Warnf("lofamoctl: %s\n", gapText(after, until)) }}
	err := s.Watch(ctx, opts, func(r *lofamov1.WatchResponse) error {
		for _, e := range r.GetEvents() {
			if err := printEvent(a, e, f.output.Format, p); err != nil {
				return err
			}
			if f.count > 0 {
				if left--; left == 0 {
					return client.ErrStop
				}
			}
		}
		return nil
	})
	switch over := errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil; {
	case err == nil || outer.Err() != nil || over && served:
		return nil
	case over:
		return fmt.Errorf("watch: no supervisor has answered within %v", f.limit)
	}
	return fmt.Errorf("watch: %w", command.Plain(err))
}

// gapText says which changes a watch does not have.
func gapText(after, until uint64) string {
	if until < after {
		return fmt.Sprintf("the supervisors' store was replaced: it is at revision %d, and the watch was at revision %d: the changes in between "+
			"are lost, the watch goes on after revision %d", until, after, until)
	}
	return fmt.Sprintf("the changes after revision %d up to revision %d are lost, the supervisors no longer keep them: the watch goes on "+
		"after revision %d", after, until, until)
}

// watchProgress warns once when the watched supervisor fails and once when another takes over, not about each attempt
// between them. With initial, the list follows again after lost changes; without, WatchOptions.Gap names them.
func watchProgress(a *command.App, initial bool) func(string, error) {
	broken := false
	return func(target string, err error) {
		switch {
		case errors.Is(err, client.ErrCompacted):
			if broken = false; initial {
				a.Warnf("lofamoctl: %v: the whole list follows again\n", err)
			}
		case err != nil && !broken:
			broken = true
			a.Warnf("lofamoctl: supervisor %s does not answer (%v): trying the others\n", target, command.Plain(err))
		case err == nil && broken:
			broken = false
			a.Warnf("lofamoctl: supervisor %s continues the watch\n", target)
		}
	}
}

func printEvent(a *command.App, e *lofamov1.Event, f command.Format, p command.Painter) error {
	if f == command.FormatJSON {
		b, err := command.ProtoJSON(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Env.Stdout, "%s\n", b)
		return err
	}
	var b strings.Builder
	revision := fmt.Sprintf("revision %d", e.GetRevision())
	if e.GetAsSeen() {
		revision = "as seen"
	}
	node, component := a.Words().Subject(e)
	from, to := command.Change(e)
	fmt.Fprintf(&b, "%s  %-12s  %-8s %-15s  %s → %s", a.Clock(e.GetTime()), revision, node, component, from, p.State(e.GetTo(), to))
	if c := command.CauseName(e.GetCause()); c != "-" {
		b.WriteString("  cause " + c)
	}
	if e.GetPath() != lofamov1.Path_PATH_UNSPECIFIED {
		b.WriteString("  via " + e.GetPath().String())
	}
	if e.GetAwarenessLatency() != nil {
		b.WriteString("  after " + command.ProtoDuration(e.GetAwarenessLatency()))
	}
	if notes := command.EventNotes(a, e); len(notes) > 0 {
		b.WriteString("  (" + strings.Join(notes, ", ") + ")")
	}
	if f == command.FormatWide {
		if e.GetObserver() != "" {
			b.WriteString("  by " + command.Printable(e.GetObserver()))
		}
		if e.GetReason() != "" {
			b.WriteString(": " + command.Printable(e.GetReason()))
		}
	}
	_, err := fmt.Fprintln(a.Env.Stdout, b.String())
	return err
}

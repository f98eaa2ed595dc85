package get

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// incidentKind is the kind in "incident/ID".
const incidentKind = "incident/"

// incidentChunk is the number of incidents in one page.
const incidentChunk = 500

// maxNote is the most that the supervisors take, in bytes.
const maxNote = 4096

type incidentFlags struct {
	states []string
	node   string
	since  string
}

func getIncidentsCommand(a *command.App) *cobra.Command {
	var f incidentFlags
	cmd := &cobra.Command{
		Use:     "incidents [ID]",
		Aliases: []string{"incident", "inc"},
		Short:   "Faults with their root causes, the consequences folded below them",
		Long: `Prints one line for each fault: its root cause, its start, and the number of other faults and unknown parts that it
explains (FOLDED). The worst come first. With an ID it prints one incident in full: the verdict with its evidence, the
consequences, the acknowledgement, and the notes.

States: OPEN; RECOVERING (the root cause has ended, but a consequence has not, or has only just ended); CLOSED.
Without --state the table omits CLOSED incidents; -o json, yaml and name print all that the supervisors keep.`,
		Example: "  lofamoctl get incidents\n  lofamoctl get incidents --state closed --since 24h\n" +
			"  lofamoctl get incidents k3f9-7qm2xw4d\n  lofamoctl get incidents --watch -o json",
		Args:              command.Between(0, "ID (such as k3f9-7qm2xw4d)"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := command.GetFormats(cmd)
	fl := cmd.Flags()
	fl.StringSliceVar(&f.states, "state", nil, "only those in these states (comma-separated): OPEN, RECOVERING, CLOSED, or all")
	fl.StringVar(&f.node, "node", "", "only incidents that concern this node: id or coordinates")
	fl.StringVar(&f.since, "since", "", "only incidents that began within this time, such as 24h, or at this RFC 3339 time or later")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if len(f.states) > 0 || f.node != "" || f.since != "" {
				return command.Usagef("--state, --node and --since choose among all incidents: want none of them with an ID")
			}
			return getIncident(a, cmd, o, strings.TrimPrefix(args[0], incidentKind))
		}
		req, err := f.request(a, o.Format)
		if err != nil {
			return err
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			if !o.Format.Structured() {
				a.LearnCluster(ctx, s)
			}
			if o.Watch {
				since := req.GetSince()
				return watchIncidents(a, ctx, s, &lofamov1.WatchIncidentsRequest{States: req.GetStates(), Node: req.GetNode()},
					command.Documents{Format: o.Format},
					func(in *lofamov1.Incident) bool {
						return since == nil || !in.GetSince().AsTime().Before(since.AsTime())
					},
					func(changed []*lofamov1.Incident) error { return printIncidents(a, o.Format, changed) })
			}
			resp, err := s.AllIncidents(ctx, req, incidentChunk)
			if err != nil {
				return fmt.Errorf("get incidents: %w", command.Plain(err))
			}
			if resp.GetStale() {
				a.Warnf("lofamoctl: no quorum of supervisors answers: recent changes may be missing\n")
			}
			if missing := resp.GetMissingRegions(); len(missing) > 0 {
				a.Warnf("lofamoctl: no supervisor of region %s answers: its incidents are missing\n", strings.Join(missing, ", "))
			}
			return printIncidents(a, o.Format, resp.GetIncidents())
		})
	}
	return cmd
}

// request returns the API's request for the flags.
func (f *incidentFlags) request(a *command.App, format command.Format) (*lofamov1.ListIncidentsRequest, error) {
	req := &lofamov1.ListIncidentsRequest{Node: f.node}
	all := false
	for _, name := range f.states {
		v, ok := lofamov1.IncidentState_value[strings.ToUpper(name)]
		switch {
		case strings.EqualFold(name, "all"):
			all = true
			continue
		case !ok || v == 0:
			return nil, command.Usagef("--state %q: want OPEN, RECOVERING, CLOSED or all", name)
		}
		req.States = append(req.States, lofamov1.IncidentState(v))
	}
	if all {
		req.States = nil
	}
	if len(f.states) == 0 && (format == command.FormatTable || format == command.FormatWide) {
		req.States = []lofamov1.IncidentState{lofamov1.IncidentState_OPEN, lofamov1.IncidentState_RECOVERING}
	}
	if f.since == "" {
		return req, nil
	}
	if at, err := time.Parse(time.RFC3339, f.since); err == nil {
		req.Since = timestamppb.New(at)
		return req, nil
	}
	d, err := time.ParseDuration(f.since)
	if err != nil || d <= 0 {
		return nil, command.Usagef("--since %q: want a time above zero such as 90s or 24h, or a moment such as %s", f.since,
			a.Env.Now().UTC().Format(time.RFC3339))
	}
	req.Since = timestamppb.New(a.Env.Now().Add(-d))
	return req, nil
}

// worstFirst orders incidents for people.
func worstFirst(list []*lofamov1.Incident) { slices.SortStableFunc(list, CompareIncidents) }

// CompareIncidents returns a negative number if people should see a before b: OPEN before CLOSED, then the graver one, the one with more
// consequences, and the older one.
func CompareIncidents(a, b *lofamov1.Incident) int {
	return cmp.Or(int(a.GetState())-int(b.GetState()), int(b.GetSeverity())-int(a.GetSeverity()),
		cmp.Compare(b.GetConsequenceCount(), a.GetConsequenceCount()), a.GetSince().AsTime().Compare(b.GetSince().AsTime()),
		strings.Compare(a.GetId(), b.GetId()))
}

// printIncidents prints a list.
func printIncidents(a *command.App, f command.Format, list []*lofamov1.Incident) error {
	worstFirst(list)
	switch {
	case f == command.FormatName:
		for _, in := range list {
			a.Printf("%s%s\n", incidentKind, in.GetId())
		}
		return nil
	case f.Structured():
		b, err := incidentsJSON(list)
		if err != nil {
			return err
		}
		return a.PrintJSON(f, b)
	case len(list) == 0:
		a.Printf("no incident\n")
		return nil
	}
	return a.Table(incidentRows(a, list, f == command.FormatWide))
}

// incidentsJSON returns {"incidents": [...]}.
func incidentsJSON(list []*lofamov1.Incident) ([]byte, error) {
	b, err := listJSON(list)
	return slices.Concat([]byte(`{"incidents":`), b, []byte(`}`)), err
}

// listJSON returns the messages as a list of protobuf JSON.
func listJSON[M proto.Message](list []M) ([]byte, error) {
	all := make([][]byte, len(list))
	for i, m := range list {
		var err error
		if all[i], err = command.ProtoJSON(m); err != nil {
			return nil, err
		}
	}
	return slices.Concat([]byte{'['}, bytes.Join(all, []byte{','}), []byte{']'}), nil
}

// Where names the place of a root cause: a node, the two ends of a link, or a group fault.
func Where(in *lofamov1.Incident, words command.Words) string {
	switch {
	case in.GetGroup() != "":
		return words.Group(in.GetGroup())
	case in.GetPeer() != "":
		return in.GetNode() + " - " + in.GetPeer()
	}
	return in.GetNode()
}

// Summary is the summary of an incident, printable, with the name that a group fault has for the readers.
func Summary(in *lofamov1.Incident, words command.Words) string {
	text := in.GetSummary()
	if id := strings.TrimPrefix(in.GetGroup(), in.GetRegion()+"/"); id != "" {
		text = strings.ReplaceAll(text, id, words.Group(id))
	}
	return command.Printable(text)
}

func incidentRows(a *command.App, list []*lofamov1.Incident, wide bool) [][]string {
	head := []string{"ID", "STATE", "SEVERITY", "WHERE", "COMPONENT", "FAULT", "CAUSE", "SINCE", "FOLDED", "ACKNOWLEDGED"}
	if wide {
		head = append(head, "UNTIL", "RULE", "WITNESSES", "SUMMARY")
	}
	rows := [][]string{head}
	for _, in := range list {
		row := []string{
			in.GetId(), in.GetState().String(), in.GetSeverity().String(), Where(in, a.Words()), in.GetComponent(), command.StateName(in.GetFault()),
			command.CauseName(in.GetCause()), a.Since(in.GetSince()), command.Count(in.GetConsequenceCount()),
			acknowledgedBy(in),
		}
		if wide {
			row = append(row, a.Clock(in.GetUntil()), command.Dash(in.GetVerdict().GetRule()),
				command.Dash(command.Some(in.GetVerdict().GetWitnesses(), 3)), Summary(in, a.Words()))
		}
		rows = append(rows, row)
	}
	return rows
}

// acknowledgedBy names the operator who deals with an incident, and marks an outdated acknowledgement.
func acknowledgedBy(in *lofamov1.Incident) string {
	switch ack := in.GetAcknowledgement(); {
	case ack.GetOutdated():
		return "- (" + ack.GetBy() + " before it escalated)"
	default:
		return command.Dash(ack.GetBy())
	}
}

func getIncident(a *command.App, cmd *cobra.Command, o *command.OutputFlag, id string) error {
	return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
		if !o.Format.Structured() {
			a.LearnCluster(ctx, s)
		}
		show := func(one []*lofamov1.Incident) error {
			if o.Format.Structured() {
				return printIncidents(a, o.Format, one)
			}
			return printIncident(a, one[0])
		}
		in, err := s.GetIncident(ctx, id)
		if err != nil {
			return fmt.Errorf("get incident %s: %w", id, command.Plain(err))
		}
		if !o.Watch {
			return show([]*lofamov1.Incident{in})
		}
		return watchIncidents(a, ctx, s, &lofamov1.WatchIncidentsRequest{}, command.Documents{Format: o.Format, Long: true},
			func(x *lofamov1.Incident) bool { return x.GetId() == in.GetId() }, show)
	})
}

// printIncident prints one incident in full.
func printIncident(a *command.App, in *lofamov1.Incident) error {
	v := in.GetVerdict()
	a.Printf("incident   %s  %s  %s\n", in.GetId(), in.GetState(), in.GetSeverity())
	a.Printf("root cause %s, %s, cause %s\n", Where(in, a.Words()), in.GetComponent(), command.CauseName(in.GetCause()))
	a.Printf("summary    %s\n", Summary(in, a.Words()))
	a.Printf("since      %s (%s ago)%s\n", a.Clock(in.GetSince()), a.Since(in.GetSince()), returned(in))
	if in.GetUntil() != nil {
		a.Printf("until      %s (%s ago)\n", a.Clock(in.GetUntil()), a.Since(in.GetUntil()))
	}
	if in.GetState() == lofamov1.IncidentState_RECOVERING {
		a.Printf("recovering %s\n", recovery(a, in))
	}
	a.Printf("verdict    %s, rule %s, by supervisor %s\n", a.Clock(v.GetTime()), command.Dash(v.GetRule()), command.Dash(v.GetLeader()))
	if v.GetSingleWitness() {
		a.Printf("           single witness: no destructive response rests on it\n")
	}
	for i, text := range servicenet.DeathNotes(in) {
		a.Printf("%-10s %s\n", []string{"machine", ""}[min(i, 1)], command.Printable(text))
	}
	for _, line := range []struct{ name, value string }{
		{"merged into", in.GetMergedInto()}, {"merged", strings.Join(in.GetMerged(), ", ")}, {"split from", in.GetSplitFrom()},
		{"runbook", in.GetRunbook()},
	} {
		if line.value != "" {
			a.Printf("%-10s %s\n", line.name, line.value)
		}
	}
	if in.GetEscalations() > 0 {
		a.Printf("escalated  at %s, escalations: %d\n", a.Clock(in.GetEscalated()), in.GetEscalations())
	}
	if ack := in.GetAcknowledgement(); ack != nil {
		a.Printf("acknowledged by %s at %s\n", ack.GetBy(), a.Clock(ack.GetTime()))
		if ack.GetOutdated() {
			a.Printf("           before the incident escalated: acknowledge it again\n")
		}
	}
	for _, n := range in.GetNotes() {
		a.Printf("note       %s %s: %s\n", a.Clock(n.GetTime()), n.GetBy(), command.Printable(n.GetText()))
	}
	if err := printIncidentResponses(a, in); err != nil {
		return err
	}
	if len(v.GetEvidence()) > 0 {
		a.Printf("\nevidence at the verdict\n")
		rows := [][]string{{"KIND", "OBSERVER", "SAYS", "AGE", "DETAIL"}}
		for _, e := range v.GetEvidence() {
			rows = append(rows, []string{e.GetKind(), e.GetObserver(), e.GetState().String(), command.ProtoDuration(e.GetAge()),
				command.Dash(command.Printable(e.GetDetail()))})
		}
		if err := a.Table(rows); err != nil {
			return err
		}
	}
	if len(in.GetConsequences()) == 0 {
		return nil
	}
	a.Printf("\nfolded: %d\n", in.GetConsequenceCount())
	rows := [][]string{{"NODE", "COMPONENT", "STATE", "CAUSE", "RULE"}}
	for _, c := range in.GetConsequences() {
		rows = append(rows, []string{c.GetNode(), c.GetComponent(), command.StateName(c.GetState()), command.CauseName(c.GetCause()),
			command.Dash(c.GetReason())})
	}
	return a.Table(rows)
}

// printIncidentResponses prints the responses to the faults of an incident.
func printIncidentResponses(a *command.App, in *lofamov1.Incident) error {
	if len(in.GetResponses()) == 0 {
		return nil
	}
	a.Printf("\nresponses: %d\n", max(in.GetResponseCount(), uint32(len(in.GetResponses()))))
	rows := [][]string{{"ID", "POLICY", "TO", "STATE", "STEP", "SINCE", "RESULT"}}
	for _, r := range in.GetResponses() {
		to, state := a.Words().Group(r.GetGroup()), strings.ToLower(strings.TrimPrefix(r.GetState().String(), "RESPONSE_"))
		if to == "" {
			to = r.GetNode() + "/" + r.GetComponent()
		}
		switch {
		case r.GetMode() == lofamov1.PolicyMode_OBSERVE_ONLY:
			state = "observe-only"
		case r.GetClosed() != nil:
			state += ", closed"
		}
		rows = append(rows, []string{r.GetId(), r.GetPolicy(), to, state, r.GetStep(), a.Since(r.GetSince()),
			command.Dash(command.Printable(r.GetResult()))})
	}
	return a.Table(rows)
}

// watchIncidents shows the incidents to keep, and then each of them when it changes: JSON as one object a line, YAML as one
// document for each change, and a jsonpath for each change. If the supervisors' store is replaced, it shows all again.
func watchIncidents(a *command.App, ctx context.Context, s command.Session, req *lofamov1.WatchIncidentsRequest,
	between command.Documents, keep func(*lofamov1.Incident) bool, show func([]*lofamov1.Incident) error,
) error {
	defer a.Attend(ctx, s)()
	each := func(r *lofamov1.WatchIncidentsResponse) error {
		changed := slices.DeleteFunc(r.GetIncidents(), func(in *lofamov1.Incident) bool { return !keep(in) })
		if len(changed) == 0 {
			return nil
		}
		between.Next(a)
		if between.Format != command.FormatJSON {
			return show(changed)
		}
		b, err := incidentsJSON(changed)
		if err == nil {
			a.Printf("%s\n", b)
		}
		return err
	}
	err := s.WatchIncidents(ctx, req, each)
	for ; errors.Is(err, client.ErrCompacted); err = s.WatchIncidents(ctx, req, each) {
		a.Warnf("lofamoctl: %v: all incidents follow again\n", command.Plain(err))
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		err = nil // the person has seen enough
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("get incidents: %w", command.Plain(err))
}

// AcknowledgeCommand returns `lofamoctl acknowledge`.
func AcknowledgeCommand(a *command.App) *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use:     "acknowledge INCIDENT",
		Aliases: []string{"ack"},
		Short:   "Record that you are dealing with an incident",
		Long: `Records that you are dealing with an incident, so that others see it, and adds a note. The first person to do so is shown as
the one who acknowledged it; later calls add their notes. It needs a certificate of role operator.

A note has at most 4096 bytes, an incident at most 32 notes. A CLOSED incident cannot be acknowledged.`,
		Example:           "  lofamoctl acknowledge k3f9-7qm2xw4d --note \"swapping the cable\"",
		Args:              command.Exactly("INCIDENT (its id, such as k3f9-7qm2xw4d)"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&note, "note", "", fmt.Sprintf("a note for others, at most %d bytes", maxNote))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id := strings.TrimPrefix(args[0], incidentKind)
		if n := len(note); n > maxNote {
			return command.Usagef("--note: given %d bytes: want at most %d", n, maxNote)
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.AcknowledgeIncident(ctx, id, note)
			if err != nil {
				return fmt.Errorf("acknowledge incident %s: %w", id, command.Plain(err))
			}
			in := resp.GetIncident()
			a.Printf("incident %s acknowledged by %s: %s\n", in.GetId(), in.GetAcknowledgement().GetBy(), command.Printable(in.GetSummary()))
			return nil
		})
	}
	return cmd
}

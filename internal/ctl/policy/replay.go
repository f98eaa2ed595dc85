package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/get"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maxEventsFile bounds a file of recorded events, in bytes.
const maxEventsFile = 64 << 20

// testFlags are the flags of policy test.
type testFlags struct {
	file, events, topology, config string
	kernelDead                     string
	defaults, enforce              bool
	approve                        []string
	since                          time.Duration
	limits                         response.Config
}

func policyTestCommand(a *command.App) *cobra.Command {
	f := testFlags{limits: response.Default()}
	cmd := &cobra.Command{
		Use:   "test -f FILE",
		Short: "Replay recorded events against policies, and show what would have happened",
		Long: `Runs recorded changes of the fault map through the engine that decides on responses, with the policies of a file. It
prints the requests of the policies, the steps that the engine would have taken, and its refusals with their reasons.
It carries nothing out: every step counts as done after a second.

The events come from the supervisors, or with --events from a file in the format of 'lofamoctl get events -o json'.
The nodes come from the topology, or with --topology from a file in the format of 'lofamoctl get topology -o yaml'.
With both files the command works offline.

The replay makes the best assumption about unrecorded facts: evidence is fresh while its fault stands, and a verdict
without the mark of a single witness had two. The limits are the supervisors' defaults, or with --config those of a
supervisor's configuration; flags override both.`,
		Example: `  lofamoctl policy test -f policies.yaml --enforce
  lofamoctl policy test --defaults --enforce --approve ann,bob --since 24h
  lofamoctl policy test -f policies.yaml --events events.json --topology topology.yaml -o json`,
		Args: command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	fl := cmd.Flags()
	fl.StringVarP(&f.file, "filename", "f", "", "the file with policies; - for the standard input")
	fl.BoolVar(&f.defaults, "defaults", false, "the policies that are shipped")
	fl.StringVar(&f.events, "events", "", "a file with recorded events (default: the supervisors' events)")
	fl.StringVar(&f.topology, "topology", "", "a file with the topology (default: the supervisors' topology)")
	fl.BoolVar(&f.enforce, "enforce", false, "observe-only policies act too")
	fl.StringVar(&f.kernelDead, "kernel-dead", "", `assumed fault.kernelDead of every FAILED node and half: "yes" or "no" (default unknown)`)
	fl.StringSliceVar(&f.approve, "approve", nil, "names of people who approve every request at once (comma-separated)")
	program.DurationVar(fl, &f.since, "since", 0, "only events of this last period, such as 2d, with earlier maintenance marks (default all)")
	fl.StringVar(&f.config, "config", "", "a supervisor's configuration, for its limits")
	fl.IntVar(&f.limits.MaxNodes, "max-nodes", f.limits.MaxNodes, "limit: nodes under response at once")
	fl.IntVar(&f.limits.MaxPercent, "max-percent", f.limits.MaxPercent, "limit: the same in percent of the nodes, 1 to 100")
	fl.IntVar(&f.limits.Approvals, "approvals", f.limits.Approvals, "limit: approvals for every step that may end work, 0 to 2")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.since < 0 {
			return command.Usagef("--since %v: want a positive time such as 24h", f.since)
		}
		kernel, err := parseKernelDead(f.kernelDead)
		if err != nil {
			return err
		}
		if err := f.takeLimits(cmd); err != nil {
			return err
		}
		text, name, err := documents(f.file, f.defaults, cmd.InOrStdin())
		if err != nil {
			return err
		}
		docs, err := policy.Parse(text)
		if err != nil {
			return fmt.Errorf("%s:\n%w", name, err)
		}
		run := policy.ReplayOptions{Config: f.limits, Policies: policy.Policies(docs), Enforce: f.enforce, KernelDead: kernel,
			Supervisors: []response.SupervisorInfo{{ID: "supervisor", Alive: true}}}
		for _, who := range f.approve {
			run.Approve = append(run.Approve, "approver/"+who)
		}
		events, top, err := recordings(a, cmd.Context(), &f, cmd.InOrStdin())
		if err != nil {
			return err
		}
		if run.Topology, err = replayTopology(top); err != nil {
			return err
		}
		return printReplay(a, events, run, &f, o.Format)
	}
	return cmd
}

// parseKernelDead parses the flag of that name.
func parseKernelDead(s string) (fault.KernelDead, error) {
	for k := fault.KernelDead(0); k.Valid(); k++ {
		if k.String() == s {
			return k, nil
		}
	}
	return 0, command.Usagef(`--kernel-dead %q: want "yes" or "no", or nothing: unknown`, s)
}

// takeLimits takes the limits of a configuration, except those set by flags.
func (f *testFlags) takeLimits(cmd *cobra.Command) error {
	if f.config != "" {
		cfg, err := config.ReadSupervisor(f.config, nil)
		if err != nil {
			return command.Usage(err)
		}
		said := f.limits
		f.limits = cfg.Responses.Limits(cfg.DomainLabels)
		for name, take := range map[string]func(){
			"max-nodes": func() { f.limits.MaxNodes = said.MaxNodes }, "max-percent": func() { f.limits.MaxPercent = said.MaxPercent },
			"approvals": func() { f.limits.Approvals = said.Approvals },
		} {
			if cmd.Flags().Changed(name) {
				take()
			}
		}
	}
	if err := f.limits.Validate(); err != nil {
		return command.Usage(err)
	}
	return nil
}

// recordings returns the events and responses to replay: from files, or from the supervisors.
func recordings(a *command.App, ctx context.Context, f *testFlags, stdin io.Reader) (events []*lofamov1.Event, top *lofamov1.Topology,
	err error) {
	if f.events != "" {
		if events, err = readEvents(f.events, stdin); err != nil {
			return nil, nil, err
		}
	}
	if f.topology != "" {
		if top, err = get.ReadTopology(f.topology, stdin); err != nil {
			return nil, nil, err
		}
	}
	if f.events != "" && f.topology != "" {
		return events, top, nil
	}
	err = a.WithClient(ctx, func(ctx context.Context, s command.Session) error {
		if f.events == "" {
			resp, err := s.AllEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: 1})
			if err != nil {
				return fmt.Errorf("policy test: events: %w", command.Plain(err))
			}
			events = resp.GetEvents()
		}
		if f.topology == "" {
			if top, err = s.GetTopology(ctx); err != nil {
				return fmt.Errorf("policy test: topology: %w", command.Plain(err))
			}
		}
		return nil
	})
	return events, top, err
}

// readEvents reads a list of events as 'get events' prints it.
func readEvents(file string, stdin io.Reader) ([]*lofamov1.Event, error) {
	b, file, err := command.ReadBounded(file, stdin, maxEventsFile)
	if err != nil {
		return nil, err
	}
	js, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, command.Usagef("%s: neither JSON nor YAML: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	list := new(lofamov1.ListEventsResponse)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(js, list); err != nil {
		return nil, command.Usagef("%s: not a list of events: %s", file,
			command.Position.ReplaceAllString(strings.ReplaceAll(err.Error(), "\u00a0", " "), ""))
	}
	return list.GetEvents(), nil
}

// replayTopology converts a topology to the engine's form.
func replayTopology(top *lofamov1.Topology) (response.TopologyChanged, error) {
	var out response.TopologyChanged
	var errs []error
	var err error
	if out.Dims, err = grid.ParseDims(top.GetDims()); err != nil {
		errs = append(errs, err)
	}
	for _, n := range top.GetNodes() {
		info := response.NodeInfo{ID: fault.NodeID(n.GetId()), Spare: n.GetCoord() == "", Labels: n.GetLabels()}
		if !info.Spare {
			if info.Coord, err = grid.ParseCoord(n.GetCoord()); err != nil {
				errs = append(errs, fmt.Errorf("node %s: %w", n.GetId(), err))
			} else if err := out.Dims.Check(info.Coord); err != nil && out.Dims != (grid.Dims{}) {
				errs = append(errs, fmt.Errorf("node %s: %w", n.GetId(), err))
			}
		}
		out.Nodes = append(out.Nodes, info)
	}
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("topology: %w", err)
	}
	return out, nil
}

// printReplay runs a replay, and prints its results.
func printReplay(a *command.App, events []*lofamov1.Event, run policy.ReplayOptions, f *testFlags, form command.Format) error {
	recorded, skipped := recordedEvents(events)
	var before []policy.Recorded
	if f.since > 0 {
		before, recorded = lately(recorded, a.Env.Now().Add(-f.since))
	}
	if skipped > 0 {
		a.Warnf("lofamoctl: %s that cannot be read, left out\n", fault.Plural(skipped, "event"))
	}
	if len(recorded) == 0 {
		return errors.New("policy test: no event to replay: want at least one change of a fault")
	}
	report, err := policy.Replay(append(before, recorded...), run)
	if err != nil {
		return fmt.Errorf("policy test: %w", err)
	}
	if form != command.FormatTable {
		b, err := json.Marshal(replayed(report))
		if err != nil {
			return fmt.Errorf("policy test: %w", err)
		}
		return a.PrintJSON(form, b)
	}
	a.Printf("%s from %s on\n\n%s", fault.Plural(len(recorded), "event"), report.Start.In(a.Env.Location).Format("2006-01-02 15:04:05"),
		report.Table())
	return nil
}

// lately returns the events from a time on, and before them the maintenance marks of that time, if any were recorded.
func lately(recorded []policy.Recorded, begin time.Time) (marks, later []policy.Recorded) {
	for _, r := range recorded {
		if !r.At.Before(begin) {
			later = append(later, r)
		} else if _, ok := r.Event.(response.MaintenanceChanged); ok {
			marks = []policy.Recorded{{At: begin, Event: r.Event}}
		}
	}
	return marks, later
}

// recordedEvents converts events to the engine's form, and counts unreadable ones. It skips kinds that the engine does
// not use.
func recordedEvents(events []*lofamov1.Event) (out []policy.Recorded, skipped int) {
	marked := map[fault.NodeID]bool{}
	for _, ev := range events {
		var told response.Event
		switch ev.GetKind() {
		case lofamov1.EventKind_EVENT_KIND_UNSPECIFIED, lofamov1.EventKind_COMPONENT_CHANGED:
			f, ok := recordedFault(ev)
			if !ok {
				skipped++
				continue
			}
			told = response.FaultChanged{Fault: f}
		case lofamov1.EventKind_GROUP_CHANGED:
			g, ok := recordedGroup(ev)
			if !ok {
				skipped++
				continue
			}
			told = response.GroupChanged{Group: g}
		case lofamov1.EventKind_MAINTENANCE_CHANGED:
			if id := fault.NodeID(ev.GetNode()); ev.GetEnded() {
				delete(marked, id)
			} else {
				marked[id] = true
			}
			told = response.MaintenanceChanged{Nodes: slices.Sorted(maps.Keys(marked))}
		default:
			continue
		}
		if ev.GetTime() == nil {
			skipped++
			continue
		}
		out = append(out, policy.Recorded{At: ev.GetTime().AsTime(), Event: told})
	}
	return out, skipped
}

func recordedFault(ev *lofamov1.Event) (response.Fault, bool) {
	c, err := fault.ParseComponent(ev.GetComponent())
	state, known := recordedState(ev.GetTo())
	if err != nil || !known || ev.GetNode() == "" {
		return response.Fault{}, false
	}
	at := ev.GetTime().AsTime()
	f := response.Fault{
		Node: fault.NodeID(ev.GetNode()), Component: c, State: state, Cause: fault.Cause(ev.GetCause()), Since: at, Flapping: ev.GetFlapping(),
		Platform: fault.Platform(ev.GetPlatform()),
		Evidence: response.Evidence{At: at, Kind: fault.KindWatchdog, Witnesses: []string{ev.GetObserver()},
			SingleWitness: ev.GetSingleWitness()},
	}
	if !ev.GetSingleWitness() { // the map had enough witnesses; the event names the deciding one
		f.Evidence.Witnesses = append(f.Evidence.Witnesses, "supervisor/recorded")
	}
	return f, true
}

func recordedState(s lofamov1.State) (fault.State, bool) {
	return fault.State(s), s >= lofamov1.State_UNKNOWN && s <= lofamov1.State_FAILED
}

func recordedGroup(ev *lofamov1.Event) (response.Group, bool) {
	g := ev.GetGroup()
	state, known := recordedState(ev.GetTo())
	if !known || g.GetId() == "" {
		return response.Group{}, false
	}
	out := response.Group{
		ID: g.GetId(), Kind: g.GetKind().String(), State: state, Cause: fault.Cause(g.GetCause()), Of: int(g.GetOf()),
		Since: g.GetSince().AsTime(), At: ev.GetTime().AsTime(),
	}
	for _, id := range g.GetMembers() {
		out.Members = append(out.Members, fault.NodeID(id))
	}
	return out, true
}

// replayedReport is the result of a replay, for machines.
type replayedReport struct {
	Start     time.Time          `json:"start"`
	Decisions []replayedDecision `json:"decisions"`
	Open      int                `json:"open"` // responses at the end
	Breaker   bool               `json:"breakerOpen"`
	Most      int                `json:"mostNodesUnderResponse"`
}

type replayedDecision struct {
	At       time.Time `json:"at"`
	Act      string    `json:"act"`
	Response string    `json:"response,omitempty"`
	Policy   string    `json:"policy,omitempty"`
	Target   string    `json:"target,omitempty"`
	Step     string    `json:"step,omitempty"`
	Executor string    `json:"executor,omitempty"`
	Attempt  int       `json:"attempt,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Subject  string    `json:"subject,omitempty"`
	Detail   string    `json:"detail,omitempty"`
}

func replayed(r policy.ReplayReport) replayedReport {
	out := replayedReport{Start: r.Start, Open: len(r.Open), Breaker: r.Breaker.Open, Most: r.Most, Decisions: []replayedDecision{}}
	for _, d := range r.Decisions {
		line := replayedDecision{At: d.At, Act: d.Act.String(), Response: d.Response, Policy: d.Policy, Step: d.Step, Executor: string(d.Kind),
			Attempt: d.Attempt, Subject: d.Subject, Detail: d.Detail}
		if d.Target != (response.Target{}) {
			line.Target = d.Target.String()
		}
		if d.Reason != 0 {
			line.Reason = d.Reason.String()
		}
		out.Decisions = append(out.Decisions, line)
	}
	return out
}

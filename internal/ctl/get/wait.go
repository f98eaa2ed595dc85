package get

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
)

// nodeKind is the prefix of a node in the arguments of wait, as -o name prints it.
const nodeKind = "node/"

// condition is what wait waits for.
type condition struct {
	nodes  []string // names or coordinates
	all    bool     // all nodes that the selector chooses
	labels string
	state  lofamov1.State // of the nodes; unspecified: the condition is about incidents
	most   int            // incidents that are OPEN or RECOVERING
}

// WaitCommand returns `lofamoctl wait`.
func WaitCommand(a *command.App) *cobra.Command {
	var want, labels string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait [node/NODE...|nodes] --for CONDITION",
		Short: "Wait until nodes have a state, or until few enough incidents are open",
		Long: `Waits until a condition holds, and prints what holds. It asks again at each committed change. A supervisor must
answer at the start; later it waits through an outage of all of them. An answer without a quorum of supervisors meets no condition.

Conditions: state=NORMAL, SICK, FAILED or UNKNOWN, of all named nodes, or of all nodes that -l chooses; and incidents=N, at
most N incidents that are OPEN or RECOVERING in the whole cluster, without an argument.

Exit codes: 0 the condition holds, 1 it does not hold within --timeout or no supervisor answers, 2 a usage error or an
unknown node.`,
		Example: `  lofamoctl wait node/n42 --for state=NORMAL --timeout 60s
  lofamoctl wait nodes -l rack=r7 --for state=NORMAL
  lofamoctl wait --for incidents=0 --timeout 1d`,
		Args: cobra.ArbitraryArgs,
	}
	cmd.Flags().StringVar(&want, "for", "", "the condition: state=STATE or incidents=N")
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "with nodes: only those with these labels, such as rack=r7,!spare")
	program.DurationVar(cmd.Flags(), &timeout, "timeout", 30*time.Second, "time limit; 0: look once")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := parseCondition(args, want, labels)
		if err != nil {
			return err
		}
		if timeout < 0 {
			return command.Usagef("--timeout %v: want 0 or a positive time such as 60s", timeout)
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error { return c.wait(a, ctx, s, timeout) })
	}
	return cmd
}

// parseCondition parses a command line.
func parseCondition(args []string, want, labels string) (*condition, error) {
	c := &condition{labels: labels}
	for _, arg := range args {
		name, ok := strings.CutPrefix(arg, nodeKind)
		switch {
		case arg == "nodes" && len(args) == 1:
			c.all = true
		case !ok || name == "":
			return nil, command.Usagef("%q: want node/NODE, or nodes alone for all nodes", arg)
		default:
			c.nodes = append(c.nodes, name)
		}
	}
	kind, value, _ := strings.Cut(want, "=")
	switch kind {
	case "state":
		v, ok := lofamov1.State_value[strings.ToUpper(value)]
		if c.state = lofamov1.State(v); !ok || v == 0 || c.state == lofamov1.State_ABSENT {
			return nil, command.Usagef("--for %q: want state=NORMAL, SICK, FAILED or UNKNOWN", want)
		}
		if len(args) == 0 {
			return nil, command.Usagef("--for %s: given without an object: want node/NODE or nodes", want)
		}
	case "incidents":
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return nil, command.Usagef("--for %q: want incidents=N, a whole number, 0 or more", want)
		}
		if c.most = int(n); len(args) > 0 { //nolint:gosec // 31 bits
			return nil, command.Usagef("--for %s: counts the incidents of the whole cluster: want no argument, given %q", want, args[0])
		}
	default:
		return nil, command.Usagef("--for %q: want state=STATE or incidents=N", want)
	}
	if labels != "" && !c.all {
		return nil, command.Usagef("--selector %s: goes with nodes, which is missing", labels)
	}
	return c, nil
}

// wait waits until the condition holds.
func (c *condition) wait(a *command.App, ctx context.Context, s command.Session, timeout time.Duration) error {
	holds, now, err := c.look(ctx, s)
	if err != nil {
		return fmt.Errorf("wait: %w", command.Plain(err))
	}
	if !holds && timeout > 0 {
		within, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if holds, now, err = c.follow(within, s, now); err != nil {
			return fmt.Errorf("wait: %w", command.Plain(err))
		}
	}
	if !holds {
		return fmt.Errorf("wait: not met within %v: %s", timeout, command.Dash(now))
	}
	a.Printf("%s\n", now)
	return nil
}

// follow checks the condition after each change until it holds or ctx ends. now describes the last check.
func (c *condition) follow(ctx context.Context, s command.Session, now string) (bool, string, error) {
	changes := command.BeginChanges(ctx, c.watch(s))
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, now, nil
		case <-changes.Ended:
			if ctx.Err() != nil {
				return false, now, nil
			}
			return false, now, changes.Err()
		case <-changes.Changed:
		}
		holds, found, err := c.look(ctx, s)
		switch {
		case ctx.Err() != nil:
			return false, now, nil
		case err == nil && holds:
			return true, found, nil
		case err == nil:
			now = found
		case !command.Unanswered(err):
			return false, now, err
		default:
			now = "no supervisor answers"
		}
	}
}

// watch returns the watch of what the condition may depend on.
func (c *condition) watch(s command.Session) func(ctx context.Context, changed func()) error {
	if c.state != lofamov1.State_STATE_UNSPECIFIED {
		return command.WatchMap(s)
	}
	return func(ctx context.Context, changed func()) error {
		return s.WatchIncidents(ctx, &lofamov1.WatchIncidentsRequest{}, func(*lofamov1.WatchIncidentsResponse) error {
			changed()
			return nil
		})
	}
}

// look reports whether the condition holds, and says how things stand.
func (c *condition) look(ctx context.Context, s command.Session) (bool, string, error) {
	if c.state == lofamov1.State_STATE_UNSPECIFIED {
		resp, err := s.AllIncidents(ctx, &lofamov1.ListIncidentsRequest{States: []lofamov1.IncidentState{
			lofamov1.IncidentState_OPEN, lofamov1.IncidentState_RECOVERING,
		}}, incidentChunk)
		if err != nil {
			return false, "", err
		}
		now := fmt.Sprintf("incidents open or recovering: %d", len(resp.GetIncidents()))
		if resp.GetStale() || len(resp.GetMissingRegions()) > 0 {
			return false, now + ", by an incomplete answer", nil
		}
		return len(resp.GetIncidents()) <= c.most, now, nil
	}
	resp, err := s.AllNodes(ctx, &lofamov1.ListNodesRequest{LabelSelector: c.labels}, 0)
	if err != nil {
		return false, "", err
	}
	nodes := resp.GetNodes()
	if !c.all {
		if nodes, err = named(nodes, c.nodes); err != nil {
			return false, "", err
		}
	}
	if len(nodes) == 0 {
		return false, "no nodes match", nil
	}
	if resp.GetCluster().GetStale() {
		return false, "no quorum of supervisors answers", nil
	}
	var others []string
	for _, n := range nodes {
		if n.GetState() != c.state {
			others = append(others, fmt.Sprintf("%s%s is %s", nodeKind, n.GetId(), command.StateName(n.GetState())))
		}
	}
	if len(others) > 0 {
		return false, command.Some(others, 3), nil
	}
	if len(nodes) > 3 {
		return true, fmt.Sprintf("%d nodes are %s", len(nodes), c.state), nil
	}
	var met []string
	for _, n := range nodes {
		met = append(met, fmt.Sprintf("%s%s is %s", nodeKind, n.GetId(), c.state))
	}
	return true, strings.Join(met, ", "), nil
}

// named returns the nodes with these ids or coordinates, in the order of the names and each once.
func named(nodes []*lofamov1.Node, names []string) ([]*lofamov1.Node, error) {
	var out []*lofamov1.Node
	for _, name := range names {
		i := slices.IndexFunc(nodes, func(n *lofamov1.Node) bool { return n.GetId() == name || n.GetCoord() == name })
		switch {
		case i < 0:
			return nil, command.Usagef("node %q: there is none with this id or these coordinates (lofamoctl get nodes)", name)
		case !slices.Contains(out, nodes[i]):
			out = append(out, nodes[i])
		}
	}
	return out, nil
}

package ctl

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func (a *app) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get nodes|node NODE|links|masks|groups|events|reports|supervisors|topology|diagnosis|procedure|responses|response ID|breaker",
		Short: "What the fault map holds",
		Long: `Prints nodes, one node with its registers and evidence, links, group faults, committed changes,
reports on their way, supervisors, the topology, the last diagnosis, the last fault management
procedure, or responses to faults and their circuit breaker.

-o table and wide are for people; -o json and yaml print the API's own messages in protobuf JSON.
A list has a revision: 'lofamoctl watch --after-revision' continues from it without a gap.

States: NORMAL known good, SICK errors beyond a threshold or a part failed, FAILED no longer taking
part, UNKNOWN no fresh evidence.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("get what? want nodes, node NODE, links, masks, groups, events, reports, supervisors, topology, diagnosis, procedure, responses, response ID or breaker")
			}
			return usagef("get %s: want nodes, node NODE, links, masks, groups, events, reports, supervisors, topology, diagnosis, procedure, responses, response ID or breaker", args[0])
		},
	}
	cmd.AddCommand(a.getNodesCommand(), a.getNodeCommand(), a.getLinksCommand(), a.getGroupsCommand(), a.getEventsCommand(), a.getReportsCommand(), a.getSupervisorsCommand())
	cmd.AddCommand(a.getTopologyCommand(), a.getMasksCommand(), a.getDiagnosisCommand(), a.getProcedureCommand())
	cmd.AddCommand(a.getResponsesCommand(), a.getResponseCommand(), a.getBreakerCommand())
	return cmd
}

func allFormats(cmd *cobra.Command) *outputFlag {
	return addOutputFlag(cmd, formatTable, formatWide, formatJSON, formatYAML)
}

func addStateFlag(cmd *cobra.Command, states *[]string) {
	cmd.Flags().StringSliceVar(states, "state", nil, "only those in these states: NORMAL, SICK, FAILED, UNKNOWN (comma-separated)")
}

func parseStates(names []string) ([]lofamov1.State, error) {
	var out []lofamov1.State
	for _, n := range names {
		v, ok := lofamov1.State_value[strings.ToUpper(n)]
		if !ok || v == 0 {
			return nil, usagef("--state %q: want NORMAL, SICK, FAILED or UNKNOWN", n)
		}
		out = append(out, lofamov1.State(v))
	}
	return out, nil
}

func (a *app) getNodesCommand() *cobra.Command {
	var states []string
	var notNormal bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Every node with its state and cause",
		Long: `Prints one line for each node, the group faults that nodes are members of above them.

NOTES tell what the state does not: maintenance, warnings, flapping components, a verdict of a single witness,
a node that is inferred dead because nobody living could see it, or that no living way leads to, spares.
` + nodeSelectors,
		Example: "  lofamoctl get nodes\n  lofamoctl get nodes --not-normal -l rack=r7\n  lofamoctl get nodes --field-selector x=3,state!=NORMAL -o json",
		Args:    exactly(),
	}
	o := allFormats(cmd)
	addStateFlag(cmd, &states)
	l := addListFlags(cmd, "nodes", "state=FAILED,x!=0")
	cmd.Flags().BoolVar(&notNormal, "not-normal", false, "only nodes that are not NORMAL, or have a warning or a component that is SICK or FAILED")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		want, err := parseStates(states)
		if err != nil {
			return err
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			req := &lofamov1.ListNodesRequest{States: want, LabelSelector: l.labels, FieldSelector: l.fields, NotNormal: notNormal}
			resp, err := s.AllNodes(ctx, req, l.chunk)
			if err != nil {
				return fmt.Errorf("get nodes: %w", plain(err))
			}
			a.warnCluster(resp.GetCluster())
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			if err := a.printGroupsOf(ctx, s, resp.GetNodes()); err != nil {
				return err
			}
			return table(a.env.Stdout, a.nodeRows(resp.GetNodes(), o.format == formatWide))
		})
	}
	return cmd
}

// warnCluster says what makes an answer less than whole: that it may be old, and how old, and of which regions nothing
// is heard.
func (a *app) warnCluster(c *lofamov1.ClusterInfo) {
	for _, r := range c.GetRegions() {
		if r.GetState() == lofamov1.State_NORMAL {
			continue
		}
		since := ""
		if r.GetAge() != nil {
			since = " since " + protoDuration(r.GetAge())
		}
		a.warnf("lofamoctl: CUT OFF: region %s is not heard%s: its %s shown as UNKNOWN, what was last is kept until it is back\n",
			printable(r.GetName()), since, areNodes(int(r.GetNodes())))
	}
	a.warnHeld(c.GetVerdictsHeld())
	if !c.GetStale() {
		return
	}
	age := "and has reached none since it started"
	if d := c.GetStaleAge(); d != nil {
		age = "since " + protoDuration(d)
	}
	a.warnf("lofamoctl: STALE: this answer comes from a supervisor that reaches no leader, %s: what it says may be as old\n", age)
}

// warnHeld warns that verdicts wait, so that a shown state may be out of date.
func (a *app) warnHeld(why string) {
	if why != "" {
		a.warnf("lofamoctl: HELD: %s\n", printable(why))
	}
}

func (a *app) getNodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "node NODE",
		Short:             "One node with its components, registers and evidence",
		Long:              "Prints one node, named by id or coordinates, with its components, registers and evidence.",
		Example:           "  lofamoctl get node n1-0-1\n  lofamoctl get node 1,0,1 -o json",
		Args:              exactly("NODE (an id such as n1-0-1, or coordinates such as 1,0,1)"),
		ValidArgsFunction: a.completeFirstNode,
	}
	o := allFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			n, err := s.GetNode(ctx, args[0])
			if err != nil {
				return fmt.Errorf("get node %s: %w", args[0], plain(err))
			}
			a.warnHeld(n.GetVerdictsHeld())
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, n)
			}
			return a.printNode(n, o.format == formatWide)
		})
	}
	return cmd
}

func (a *app) getLinksCommand() *cobra.Command {
	var states []string
	cmd := &cobra.Command{
		Use:   "links [NODE]",
		Short: "Every end of every link with its state",
		Long: `Prints one line for each end of each link: the node whose end it is, the direction, and the
neighbour. The two ends of a cable are judged apart, for a link may be broken in one direction only.
` + linkSelectors,
		Example:           "  lofamoctl get links\n  lofamoctl get links 1,0,1 -o wide\n  lofamoctl get links --state SICK,FAILED -l rack=r7",
		Args:              between(0, "NODE"),
		ValidArgsFunction: a.completeFirstNode,
	}
	o := allFormats(cmd)
	addStateFlag(cmd, &states)
	l := addListFlags(cmd, "link ends", "direction=X+,state!=NORMAL")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		want, err := parseStates(states)
		if err != nil {
			return err
		}
		req := &lofamov1.ListLinksRequest{States: want, LabelSelector: l.labels, FieldSelector: l.fields}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.AllLinks(ctx, req, l.chunk)
			if err != nil {
				return fmt.Errorf("get links: %w", plain(err))
			}
			a.warnCluster(resp.GetCluster())
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			return table(a.env.Stdout, a.linkRows(resp.GetLinks(), o.format == formatWide))
		})
	}
	return cmd
}

func (a *app) getSupervisorsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "supervisors",
		Short: "The replicas of the supervisor, and which of them leads",
		Args:  exactly(),
	}
	o := allFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.ListSupervisors(ctx)
			if err != nil {
				return fmt.Errorf("get supervisors: %w", plain(err))
			}
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			return table(a.env.Stdout, supervisorRows(resp.GetSupervisors(), o.format == formatWide))
		})
	}
	return cmd
}

func areNodes(n int) string {
	if n == 1 {
		return "1 node is"
	}
	return fmt.Sprintf("%d nodes are", n)
}

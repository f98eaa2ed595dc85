// Package get has the commands that read the fault map: get, summary, history, explain and watch. Other packages add
// their own kinds to `lofamoctl get`.
package get

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/show"
)

// Command returns `lofamoctl get` with the kinds of this package and others.
func Command(a *command.App, others ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get nodes|node NODE|links|masks|groups|events|reports|supervisors|topology|diagnosis|procedure|responses|response ID|breaker",
		Short: "Lists from the fault map",
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
				return command.Usagef("get what? want nodes, node NODE, links, masks, groups, events, reports, supervisors, topology, diagnosis, procedure, responses, response ID or breaker")
			}
			return command.Usagef("get %s: want nodes, node NODE, links, masks, groups, events, reports, supervisors, topology, diagnosis, procedure, responses, response ID or breaker", args[0])
		},
	}
	cmd.AddCommand(getNodesCommand(a), getNodeCommand(a), getLinksCommand(a), getGroupsCommand(a), getEventsCommand(a), getReportsCommand(a), getSupervisorsCommand(a))
	cmd.AddCommand(others...)
	return cmd
}

func addStateFlag(cmd *cobra.Command, states *[]string) {
	cmd.Flags().StringSliceVar(states, "state", nil, "only those in these states: NORMAL, SICK, FAILED, UNKNOWN (comma-separated)")
}

func parseStates(names []string) ([]lofamov1.State, error) {
	var out []lofamov1.State
	for _, n := range names {
		v, ok := lofamov1.State_value[strings.ToUpper(n)]
		if !ok || v == 0 {
			return nil, command.Usagef("--state %q: want NORMAL, SICK, FAILED or UNKNOWN", n)
		}
		out = append(out, lofamov1.State(v))
	}
	return out, nil
}

func getNodesCommand(a *command.App) *cobra.Command {
	var states []string
	var notNormal bool
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Every node with its state and cause",
		Long: `Prints one line for each node, the group faults that nodes are members of above them.

NOTES add to the state: maintenance, an announced restart of a half, warnings, flapping components, a verdict of a single witness,
a node that is inferred dead because no living node could see it, an unreachable node, spares.
` + command.NodeSelectors,
		Example: "  lofamoctl get nodes\n  lofamoctl get nodes --not-normal -l rack=r7\n  lofamoctl get nodes --field-selector x=3,state!=NORMAL -o json",
		Args:    command.Exactly(),
	}
	o := command.AllFormats(cmd)
	addStateFlag(cmd, &states)
	l := command.AddListFlags(cmd, "nodes", "state=FAILED,x!=0")
	cmd.Flags().BoolVar(&notNormal, "not-normal", false, "only nodes that are not NORMAL, or have a warning or a component that is SICK or FAILED")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		want, err := parseStates(states)
		if err != nil {
			return err
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			req := &lofamov1.ListNodesRequest{States: want, LabelSelector: l.Labels, FieldSelector: l.Fields, NotNormal: notNormal}
			resp, err := s.AllNodes(ctx, req, l.Chunk)
			if err != nil {
				return fmt.Errorf("get nodes: %w", command.Plain(err))
			}
			show.WarnCluster(a, resp.GetCluster())
			if o.Format == command.FormatJSON || o.Format == command.FormatYAML {
				return a.PrintMessage(o.Format, resp)
			}
			if err := printGroupsOf(a, ctx, s, resp.GetNodes()); err != nil {
				return err
			}
			return command.Table(a.Env.Stdout, show.NodeRows(a, resp.GetNodes(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

func getNodeCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:               "node NODE",
		Short:             "One node with its components, registers and evidence",
		Long:              "Prints one node, named by id or coordinates, with its components, registers and evidence.",
		Example:           "  lofamoctl get node n1-0-1\n  lofamoctl get node 1,0,1 -o json",
		Args:              command.Exactly("NODE (an id such as n1-0-1, or coordinates such as 1,0,1)"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.AllFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			n, err := s.GetNode(ctx, args[0])
			if err != nil {
				return fmt.Errorf("get node %s: %w", args[0], command.Plain(err))
			}
			show.WarnHeld(a, n.GetVerdictsHeld())
			if o.Format == command.FormatJSON || o.Format == command.FormatYAML {
				return a.PrintMessage(o.Format, n)
			}
			return show.PrintNode(a, n, o.Format == command.FormatWide)
		})
	}
	return cmd
}

func getLinksCommand(a *command.App) *cobra.Command {
	var states []string
	cmd := &cobra.Command{
		Use:   "links [NODE]",
		Short: "Every end of every link with its state",
		Long: `Prints one line for each end of each link: the node whose end it is, the direction, and the
neighbour. The two ends of a cable are judged apart, for a link may be broken in one direction only.
` + command.LinkSelectors,
		Example:           "  lofamoctl get links\n  lofamoctl get links 1,0,1 -o wide\n  lofamoctl get links --state SICK,FAILED -l rack=r7",
		Args:              command.Between(0, "NODE"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.AllFormats(cmd)
	addStateFlag(cmd, &states)
	l := command.AddListFlags(cmd, "link ends", "direction=X+,state!=NORMAL")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		want, err := parseStates(states)
		if err != nil {
			return err
		}
		req := &lofamov1.ListLinksRequest{States: want, LabelSelector: l.Labels, FieldSelector: l.Fields}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.AllLinks(ctx, req, l.Chunk)
			if err != nil {
				return fmt.Errorf("get links: %w", command.Plain(err))
			}
			show.WarnCluster(a, resp.GetCluster())
			if o.Format == command.FormatJSON || o.Format == command.FormatYAML {
				return a.PrintMessage(o.Format, resp)
			}
			return command.Table(a.Env.Stdout, show.LinkRows(a, resp.GetLinks(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

func getSupervisorsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "supervisors",
		Short: "The replicas of the supervisor, and which of them leads",
		Args:  command.Exactly(),
	}
	o := command.AllFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.ListSupervisors(ctx)
			if err != nil {
				return fmt.Errorf("get supervisors: %w", command.Plain(err))
			}
			if o.Format == command.FormatJSON || o.Format == command.FormatYAML {
				return a.PrintMessage(o.Format, resp)
			}
			return command.Table(a.Env.Stdout, show.SupervisorRows(resp.GetSupervisors(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

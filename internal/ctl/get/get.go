// Package get has the commands that read the fault map (get, summary, history, explain, watch and map) and those that
// change or test the torus as a whole: apply, label, mask, unmask and diagnose. Other packages add their own kinds to
// `lofamoctl get`.
package get

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

const kinds = "nodes, node NODE, incidents, links, masks, groups, events, reports, supervisors, topology, diagnosis, " +
	"procedure, policies, responses, response ID or breaker"

// Command returns `lofamoctl get` with the kinds of this package and others.
func Command(a *command.App, others ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: "get nodes|node NODE|incidents|links|masks|groups|events|reports|supervisors|topology|diagnosis|procedure|" +
			"policies|responses|response ID|breaker",
		Short: "Lists from the fault map",
		Long: `Prints nodes, one node with its registers and evidence, incidents, links, group faults, committed changes, reports in
transit, supervisors, the topology, the last diagnosis, the last fault management procedure, policies, responses to
faults, or their circuit breaker.

-o table and wide are for people. -o json and yaml print the API's own messages in protobuf JSON, -o
jsonpath='{.nodes[*].id}' prints parts of them as kubectl does, and -o name only KIND/NAME of each object. A list has
a revision: 'lofamoctl watch --after-revision' continues from it without a gap. -w prints the list, then each object
again when it changes; changes of measurements alone do not count.

Short names: no (nodes), inc (incidents), li (links), gr (groups), ev (events), sup (supervisors).

States: NORMAL known good; SICK errors beyond a threshold, or a failed part; FAILED no longer takes part; UNKNOWN no
fresh evidence. A sensor or peripheral that a node does not have is ABSENT.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Usagef("get what? want " + kinds)
			}
			return command.Usagef("get %s: want "+kinds, args[0])
		},
	}
	cmd.AddCommand(getNodesCommand(a), getNodeCommand(a), getIncidentsCommand(a), getLinksCommand(a), getGroupsCommand(a), getEventsCommand(a),
		getReportsCommand(a),
		getSupervisorsCommand(a), getTopologyCommand(a), getMasksCommand(a), getDiagnosisCommand(a), getProcedureCommand(a))
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

// notNormal are the states of --not-normal.
var notNormal = []lofamov1.State{lofamov1.State_UNKNOWN, lofamov1.State_SICK, lofamov1.State_FAILED}

// withoutNormal returns the states that --not-normal selects of those that --state names, or of all.
func withoutNormal(states []lofamov1.State, what string) ([]lofamov1.State, error) {
	if len(states) == 0 {
		return notNormal, nil
	}
	states = slices.DeleteFunc(slices.Clone(states), func(s lofamov1.State) bool { return s == lofamov1.State_NORMAL })
	if len(states) == 0 {
		return nil, command.Usagef("--not-normal with --state NORMAL: no %s is both", what)
	}
	return states, nil
}

func getNodesCommand(a *command.App) *cobra.Command {
	var states []string
	var odd, parts bool
	cmd := &cobra.Command{
		Use:     "nodes [NODE...]",
		Aliases: []string{"no"},
		Short:   "Every node, or the named ones, with state and cause",
		Long: `Prints one line for each node, or for each named one, with the group faults of the nodes above them.

NOTES add to the state: maintenance, an announced restart of a half, warnings, flapping components, a verdict of a
single witness, a node that is inferred dead because no living node could see it, an unreachable node, a node that has
lost some of its service interfaces, spares.
` + command.NodeSelectors,
		Example: "  lofamoctl get nodes\n  lofamoctl get nodes n1 n2\n" +
			"  lofamoctl get nodes --not-normal -l rack=r7\n  lofamoctl get nodes --field-selector " +
			"x=3,state!=NORMAL -o json",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.CompleteNodes,
	}
	o := command.GetFormats(cmd)
	addStateFlag(cmd, &states)
	l := command.AddListFlags(cmd, "nodes", "state=FAILED,x!=0")
	cmd.Flags().BoolVar(&odd, "not-normal", false, "only nodes that are not NORMAL; no spares")
	cmd.Flags().BoolVar(&parts, "with-parts", false, "with --not-normal: also NORMAL nodes with a warning or with a part that is SICK or "+
		"FAILED")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		want, err := parseStates(states)
		switch {
		case err != nil:
			return err
		case len(names) > 0 && (odd || len(want) > 0 || l.Labels != "" || l.Fields != ""):
			return command.Usagef("%s: given with --state, --not-normal or a selector: want names or these", names[0])
		case parts && !odd:
			return command.Usagef("--with-parts goes with --not-normal, which is missing")
		case odd && !parts:
			if want, err = withoutNormal(want, "node"); err != nil {
				return err
			}
		}
		req := &lofamov1.ListNodesRequest{States: want, LabelSelector: l.Labels, FieldSelector: l.Fields, NotNormal: odd}
		var groups []*lofamov1.Group // of the printed nodes
		return command.Query(a, cmd, "get nodes", o, func(ctx context.Context, s command.Session) (*lofamov1.ListNodesResponse, error) {
			req.Continue = ""
			resp, err := s.AllNodes(ctx, req, l.Chunk)
			if err == nil && len(names) > 0 {
				resp.Nodes, err = named(resp.GetNodes(), names)
			}
			if err == nil && !o.Format.Structured() && !o.Watch {
				groups, err = groupsOf(ctx, s, resp.GetNodes())
			}
			return resp, err
		}, func(resp *lofamov1.ListNodesResponse) error {
			if len(groups) > 0 {
				if err := a.Table(command.GroupRows(a, groups, false)); err != nil {
					return err
				}
				a.Printf("\n")
			}
			return a.List("nodes", command.NodeRows(a, resp.GetNodes(), o.Format == command.FormatWide))
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
	o := command.GetFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return command.Query(a, cmd, "get node "+args[0], o, func(ctx context.Context, s command.Session) (*lofamov1.Node, error) {
			if !o.Format.Structured() {
				a.LearnCluster(ctx, s)
			}
			return s.GetNode(ctx, args[0])
		}, func(n *lofamov1.Node) error {
			return command.PrintNode(a, n, o.Format == command.FormatWide)
		})
	}
	return cmd
}

func getLinksCommand(a *command.App) *cobra.Command {
	var states []string
	var odd bool
	cmd := &cobra.Command{
		Use:     "links [NODE]",
		Aliases: []string{"link", "li"},
		Short:   "Every end of every link with its state",
		Long: `Prints one line for each end of each link: its node, the direction, and the neighbour. The supervisors judge the two
ends of a cable separately, because a link may be broken in one direction only.
` + command.LinkSelectors,
		Example:           "  lofamoctl get links\n  lofamoctl get links 1,0,1 -o wide\n  lofamoctl get links --not-normal -l rack=r7",
		Args:              command.Between(0, "NODE"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.GetFormats(cmd)
	addStateFlag(cmd, &states)
	l := command.AddListFlags(cmd, "link ends", "direction=X+,state!=NORMAL")
	cmd.Flags().BoolVar(&odd, "not-normal", false, "only link ends that are not NORMAL")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		want, err := parseStates(states)
		if err == nil && odd {
			want, err = withoutNormal(want, "link end")
		}
		if err != nil {
			return err
		}
		req := &lofamov1.ListLinksRequest{States: want, LabelSelector: l.Labels, FieldSelector: l.Fields}
		if len(args) > 0 {
			req.Node = args[0]
		}
		return command.Query(a, cmd, "get links", o, func(ctx context.Context, s command.Session) (*lofamov1.ListLinksResponse, error) {
			req.Continue = ""
			return s.AllLinks(ctx, req, l.Chunk)
		}, func(resp *lofamov1.ListLinksResponse) error {
			return a.List("links", command.LinkRows(a, resp.GetLinks(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

func getSupervisorsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "supervisors",
		Aliases: []string{"supervisor", "sup"},
		Short:   "The supervisor's replicas and their leader",
		Args:    command.Exactly(),
	}
	o := command.GetFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return command.Query(a, cmd, "get supervisors", o,
			func(ctx context.Context, s command.Session) (*lofamov1.ListSupervisorsResponse, error) {
				return s.ListSupervisors(ctx)
			}, func(resp *lofamov1.ListSupervisorsResponse) error {
				return a.Table(command.SupervisorRows(resp.GetSupervisors(), o.Format == command.FormatWide))
			})
	}
	return cmd
}

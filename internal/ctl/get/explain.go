package get

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func getGroupsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "groups [NODE]",
		Aliases: []string{"group", "gr"},
		Short:   "Group faults: the common cause of many faults",
		Long: `Prints one line for each group fault: a whole row, plane or block of the torus, all nodes that share a rack, switch or
power feed, or a part to which no living path leads. With NODE it prints those that the node is a member of.

In an ordinary cluster, whose nodes have no places, a row, plane or block is called "nodes together". -o
jsonpath='{.groups[*].id}' prints the ids that 'lofamoctl explain' takes.`,
		Example:           "  lofamoctl get groups\n  lofamoctl get groups 1,0,1 -o wide",
		Args:              command.Between(0, "NODE"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.GetFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := new(lofamov1.ListGroupsRequest)
		if len(args) > 0 {
			req.Node = args[0]
		}
		return command.Query(a, cmd, "get groups", o, func(ctx context.Context, s command.Session) (*lofamov1.ListGroupsResponse, error) {
			return s.ListGroups(ctx, req)
		}, func(resp *lofamov1.ListGroupsResponse) error {
			return a.Table(command.GroupRows(a, resp.GetGroups(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

// groupsOf returns the group faults with any of the nodes as members.
func groupsOf(ctx context.Context, s command.Session, nodes []*lofamov1.Node) ([]*lofamov1.Group, error) {
	of := make(map[string]bool)
	for _, n := range nodes {
		for _, g := range n.GetGroups() {
			of[g] = true
		}
	}
	if len(of) == 0 {
		return nil, nil
	}
	resp, err := s.ListGroups(ctx, &lofamov1.ListGroupsRequest{})
	if err != nil {
		return nil, err
	}
	var groups []*lofamov1.Group
	for _, g := range resp.GetGroups() {
		if of[g.GetId()] {
			groups = append(groups, g)
		}
	}
	return groups, nil
}

// ExplainCommand returns `lofamoctl explain`.
func ExplainCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain NODE|GROUP [COMPONENT]",
		Short: "Why a node, a part of it or a group fault has its state",
		Long: `Prints the rule that led a node, or one of its components, to its state, the facts that counted, the evidence, and the
conditions under which the state changes. docs/awareness.md describes every rule.

For a group fault (see lofamoctl get groups) it prints which nodes count as its members, which do not, and why this
group explains the faults and no other.`,
		Example:           "  lofamoctl explain 1,0,1\n  lofamoctl explain n1-0-1 link/X+\n  lofamoctl explain label/rack=r1",
		Args:              command.Between(1, nodeOrGroup, "COMPONENT (such as host, X+ or link/X+)"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	o := command.AllFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := new(lofamov1.ExplainRequest)
		var err error
		if req.Node, req.Component, req.Group, err = subjectOf(args); err != nil {
			return err
		}
		var recovering []*lofamov1.Incident
		return command.Query(a, cmd, "explain", o, func(ctx context.Context, s command.Session) (*lofamov1.ExplainResponse, error) {
			resp, err := s.Explain(ctx, req)
			if err == nil && !o.Format.Structured() {
				recovering = recoveringOf(ctx, s, resp, req.GetGroup())
			}
			return resp, err
		}, func(resp *lofamov1.ExplainResponse) error {
			if err := command.PrintExplanation(a, resp); err != nil {
				return err
			}
			for i, in := range recovering {
				if i == 0 {
					a.Printf("\n")
				}
				a.Printf("Incident %s is RECOVERING: %s\n", in.GetId(), recovery(a, in))
			}
			return nil
		})
	}
	return cmd
}

// recoveringOf returns the RECOVERING incidents whose root cause is explained; none if the supervisors serve no incidents.
func recoveringOf(ctx context.Context, s command.Session, e *lofamov1.ExplainResponse, group string) []*lofamov1.Incident {
	resp, err := s.ListIncidents(ctx, &lofamov1.ListIncidentsRequest{Node: e.GetNode(), Limit: incidentChunk,
		States: []lofamov1.IncidentState{lofamov1.IncidentState_RECOVERING}})
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(resp.GetIncidents(), func(in *lofamov1.Incident) bool {
		return in.GetGroup() != group || group == "" && in.GetNode() != e.GetNode() ||
			e.GetComponent() != "" && e.GetComponent() != "node" && e.GetComponent() != in.GetComponent()
	})
}

// nodeOrGroup is an argument in words.
const nodeOrGroup = "NODE (an id such as n1-0-1, or coordinates such as 1,0,1), or GROUP (such as label/rack=r1)"

// subjectOf reads NODE|GROUP [COMPONENT]. The ids of groups have slashes, those of nodes have none. The direction alone
// may name a link's component.
func subjectOf(args []string) (node, component, group string, err error) {
	if len(args) > 1 {
		component = args[1]
		if d, err := grid.ParseDirection(strings.ToUpper(component)); err == nil {
			component = fault.Link(d).String()
		}
	}
	if !strings.Contains(args[0], "/") {
		return args[0], component, "", nil
	}
	if component != "" {
		return "", "", "", command.Usagef("argument %q: a group fault has no components", component)
	}
	return "", "", args[0], nil
}

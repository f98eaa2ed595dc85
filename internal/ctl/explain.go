package ctl

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

func (a *app) getGroupsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "groups [NODE]",
		Short: "Group faults: what many faults have in common",
		Long: `Prints one line for each group fault: a whole row, plane or block of the torus, or all nodes that share a rack,
switch or power feed, or a part to which no living path leads. With NODE, those that it is a member of.`,
		Example:           "  lofamoctl get groups\n  lofamoctl get groups 1,0,1 -o wide",
		Args:              between(0, "NODE"),
		ValidArgsFunction: a.completeFirstNode,
	}
	o := allFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := new(lofamov1.ListGroupsRequest)
		if len(args) > 0 {
			req.Node = args[0]
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.ListGroups(ctx, req)
			if err != nil {
				return fmt.Errorf("get groups: %w", plain(err))
			}
			a.warnCluster(resp.GetCluster())
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			return table(a.env.Stdout, a.groupRows(resp.GetGroups(), o.format == formatWide))
		})
	}
	return cmd
}

func (a *app) groupRows(groups []*lofamov1.Group, wide bool) [][]string {
	head := []string{"GROUP", "KIND", "STATE", "CAUSE", "NODES", "INFERRED", "SINCE"}
	if wide {
		head = append(head, "RULE", "MEMBERS")
	}
	rows := [][]string{head}
	for _, g := range groups {
		size := strconv.FormatUint(uint64(g.GetSize()), 10)
		if g.GetOf() > g.GetSize() {
			size += " of " + strconv.FormatUint(uint64(g.GetOf()), 10)
		}
		r := []string{g.GetId(), g.GetKind().String(), stateName(g.GetState()), causeName(g.GetCause()), size, strconv.FormatUint(uint64(g.GetInferred()), 10), a.since(g.GetSince())}
		if wide {
			r = append(r, dash(printable(g.GetReason())), dash(some(g.GetMembers(), 8)))
		}
		rows = append(rows, r)
	}
	return rows
}

// some joins the first few of a list.
func some(all []string, most int) string {
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

// printGroupsOf prints the group faults that some of the nodes are members of, if there are any.
func (a *app) printGroupsOf(ctx context.Context, s session, nodes []*lofamov1.Node) error {
	of := make(map[string]bool)
	for _, n := range nodes {
		for _, g := range n.GetGroups() {
			of[g] = true
		}
	}
	if len(of) == 0 {
		return nil
	}
	resp, err := s.ListGroups(ctx, &lofamov1.ListGroupsRequest{})
	if err != nil {
		return fmt.Errorf("get groups: %w", plain(err))
	}
	var groups []*lofamov1.Group
	for _, g := range resp.GetGroups() {
		if of[g.GetId()] {
			groups = append(groups, g)
		}
	}
	if err := table(a.env.Stdout, a.groupRows(groups, false)); err != nil {
		return err
	}
	a.printf("\n")
	return nil
}

func (a *app) explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain NODE|GROUP [COMPONENT]",
		Short: "Why a node, a part of it or a group fault has its state",
		Long: `Prints the rule that led a node, or one of its components, to its state, what was taken into account, the
evidence, and what would have to come for the state to change. docs/awareness.md describes every rule.

Of a group fault (see lofamoctl get groups) it says which nodes count as its members and which do not, and why it is this
group that stands and no other.`,
		Example:           "  lofamoctl explain 1,0,1\n  lofamoctl explain n1-0-1 link/X+\n  lofamoctl explain label/rack=r1",
		Args:              between(1, nodeOrGroup, "COMPONENT (such as host, X+ or link/X+)"),
		ValidArgsFunction: a.completeFirstNode,
	}
	o := allFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req := new(lofamov1.ExplainRequest)
		var err error
		if req.Node, req.Component, req.Group, err = subjectOf(args); err != nil {
			return err
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.Explain(ctx, req)
			if err != nil {
				return fmt.Errorf("explain: %w", plain(err))
			}
			a.warnCluster(resp.GetCluster())
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			return a.printExplanation(resp)
		})
	}
	return cmd
}

// nodeOrGroup is an argument in words.
const nodeOrGroup = "NODE (an id such as n1-0-1, or coordinates such as 1,0,1), or GROUP (such as label/rack=r1)"

// subjectOf reads NODE|GROUP [COMPONENT]. The ids of groups have slashes, those of nodes have none. A link's component may
// be called by its direction alone.
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
		return "", "", "", usagef("argument %q: a group fault has no components", component)
	}
	return "", "", args[0], nil
}

func (a *app) printExplanation(e *lofamov1.ExplainResponse) error {
	verdict := stateName(e.GetState())
	if c := causeName(e.GetCause()); c != "-" {
		verdict += ", cause " + c
	}
	group := e.GetNode() == ""
	if group && len(e.GetGroups()) > 0 {
		a.printf("%s", e.GetGroups()[0].GetId())
	} else {
		a.printf("%s of %s", e.GetComponent(), e.GetNode())
	}
	if e.GetCoord() != "" {
		a.printf(" at %s", e.GetCoord())
	}
	a.printf(" is %s", verdict)
	if e.GetSince() != nil {
		a.printf(", since %s ago (%s)", a.since(e.GetSince()), a.clock(e.GetSince()))
	}
	a.printf("\n")
	if e.GetSummary() != "" {
		a.printf("%s\n", printable(e.GetSummary()))
	}
	if e.GetRule() != "" {
		a.printf("Rule: %s (docs/awareness.md)\n", e.GetRule())
	}
	if m := e.GetMaintenance(); m != nil {
		a.printf("Under maintenance: %s\n", a.maintenance(m))
	}
	var evidences []string
	for _, ev := range e.GetEvidence() {
		evidences = append(evidences, evidence(ev))
	}
	for _, part := range []struct {
		head  string
		lines []string
	}{{"Because", e.GetBecause()}, {"Evidence", evidences}, {"It changes when", e.GetUntil()}} {
		if len(part.lines) == 0 {
			continue
		}
		a.printf("\n%s:\n", part.head)
		for _, l := range part.lines {
			a.printf("  - %s\n", printable(l))
		}
	}
	if len(e.GetGroups()) == 0 {
		return nil
	}
	if group {
		a.printf("\n")
	} else {
		a.printf("\nMember of:\n")
	}
	return table(a.env.Stdout, a.groupRows(e.GetGroups(), true))
}

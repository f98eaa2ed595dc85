package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
)

func joinCommand(a *command.App) *cobra.Command {
	var place string
	var service, labels []string
	var dryRun, unheard bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "join NODE",
		Short: "Put a spare, or a new node, into the running torus",
		Long: `Gives a node a place in the torus while the cluster runs: an empty place, or if no place is empty, one in a new plane.
Of these it takes the one whose neighbours lie in several failure domains, and then the one with the most neighbours. Only
links of the lines through that place change, and the supervisors send the nodes there their new neighbours; no configuration
needs a change, and no half restarts. The map shows the node as UNKNOWN until it reports, and nobody is accused because of
the change. The command waits until the node is NORMAL.

The node's agent must run, with 'spare: true' and the ends of its links: docs/topology.md says how. A node that the
topology does not have yet needs --service. It is a spare until a supervisor hears its agent, which must happen within 5 s.`,
		Example: `  lofamoctl node join spare-0
  lofamoctl node join n42 --service 10.1.0.42:7000 --label rack=r7`,
		Args: command.Exactly("NODE (a node without a place)"),
	}
	f := cmd.Flags()
	f.StringVar(&place, "place", "", `coordinates "x,y,z" of an empty place, or of one beside the torus; without it the supervisors choose`)
	f.StringSliceVar(&service, "service", nil, `addresses "ip:port" of its service interfaces; required for a node that the topology lacks`)
	f.StringSliceVar(&labels, "label", nil, `its labels "key=value"; a spare of the topology keeps its own without them`)
	f.BoolVar(&dryRun, "dry-run", false, "only show the place that it would get")
	f.BoolVar(&unheard, "unheard", false, "also a node that no supervisor has heard; its neighbours give up their links to one another for it")
	program.DurationVar(f, &wait, "wait", time.Minute, "time limit until it is NORMAL; 0: do not wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		node := &lofamov1.TopologyNode{Id: args[0], Coord: place, Service: service}
		if wait < 0 {
			return command.Usagef("--wait %v: want 0 or a positive time such as 30s", wait)
		}
		for _, l := range labels {
			key, value, ok := strings.Cut(l, "=")
			if !ok {
				return command.Usagef("--label %q: want key=value", l)
			}
			if node.Labels == nil {
				node.Labels = map[string]string{}
			}
			node.Labels[key] = value
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.JoinNodes(ctx, &lofamov1.JoinNodesRequest{Nodes: []*lofamov1.TopologyNode{node}, DryRun: dryRun,
				Unheard: unheard})
			if err != nil {
				return fmt.Errorf("join %s: %w", args[0], command.Plain(err))
			}
			at := resp.GetNodes()[0].GetCoord()
			if dryRun {
				a.Printf("%s would join at %s: the torus would be %s\n", args[0], at, resp.GetDims())
				return nil
			}
			a.Printf("%s joins at %s: the torus is %s\n", args[0], at, resp.GetDims())
			if wait == 0 {
				return nil
			}
			return awaitNormal(ctx, a, s, args[0], wait)
		})
	}
	return cmd
}

// joinLook is the interval between looks at a joining node.
const joinLook = 200 * time.Millisecond

// awaitNormal waits until a node is NORMAL, and says how long that took.
func awaitNormal(ctx context.Context, a *command.App, s command.Session, node string, wait time.Duration) error {
	began := a.Env.Now()
	for {
		took := a.Env.Now().Sub(began)
		n, err := s.GetNode(ctx, node)
		if err != nil && (!command.Unanswered(err) || took > wait) {
			return fmt.Errorf("join %s: it has its place; whether it is NORMAL is unknown: %w", node, command.Plain(err))
		}
		if n.GetState() == lofamov1.State_NORMAL {
			a.Printf("%s is NORMAL, %s after it joined\n", node, took.Round(joinLook/2))
			return nil
		}
		if took > wait {
			return fmt.Errorf("join %s: it has its place, and is %s after %v: does its agent run, with 'spare: true'?", node,
				command.StateName(n.GetState()), wait)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(joinLook):
		}
	}
}

func leaveCommand(a *command.App) *cobra.Command {
	var forget, revoke, dryRun bool
	cmd := &cobra.Command{
		Use:   "leave NODE...",
		Short: "Take nodes out of the running torus",
		Long: `Takes the places of up to 16 nodes away while the cluster runs: their neighbours become one another's neighbours, and nobody is
accused because of the change. An agent with 'spare: true' then stops its halves and waits for another place; stop
other agents by hand. A node that is broken for good is taken out in the same way.

With --forget the command also removes the nodes from the topology, and then revokes their certificates: nobody can use
them if another machine gets such a name. A machine that comes back under its name needs an empty state directory and a
token of 'lofamoctl token create --node NODE'. --revoke=false leaves the certificates valid until they end.

A machine gets another name in this way: the node leaves with --forget, and the machine enrols again with an empty state
directory.`,
		Example: `  lofamoctl node leave n42
  lofamoctl node leave n42 --forget`,
		Args:              someNodes,
		ValidArgsFunction: a.CompleteNodes,
	}
	cmd.Flags().BoolVar(&forget, "forget", false, "remove them from the topology too; otherwise they stay spares, which can join again")
	cmd.Flags().BoolVar(&revoke, "revoke", true, "with --forget: revoke their certificates")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check whether the nodes can leave")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("revoke") && !forget {
			return command.Usagef("--revoke: given without --forget: a spare keeps its certificates")
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.LeaveNodes(ctx, &lofamov1.LeaveNodesRequest{Nodes: args, Forget: forget, DryRun: dryRun})
			if err != nil {
				return fmt.Errorf("leave %s: %w", strings.Join(args, " "), command.Plain(err))
			}
			verb := "leave"
			switch {
			case dryRun:
				verb = "would leave"
			case len(args) == 1:
				verb = "leaves"
			}
			var names, members []string
			for _, n := range resp.GetNodes() {
				names = append(names, n.GetId())
				members = append(members, string(pki.RoleNode)+"/"+n.GetId())
			}
			slices.Sort(names)
			a.Printf("%s %s: the torus is %s\n", fault.Plural(len(names), "node")+" ("+strings.Join(names, ", ")+")", verb, resp.GetDims())
			if !forget || !revoke || dryRun {
				return nil
			}
			if err := changeDenials(ctx, a, s, members, revocation(a, "left the cluster", "", time.Time{}), "revoked"); err != nil {
				return fmt.Errorf("%s: forgotten, but not revoked: run 'lofamoctl cert revoke %s --reason left': %w", strings.Join(names, " "),
					strings.Join(members, " "), err)
			}
			return nil
		})
	}
	return cmd
}

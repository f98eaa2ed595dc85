package cluster

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
)

// ScaleCommand returns `lofamoctl scale`.
func ScaleCommand(a *command.App) *cobra.Command {
	var nodes int
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "scale --nodes N",
		Short: "Let nodes join the local cluster, or let the newest leave",
		Long: `Changes the number of nodes of the running local cluster: new nodes start, join and get places, or the newest nodes
leave and end. All other nodes keep running in their places. The command waits until all nodes are NORMAL.`,
		Example: "  lofamoctl scale --nodes 12\n  lofamoctl scale --nodes 10",
		Args:    command.Exactly(),
	}
	cmd.Flags().IntVar(&nodes, "nodes", 0, "number of nodes in the torus (required)")
	program.DurationVar(cmd.Flags(), &wait, "wait", time.Minute, "time limit until all nodes are NORMAL; 0: do not wait")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("nodes") {
			return command.Usagef("--nodes: none given: want 2 to %d", cluster.MaxNodes)
		}
		if nodes < 2 || nodes > cluster.MaxNodes {
			return command.Usagef("--nodes %d: want 2 to %d on one machine", nodes, cluster.MaxNodes)
		}
		if wait < 0 {
			return command.Usagef("--wait %v: want 0 or a positive time such as 30s", wait)
		}
		c, err := a.Local("scale")
		if err != nil {
			return err
		}
		began := a.Env.Now()
		err = c.Scale(cmd.Context(), nodes, func(s cluster.Scaled) {
			verb := "joins at"
			if s.Left {
				verb = "has left"
			}
			a.Printf("%s %s %s: the torus is %s\n", s.Node, verb, s.Coord, s.Dims)
		})
		if err != nil {
			return command.Plain(err)
		}
		if wait > 0 {
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			if err := c.WaitNormal(ctx, nil); err != nil {
				return err
			}
			a.Printf("%s NORMAL %s after the command began\n", fault.Plural(nodes, "node"), a.Env.Now().Sub(began).Round(100*time.Millisecond))
		}
		return nil
	}
	return cmd
}

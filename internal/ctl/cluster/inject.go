package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// allNodes names every node in `inject all heal`.
const allNodes = "all"

// InjectCommand returns `lofamoctl inject`.
func InjectCommand(a *command.App) *cobra.Command {
	var oneWay bool
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "inject NODE FAULT [ARGUMENTS]",
		Short: "Inject a real fault into a local cluster, or heal it",
		Long: `Injects a real fault into a cluster made by 'lofamoctl up': signals to processes, blocked sockets, mangled frames,
changed sensors. It refuses to touch any other cluster.

Faults:
` + cluster.FaultHelp() + `
  heal                   undo everything on NODE, or on all nodes with 'inject all heal'

A cut or corrupted link is so at NODE's end of the cable. Cut both ways, each end hears silence.
Cut --one-way, NODE's frames are lost: the neighbour hears silence, and NODE learns of it because
the neighbour's frames say so. Corruption hits what NODE receives, so that its end turns sick.

With --for the fault is undone after that time, or with Ctrl-C; lofamoctl waits until then.`,
		Example: `  lofamoctl inject 1,0,1 kill-host
  lofamoctl inject n1-0-1 hang-dnp --for 5s
  lofamoctl inject 0,0,0 cut-interface 1
  lofamoctl inject 0,0,0 cut-link X+ --one-way
  lofamoctl inject 0,0,0 corrupt-link Y- 0.2
  lofamoctl inject 0,1,0 sensor temperature 80
  lofamoctl inject all heal`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return completeInject(a, cmd, args, prefix)
		},
	}
	cmd.Flags().BoolVar(&oneWay, "one-way", false, "with cut-link: lose only what NODE sends")
	program.DurationVar(cmd.Flags(), &duration, "for", 0, "undo the fault after this time, such as 5s (default: it stays until heal)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("for") && duration <= 0 {
			return command.Usagef("--for %v: want a positive time such as 5s", duration)
		}
		if len(args) < 2 && !slices.Equal(args, []string{"heal"}) {
			return command.Usagef("%s is missing", []string{"NODE (an id such as n1-0-1, or coordinates such as 1,0,1)",
				"FAULT (one of " + strings.Join(cluster.KindNames(), ", ") + ", heal)"}[len(args)])
		}
		if args[0] == "heal" || args[1] == "heal" {
			if oneWay || cmd.Flags().Changed("for") {
				return command.Usagef("heal takes neither --for nor --one-way")
			}
			return heal(a, cmd.Context(), args)
		}
		f, err := cluster.ParseFault(args[1:], oneWay)
		if err != nil {
			return command.Usage(err)
		}
		if args[0] == allNodes {
			return command.Usagef("a fault is injected into one node; only heal takes all")
		}
		c, err := a.Local("inject")
		if err != nil {
			return err
		}
		return inject(a, cmd.Context(), c, args[0], f, duration)
	}
	return cmd
}

// nodeNow is NodeNow for a node on the command line.
func nodeNow(ctx context.Context, c *cluster.Cluster, node string) (cluster.NodeInfo, error) {
	n, err := c.NodeNow(ctx, node)
	if err != nil && !errors.Is(err, cluster.ErrPlaceUnknown) {
		err = command.Usage(err)
	}
	return n, err
}

func inject(a *command.App, ctx context.Context, c *cluster.Cluster, node string, f cluster.Fault, lasting time.Duration) error {
	n, err := nodeNow(ctx, c, node)
	if err != nil {
		return err
	}
	if err := f.Check(c.Dims()); err != nil {
		return command.Usage(err)
	}
	if _, err := c.Inject(ctx, string(n.ID), f); err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	if lasting == 0 {
		a.Printf("node %s: %s injected; 'lofamoctl inject %s heal' undoes it\n", n.ID, f, n.ID)
		return nil
	}
	a.Printf("node %s: %s injected for %v\n", n.ID, f, lasting)
	select {
	case <-ctx.Done():
	case <-time.After(lasting):
	}
	// The fault must not stay because of Ctrl-C.
	if err := c.Undo(context.WithoutCancel(ctx), string(n.ID), f); err != nil {
		return fmt.Errorf("undo %s: %w", f, err)
	}
	a.Printf("node %s: %s undone\n", n.ID, f)
	return nil
}

// heal takes "heal", "heal NODE" or "NODE heal", where NODE may be all.
func heal(a *command.App, ctx context.Context, args []string) error {
	if len(args) > 2 {
		return command.Usagef("argument %q: want nothing more after heal", args[2])
	}
	node := allNodes
	for _, arg := range args {
		if arg != "heal" {
			node = arg
		}
	}
	c, err := a.Local("inject")
	if err != nil {
		return err
	}
	if node == allNodes {
		nodes := c.WithHalves()
		if err := c.HealEach(ctx, nodes); err != nil {
			return fmt.Errorf("heal: %w", err)
		}
		a.Printf("all %d nodes: everything injected is undone\n", len(nodes))
		return nil
	}
	n, err := nodeNow(ctx, c, node)
	if err != nil {
		return err
	}
	if err := c.Heal(ctx, string(n.ID)); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	a.Printf("node %s: everything injected is undone\n", n.ID)
	return nil
}

func completeInject(a *command.App, cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var words []string
	switch {
	case len(args) == 0:
		words, _ = a.CompleteNodes(cmd, args, prefix)
		words = append(words, allNodes)
	case len(args) == 1:
		words = append(cluster.KindNames(), "heal")
	case len(args) == 2 && strings.HasSuffix(args[1], "-link"):
		for _, d := range grid.Directions() {
			words = append(words, d.String())
		}
	case len(args) == 2 && args[1] == "cut-interface":
		words = []string{"0", "1"}
	case len(args) == 2 && args[1] == "sensor":
		words = cluster.SensorNames()
	}
	var out []string
	for _, w := range words {
		if strings.HasPrefix(w, prefix) {
			out = append(out, w)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/local"
)

// leaveWithin bounds the announcement of a leave: the machine may have little time left.
const leaveWithin = 10 * time.Second

func (o *options) leaveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "leave",
		Short: "Take this node out of the cluster for good: for a machine that is about to be taken away",
		Long: `Announces to the supervisors that this node leaves the cluster, and returns when they have committed that notice. Within
some seconds the leader removes the node from the topology, which frees its place, and the agent stops the halves. The machine
needs another token to enrol again.

A cluster with regions has fixed places, and the last two nodes stay: such a node only stops, and 'lofamoctl status' goes on to list it.
The command cannot know that, so look there. Run it as root or as the user of the halves.`,
		Example: `  lofamo-agent leave --config /etc/lofamo/agent.yaml`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := o.load()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(c.Context(), leaveWithin)
			defer cancel()
			if err := local.AnnounceStop(ctx, cfg.StateDir, fault.StopLeave); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), "the supervisors have this node's notice that it leaves: "+
				"it has left once 'lofamoctl status' does not list it")
			return err
		},
	}
}

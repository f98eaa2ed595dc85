package ctl

import (
	"github.com/spf13/cobra"
)

func (a *app) downCommand() *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the local cluster",
		Long: `Stops every process of the local cluster. Its files stay, so that its logs can be read and
'lofamoctl up' can start it again; --purge removes them.`,
		Example: "  lofamoctl down\n  lofamoctl down --dir /tmp/c --purge",
		Args:    exactly(),
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the cluster's files too, logs included")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.local("down")
		if err != nil {
			return err
		}
		running := len(c.Running()) > 0
		if err := c.Stop(cmd.Context()); err != nil {
			return err
		}
		if purge {
			if err := c.Purge(); err != nil {
				return err
			}
		}
		switch {
		case purge:
			a.printf("stopped and removed the cluster in %s\n", c.Dir())
		case running:
			a.printf("stopped the cluster in %s; its logs are in %s/nodes and %s/supervisors\n", c.Dir(), c.Dir(), c.Dir())
		default:
			a.printf("the cluster in %s was stopped already\n", c.Dir())
		}
		return nil
	}
	return cmd
}

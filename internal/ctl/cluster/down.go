package cluster

import (
	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/ctl/command"
)

// DownCommand returns `lofamoctl down`.
func DownCommand(a *command.App) *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the local cluster",
		Long: `Stops every process of the local cluster. Its files stay, so that you can read its logs and 'lofamoctl up' can start
it again; --purge removes them.`,
		Example: "  lofamoctl down\n  lofamoctl down --dir /tmp/c --purge",
		Args:    command.Exactly(),
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "remove the cluster's files too, logs included")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.Local("down")
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
			a.Printf("stopped and removed the cluster in %s\n", c.Dir())
		case running:
			a.Printf("stopped the cluster in %s; its logs are in %s/nodes and %s/supervisors\n", c.Dir(), c.Dir(), c.Dir())
		default:
			a.Printf("the cluster in %s was stopped already\n", c.Dir())
		}
		return nil
	}
	return cmd
}

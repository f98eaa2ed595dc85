package ctl

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/version"
)

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Which build of lofamoctl this is",
		Args:  exactly(),
	}
	o := addOutputFlag(cmd, formatTable, formatJSON, formatYAML)
	cmd.RunE = func(*cobra.Command, []string) error {
		info := version.Get()
		if o.format == formatTable {
			a.printf("lofamoctl %s\n", info)
			return nil
		}
		b, err := json.Marshal(info)
		if err != nil {
			return fmt.Errorf("print version: %w", err)
		}
		return a.printJSON(o.format, b)
	}
	return cmd
}

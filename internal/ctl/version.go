package ctl

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
)

func versionCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "The version of lofamoctl",
		Args:  command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(*cobra.Command, []string) error {
		info := program.Build()
		if o.Format == command.FormatTable {
			a.Printf("lofamoctl %s\n", info)
			return nil
		}
		b, err := json.Marshal(info)
		if err != nil {
			return fmt.Errorf("print version: %w", err)
		}
		return a.PrintJSON(o.Format, b)
	}
	return cmd
}

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/agent/status"
)

func (o *options) statusCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "Ask the running host half of this node how its reports and both halves fare",
		Long: `Asks the running host half of this node how its reports fare: which path they go by, which rails work,
how many wait, and whether any supervisor can be reached at all; and how both halves fare: how often their
recovery daemon has restarted them, and what their self-tests found. It asks no supervisor, and so answers
where none can be reached. It must run as the user who runs the halves, on their node.

It fails when the host half does not run or does not answer, not when the half's news are bad.`,
		Example: `  lofamo-agent status --config /etc/lofamo/agent.yaml
  lofamo-agent status --config /etc/lofamo/agent.yaml -o json | jq .delivery`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("%w: --output: given %q: want table or json", errUsage, output)
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			s, err := status.Ask(c.Context(), cfg.StateDir)
			if err != nil {
				return err
			}
			return writeStatus(c.OutOrStdout(), s, output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func writeStatus(w io.Writer, s status.Status, output string) error {
	if output == "table" {
		return status.WriteTable(w, s)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // the names of paths have a '>'
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

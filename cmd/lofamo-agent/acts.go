package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/agent/actions"
	"github.com/lofamo/lofamo/internal/agent/half"
)

func (o *options) actsCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "acts",
		Short: "Show the actions that responses made this node take",
		Long: `Shows the ledger of this node: the attempts that the supervisors' responses ordered and their outcomes, the
newest last, and the frequency limits in force. It reads only the state directory. The log of lofamo-agent run and the
supervisors' audit have the refused attempts.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("%w: --output: given %q: want table or json", errUsage, output)
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			l, err := half.ReadActs(cfg.StateDir)
			if err != nil {
				return err
			}
			return writeActs(c.OutOrStdout(), l, output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func writeActs(w io.Writer, l *actions.Ledger, output string) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(l); err != nil {
			return fmt.Errorf("write the acts: %w", err)
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "BEGUN\tRESPONSE\tSTEP\tATTEMPT\tTOKEN\tKIND\tSTATE\tDETAIL")
	for _, e := range l.Entries {
		kind := e.Kind
		if e.Undo {
			kind += " (put back)"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", time.UnixMilli(e.At).UTC().Format(time.RFC3339), e.Response, e.Step,
			e.Attempt.Attempt, e.Token, kind, actions.Name(e.State), e.Detail)
	}
	if len(l.Limits) > 0 {
		_, _ = fmt.Fprintln(t, "\nLIMITED\tTO kHz\tBEFORE kHz\tBY")
		for _, f := range l.Limits {
			_, _ = fmt.Fprintf(t, "%s\t%d\t%d\t%s\n", f.Policy, f.Ours, f.Former,
				strings.Join(slices.Sorted(maps.Keys(f.Owners)), ", "))
		}
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the acts: %w", err)
	}
	return nil
}

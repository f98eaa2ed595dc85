package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/config"
)

func (o *options) statusCommand() *cobra.Command {
	var output, half string
	var live, ready, takeOver bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the state of both halves of this node, and the delivery of its reports",
		Long: `Asks the running host half of this node for the delivery of its reports: their path, the working rails, the number of
waiting reports, and whether any supervisor can be reached. It also shows the condition of both halves: the restarts
by their recovery daemon and the results of their self-tests. It contacts no supervisor, so it answers even if none
can be reached. Run it on the node, as the user of the halves.

It fails if the host half does not run or does not answer. A half in bad condition is no failure.

With --live or --ready it prints only errors, and its exit code is the answer for a kubelet's probes: --live is 0 when
the loops of the recovery daemon run (with --half, the loop of that half) or, without a daemon, when the halves write
their watchdog words. --ready is 0 when both halves, or the one of --half, write theirs. Both read only the state
directory, and need no half to answer. With --take-over, --ready also fails for a daemon that waits for another one in
the same container ('run --wait') and should not take over yet: it has not waited for 5 s, or a neighbour is gone
behind a link that is not masked.`,
		Example: `  lofamo-agent status --config /etc/lofamo/agent.yaml
  lofamo-agent status --config /etc/lofamo/agent.yaml -o json | jq .delivery
  lofamo-agent status --config /etc/lofamo/agent.yaml --live --half dnp`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("%w: --output: given %q: want table or json", errUsage, output)
			}
			h, err := parseHalf(half)
			if err != nil {
				return fmt.Errorf("%w: --half: %w", errUsage, err)
			}
			if h != 0 && !live && !ready {
				return fmt.Errorf("%w: --half: given %s without --live or --ready", errUsage, h)
			}
			if takeOver && !ready {
				return fmt.Errorf("%w: --take-over: given without --ready", errUsage)
			}
			given, err := o.read()
			if err != nil {
				return err
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			if live || ready {
				return probe(c.Context(), cfg, h, live, ready, takeOver)
			}
			s, err := local.AskStatus(c.Context(), cfg.StateDir)
			if err != nil {
				return err
			}
			if given.Join.Given() {
				if _, note, _ := daemon.JoinName(given); note != "" { // an error belongs to nodes that have not enrolled
					c.PrintErrln("note:", note)
				}
			}
			return writeStatus(c.OutOrStdout(), s, output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	c.Flags().BoolVar(&live, "live", false, "say by the exit code alone whether what looks after the halves lives: 0 or 1")
	c.Flags().BoolVar(&ready, "ready", false, "say by the exit code alone whether the halves serve: 0 or 1")
	c.Flags().BoolVar(&takeOver, "take-over", false, "with --ready: and whether a daemon that waits (run --wait) may take over")
	c.Flags().StringVar(&half, "half", "", "with --live or --ready: of this half alone, host or dnp (default both)")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// probe fails when a requested condition does not hold.
func probe(ctx context.Context, cfg config.Agent, of fault.Half, live, ready, takeOver bool) error {
	if live {
		if err := half.Live(ctx, cfg, of); err != nil {
			return err
		}
	}
	if !ready {
		return nil
	}
	if err := half.Ready(ctx, cfg, of); err != nil || !takeOver {
		return err
	}
	return daemon.MayTakeOver(cfg, of)
}

func writeStatus(w io.Writer, s local.Status, output string) error {
	if output == "table" {
		return local.WriteTable(w, s)
	}
	return writeJSON(w, s)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // the names of paths have a '>'
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON output: %w", err)
	}
	return nil
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp"
)

func (o *options) maskCommand() *cobra.Command {
	var output, reason string
	var unmask, force bool
	c := &cobra.Command{
		Use:   "mask [DIRECTION...]",
		Short: "Show the channel mask of this node, or change the node's own mask",
		Long: `Shows which links of this node carry no messages, and who masked them. With directions it masks links in the
node's own mask, and with --unmask it restores them. It calls the running DNP half of this node, not a supervisor: for
a person in front of a bad cable. Run it on the node, as root or as the user of the halves.

A masked link still carries heartbeats and tests, which show whether it works. A link is in use only if the node's own
mask, its diagnosis, its configuration and the supervisors' mask all allow it, at both ends. So --unmask restores only
links that this command has masked; the supervisors restore theirs (lofamoctl unmask). The mask is on disk when the
command returns, and holds until --unmask.`,
		Example: `  lofamo-agent mask --config /etc/lofamo/agent.yaml
  lofamo-agent mask --config /etc/lofamo/agent.yaml X+ --reason "cable is to be replaced"
  lofamo-agent mask --config /etc/lofamo/agent.yaml X+ --unmask`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, a := range args {
				if _, err := grid.ParseDirection(a); err != nil {
					return fmt.Errorf("%w: %w", errUsage, err)
				}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case output != "table" && output != "json":
				return fmt.Errorf("%w: --output: given %q: want table or json", errUsage, output)
			case len(args) == 0 && (unmask || reason != "" || force):
				return fmt.Errorf("%w: no direction: want one at least of X+ X- Y+ Y- Z+ Z- beside --reason, --unmask or --force", errUsage)
			case len(args) > 0 && !unmask && strings.TrimSpace(reason) == "":
				return fmt.Errorf("%w: --reason: missing: want a few words that say why", errUsage)
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			var in *dnp.MaskRequest
			if len(args) > 0 {
				in = &dnp.MaskRequest{Reason: reason, Force: force}
				if unmask {
					in.Unmask = args
				} else {
					in.Mask = args
				}
			}
			st, err := dnp.AskMask(c.Context(), cfg.StateDir, in)
			if err != nil {
				return err
			}
			return writeMask(c.OutOrStdout(), st, output)
		},
	}
	f := c.Flags()
	f.StringVarP(&output, "output", "o", "table", "table or json")
	f.StringVar(&reason, "reason", "", "why, for the node's log; needed to mask")
	f.BoolVar(&unmask, "unmask", false, "restore links in the node's own mask")
	f.BoolVar(&force, "force", false, "even if no link of the node would carry messages")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	c.ValidArgsFunction = cobra.FixedCompletions([]string{"X+", "X-", "Y+", "Y-", "Z+", "Z-"}, cobra.ShellCompDirectiveNoFileComp)
	return c
}

func writeMask(w io.Writer, st dnp.MaskStatus, output string) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(st); err != nil {
			return fmt.Errorf("write the mask: %w", err)
		}
		return nil
	}
	list := func(names []string) string {
		if len(names) == 0 {
			return "none"
		}
		return strings.Join(names, " ")
	}
	ordered := list(st.Ordered)
	switch {
	case st.Lost:
		ordered = "lost: the stored mask cannot be read, and the supervisors have sent none since"
	case st.Number == 0:
		ordered = "none: they have sent none"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"LINKS", list(st.Links)}, {"CARRY NO MESSAGES", list(st.Unused)}, {"masked by this command", list(st.Own)},
		{"by its diagnosis", list(st.Diagnosed)}, {"by its configuration", list(st.Configured)},
		{"by the supervisors", ordered}, {"by the neighbours", list(st.Neighbours)}, {"in force at this end", list(st.InForce)},
	} {
		_, _ = fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the mask: %w", err)
	}
	return nil
}

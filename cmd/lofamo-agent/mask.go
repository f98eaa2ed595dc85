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
		Short: "Show the channel mask of this node, or set the node's own word on it",
		Long: `Shows which links of this node carry no messages, and by whose word; or, with directions, takes links out by the node's own
word, or with --unmask puts them back. It asks the running DNP half of this node, and no supervisor: for a person who stands before a bad cable.
It must run on the node, as root or as the user who runs the halves.

A masked link goes on carrying heartbeats and tests, so that it is seen whether it works. In force is what the node's own word, its diagnosis, its
configuration and the supervisors' word all leave usable; and a link is used only while neither of its ends masks it. So --unmask takes back what this command has masked, and
nothing else: what the supervisors mask they restore (lofamoctl unmask). The word is on disk when the command returns, and holds until it is taken back.`,
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
	f.BoolVar(&unmask, "unmask", false, "take the node's own word back")
	f.BoolVar(&force, "force", false, "also where no link of the node is left that carries messages")
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
		ordered = "lost: what was kept cannot be read, and the supervisors have not spoken since"
	case st.Number == 0:
		ordered = "none: they have not spoken"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"LINKS", list(st.Links)}, {"CARRY NO MESSAGES", list(st.Unused)}, {"masked by this command", list(st.Own)}, {"by its diagnosis", list(st.Diagnosed)}, {"by its configuration", list(st.Configured)},
		{"by the supervisors", ordered}, {"by the neighbours", list(st.Neighbours)}, {"in force at this end", list(st.InForce)},
	} {
		_, _ = fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write the mask: %w", err)
	}
	return nil
}

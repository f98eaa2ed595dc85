package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
)

func (o *options) lldpCommand() *cobra.Command {
	var output, key string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "lldp [INTERFACE...]",
		Short: "Print the label of the switch at the other end of this machine's cables",
		Long: `Listens for the Link Layer Discovery Protocol (LLDP), with which a switch announces its name on each port, usually every
30 s. It prints a label such as switch=sw7, as 'run --label', 'lofamoctl label' and inventories take it. It ends when
each INTERFACE has heard a switch or a router (default: all physical Ethernet interfaces that are up), or after --wait.

If the machine hears several switches, the label has the name that comes first in the alphabet: machines with cables to
the same pair of switches get the same label. Each byte that is not allowed in a label becomes '-', and a checksum is
appended.

It sends nothing, and needs no configuration. It needs CAP_NET_RAW, so run it as root. Anybody who can send frames on
the cable can forge a name, just as a node can claim any label. The command fails if it hears no switch.`,
		Example: `  lofamo-agent lldp
  lofamo-agent lldp eth0 eth1 --wait 2m -o json
  lofamo-agent run --join 10.0.0.101:7944 --token-file token --label "$(lofamo-agent lldp)"`,
		RunE: func(c *cobra.Command, interfaces []string) error {
			switch {
			case output != "label" && output != "json":
				return fmt.Errorf("%w: --output: given %q: want label or json", errUsage, output)
			case wait < time.Second || wait > time.Hour:
				return fmt.Errorf("%w: --wait: given %s: want 1s to 1h", errUsage, wait)
			}
			if bad := fault.CheckLabels(map[string]string{key: ""}); len(bad) > 0 {
				return fmt.Errorf("%w: --key: %w", errUsage, errors.Join(bad...))
			}
			if len(interfaces) == 0 {
				var err error
				if interfaces, err = host.Cables(cmp.Or(o.sysfs, "/sys")); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(c.Context(), wait)
			defer cancel()
			heard, err := host.Switches(ctx, interfaces)
			if err != nil {
				return err
			}
			if output == "json" {
				return writeJSON(c.OutOrStdout(), heard)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s=%s\n", key, firstOf(heard))
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "label", "label, or json: all switches that were heard")
	c.Flags().StringVar(&key, "key", "switch", "key of the label")
	program.DurationVar(c.Flags(), &wait, "wait", 65*time.Second, "how long to listen at most, 1s to 1h")
	return c
}

// firstOf returns the label that comes first in the alphabet.
func firstOf(heard []host.Switch) string {
	var labels []string
	for _, s := range heard {
		labels = append(labels, s.Label())
	}
	return slices.Min(labels)
}

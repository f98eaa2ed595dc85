package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
)

func (o *options) restartCommand() *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "restart",
		Short: "Have the recovery daemon restart the halves, one after the other: for a new program, configuration or keys",
		Long: `Makes the recovery daemon restart the DNP half and then the host half, as after a crash: at once, from its
copy, announced to the neighbours, so that the node does not become FAILED. The second restart follows when the first
half has passed its self-test, and no half is restarted while the other does not serve. The halves read the
configuration, certificates and keys again, and run the program that is installed now. A node that has enrolled reads the
file that its daemon was started with, and refuses any other. It first
asks the supervisors for the present authorities and keys of the cluster. If it gets none, the halves restart with what they
have, and the command fails. The daemon itself keeps running:
'systemctl kill --kill-whom=main -s KILL lofamo-agent' replaces it without the halves.

The command first checks the configuration, and restarts nothing if it is wrong, or if preset, periods or window has
changed: these need 'systemctl restart lofamo-agent', which announces a stop of the node. It also restarts nothing if
recovery or hardwareWatchdog has changed: first replace the daemon. From the restart on, the daemon runs the checks
(sensors) and allows the actions (responses) of the present configuration. Restarts count towards recovery.restarts.
Run it as root or as the user of the halves.`,
		Example: `  lofamo-agent restart --config /etc/lofamo/agent.yaml`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			h, err := parseHalf(name)
			if err != nil {
				return fmt.Errorf("%w: --half: %w", errUsage, err)
			}
			given, err := o.absolute()
			if err != nil {
				return err
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			if err := errors.Join(half.Check(cfg), half.CheckHalf(cfg, only(cfg))); err != nil {
				return err
			}
			halves := []fault.Half{fault.HalfDNP, fault.HalfHost}
			if !cfg.Window.Zero() {
				halves = cfg.HalvesHere() // the other one has a daemon on its own kernel
			}
			if h != 0 && !slices.Contains(halves, h) {
				return fmt.Errorf("%w: --half %s: that half has another kernel (window): restart it there", errUsage, h)
			}
			if h != 0 {
				halves = []fault.Half{h}
			}
			var stale error
			for _, h := range halves {
				said, err := daemon.RestartHalf(c.Context(), cfg.StateDir, given, h)
				if err != nil {
					return err
				}
				if said.Stale != "" {
					stale = errors.Join(stale, fmt.Errorf("the %s half restarted, but with the old stored settings, "+
						"authorities and keys: %s", h, said.Stale))
				}
				if _, err := fmt.Fprintln(c.OutOrStdout(), said.Detail); err != nil {
					return err
				}
			}
			return stale
		},
	}
	c.Flags().StringVar(&name, "half", "", "this half alone: host or dnp (default both; beside a window, the half on this kernel)")
	return c
}

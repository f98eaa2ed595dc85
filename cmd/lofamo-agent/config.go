package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/program"
)

func (o *options) configCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check the configuration",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%w: config: want config check FILE", errUsage)
		},
	}
	var start bool
	check := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the configuration, certificates and keys, and print the bounds that follow from the periods",
		Long: "Check the configuration, certificates and keys, and print the bounds that follow from the periods.\n\n" +
			"FILE is that of --config. The environment overrides it:\n  " + strings.Join(config.AgentEnv(), "\n  "),
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return noArgs(c, args[1:])
			case len(args) == 1 && o.config != "":
				return fmt.Errorf("%w: config check: FILE %s and --config %s: want only one", errUsage, args[0], o.config)
			case len(args) == 1:
				o.config = args[0]
			case o.config == "" && !slices.ContainsFunc(o.environ, isSetting):
				return fmt.Errorf("%w: config check: FILE is missing", errUsage)
			}
			if joins, err := o.checkJoin(c.OutOrStdout()); joins || err != nil {
				return err
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			if err := half.Check(cfg); err != nil {
				return err
			}
			if err := half.CheckHalf(cfg, only(cfg)); err != nil {
				return err
			}
			if err := cfg.SharedAddresses(); err != nil {
				if err = o.invalid(err); !start {
					return err
				}
				if _, err := fmt.Fprintln(c.ErrOrStderr(), "warning: 'config check' refuses this:", err); err != nil {
					return err
				}
			}
			p, err := cfg.Timing()
			if err != nil {
				return err
			}
			ofHalf := p.HalfBound()
			if !cfg.Window.Zero() {
				ofHalf = p.DPUHalfBound()
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s: good: node %s %s, preset %s; death of a half known within %s, of the node "+
				"within %s; a half that hangs is ended by its daemon within %s\n",
				cmp.Or(o.config, "environment"), cfg.Node, placeOf(cfg), cfg.Preset, ofHalf.Round(time.Millisecond),
				p.NodeBound().Round(time.Millisecond),
				halfcore.HangBound(p.TRead, p.ReadMisses).Round(time.Millisecond))
			return err
		},
	}
	check.Flags().BoolVar(&start, program.StartFlag, false, program.StartHelp)
	c.AddCommand(check)
	return c
}

// placeOf is a node's place, in words.
func placeOf(cfg config.Agent) string {
	if cfg.Spare {
		return "without a place of its own: the supervisors choose one"
	}
	return "at " + cfg.Coord + " of " + cfg.Dims
}

// checkJoin checks the configuration of a node that enrols. It returns false if the node does not enrol, or if it has enrolled, so that its
// stored configuration is still to be checked.
func (o *options) checkJoin(stdout io.Writer) (bool, error) {
	cfg, err := o.read()
	if err != nil {
		return false, err
	}
	if !cfg.Join.Given() {
		if _, enrolled := daemon.JoinedFile(cfg.StateDir); enrolled && cfg.Cluster == "" { // run --join --config FILE
			err = cfg.ValidateOwn()
		}
		if err != nil {
			err = o.invalid(err)
		}
		return false, err
	}
	if cfg, _, err = daemon.JoinName(cfg); err != nil {
		return true, err
	}
	if err := cfg.ValidateJoin(); err != nil {
		return true, o.invalid(err)
	}
	if _, enrolled := daemon.JoinedFile(cfg.StateDir); enrolled {
		return false, nil
	}
	_, err = fmt.Fprintf(stdout, "%s: good: node %s will enrol at %s; it has not enrolled yet\n", cmp.Or(o.config, "environment"), cfg.Node,
		strings.Join(cfg.Join.Supervisors, ", "))
	return true, err
}

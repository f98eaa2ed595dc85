// Command lofamo-executor is the executor process. For the supervisors it performs the actions that end work, or may
// do so, on Slurm, power and its own host. It performs each attempt once, and only under the newest leader.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/sdnotify"
	"github.com/lofamo/lofamo/pkg/fault"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

func execute(args []string, stdout, stderr io.Writer) int {
	return program.Execute(rootCommand(), args, stdout, stderr)
}

func rootCommand() *cobra.Command {
	root := program.Root("lofamo-executor", "Runs actions that may end work, for LO|FA|MO's supervisors: Slurm, power and commands",
		"init, run, config check or version")
	former := &cobra.Command{ // the name in earlier versions, which scripts and units may have
		Use: "check-config FILE", Hidden: true, Args: program.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return check(cmd, args[0], true) // such a unit still starts after an upgrade
		},
	}
	root.AddCommand(initCommand(), runCommand(), former, program.ConfigCommand(
		"Check a configuration file, and the files that it names, without starting anything", "", check),
		program.VersionCommand("lofamo-executor"))
	return root
}

func load(file string) (process.Config, error) {
	if file == "" {
		return process.Config{}, program.Usage(errors.New("--config is missing"))
	}
	cfg, err := process.Load(file)
	if err != nil {
		return cfg, program.Usage(err)
	}
	return cfg, nil
}

func initCommand() *cobra.Command {
	var file string
	var forget bool
	cmd := &cobra.Command{
		Use:   "init --config FILE",
		Short: "Make the ledger of a new executor process",
		Long: `Make the ledger of a new executor process, in its state directory.

The ledger holds the highest fencing token and the attempts that the process has seen. 'run' refuses to begin without it: a process that
has forgotten them would obey a former leader. --forget replaces an existing or damaged ledger by an empty one; first make sure that no
former supervisor can still send orders.`,
		Args: program.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			was, err := process.Init(cfg.StateDir, cfg.Cluster, forget, time.Now())
			if err != nil {
				return err
			}
			if was != "" {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), "forgotten:", was)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: a ledger that has seen nothing, for cluster %s\n", cfg.StateDir, cfg.Cluster)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML")
	cmd.Flags().BoolVar(&forget, "forget", false, "replace a ledger that is there")
	return cmd
}

func runCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run until a signal ends it",
		Long: `Run until SIGINT or SIGTERM ends it. Running attempts then have the configuration's stopTimeout
to end; a second signal ends the process at once, and the outcome of running attempts is then unknown.`,
		Args: program.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			return run(cmd.Context(), cfg, program.NewLogger(cfg.Log, cmd.ErrOrStderr()))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML")
	return cmd
}

// stopSlack is the time beyond stopTimeout to end the remaining attempts and to send their outcomes.
const stopSlack = 30 * time.Second

func run(ctx context.Context, cfg process.Config, logger *slog.Logger) error {
	p, err := process.New(cfg, logger)
	if err != nil {
		return program.Usage(err)
	}
	manager := sdnotify.New(logger)
	defer func() { _ = manager.Close() }() // a manager that hangs does not keep the process from ending
	if err := p.Start(); err != nil {
		return err
	}
	manager.Ready()
	var reaper sync.WaitGroup
	defer reaper.Wait()
	reaping, stop := context.WithCancel(ctx)
	defer stop()
	reaper.Go(func() { program.ReapOrphans(reaping) })
	alive := time.NewTicker(cmp.Or(manager.Every(), time.Hour)) // an hour: no manager waits for signs of life
	defer alive.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			err, over = nil, true
		case err = <-p.Failed():
			over = true
		case <-alive.C:
			// It waits for the lock that every attempt takes: a lock that is never released means a process that
			// hangs.
			manager.Status(fmt.Sprintf("attempts under way: %d", p.UnderWay()))
			manager.Alive()
		}
	}
	manager.Stopping()
	manager.Patience(time.Duration(cfg.StopTimeout) + stopSlack) // TimeoutStopSec is fixed, and stopTimeout is not
	return errors.Join(err, p.Stop())
}

// check checks a configuration file. With start it only warns about errors of Config.Interpreters, like a start.
func check(cmd *cobra.Command, file string, start bool) error {
	cfg, err := load(file)
	if err != nil {
		return err
	}
	if err := cfg.Interpreters(); err != nil {
		err = fmt.Errorf("configuration %s: %w", file, err)
		if !start {
			return program.Usage(err)
		}
		if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "warning: 'config check' refuses this:", err); err != nil {
			return err
		}
	}
	p, err := process.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return program.Usage(fmt.Errorf("configuration %s: %w", file, err))
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: good: executor process of cluster %s on %s, for %s\n", file, cfg.Cluster,
		cfg.Listen, fault.List(p.Kinds()))
	return err
}

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

	"github.com/lofamo/lofamo/internal/cli"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/orphans"
	"github.com/lofamo/lofamo/internal/sdnotify"
)

func main() { os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr)) }

func execute(args []string, stdout, stderr io.Writer) int {
	return cli.Execute(rootCommand(), args, stdout, stderr)
}

func rootCommand() *cobra.Command {
	root := cli.Root("lofamo-executor", "Does for LO|FA|MO's supervisors what ends work: Slurm, power and commands",
		"init, run, check-config or version")
	root.AddCommand(initCommand(), runCommand(), checkCommand(), cli.Version("lofamo-executor"))
	return root
}

func load(file string) (process.Config, error) {
	if file == "" {
		return process.Config{}, cli.Usage(errors.New("--config is missing"))
	}
	cfg, err := process.Load(file)
	if err != nil {
		return cfg, cli.Usage(err)
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

The ledger has the highest fencing token and the attempts that the process has seen. 'run' refuses to begin without it: a process that has
forgotten them would obey a leader of old. With --forget a ledger that is there, or is damaged, is replaced by one that has seen
nothing; first make sure that no supervisor of old is left that could still send something.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			was, err := process.Init(cfg.StateDir, cfg.Cluster, forget)
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
		Long: `Run until SIGINT or SIGTERM ends it. Attempts that are under way then have the configuration's stopTimeout to end; a second signal ends the
process at once, and what was under way is not known afterwards.`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(file)
			if err != nil {
				return err
			}
			return run(cmd.Context(), cfg, cli.NewLogger(cfg.Log, cmd.ErrOrStderr()))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML")
	return cmd
}

func run(ctx context.Context, cfg process.Config, logger *slog.Logger) error {
	p, err := process.New(cfg, logger)
	if err != nil {
		return cli.Usage(err)
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
	reaper.Go(func() { orphans.Reap(reaping, orphans.Every) })
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
	return errors.Join(err, p.Stop())
}

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check-config FILE",
		Short: "Check a configuration file, and the files that it names, without starting anything",
		Args:  cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := load(args[0])
			if err != nil {
				return err
			}
			p, err := process.New(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				return cli.Usage(fmt.Errorf("configuration %s: %w", args[0], err))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: good: executor process of cluster %s on %s, for %v\n", args[0], cfg.Cluster,
				cfg.Listen, p.Kinds())
			return err
		},
	}
}

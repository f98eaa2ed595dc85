// Command lofamo-supervisor is one replica of the supervisors: flags, signals and one call.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/sdnotify"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/supervisor/embedded"
)

func main() {
	keepNoProfile()
	forgetProxies()
	os.Exit(execute(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// forgetProxies removes HTTPS_PROXY and its like from the environment. Embedded etcd would connect to its peers, and the client of
// Kubernetes to the API server, by such a proxy. A kubeconfig may name one in proxy-url.
func forgetProxies() {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasSuffix(strings.ToLower(name), "_proxy") {
			_ = os.Unsetenv(name) // fails only for a name that no variable can have
		}
	}
}

func execute(args, environ []string, stdout, stderr io.Writer) int {
	return program.Execute(command(environ), args, stdout, stderr)
}

// binaryName is the program's name in builds, packages, images and documentation.
const binaryName = "lofamo-supervisor"

func command(environ []string) *cobra.Command {
	root := program.Root(binaryName, "A replica of LO|FA|MO's supervisors: evidence in, fault map out",
		"run, config check, restore, check or version")
	root.AddCommand(runCommand(environ), configCommand(environ), restoreCommand(environ), checkSnapshotCommand(),
		program.VersionCommand(binaryName))
	return root
}

func runCommand(environ []string) *cobra.Command {
	var file string
	var endpoints, upstream []string
	cmd := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run a replica until a signal ends it",
		Long: `Run a replica until SIGINT or SIGTERM ends it.

The configuration is a YAML file; the environment (LOFAMO_SUPERVISOR_…) overrides it, and flags
override both. Without --etcd-endpoints, and none in the file, etcd runs inside this process.`,
		Args: program.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return program.Usage(fmt.Errorf("run: --config is missing"))
			}
			cfg, err := load(file, environ, endpoints, upstream)
			if err != nil {
				return program.Usage(err)
			}
			log := program.NewLogQueue(cmd.ErrOrStderr())
			defer func() { _ = log.Close() }() // a log that hangs keeps the replica neither from its work nor from ending
			err = run(cmd.Context(), cfg, program.NewLogger(cfg.Log, log))
			var damage *embedded.DamageError
			if errors.As(err, &damage) {
				return program.WithCode(err, embedded.ExitDamaged)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration file, YAML")
	cmd.Flags().StringSliceVar(&upstream, "upstream", nil,
		"supervisors of the parent of this region, to which its changes are passed on: ID=IP:PORT of the API, comma-separated")
	cmd.Flags().StringSliceVar(&endpoints, "etcd-endpoints", nil, "use an etcd outside instead of an embedded one: its URLs, comma-separated")
	return cmd
}

func load(file string, environ, endpoints, upstream []string) (config.Supervisor, error) {
	cfg, err := config.ReadSupervisor(file, environ)
	if err != nil {
		return cfg, err
	}
	if len(endpoints) > 0 {
		cfg.Etcd.Endpoints = endpoints
	}
	if len(upstream) > 0 {
		cfg.Upstream = nil
		for _, u := range upstream {
			id, addr, ok := strings.Cut(u, "=")
			if !ok {
				return cfg, fmt.Errorf("--upstream %q: want ID=IP:PORT", u)
			}
			cfg.Upstream = append(cfg.Upstream, config.UpstreamEntry{ID: id, GRPC: addr})
		}
	}
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("configuration %s: %w", file, err)
	}
	return cfg, nil
}

// hangs is how long the replica's slowest loop, which normally takes a second, may take before it counts as hanging.
const hangs = 10 * time.Second

// stopTime bounds the complete stop.
const stopTime = 15 * time.Second

func run(ctx context.Context, cfg config.Supervisor, logger *slog.Logger) error {
	go tuneGarbage(ctx)
	s, err := supervisor.New(cfg, logger, supervisor.WithOrders(orderKinds()...))
	if err != nil {
		return program.Usage(err)
	}
	if err := cfg.SharedAddresses(); err != nil {
		logger.Warn("configuration: nodes, spares or replicas share an address", "err", err)
	}
	if err := cfg.IgnoredLabels(); err != nil {
		logger.Warn("configuration: a label of alerts is ignored", "err", err)
	}
	manager := sdnotify.New(logger)
	defer func() { _ = manager.Close() }() // a hanging manager does not delay the exit
	manager.Status("starts: waits for a quorum of the store")
	if err := s.Start(ctx); err != nil {
		return err
	}
	manager.Status("serves")
	manager.Ready()
	alive := time.NewTicker(cmp.Or(manager.Every(), time.Hour)) // an hour: no manager wants signs of life
	defer alive.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			err, over = nil, true
		case err = <-s.Failed():
			over = true
		case <-alive.C:
			if time.Since(s.Round()) < hangs {
				manager.Alive()
			}
		}
	}
	manager.Stopping()
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	return errors.Join(err, s.Stop(sctx))
}

// quiet is the logger for commands that print all output themselves.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func configCommand(environ []string) *cobra.Command {
	return program.ConfigCommand("Check a configuration file without starting anything",
		"Check a configuration file, with the environment applied, and print the bounds that its periods promise.\n\n"+
			"It warns about keys, certificates and secrets that the supervisor could not use on this machine.",
		func(cmd *cobra.Command, file string, start bool) error {
			cfg, err := config.LoadSupervisor(file, environ)
			if err != nil {
				return program.Usage(err)
			}
			if err := errors.Join(cfg.SharedAddresses(), cfg.IgnoredLabels()); err != nil {
				err = fmt.Errorf("configuration %s: %w", file, err)
				if !start {
					return program.Usage(err)
				}
				if err := warn(cmd, "'config check' refuses this", err); err != nil {
					return err
				}
			}
			p, err := cfg.Timing()
			if err != nil {
				return program.Usage(err)
			}
			if err := supervisor.CheckFiles(cfg); err != nil { // no refusal otherwise: the supervisor's machine may be another
				if start {
					return program.Usage(fmt.Errorf("configuration %s: %w", file, err))
				}
				if err := warn(cmd, "the supervisor would not start on this machine", err); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: good: supervisor %s of cluster %s, %d nodes in %s; death of a half known within %s, of a "+
				"node within %s\n",
				file, cfg.ID, cfg.Cluster, len(cfg.Nodes), cfg.Dims, p.HalfBound(), p.NodeBound())
			return err
		})
}

// warn prints a warning, in one line.
func warn(cmd *cobra.Command, what string, err error) error {
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: %s\n", what, strings.ReplaceAll(err.Error(), "\n", "; "))
	return err
}

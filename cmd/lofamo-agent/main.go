// Command lofamo-agent runs on every node: the host half, the DNP half, and the daemon that starts
// both. It holds flags and signals; the halves are internal/agent.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/daemon"
	"github.com/lofamo/lofamo/internal/agent/dnp"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/program"
)

// errTied is the reason why this half ends with its daemon; nil if it outlives the daemon.
var errTied = half.OutliveDaemon(os.Environ())

func main() {
	if errTied != nil {
		_, _ = fmt.Fprintf(os.Stderr, "lofamo-agent: this half ends with its daemon: %s\n", errTied)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	cancel()
	os.Exit(code)
}

// errUsage marks a command line that is refused.
var errUsage = errors.New("usage")

// execute runs the command line and returns the exit code: 0, 1 for a failure, 2 for a refused command line or
// configuration. For a daemon that should stay down, the code for a refusal is 78. A service without a known command was to be such a
// daemon. For a half that its daemon has started, the code is 78, or 66 if a file that may be replaced is the reason, or 75 if the machine
// lacks something that the half needs.
func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	o := &options{environ: environ, stderr: stderr}
	root := o.rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "lofamo-agent: %s\n", strings.TrimPrefix(err.Error(), errUsage.Error()+": "))
	var bad *half.ConfigError
	switch {
	case half.StartedByDaemon(environ) && half.Shortage(err):
		return half.ExitShortage
	case (c.Name() == runName || c == root && isService(environ)) && o.final(c.Flags(), args, err):
		return half.ExitRefused
	case errors.Is(err, errUsage) || errors.As(err, &bad):
		return daemon.RefusalCode(environ, err)
	}
	return 1
}

// isService reports whether a service manager has started this process.
func isService(environ []string) bool {
	return slices.ContainsFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, "NOTIFY_SOCKET=") })
}

// options are the flags, which override environment and file.
type options struct {
	environ    []string
	stderr     io.Writer
	config     string
	procfs     string
	sysfs      string
	logLevel   string
	scheduling string
	restart    string
	half       string
	wait       bool
	logDir     string
	join       joinFlags
}

// joinFlags are the enrolment flags of run and of join.
type joinFlags struct {
	supervisors []string
	tokenFile   string
	node        string
	address     string
	labels      map[string]string
}

// into overrides a configuration by the flags that were given.
func (j joinFlags) into(cfg *config.Agent) {
	if len(j.supervisors) > 0 {
		cfg.Join.Supervisors = nil
		for _, address := range j.supervisors {
			cfg.Join.Supervisors = append(cfg.Join.Supervisors, config.WithEnrolmentPort(address))
		}
	}
	cfg.Join.TokenFile = cmp.Or(j.tokenFile, cfg.Join.TokenFile)
	cfg.Join.Address = cmp.Or(j.address, cfg.Join.Address)
	cfg.Node = cmp.Or(fault.NodeID(j.node), cfg.Node)
	if len(j.labels) > 0 {
		all := maps.Clone(j.labels)
		for key, value := range cfg.Join.Labels {
			if _, given := all[key]; !given {
				all[key] = value
			}
		}
		cfg.Join.Labels = all
	}
}

func (o *options) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "lofamo-agent",
		Short:         "The agent of one node: its host half, its DNP half, and the daemon that starts both",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return fmt.Errorf("%w: no command: want run, join, host, dnp, checks, status, restart, leave, mask, acts, faults, eureka, barrier, "+
				"lldp, config or version (see --help)", errUsage)
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, program.FlagError(err)) })
	program.AddVersionFlag(root)
	f := root.PersistentFlags()
	f.StringVar(&o.config, "config", "", "configuration file (YAML); without it, environment and defaults alone")
	f.StringVar(&o.procfs, "procfs", "", "mount point of proc; overrides the configuration")
	f.StringVar(&o.sysfs, "sysfs", "", "mount point of sysfs; overrides the configuration")
	f.StringVar(&o.logLevel, "log-level", "", "debug, info, warn or error; overrides the configuration")
	f.StringVar(&o.scheduling, "scheduling", string(half.SchedulingAuto), "scheduling class of the halves: auto (SCHED_FIFO priority 1 "+
		"where permitted, else prompt), prompt (short slices of CPU time, where the kernel has them) or default")
	root.AddCommand(o.runCommand(), o.joinCommand(), o.hostCommand(), o.dnpCommand(), o.checksCommand(), o.statusCommand(), o.restartCommand(),
		o.leaveCommand(),
		o.maskCommand(), o.actsCommand(), o.faultsCommand(), o.eurekaCommand(), o.barrierCommand(), o.lldpCommand(), o.configCommand(),
		versionCommand())
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: unknown command or argument %q", errUsage, args[0])
	}
	return nil
}

// runName is the command that runs the recovery daemon.
const runName = "run"

func (o *options) runCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   runName,
		Short: "Start both halves as separate processes, and restart them when they end or hang",
		Long: "Start both halves as separate processes, and restart them when they end or hang: the recovery daemon.\n\n" +
			"The daemon kills and restarts a half that exits, or that could run but writes nothing, the first time at once.\n" +
			"After recovery.restarts restarts within recovery.window it gives the half up: the log and the fault map say why.\n" +
			"SIGHUP to this process, or a stop and a new start, starts the half with a new budget. Halves continue if this\n" +
			"process is killed; the next one adopts them. If each half has a container, run this in both, with --half.\n\n" +
			"With --join, or join in the configuration, a machine without certificates becomes a node: it enrols with a token,\n" +
			"gets its certificates, and a place in the torus. It needs the token only once.\n\n" +
			"Exit codes: 0 after a stop, 1 for a failure, 2 for a refused command line or configuration. 78 is a refusal\n" +
			"for which a restart cannot help: the reason lies in no certificate or other file that the configuration names,\n" +
			"every file could be read, and no half runs that the next daemon could adopt. If only a half refuses the\n" +
			"configuration, it has done so at two starts. The packages' units stay down after 78 until a person starts them.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log := program.NewLogQueue(o.stderr)
			defer func() { _ = log.Close() }() // a log that hangs keeps the daemon neither from its work nor from ending
			o.stderr = log
			return o.run(c.Context())
		},
	}
	c.Flags().StringVar(&o.restart, "restart", string(daemon.RestartAlways),
		"what to do when a half ends or hangs: always (start it again, within its budget) or never")
	c.Flags().StringVar(&o.half, "half", "", "look after this half alone: host or dnp (default both)")
	c.Flags().BoolVar(&o.wait, "wait", false, "where another daemon looks after this node, wait until it ends and take over at once "+
		"(default: fail)")
	c.Flags().StringSliceVar(&o.join.supervisors, "join", nil,
		"enrol at these addresses of supervisors, HOST[:PORT],...; any one suffices (default port 7944)")
	c.Flags().StringVar(&o.join.tokenFile, "token-file", "", "file with the token, as 'lofamoctl token create' prints it")
	c.Flags().StringVar(&o.join.node, "node", "",
		"with --join: name of a node that has not enrolled yet (default: the configuration's, or the machine's name)")
	c.Flags().StringVar(&o.join.address, "address", "", "with --join: IP of this machine (default: that from which it reaches a supervisor)")
	c.Flags().StringToStringVar(&o.join.labels, "label", nil,
		"with --join: labels of a node that enrols, KEY=VALUE,...; they win over the configuration's (later: lofamoctl label)")
	c.Flags().StringVar(&o.logDir, "log-dir", "",
		"directory for host.log and dnp.log (default: the halves log to standard error; in a local cluster, beside the configuration)")
	return c
}

// run runs the recovery daemon until ctx ends.
func (o *options) run(ctx context.Context) error {
	restart, err := daemon.ParseRestart(o.restart)
	if err != nil {
		return fmt.Errorf("%w: --%w", errUsage, err)
	}
	if _, err := half.ParseScheduling(o.scheduling); err != nil {
		return fmt.Errorf("%w: --%w", errUsage, err)
	}
	of, err := parseHalf(o.half)
	if err != nil {
		return fmt.Errorf("%w: --half: %w", errUsage, err)
	}
	cfg, later, err := o.enrolled(ctx)
	if err != nil {
		return err
	}
	if err := half.Check(cfg); err != nil {
		return err
	}
	if err := half.CheckHalf(cfg, of); err != nil {
		return err
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the own program: %w", err)
	}
	half.TuneDaemon()
	log := program.NewLogger(cfg.Log, o.stderr)
	if err := cfg.SharedAddresses(); err != nil {
		log.Warn("configuration: an address is given twice", "err", err)
	}
	reread := func() (config.Agent, error) {
		again := *o // loading sets fields
		return again.load()
	}
	return later.Run(ctx, func(ctx context.Context) error {
		return daemon.Run(ctx, daemon.RunConfig{
			Agent: cfg, Program: binary, Args: o.halfArgs(), Restart: restart, LogDir: o.logs(cfg),
			Realtime: o.scheduling == string(half.SchedulingAuto), Half: of, Wait: o.wait, Again: again, Environ: o.environ,
			Refresh: later.Refresh, Own: later.Own, Readdress: later.Readdress, Reread: reread,
		}, log)
	})
}

// final reports whether a restart of a daemon that ended with err cannot help. It is false if the state directory is unknown.
func (o *options) final(flags *pflag.FlagSet, args []string, err error) bool {
	if errors.Is(err, errUsage) { // a service manager would repeat the command line
		err = &half.ConfigError{Err: err}
		flags.ParseErrorsAllowlist.UnknownFlags = true
		_ = flags.ParseAll(args, func(f *pflag.Flag, value string) error { // --config and --half may follow the mistake
			_ = f.Value.Set(value)
			return nil
		})
	}
	of, _ := parseHalf(o.half) // 0, so both, for an unknown half
	dir, unknown := config.AgentStateDir(o.config, o.environ)
	return unknown == nil && daemon.Final(err, dir, of)
}

// parseHalf parses host or dnp; an empty string means both, 0.
func parseHalf(s string) (fault.Half, error) {
	if s == "" {
		return 0, nil
	}
	return fault.ParseHalf(s)
}

// halfArgs are the flags that the halves get as well.
func (o *options) halfArgs() []string {
	args := []string{"--config", o.config, "--scheduling", o.scheduling}
	for _, f := range []struct{ name, value string }{{"--procfs", o.procfs}, {"--sysfs", o.sysfs}, {"--log-level", o.logLevel}} {
		if f.value != "" {
			args = append(args, f.name, f.value)
		}
	}
	return args
}

func (o *options) logs(cfg config.Agent) string {
	if o.logDir == "" && cfg.Injection && o.config != "" {
		return filepath.Dir(o.config)
	}
	return o.logDir
}

func (o *options) hostCommand() *cobra.Command {
	return o.halfCommand("host", "Run the host half alone (the paper's Host Fault Manager)", host.Run)
}

func (o *options) dnpCommand() *cobra.Command {
	return o.halfCommand("dnp", "Run the DNP half alone (the paper's DNP Fault Manager)", dnp.With(orderKinds()...))
}

func (o *options) halfCommand(
	name, short string, run func(context.Context, config.Agent, half.Scheduling, *slog.Logger) error,
) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short,
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := half.ParseScheduling(o.scheduling)
			if err != nil {
				return fmt.Errorf("%w: --%w", errUsage, err)
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			cfg, _ = half.WithPeriods(cfg, o.environ)
			out := program.NewLogQueue(o.stderr)
			defer func() { _ = out.Close() }() // a log that hangs does not keep the half from ending
			log := program.NewLogger(cfg.Log, out)
			half.TuneProcess(s, cfg.Preset, log)
			return run(c.Context(), cfg, s, log)
		},
	}
}

func (o *options) checksCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "checks",
		Short: "Run the check programs of peripherals for a host half that runs alone (run does so by itself)",
		Long: "Run the check programs of peripherals for a host half that runs alone (run does so by itself).\n\n" +
			"A half is real-time where that is permitted and starts no processes: without this, or run, such peripherals are UNKNOWN.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := o.load()
			if err != nil {
				return err
			}
			return daemon.RunChecks(c.Context(), cfg, program.NewLogger(cfg.Log, o.stderr))
		},
	}
}

// only returns the half that a window leaves on this kernel; 0: both halves may run here.
func only(cfg config.Agent) fault.Half {
	if cfg.Window.Zero() {
		return 0
	}
	return cfg.HalvesHere()[0]
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), "lofamo-agent", program.Build())
			return err
		},
	}
}

// read reads file and environment, and applies the flags.
func (o *options) read() (config.Agent, error) {
	cfg, err := config.ReadAgent(o.config, o.environ)
	if err != nil {
		return config.Agent{}, &half.ConfigError{Err: err}
	}
	for _, f := range []struct {
		flag  string
		field *string
	}{{o.procfs, &cfg.Sensors.Procfs}, {o.sysfs, &cfg.Sensors.Sysfs}, {o.logLevel, &cfg.Log.Level}} {
		if f.flag != "" {
			*f.field = f.flag
		}
	}
	return cfg, nil
}

// absolute returns the absolute path of the configuration file; "": none is given.
func (o *options) absolute() (string, error) {
	if o.config == "" {
		return "", nil
	}
	return filepath.Abs(o.config)
}

// load reads the complete configuration and checks it. That of an enrolled node is in its state directory.
func (o *options) load() (config.Agent, error) {
	cfg, err := o.read()
	if err != nil {
		return cfg, err
	}
	if cfg.Join.Given() || cfg.Cluster == "" {
		file, enrolled := daemon.JoinedFile(cfg.StateDir)
		if enrolled {
			o.config, o.environ = file, withoutConfig(o.environ)
			return o.load()
		}
		if cfg.Join.Given() {
			return cfg, fmt.Errorf("the node has not enrolled yet: %s does not exist: 'lofamo-agent run' enrols it", file)
		}
	}
	if err := cfg.Validate(); err != nil {
		return config.Agent{}, o.invalid(err)
	}
	return cfg, nil
}

// invalid returns err as an error of the configuration, with the file's name. Without a file and settings in the environment, it names
// these instead of every missing key.
func (o *options) invalid(err error) error {
	switch {
	case o.config != "":
		err = fmt.Errorf("configuration %s: %w", o.config, err)
	case slices.ContainsFunc(o.environ, isSetting):
		err = fmt.Errorf("configuration from the environment: %w", err)
	default:
		err = errors.New("--config: given nothing: want the configuration file, such as /etc/lofamo/agent.yaml, or settings in the " +
			"environment (" + agentEnv + "…)")
	}
	return &half.ConfigError{Err: err}
}

// readJoin is read, with the flags of a node that enrols.
func (o *options) readJoin() (config.Agent, error) {
	cfg, err := o.read()
	if err != nil {
		return cfg, err
	}
	o.join.into(&cfg)
	return cfg, nil
}

// enrolled enrols the node if necessary, and then loads its configuration.
func (o *options) enrolled(ctx context.Context) (config.Agent, *daemon.Later, error) {
	cfg, err := o.readJoin()
	if err != nil {
		return cfg, nil, err
	}
	j := o.join
	if !cfg.Join.Given() {
		if j.tokenFile != "" || j.address != "" || j.node != "" || len(j.labels) > 0 {
			return cfg, nil, fmt.Errorf("%w: --token-file, --address, --node and --label need --join", errUsage)
		}
		cfg, err = o.load()
		return cfg, nil, err
	}
	cfg, file, later, err := daemon.Join(ctx, cfg, program.NewLogger(cfg.Log, o.stderr))
	if err != nil {
		return cfg, nil, err
	}
	given := *o
	later.Given = given.readJoin
	if later.File, err = o.absolute(); err != nil {
		return cfg, nil, err
	}
	o.config, o.environ = file, withoutConfig(o.environ) // the file has their values
	return cfg, later, nil
}

// agentEnv begins the environment variables of the configuration.
const agentEnv = "LOFAMO_AGENT_"

// isSetting reports whether an environment variable sets a key of the configuration.
func isSetting(variable string) bool { return strings.HasPrefix(variable, agentEnv) }

// withoutConfig returns an environment without the variables of the configuration.
func withoutConfig(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), isSetting)
}

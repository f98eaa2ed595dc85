// Package ctl is lofamoctl, the users' command line: it puts the commands of its folders together and runs one command
// line. The commands ask the supervisors through the client package and make local clusters through internal/cluster.
// They decide nothing.
//
// Exit codes: 0 for success, 1 for a failure, 2 for a command line that cannot be understood, 3 for a diagnosis that
// found a fault.
package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/ctl/cluster"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/get"
	"github.com/lofamo/lofamo/internal/ctl/policy"
	"github.com/lofamo/lofamo/internal/ctl/top"
	"github.com/lofamo/lofamo/internal/program"
)

// Run runs one command line (without the program's name) and returns the exit code.
func Run(ctx context.Context, args []string, env command.Env) int {
	out := &checked{to: env.Stdout}
	if !env.Terminal { // 'top' needs the terminal itself
		env.Stdout = out
	}
	env.Stderr = &checked{to: env.Stderr}
	root := newRoot(env)
	root.SetArgs(protectNegative(args))
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = out.failure()
	}
	if err == nil {
		return command.ExitOK
	}
	if found := (command.FoundError{}); errors.As(err, &found) {
		return command.ExitFound
	}
	_, _ = fmt.Fprintf(env.Stderr, "lofamoctl: %s\n", command.PrintableLines(err.Error()))
	if usage := (command.UsageError{}); errors.As(err, &usage) {
		_, _ = fmt.Fprintf(env.Stderr, "See '%s --help'.\n", cmd.CommandPath())
		return command.ExitUsage
	}
	return command.ExitFailure
}

// checked remembers that the output was not written as a whole, for example because the disk is full. Commands print without looking. It is
// safe for concurrent use: a live view prints changes and warnings.
type checked struct {
	mu  sync.Mutex // guards the fields below
	to  io.Writer
	err error
}

func (c *checked) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := c.to.Write(b)
	c.err = cmp.Or(c.err, err)
	return n, err
}

func (c *checked) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return nil
	}
	return fmt.Errorf("write the output: %w", c.err)
}

var negative = regexp.MustCompile(`^-[0-9.]+$`)

// protectNegative moves a negative sensor value to the end, behind "--", so that it is not parsed as a flag. It is
// always the last argument that is not a flag. The value of a flag, as in "--for -5", stays where it is.
func protectNegative(args []string) []string {
	if !slices.Contains(args, "inject") || slices.Contains(args, "--") {
		return args
	}
	i := slices.IndexFunc(args, negative.MatchString)
	if i <= 0 || strings.HasPrefix(args[i-1], "--") && !strings.Contains(args[i-1], "=") && args[i-1] != "--one-way" {
		return args
	}
	out := slices.Concat(args[:i], args[i+1:])
	return append(out, "--", args[i])
}

func newRoot(env command.Env) *cobra.Command {
	a := &command.App{Env: env}
	root := &cobra.Command{
		Use:   "lofamoctl",
		Short: "Fault supervision for clusters: inspect the fault map, or make a cluster for a trial",
		Long: `lofamoctl shows which parts of a cluster are NORMAL, SICK, FAILED or UNKNOWN, and why. It also makes whole clusters on
this machine for trials.

It chooses the cluster by flags (--server with --ca, --cert and --key; --dir for a local cluster; --context), else by
the environment (LOFAMO_SERVER, LOFAMO_CA, LOFAMO_CERT, LOFAMO_KEY; LOFAMO_DIR). Otherwise it uses the local cluster
in ./.lofamo, else the current context: see 'lofamoctl config --help'.

All commands accept a node's id (n1-0-1) or its coordinates (1,0,1).

Exit codes: 0 success, 1 failure, 2 a usage error, 3 a diagnosis that found something wrong.`,
		Example: `  lofamoctl up --detach                  a cluster of 2x2x2 nodes on this machine
  lofamoctl status                       the open incidents, why, and the next commands
  lofamoctl map                          the torus in the terminal
  lofamoctl top                          the whole cluster, live in the terminal
  lofamoctl web                          a link to it in the browser
  lofamoctl inject 1,0,1 kill-host       a real fault
  lofamoctl get node 1,0,1               one node, its faults and the evidence
  lofamoctl explain 1,0,1                the reason for its state, and what would change it
  lofamoctl watch                        changes as they are committed
  lofamoctl bundle 1,0,1                 a diagnostic bundle, by any path that reaches the node
  lofamoctl down`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return command.Usagef("unknown command %q%s", args[0], suggest(cmd, args[0]))
			}
			return cmd.Help()
		},
	}
	a.AddFlags(root)
	program.AddVersionFlag(root)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return command.Usage(program.FlagError(err)) })
	lists := get.Command(a, policy.GetPoliciesCommand(a), policy.GetResponsesCommand(a), policy.GetResponseCommand(a),
		policy.GetBreakerCommand(a))
	group := func(title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: title, Title: title + ":"})
		for _, c := range commands {
			c.GroupID = title
		}
		root.AddCommand(commands...)
	}
	group("Look", get.StatusCommand(a), lists, get.MapCommand(a), top.Command(a), cluster.WebCommand(a), get.ExplainCommand(a),
		get.HistoryCommand(a), get.SummaryCommand(a), get.WatchCommand(a), get.WaitCommand(a), policy.AuditCommand(a))
	group("Examine a fault", cluster.DoctorCommand(a), cluster.BundleCommand(a), cluster.RegsCommand(a), get.DiagnoseCommand(a))
	group("Act", get.AcknowledgeCommand(a), cluster.MaintenanceCommand(a), get.MaskCommand(a), get.UnmaskCommand(a),
		policy.ResponseCommand(a))
	group("Change the cluster", cluster.Command(a), cluster.NodeCommand(a), cluster.SupervisorCommand(a), get.ApplyCommand(a),
		get.LabelCommand(a), policy.Command(a), policy.NotifyCommand(a), cluster.CertCommand(a), cluster.TokenCommand(a))
	group("Try it on this machine", cluster.UpCommand(a), cluster.DownCommand(a), cluster.ScaleCommand(a), cluster.InjectCommand(a))
	group("This program", cluster.ConfigCommand(a), versionCommand(a))
	root.SetHelpCommandGroupID("This program")
	root.SetCompletionCommandGroupID("This program")
	return root
}

func suggest(cmd *cobra.Command, name string) string {
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(name); len(s) > 0 {
		return fmt.Sprintf(": did you mean %q?", s[0])
	}
	return ""
}

package policy

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/pkg/fault"
)

const notifyWords = "add, list, test or remove"

// NotifyCommand returns `lofamoctl notify`.
func NotifyCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "notify add|list|test|remove",
		Short: "Notifications: who gets a message of each incident and of its end",
		Long: `Adds, lists, tests and removes the targets of notifications: Slack, Teams, an Alertmanager, or any receiver of JSON.
docs/webhooks.md describes the messages.`,
		Example: `  lofamoctl notify add chat https://hooks.slack.com/services/… --format slack
  lofamoctl notify test chat`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("notify %s: want %s", strings.Join(args, " "), notifyWords)
		},
	}
	cmd.AddCommand(notifyAddCommand(a), notifyListCommand(a), notifyTestCommand(a), notifyRemoveCommand(a))
	return cmd
}

var notifyFormats = map[notify.Format]lofamov1.NotifyFormat{
	notify.Generic: lofamov1.NotifyFormat_NOTIFY_GENERIC, notify.Slack: lofamov1.NotifyFormat_NOTIFY_SLACK,
	notify.Teams: lofamov1.NotifyFormat_NOTIFY_TEAMS, notify.Alertmanager: lofamov1.NotifyFormat_NOTIFY_ALERTMANAGER,
}

func notifyFormatName(f lofamov1.NotifyFormat) string {
	for name, proto := range notifyFormats {
		if proto == f {
			return string(name)
		}
	}
	return command.Dash("")
}

// Bounds of the inputs, in bytes. The supervisors have the exact ones.
const (
	maxURLInput    = 4096
	maxSecretInput = 1024
)

func notifyAddCommand(a *command.App) *cobra.Command {
	var format, secretFile string
	cmd := &cobra.Command{
		Use:   "add NAME URL",
		Short: "Send a message of each incident, and of its end, to a URL",
		Long: `Adds a target, and the policies that notify it: one message for each incident of a SICK or FAILED node or part, or of a
rack, row, plane or block, after five seconds; another 30 seconds after its end. 'lofamoctl policy get notify.NAME' shows the
policy. If an enforced policy names the target already, no policy changes.

A target of the same name is replaced, and notifications that it has missed are sent if their faults stand. URL is http or
https; - takes it from the standard input, so that it does not stand in the history of the shell. The supervisors never show it.`,
		Example: `  lofamoctl notify add chat https://hooks.slack.com/services/… --format slack
  lofamoctl notify add ops http://alertmanager:9093 --format alertmanager
  lofamoctl notify add tickets - --secret-file tickets.secret < url`,
		Args: command.Exactly("NAME", "URL"),
	}
	cmd.Flags().StringVar(&format, "format", string(notify.Generic), "of the messages: "+fault.List(notify.Formats()))
	cmd.Flags().StringVar(&secretFile, "secret-file", "", "with the format generic: a file whose secret signs the messages, whsec_ and 24 to "+
		"64 bytes in base64 (default: no signature)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t := notify.Target{Name: args[0], URL: args[1], Format: notify.Format(format)}
		if t.URL == "-" {
			b, _, err := command.ReadBounded("-", cmd.InOrStdin(), maxURLInput)
			if err != nil {
				return err
			}
			t.URL = string(bytes.TrimSpace(b))
		}
		if secretFile != "" {
			b, _, err := command.ReadBounded(secretFile, cmd.InOrStdin(), maxSecretInput)
			if err != nil {
				return err
			}
			if t.Secret = string(bytes.TrimSpace(b)); t.Secret == "" {
				return command.Usagef("--secret-file %s: it is empty: want a secret", secretFile)
			}
		}
		if err := t.Validate(); err != nil {
			return command.Usage(fmt.Errorf("notify add: %w", err))
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.AddNotifyTarget(ctx, &lofamov1.AddNotifyTargetRequest{Name: t.Name, Url: t.URL, Format: notifyFormats[t.Format],
				Secret: t.Secret})
			if err != nil {
				return fmt.Errorf("notify add: %w", command.Plain(err))
			}
			printAdded(a, resp)
			return nil
		})
	}
	return cmd
}

func printAdded(a *command.App, resp *lofamov1.AddNotifyTargetResponse) {
	t, what := resp.GetTarget(), "added"
	if resp.GetReplaced() {
		what = "replaced"
	}
	a.Printf("target %s %s: %s at %s\n", t.GetName(), what, notifyFormatName(t.GetFormat()), command.Printable(t.GetHost()))
	for _, c := range resp.GetChanges() {
		a.Printf("policy %s: version %d, %s\n", c.GetName(), c.GetVersion(), command.ModeName(c.GetTo()))
	}
	a.Printf("'lofamoctl notify test %s' sends a message now\n", t.GetName())
}

func notifyListCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "The targets of notifications, without their URLs",
		Long: `Prints the targets. HOST is that of the URL. URL has the first digits of the URL's SHA-256, to tell whether two are the
same: printf %s "$URL" | sha256sum. Targets by 'configuration' are those of the supervisors' configuration.`,
		Args: command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return command.Query(a, cmd, "notify list", o, func(ctx context.Context, s command.Session) (*lofamov1.ListNotifyTargetsResponse, error) {
			return s.ListNotifyTargets(ctx)
		}, func(resp *lofamov1.ListNotifyTargetsResponse) error {
			if len(resp.GetTargets()) == 0 {
				a.Printf("no target: 'lofamoctl notify add NAME URL' adds one\n")
				return nil
			}
			rows := [][]string{{"NAME", "FORMAT", "HOST", "URL", "SIGNED", "POLICIES", "BY"}}
			for _, t := range resp.GetTargets() {
				by, signed := t.GetBy(), "no"
				if t.GetConfigured() {
					by = "configuration"
				}
				if t.GetSigned() {
					signed = "yes"
				}
				rows = append(rows, []string{t.GetName(), notifyFormatName(t.GetFormat()), command.Printable(t.GetHost()), t.GetFingerprint(),
					signed, command.Dash(strings.Join(t.GetPolicies(), ",")), by})
			}
			return command.Table(a.Env.Stdout, rows)
		})
	}
	return cmd
}

func notifyTestCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "test NAME",
		Short: "Send a test message to a target now",
		Long: `Has the leading supervisor send a test message to a target, once. The exit code is 0 if the target has accepted the message,
and 1 if it has not: the error says why.`,
		Example: "  lofamoctl notify test chat",
		Args:    command.Exactly("NAME (see lofamoctl notify list)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
				if _, err := s.TestNotifyTarget(ctx, args[0]); err != nil {
					return fmt.Errorf("notify test: %w", command.Plain(err))
				}
				a.Printf("target %s has accepted a test message\n", args[0])
				return nil
			})
		},
	}
}

func notifyRemoveCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:     "remove NAME",
		Short:   "Remove a target, with the policies that 'notify add' made for it",
		Long:    "Removes a target with its policies. The target gets no message of the end of incidents.",
		Example: "  lofamoctl notify remove chat",
		Args:    command.Exactly("NAME (see lofamoctl notify list)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
				resp, err := s.RemoveNotifyTarget(ctx, args[0])
				if err != nil {
					return fmt.Errorf("notify remove: %w", command.Plain(err))
				}
				a.Printf("target %s removed\n", args[0])
				printPolicyChanges(a, resp.GetChanges(), false)
				return nil
			})
		},
	}
}

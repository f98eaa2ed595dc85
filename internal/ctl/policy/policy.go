// Package policy has the commands about responses to faults: policy, response and audit, and the lists of responses and
// of the circuit breaker.
package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

const policyWords = "apply, get, check, test, delete or defaults"

// Command returns `lofamoctl policy`.
func Command(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy apply|get|check|test|delete|defaults",
		Short: "Policies: the responses to faults",
		Long: `A policy selects faults and the steps against them. The supervisors decide whether and when a step may run. A policy
is observe-only (its steps are recorded but not taken) until its spec has mode: enforce. docs/responses.md has every
field.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("policy %s: want %s", strings.Join(args, " "), policyWords)
		},
	}
	cmd.AddCommand(policyApplyCommand(a), policyGetCommand(a), policyCheckCommand(a), policyTestCommand(a), policyDeleteCommand(a),
		policyDefaultsCommand(a))
	return cmd
}

// documents are those of a file, or the ones that are shipped.
func documents(file string, defaults bool, stdin io.Reader) (text []byte, name string, err error) {
	switch {
	case defaults && file != "":
		return nil, "", command.Usagef("-f %s and --defaults: want one of them", file)
	case defaults:
		b, err := policy.DefaultYAML()
		return b, "the defaults", err
	case file == "":
		return nil, "", command.Usagef("-f is missing: want a file with policies, or - for the standard input; --defaults takes the ones that " +
			"are shipped")
	}
	return command.ReadBounded(file, stdin, policy.MaxBytes)
}

// parseVersions reads NAME=VERSION.
func parseVersions(args []string) (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, arg := range args {
		name, v, ok := strings.Cut(arg, "=")
		n, err := strconv.ParseUint(v, 10, 64)
		if !ok || name == "" || err != nil {
			return nil, command.Usagef("--expect %q: want NAME=VERSION, where version 0 means that there must be none", arg)
		}
		out[name] = n
	}
	return out, nil
}

func policyApplyCommand(a *command.App) *cobra.Command {
	var file string
	var expect []string
	var dryRun, defaults bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create policies, or replace those of the same names: all or none",
		Long: `Puts the policies of a YAML or JSON file in force. Other policies stay in force. If any policy is invalid, the command
prints the errors and changes nothing. A policy with a changed spec is another policy: responses of the earlier one
begin nothing new, and their effects are undone when the fault is gone.`,
		Example: `  lofamoctl policy apply -f policies.yaml --dry-run
  lofamoctl policy apply -f policies.yaml
  lofamoctl policy apply -f drain.yaml --expect drain-failed-memory=3
  lofamoctl policy apply --defaults`,
		Args: onlyFiles,
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file; - for the standard input")
	cmd.Flags().BoolVar(&defaults, "defaults", false, "the shipped policies; all of them are observe-only")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check the policies, and print the changes")
	cmd.Flags().StringArrayVar(&expect, "expect", nil,
		"NAME=VERSION: refuse when the policy is at another version; may be given more than once")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, _, err := documents(file, defaults, cmd.InOrStdin())
		if err != nil {
			return err
		}
		versions, err := parseVersions(expect)
		if err != nil {
			return err
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.ApplyPolicies(ctx, &lofamov1.ApplyPoliciesRequest{Documents: string(text), DryRun: dryRun, Expected: versions})
			if err != nil {
				return fmt.Errorf("policy apply: %w", command.Plain(err))
			}
			printPolicyChanges(a, resp.GetChanges(), dryRun)
			return nil
		})
	}
	return cmd
}

func printPolicyChanges(a *command.App, changes []*lofamov1.PolicyChange, dryRun bool) {
	for _, c := range changes {
		var what string
		switch c.GetKind() {
		case lofamov1.PolicyChangeKind_POLICY_UNCHANGED:
			what = fmt.Sprintf("unchanged, version %d, %s", c.GetVersion(), command.ModeName(c.GetTo()))
		case lofamov1.PolicyChangeKind_POLICY_CREATED:
			what = fmt.Sprintf("new, version %d, %s", c.GetVersion(), command.ModeName(c.GetTo()))
		case lofamov1.PolicyChangeKind_POLICY_DELETED:
			what = "withdrawn"
		case lofamov1.PolicyChangeKind_POLICY_RELABELLED:
			what = fmt.Sprintf("labels or annotations changed, version %d, %s", c.GetVersion(), command.ModeName(c.GetTo()))
		default:
			what = fmt.Sprintf("replaced, version %d, %s", c.GetVersion(), command.ModeName(c.GetTo()))
			if c.GetFrom() != c.GetTo() {
				what += ", was " + command.ModeName(c.GetFrom())
			}
		}
		if n := c.GetOpen(); n > 0 {
			what += fmt.Sprintf(": %s under way to do nothing more", fault.Plural(int(n), "response"))
		}
		a.Printf("%s: %s\n", c.GetName(), what)
		for _, w := range c.GetWarnings() {
			a.Warnf("lofamoctl: policy %s: %s\n", c.GetName(), command.Printable(w))
		}
	}
	if dryRun {
		a.Printf("dry run: nothing was changed\n")
	}
	if slices.ContainsFunc(changes, func(c *lofamov1.PolicyChange) bool {
		return c.GetTo() == lofamov1.PolicyMode_OBSERVE_ONLY && c.GetKind() != lofamov1.PolicyChangeKind_POLICY_DELETED
	}) {
		a.Warnf("lofamoctl: an observe-only policy does nothing: the audit records the steps it would take; " +
			"'mode: enforce' in its spec lets it act\n")
	}
}

func policyGetCommand(a *command.App) *cobra.Command {
	return policiesCommand(a, "policy get", "get [NAME]")
}

// GetPoliciesCommand returns `lofamoctl get policies`, which is `lofamoctl policy get`.
func GetPoliciesCommand(a *command.App) *cobra.Command {
	cmd := policiesCommand(a, "get policies", "policies [NAME]")
	cmd.Aliases = []string{"policy", "pol"}
	return cmd
}

// policiesCommand returns the command that prints policies; path is its name with those of its parents.
func policiesCommand(a *command.App, path, use string) *cobra.Command {
	var version uint64
	cmd := &cobra.Command{
		Use:   use,
		Short: "The policies in force, or one of them with its history",
		Long: `Prints the policies in force, or one. With -o yaml the output for one policy is its document, which you can edit and
give to 'lofamoctl policy apply'.`,
		Example: strings.ReplaceAll("  lofamoctl PATH\n  lofamoctl PATH drain-failed-memory\n"+
			"  lofamoctl PATH drain-failed-memory --version 2 -o yaml", "PATH", path),
		Args: command.Between(0, "NAME"),
	}
	o := command.GetFormats(cmd)
	cmd.Flags().Uint64Var(&version, "version", 0, "with NAME: an earlier version")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && version > 0:
			return command.Usagef("--version %d: want the NAME of the policy with it", version)
		case len(args) == 0:
			return command.Query(a, cmd, path, o, func(ctx context.Context, s command.Session) (*lofamov1.ListPoliciesResponse, error) {
				return s.ListPolicies(ctx)
			}, func(resp *lofamov1.ListPoliciesResponse) error { return printPolicies(a, resp, o.Format) })
		}
		o.JSON = policyDocument
		return command.Query(a, cmd, path, o, func(ctx context.Context, s command.Session) (*lofamov1.GetPolicyResponse, error) {
			return s.GetPolicy(ctx, &lofamov1.GetPolicyRequest{Name: args[0], Version: version})
		}, func(resp *lofamov1.GetPolicyResponse) error { return printPolicy(a, resp) })
	}
	return cmd
}

// printPolicies prints the table of policies.
func printPolicies(a *command.App, resp *lofamov1.ListPoliciesResponse, f command.Format) error {
	if len(resp.GetPolicies()) == 0 {
		a.Printf("no policy is in force: 'lofamoctl policy apply --defaults' applies the shipped ones, which are observe-only\n")
		return nil
	}
	if err := a.Table(policyRows(a, resp.GetPolicies(), f == command.FormatWide)); err != nil {
		return err
	}
	for _, p := range resp.GetPolicies() {
		for _, w := range p.GetWarnings() {
			a.Printf("\n%s: %s\n", p.GetName(), command.Printable(w))
		}
	}
	return nil
}

func policyRows(a *command.App, policies []*lofamov1.ResponsePolicy, wide bool) [][]string {
	head := []string{"NAME", "MODE", "VERSION", "FOR", "STEPS", "CHANGED", "BY"}
	if wide {
		head = append(head, "DIGEST", "MATCH", "DESCRIPTION")
	}
	rows := [][]string{head}
	for _, p := range policies {
		target := "nodes"
		if p.GetGroups() {
			target = "groups"
		}
		r := []string{
			p.GetName(), command.ModeName(p.GetMode()), strconv.FormatUint(p.GetVersion(), 10), target,
			command.Dash(strings.Join(p.GetSteps(), ", ")),
			command.Minute(a, p.GetAt().AsTime()), command.Dash(p.GetBy()),
		}
		if wide {
			r = append(r, command.Dash(p.GetDigest()), command.Dash(command.Printable(p.GetMatch())),
				command.Dash(command.Printable(p.GetDescription())))
		}
		rows = append(rows, r)
	}
	return rows
}

// policyDocument returns the document of one policy as JSON.
func policyDocument(m proto.Message) ([]byte, error) {
	resp, ok := m.(*lofamov1.GetPolicyResponse)
	if !ok {
		return command.ProtoJSON(m)
	}
	p := resp.GetPolicy()
	if p.GetDeleted() {
		return nil, fmt.Errorf("policy %s: it was withdrawn by version %d, which has no document", p.GetName(), p.GetVersion())
	}
	var out bytes.Buffer // without white space, so that -w prints one line
	if err := json.Compact(&out, []byte(p.GetDocument())); err != nil {
		return nil, fmt.Errorf("policy %s: its document: %w", p.GetName(), err)
	}
	return out.Bytes(), nil
}

// printPolicy describes one policy.
func printPolicy(a *command.App, resp *lofamov1.GetPolicyResponse) error {
	p := resp.GetPolicy()
	state := command.ModeName(p.GetMode())
	if p.GetDeleted() {
		state = "withdrawn"
	}
	head := [][]string{
		{"Policy", p.GetName()}, {"Mode", state},
		{"Version", fmt.Sprintf("%d, of %s by %s", p.GetVersion(), command.Minute(a, p.GetAt().AsTime()), command.Dash(p.GetBy()))},
		{"Digest", command.Dash(p.GetDigest())}, {"Match", command.Dash(command.Printable(p.GetMatch()))},
		{"Steps", command.Dash(strings.Join(p.GetSteps(), ", "))},
		{"Description", command.Dash(command.Printable(p.GetDescription()))},
	}
	for _, w := range p.GetWarnings() {
		head = append(head, []string{"Warning", command.Printable(w)})
	}
	if err := a.Table(head); err != nil {
		return err
	}
	if len(resp.GetFormer()) == 0 {
		return nil
	}
	rows := [][]string{{"FORMER", "MODE", "CHANGED", "BY", "DIGEST"}}
	for _, old := range resp.GetFormer() {
		mode := command.ModeName(old.GetMode())
		if old.GetDeleted() {
			mode = "withdrawn"
		}
		rows = append(rows, []string{strconv.FormatUint(old.GetVersion(), 10), mode, command.Minute(a, old.GetAt().AsTime()),
			command.Dash(old.GetBy()), command.Dash(old.GetDigest())})
	}
	a.Printf("\n")
	return a.Table(rows)
}

func policyCheckCommand(a *command.App) *cobra.Command {
	var file string
	var defaults bool
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Check policies, also without any supervisor",
		Long: `Checks the policies of a file as the supervisors would: types, unknown fields, conditions, unreachable rules. If a
supervisor answers, it also checks that the targets exist, and the policies together with those in force. The exit code is
1 when anything is wrong.`,
		Example: "  lofamoctl policy check -f policies.yaml",
		Args:    onlyFiles,
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file; - for the standard input")
	cmd.Flags().BoolVar(&defaults, "defaults", false, "the shipped policies")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, name, err := documents(file, defaults, cmd.InOrStdin())
		if err != nil {
			return err
		}
		docs, err := policy.Parse(text)
		if err == nil {
			err = policy.CheckNew(docs)
		}
		if err == nil {
			err = checkOnline(cmd.Context(), a, text, docs)
		}
		if err != nil {
			return fmt.Errorf("%s:\n%w", name, err)
		}
		for _, d := range docs {
			a.Printf("%s\n", checkedPolicy(d))
		}
		return nil
	}
	return cmd
}

// checkTime bounds the supervisors' part of a check, which works without them.
const checkTime = 5 * time.Second

// checkOnline has a supervisor check policies, if there is one that answers.
func checkOnline(ctx context.Context, a *command.App, text []byte, docs []*policy.Document) error {
	s, err := a.Connect()
	if err != nil && a.Elsewhere() != "" {
		return err
	}
	resp := &lofamov1.CheckPoliciesResponse{}
	if err == nil {
		defer func() { _ = s.Close() }()
		ctx, cancel := context.WithTimeout(ctx, checkTime)
		defer cancel()
		resp, err = s.CheckPolicies(ctx, &lofamov1.CheckPoliciesRequest{Documents: string(text)})
	}
	switch code := status.Code(err); {
	case err == nil && len(resp.GetErrors()) > 0:
		return errors.New(strings.Join(resp.GetErrors(), "\n"))
	case err == nil:
		return nil
	case code == codes.PermissionDenied || code == codes.ResourceExhausted:
		return command.Plain(err)
	}
	if slices.ContainsFunc(docs, func(d *policy.Document) bool {
		return slices.ContainsFunc(d.Policy.Steps, func(s response.Step) bool { return s.Parameters["target"] != "" })
	}) {
		a.Warnf("lofamoctl: no supervisor has checked the policies: whether their targets exist is unknown\n")
	}
	return nil
}

// checkedPolicy describes the actions of a policy in two lines, and its sources of outside conditions in a third.
func checkedPolicy(d *policy.Document) string {
	var steps, faults []string
	for _, s := range d.Policy.Steps {
		steps = append(steps, string(s.Kind))
	}
	components := fault.Components()
	if d.Policy.Groups {
		components = []fault.Component{0}
	}
	for _, c := range components {
		var states []string
		for _, s := range []fault.State{fault.Sick, fault.Failed, fault.Unknown} {
			if d.Policy.Match.May(c, s) {
				states = append(states, s.String())
			}
		}
		if len(states) > 0 {
			name := "group"
			if !d.Policy.Groups {
				name = c.String()
			}
			faults = append(faults, name+" "+strings.Join(states, "|"))
		}
	}
	if n := len(faults); n > 6 {
		faults = append(faults[:6], fmt.Sprintf("and %d more", n-6))
	}
	out := fmt.Sprintf("%s: right, %s: %s\n  may be for %s", d.Name, d.Policy.Mode, strings.Join(steps, ", "), strings.Join(faults, ", "))
	if needs := d.Policy.Sources(); len(needs) > 0 {
		var names []string
		for _, s := range needs {
			names = append(names, s.String())
		}
		out += "\n  needs conditions of " + strings.Join(names, " and ") + ": 'lofamoctl policy apply --dry-run' warns if they are not configured"
	}
	return out
}

func policyDeleteCommand(a *command.App) *cobra.Command {
	var expect []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Withdraw policies: all or none",
		Long: `Withdraws policies. Their responses begin nothing new, and their changes are undone when the fault is gone ('lofamoctl
response cancel' undoes them at once).`,
		Example: "  lofamoctl policy delete reset-dead-host",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Usagef("NAME is missing: want at least one policy")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would change")
	cmd.Flags().StringArrayVar(&expect, "expect", nil,
		"NAME=VERSION: refuse when the policy is at another version; may be given more than once")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		versions, err := parseVersions(expect)
		if err != nil {
			return err
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.DeletePolicies(ctx, &lofamov1.DeletePoliciesRequest{Names: args, DryRun: dryRun, Expected: versions})
			if err != nil {
				return fmt.Errorf("policy delete: %w", command.Plain(err))
			}
			printPolicyChanges(a, resp.GetChanges(), dryRun)
			return nil
		})
	}
	return cmd
}

func policyDefaultsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "defaults [NAME...]",
		Short: "Print the shipped policies",
		Long: `Prints the shipped policies, or the named ones. All of them are observe-only: their actions are recorded but not
taken. To enforce one, print it, set mode: enforce, and apply it.`,
		Example: "  lofamoctl policy defaults\n  lofamoctl policy defaults drain-failed-memory | sed 's/observe-only/enforce/' | lofamoctl " +
			"policy apply -f -",
		Args: cobra.ArbitraryArgs,
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			b, err := policy.DefaultYAML()
			if err != nil {
				return err
			}
			_, err = a.Env.Stdout.Write(b)
			return err
		}
		docs, err := policy.Default()
		if err != nil {
			return err
		}
		var names []string
		for _, d := range docs {
			names = append(names, d.Name)
		}
		for i, name := range args {
			at := slices.Index(names, name)
			if at < 0 {
				return command.Usagef("policy %q: none of that name is shipped: want one of %s", name, strings.Join(names, ", "))
			}
			b, err := yaml.JSONToYAML(docs[at].JSON)
			if err != nil {
				return fmt.Errorf("policy %s: %w", name, err)
			}
			if i > 0 {
				a.Printf("---\n")
			}
			a.Printf("%s", b)
		}
		return nil
	}
	return cmd
}

// onlyFiles rejects arguments: documents come from -f, as in kubectl.
func onlyFiles(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return command.Usagef("argument %q: want none: -f %s names a file", args[0], args[0])
	}
	return nil
}

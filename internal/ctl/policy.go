package ctl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

const policyWords = "apply, get, check, test, delete or defaults"

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy apply|get|check|test|delete|defaults",
		Short: "Policies: what is to be done about faults",
		Long: `A policy says for which faults something is to be done, and what. Whether it may be done, and when, is for the
supervisors. A policy observes only (what it would do is recorded, and nothing is done) until its spec says
mode: enforce. docs/responses.md has every field.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return usagef("policy %s: want %s", strings.Join(args, " "), policyWords)
		},
	}
	cmd.AddCommand(a.policyApplyCommand(), a.policyGetCommand(), a.policyCheckCommand(), a.policyTestCommand(), a.policyDeleteCommand(), a.policyDefaultsCommand())
	return cmd
}

// documents are those of a file, or the ones that are shipped.
func (a *app) documents(file string, defaults bool, stdin io.Reader) (text []byte, name string, err error) {
	switch {
	case defaults && file != "":
		return nil, "", usagef("-f %s and --defaults: want one of them", file)
	case defaults:
		b, err := policy.DefaultYAML()
		return b, "the defaults", err
	case file == "":
		return nil, "", usagef("-f is missing: want a file with policies, or - for the standard input; --defaults takes the ones that are shipped")
	}
	return readBounded(file, stdin, policy.MaxBytes)
}

// parseVersions reads NAME=VERSION.
func parseVersions(args []string) (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, arg := range args {
		name, v, ok := strings.Cut(arg, "=")
		n, err := strconv.ParseUint(v, 10, 64)
		if !ok || name == "" || err != nil {
			return nil, usagef("--expect %q: want NAME=VERSION, where version 0 says that there must be none", arg)
		}
		out[name] = n
	}
	return out, nil
}

func (a *app) policyApplyCommand() *cobra.Command {
	var file string
	var expect []string
	var dryRun, defaults bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Put policies in force, new ones or in the place of those of the same names: all or none",
		Long: `Puts the policies of a YAML or JSON file in force. Others stay as they are. What is wrong with any of them is said,
and then none is taken. A policy whose spec is changed is another policy: responses of the one before do nothing
more, and what they did is put back when the fault is gone.`,
		Example: `  lofamoctl policy apply -f policies.yaml --dry-run
  lofamoctl policy apply -f policies.yaml
  lofamoctl policy apply -f drain.yaml --expect drain-failed-memory=3
  lofamoctl policy apply --defaults`,
		Args: onlyFiles,
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file; - for the standard input")
	cmd.Flags().BoolVar(&defaults, "defaults", false, "those that are shipped; all of them observe only")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check them, and print what would change")
	cmd.Flags().StringArrayVar(&expect, "expect", nil, "NAME=VERSION: refuse when the policy is at another version; may be given more than once")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, _, err := a.documents(file, defaults, cmd.InOrStdin())
		if err != nil {
			return err
		}
		versions, err := parseVersions(expect)
		if err != nil {
			return err
		}
		return a.withOperator(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.ApplyPolicies(ctx, &lofamov1.ApplyPoliciesRequest{Documents: string(text), DryRun: dryRun, Expected: versions})
			if err != nil {
				return fmt.Errorf("policy apply: %w", plain(err))
			}
			a.printPolicyChanges(resp.GetChanges(), dryRun)
			return nil
		})
	}
	return cmd
}

func modeName(m lofamov1.PolicyMode) string {
	if m == lofamov1.PolicyMode_POLICY_MODE_UNSPECIFIED {
		return "-"
	}
	return strings.ReplaceAll(strings.ToLower(m.String()), "_", "-")
}

func (a *app) printPolicyChanges(changes []*lofamov1.PolicyChange, dryRun bool) {
	for _, c := range changes {
		var what string
		switch c.GetKind() {
		case lofamov1.PolicyChangeKind_POLICY_UNCHANGED:
			what = fmt.Sprintf("unchanged, version %d, %s", c.GetVersion(), modeName(c.GetTo()))
		case lofamov1.PolicyChangeKind_POLICY_CREATED:
			what = fmt.Sprintf("new, version %d, %s", c.GetVersion(), modeName(c.GetTo()))
		case lofamov1.PolicyChangeKind_POLICY_DELETED:
			what = "withdrawn"
		case lofamov1.PolicyChangeKind_POLICY_RELABELLED:
			what = fmt.Sprintf("labels or annotations changed, version %d, %s", c.GetVersion(), modeName(c.GetTo()))
		default:
			what = fmt.Sprintf("replaced, version %d, %s", c.GetVersion(), modeName(c.GetTo()))
			if c.GetFrom() != c.GetTo() {
				what += ", was " + modeName(c.GetFrom())
			}
		}
		if n := c.GetOpen(); n > 0 {
			what += fmt.Sprintf(": %s under way to do nothing more", plural(int(n), "response"))
		}
		a.printf("%s: %s\n", c.GetName(), what)
	}
	if dryRun {
		a.printf("dry run: nothing was changed\n")
	}
}

func (a *app) policyGetCommand() *cobra.Command {
	var version uint64
	cmd := &cobra.Command{
		Use:   "get [NAME]",
		Short: "The policies in force, or one of them with its history",
		Long: `Prints the policies in force, or one. What -o yaml prints of one is its document, and can be edited and given to
'lofamoctl policy apply'.`,
		Example: "  lofamoctl policy get\n  lofamoctl policy get drain-failed-memory\n  lofamoctl policy get drain-failed-memory --version 2 -o yaml",
		Args:    between(0, "NAME"),
	}
	o := allFormats(cmd)
	cmd.Flags().Uint64Var(&version, "version", 0, "with NAME: a former version")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 && version > 0 {
			return usagef("--version %d: want the NAME of the policy with it", version)
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			if len(args) == 0 {
				return a.listPolicies(ctx, s, o.format)
			}
			resp, err := s.GetPolicy(ctx, &lofamov1.GetPolicyRequest{Name: args[0], Version: version})
			if err != nil {
				return fmt.Errorf("policy get: %w", plain(err))
			}
			return a.printPolicy(resp, o.format)
		})
	}
	return cmd
}

func (a *app) listPolicies(ctx context.Context, s session, f format) error {
	resp, err := s.ListPolicies(ctx)
	if err != nil {
		return fmt.Errorf("policy get: %w", plain(err))
	}
	if f == formatJSON || f == formatYAML {
		return a.printMessage(f, resp)
	}
	if len(resp.GetPolicies()) == 0 {
		a.printf("no policy is in force: 'lofamoctl policy apply --defaults' puts those in force that are shipped, which observe only\n")
		return nil
	}
	return table(a.env.Stdout, a.policyRows(resp.GetPolicies(), f == formatWide))
}

func (a *app) policyRows(policies []*lofamov1.ResponsePolicy, wide bool) [][]string {
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
			p.GetName(), modeName(p.GetMode()), strconv.FormatUint(p.GetVersion(), 10), target, orDash(strings.Join(p.GetSteps(), ", ")), a.minute(p.GetAt().AsTime()), orDash(p.GetBy()),
		}
		if wide {
			r = append(r, orDash(p.GetDigest()), orDash(printable(p.GetMatch())), orDash(printable(p.GetDescription())))
		}
		rows = append(rows, r)
	}
	return rows
}

// printPolicy prints one policy: its document, or what there is to know of it.
func (a *app) printPolicy(resp *lofamov1.GetPolicyResponse, f format) error {
	p := resp.GetPolicy()
	if f == formatJSON || f == formatYAML {
		if p.GetDeleted() {
			return fmt.Errorf("policy get: policy %s: it was withdrawn by version %d, which has no document", p.GetName(), p.GetVersion())
		}
		return a.printJSON(f, []byte(p.GetDocument()))
	}
	state := modeName(p.GetMode())
	if p.GetDeleted() {
		state = "withdrawn"
	}
	head := [][]string{
		{"Policy", p.GetName()}, {"Mode", state}, {"Version", fmt.Sprintf("%d, of %s by %s", p.GetVersion(), a.minute(p.GetAt().AsTime()), orDash(p.GetBy()))},
		{"Digest", orDash(p.GetDigest())}, {"Match", orDash(printable(p.GetMatch()))}, {"Steps", orDash(strings.Join(p.GetSteps(), ", "))},
		{"Description", orDash(printable(p.GetDescription()))},
	}
	if err := table(a.env.Stdout, head); err != nil {
		return err
	}
	if len(resp.GetFormer()) == 0 {
		return nil
	}
	rows := [][]string{{"FORMER", "MODE", "CHANGED", "BY", "DIGEST"}}
	for _, old := range resp.GetFormer() {
		mode := modeName(old.GetMode())
		if old.GetDeleted() {
			mode = "withdrawn"
		}
		rows = append(rows, []string{strconv.FormatUint(old.GetVersion(), 10), mode, a.minute(old.GetAt().AsTime()), orDash(old.GetBy()), orDash(old.GetDigest())})
	}
	a.printf("\n")
	return table(a.env.Stdout, rows)
}

func (a *app) policyCheckCommand() *cobra.Command {
	var file string
	var defaults bool
	cmd := &cobra.Command{
		Use:   "check -f FILE",
		Short: "Say what is wrong with policies, without any supervisor",
		Long: `Checks the policies of a file as the supervisors would: types, unknown fields, conditions, rules that nothing
could ever reach. It asks nobody; 'lofamoctl policy apply --dry-run' also checks them together with those in
force. The exit code is 1 when anything is wrong.`,
		Example: "  lofamoctl policy check -f policies.yaml",
		Args:    onlyFiles,
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file; - for the standard input")
	cmd.Flags().BoolVar(&defaults, "defaults", false, "those that are shipped")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		text, name, err := a.documents(file, defaults, cmd.InOrStdin())
		if err != nil {
			return err
		}
		docs, err := policy.Parse(text)
		if err != nil {
			return fmt.Errorf("%s:\n%w", name, err)
		}
		for _, d := range docs {
			a.printf("%s\n", checkedPolicy(d))
		}
		return nil
	}
	return cmd
}

// checkedPolicy says what a policy would do, in two lines.
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
	return fmt.Sprintf("%s: right, %s: %s\n  may be for %s", d.Name, d.Policy.Mode, strings.Join(steps, ", "), strings.Join(faults, ", "))
}

func (a *app) policyDeleteCommand() *cobra.Command {
	var expect []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Withdraw policies: all or none",
		Long: `Withdraws policies. Their responses do nothing more, and what these did is put back when the fault is gone
('lofamoctl response cancel' puts it back at once).`,
		Example: "  lofamoctl policy delete reset-dead-host",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("NAME is missing: want at least one policy")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would change")
	cmd.Flags().StringArrayVar(&expect, "expect", nil, "NAME=VERSION: refuse when the policy is at another version; may be given more than once")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		versions, err := parseVersions(expect)
		if err != nil {
			return err
		}
		return a.withOperator(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.DeletePolicies(ctx, &lofamov1.DeletePoliciesRequest{Names: args, DryRun: dryRun, Expected: versions})
			if err != nil {
				return fmt.Errorf("policy delete: %w", plain(err))
			}
			a.printPolicyChanges(resp.GetChanges(), dryRun)
			return nil
		})
	}
	return cmd
}

func (a *app) policyDefaultsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "defaults [NAME...]",
		Short: "Print the policies that are shipped",
		Long: `Prints the policies that are shipped, or those that are named. All of them observe only: what they would do is
recorded. To have one act, print it, say mode: enforce, and apply it.`,
		Example: "  lofamoctl policy defaults\n  lofamoctl policy defaults drain-failed-memory | sed 's/observe-only/enforce/' | lofamoctl policy apply -f -",
		Args:    cobra.ArbitraryArgs,
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			b, err := policy.DefaultYAML()
			if err != nil {
				return err
			}
			_, err = a.env.Stdout.Write(b)
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
				return usagef("policy %q: none of that name is shipped: want one of %s", name, strings.Join(names, ", "))
			}
			b, err := yaml.JSONToYAML(docs[at].JSON)
			if err != nil {
				return fmt.Errorf("policy %s: %w", name, err)
			}
			if i > 0 {
				a.printf("---\n")
			}
			a.printf("%s", b)
		}
		return nil
	}
	return cmd
}

// onlyFiles wants no arguments: documents come by -f, as kubectl has them.
func onlyFiles(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("argument %q: none is wanted: files are given with -f %s", args[0], args[0])
	}
	return nil
}

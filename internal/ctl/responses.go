package ctl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
)

// withApprover runs a command by which somebody approves something.
func (a *app) withApprover(ctx context.Context, do func(context.Context, session) error) error {
	s, err := a.connectAs(pki.RoleApprover)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	return s.explain(do(ctx, s))
}

// responseStateName is the state in the words of the documentation.
func responseStateName(s lofamov1.ResponseState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "RESPONSE_"))
}

func responseStateNames() []string {
	var out []string
	for n := range lofamov1.ResponseState_name {
		if n > 0 {
			out = append(out, responseStateName(lofamov1.ResponseState(n)))
		}
	}
	slices.Sort(out)
	return out
}

func parseResponseStates(names []string) ([]lofamov1.ResponseState, error) {
	var out []lofamov1.ResponseState
	for _, n := range names {
		v, ok := lofamov1.ResponseState_value["RESPONSE_"+strings.ToUpper(n)]
		if !ok || !slices.Contains(responseStateNames(), strings.ToLower(n)) {
			return nil, usagef("--state %q: want %s", n, strings.Join(responseStateNames(), ", "))
		}
		out = append(out, lofamov1.ResponseState(v))
	}
	return out, nil
}

func (a *app) getResponsesCommand() *cobra.Command {
	req := &lofamov1.ListResponsesRequest{}
	var states []string
	var watch bool
	cmd := &cobra.Command{
		Use:   "responses",
		Short: "What is being done about faults, and what it waits for",
		Long: `Prints the open responses: one for each fault and policy. A response stays open while its fault lasts. WHY says
what it waits for, or why it has failed or expired; STEP is the one that is next or under way.

States: proposed, waiting, approved, running, done, failed (a person is wanted), undone (what it did was put back),
expired (denied, not approved in time, or the fault went first).`,
		Example: "  lofamoctl get responses\n  lofamoctl get responses --acting --state waiting\n  lofamoctl get responses --all --node 1,0,1 -o wide\n  lofamoctl get responses --watch",
		Args:    exactly(),
	}
	o := allFormats(cmd)
	f := cmd.Flags()
	f.StringVar(&req.Node, "node", "", "only those for this node: id or coordinates")
	f.StringVar(&req.Policy, "policy", "", "only those of this policy")
	f.StringSliceVar(&states, "state", nil, "only those in these states (comma-separated): "+strings.Join(responseStateNames(), ", "))
	f.BoolVar(&req.All, "all", false, "closed ones too, as long as they are kept")
	f.BoolVar(&req.Acting, "acting", false, "leave out those of policies that only observe")
	f.BoolVarP(&watch, "watch", "w", false, "go on with those that change")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if req.States, err = parseResponseStates(states); err != nil {
			return err
		}
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			if watch {
				return a.watchResponses(ctx, s, req, o.format)
			}
			resp, err := s.ListResponses(ctx, req)
			if err != nil {
				return fmt.Errorf("get responses: %w", plain(err))
			}
			if o.format == formatJSON || o.format == formatYAML {
				return a.printMessage(o.format, resp)
			}
			a.warnBreaker(resp.GetBreaker())
			if len(resp.GetResponses()) == 0 {
				a.printf("no response\n")
				return nil
			}
			return table(a.env.Stdout, a.responseRows(resp.GetResponses(), o.format == formatWide))
		})
	}
	return cmd
}

// warnBreaker says that the breaker is open.
func (a *app) warnBreaker(b *lofamov1.ResponseBreaker) {
	if b.GetOpen() {
		a.warnf("lofamoctl: BREAKER OPEN since %s: %s: nothing but notifications begins until somebody closes it (lofamoctl response breaker close)\n", a.clock(b.GetAt()), printable(b.GetDetail()))
	}
}

// watchResponses prints a table, then a line for every change; for machines an API message a line.
func (a *app) watchResponses(ctx context.Context, s session, req *lofamov1.ListResponsesRequest, f format) error {
	err := s.WatchResponses(ctx, req, func(r *lofamov1.WatchResponsesResponse, _ bool) error {
		if f == formatJSON || f == formatYAML {
			b, err := protoJSON(r)
			if err != nil {
				return err
			}
			a.printf("%s\n", b)
			return nil
		}
		a.warnBreaker(r.GetBreaker())
		rows := a.responseRows(r.GetResponses(), f == formatWide)
		for _, id := range r.GetGone() {
			rows = append(rows, []string{id, "-", "-", "no longer kept"})
		}
		if len(rows) == 1 {
			return nil
		}
		return table(a.env.Stdout, rows)
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		err = nil // the person has seen enough
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("get responses: %w", plain(err))
}

// responseTarget names what a response is for.
func responseTarget(r *lofamov1.Response) string {
	if r.GetGroup() != "" {
		return "group " + r.GetGroup()
	}
	return r.GetNode() + "/" + r.GetComponent()
}

// responseStep says where a response is in its steps.
func responseStep(r *lofamov1.Response) string {
	steps := r.GetSteps()
	i := int(r.GetStep())
	if i >= len(steps) {
		return fmt.Sprintf("all %d passed", len(steps))
	}
	out := fmt.Sprintf("%d/%d %s", i+1, len(steps), steps[i].GetName())
	if n := steps[i].GetAttempt(); n > 1 {
		out += fmt.Sprintf(" attempt %d", n)
	}
	return out
}

// responseWhy is why it waits, has failed or has expired.
func responseWhy(r *lofamov1.Response) string {
	out := r.GetReason()
	if r.GetDetail() != "" {
		out += ": " + r.GetDetail()
	}
	return orDash(printable(strings.TrimPrefix(out, ": ")))
}

func (a *app) responseRows(responses []*lofamov1.Response, wide bool) [][]string {
	head := []string{"ID", "FAULT", "POLICY", "STATE", "STEP", "SINCE", "WHY"}
	if wide {
		head = append(head, "MODE", "FAULT STATE", "CAUSE", "APPROVED BY", "CLOSED", "DIGEST")
	}
	rows := [][]string{head}
	for _, r := range responses {
		state := responseStateName(r.GetState())
		if r.GetUndoing() && r.GetState() == lofamov1.ResponseState_RESPONSE_RUNNING {
			state = "running back"
		}
		row := []string{r.GetId(), responseTarget(r), r.GetPolicy(), state, responseStep(r), a.since(r.GetProposed()), responseWhy(r)}
		if wide {
			var by []string
			for _, ap := range r.GetApprovals() {
				by = append(by, ap.GetSubject())
			}
			row = append(row, modeName(r.GetMode()), stateName(r.GetFaultState()), causeName(r.GetFaultCause()), orDash(strings.Join(by, ", ")), a.clock(r.GetClosed()), orDash(r.GetDigest()))
		}
		rows = append(rows, row)
	}
	return rows
}

func (a *app) getResponseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "response ID",
		Short:   "One response with its steps",
		Example: "  lofamoctl get response r7-12\n  lofamoctl get response r7-12 -o json",
		Args:    exactly("ID (such as r7-12)"),
	}
	o := addOutputFlag(cmd, formatTable, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			r, err := s.GetResponse(ctx, args[0])
			if err != nil {
				return fmt.Errorf("get response: %w", plain(err))
			}
			if o.format != formatTable {
				return a.printMessage(o.format, r)
			}
			return a.printResponse(r)
		})
	}
	return cmd
}

func (a *app) printResponse(r *lofamov1.Response) error {
	state := responseStateName(r.GetState())
	if why := responseWhy(r); why != "-" {
		state += ", " + why
	}
	head := [][]string{
		{"Response", r.GetId() + ", version " + strconv.FormatUint(r.GetVersion(), 10)}, {"Policy", fmt.Sprintf("%s (%s, digest %s)", r.GetPolicy(), modeName(r.GetMode()), r.GetDigest())},
		{"Fault", fmt.Sprintf("%s %s, cause %s, since %s", responseTarget(r), stateName(r.GetFaultState()), causeName(r.GetFaultCause()), a.clock(r.GetFaultSince()))},
		{"State", state}, {"Proposed", a.clock(r.GetProposed())},
	}
	add := func(is bool, name, text string) {
		if is {
			head = append(head, []string{name, text})
		}
	}
	add(r.GetUndoing(), "Undoing", "what was done is being put back")
	add(r.GetCancelled(), "Cancelled", "by a person")
	for _, ap := range r.GetApprovals() {
		add(true, "Approved", "by "+ap.GetSubject()+" at "+a.clock(ap.GetAt()))
	}
	add(r.GetAsked() != nil, "Approvals", fmt.Sprintf("%d of %d that the policy wants, waited for since %s", len(r.GetApprovals()), r.GetApprovalsWanted(), a.clock(r.GetAsked())))
	add(r.GetGone() != nil, "Fault gone", a.clock(r.GetGone()))
	add(r.GetClosed() != nil, "Closed", a.clock(r.GetClosed()))
	if err := table(a.env.Stdout, head); err != nil {
		return err
	}
	rows := [][]string{{"", "STEP", "EXECUTOR", "STATE", "ATTEMPT", "STARTED", "ENDED", "CHANGED", "DETAIL"}}
	for i, s := range r.GetSteps() {
		mark, changed := "", "-"
		if uint32(i) == r.GetStep() && r.GetClosed() == nil {
			mark = ">"
		}
		if s.GetChanged() {
			changed = "yes"
		}
		what := s.GetExecutor()
		if p := labelText(s.GetParameters()); p != "" {
			what += " " + p
		}
		rows = append(rows, []string{
			mark, s.GetName(), printable(what), strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.GetState().String(), "STEP_")), "_", " "),
			strconv.FormatUint(uint64(s.GetAttempt()), 10), a.clock(s.GetStarted()), a.clock(s.GetEnded()), changed, orDash(printable(s.GetDetail())),
		})
	}
	a.printf("\n")
	return table(a.env.Stdout, rows)
}

func (a *app) getBreakerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "breaker",
		Short: "The circuit breaker of responses",
		Long: `Prints whether the circuit breaker is open. It opens when too much of the cluster looks bad in too short a time; a person
closes it: 'lofamoctl response breaker close'.`,
		Args: exactly(),
	}
	o := addOutputFlag(cmd, formatTable, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			b, err := s.GetBreaker(ctx)
			if err != nil {
				return fmt.Errorf("get breaker: %w", plain(err))
			}
			if o.format != formatTable {
				return a.printMessage(o.format, b)
			}
			a.printBreaker(b)
			return nil
		})
	}
	return cmd
}

func (a *app) printBreaker(b *lofamov1.ResponseBreaker) {
	switch {
	case b.GetOpen():
		a.printf("OPEN since %s: %s\nnothing but notifications begins until somebody closes it: lofamoctl response breaker close --reason REASON\n", a.clock(b.GetAt()), printable(b.GetDetail()))
	case b.GetClosedBy() != "":
		a.printf("closed, by %s at %s\n", printable(b.GetClosedBy()), a.clock(b.GetAt()))
	default:
		a.printf("closed\n")
	}
}

func (a *app) responseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "response approve|deny|cancel|retry|settle|breaker",
		Short: "What people say to responses",
		Long: `Approves, denies, ends, begins anew and settles responses, and closes the circuit breaker. 'lofamoctl get responses' has their
ids. Approving needs a certificate of the role approver, denying one of approver or operator, all else operator. Two words of
one subject count once.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return usagef("response %s: want approve, deny, cancel, retry, settle or breaker", strings.Join(args, " "))
		},
	}
	const idWanted = "ID (such as r7-12)"
	cmd.AddCommand(
		a.wordCommand("approve ID", "Approve a response that waits for it", "", exactly(idWanted), false, a.withApprover, func(ctx context.Context, s session, id, reason string) (*lofamov1.Response, error) {
			resp, err := s.ApproveResponse(ctx, &lofamov1.ApproveResponseRequest{Id: id, Reason: reason})
			return resp.GetResponse(), err
		}),
		a.wordCommand("deny ID --reason REASON", "End a response that has done nothing yet", "It is proposed no more while its fault lasts, unless somebody retries it.", exactly(idWanted), true, a.withOperator,
			func(ctx context.Context, s session, id, reason string) (*lofamov1.Response, error) {
				resp, err := s.DenyResponse(ctx, &lofamov1.DenyResponseRequest{Id: id, Reason: reason})
				return resp.GetResponse(), err
			}),
		a.wordCommand("cancel ID --reason REASON", "End a response, and put back what it did", "A step that is under way is ended, as far as its executor can.", exactly(idWanted), true, a.withOperator,
			func(ctx context.Context, s session, id, reason string) (*lofamov1.Response, error) {
				resp, err := s.CancelResponse(ctx, &lofamov1.CancelResponseRequest{Id: id, Reason: reason})
				return resp.GetResponse(), err
			}),
		a.wordCommand("retry ID", "Try again what has failed, or propose again what was denied or has expired", "What has failed goes on with the approvals that it has; what was denied or has expired wants them anew.", exactly(idWanted), false, a.withOperator,
			func(ctx context.Context, s session, id, reason string) (*lofamov1.Response, error) {
				resp, err := s.RetryResponse(ctx, &lofamov1.RetryResponseRequest{Id: id, Reason: reason})
				return resp.GetResponse(), err
			}),
		a.settleCommand(), a.breakerCommand(),
	)
	return cmd
}

// wordCommand is a command by which a person says something to a response.
func (a *app) wordCommand(use, short, long string, args cobra.PositionalArgs, must bool, with func(context.Context, func(context.Context, session) error) error,
	say func(ctx context.Context, s session, id, reason string) (*lofamov1.Response, error)) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	var reason string
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Example: "  lofamoctl response " + verb + " r7-12 --reason 'looked at it with Ann'", Args: args}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people and the audit: at most 256 bytes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if must && strings.TrimSpace(reason) == "" {
			return usagef("--reason is missing: want a few words that say why")
		}
		return with(cmd.Context(), func(ctx context.Context, s session) error {
			r, err := say(ctx, s, args[0], reason)
			if err != nil {
				return fmt.Errorf("response %s: %w", verb, plain(err))
			}
			a.printWord(r)
			return nil
		})
	}
	return cmd
}

// printWord prints a response after a person's word, in one line.
func (a *app) printWord(r *lofamov1.Response) {
	why := ""
	if w := responseWhy(r); w != "-" {
		why = ", " + w
	}
	a.printf("%s for %s is %s%s\n", r.GetId(), responseTarget(r), responseStateName(r.GetState()), why)
}

func (a *app) settleCommand() *cobra.Command {
	var happened, not bool
	cmd := a.wordCommand("settle ID --happened|--not-happened --reason REASON", "Say what became of a step of unknown outcome",
		`A step such as a reset, whose outcome got lost and which cannot be looked at, waits for the node's next boot or for
somebody who knows. Say that it has happened only when you have seen that: what follows relies on it.
Of a step that could not be put back, --happened says that it was put back by hand: what was done before it follows.`,
		exactly("ID (such as r7-12)"), true, a.withOperator, func(ctx context.Context, s session, id, reason string) (*lofamov1.Response, error) {
			resp, err := s.SettleResponse(ctx, &lofamov1.SettleResponseRequest{Id: id, Happened: happened, Reason: reason})
			return resp.GetResponse(), err
		})
	cmd.Flags().BoolVar(&happened, "happened", false, "the step has had its effect, or was put back by hand")
	cmd.Flags().BoolVar(&not, "not-happened", false, "it has not, and will not")
	say := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if happened == not {
			return usagef("want one of --happened and --not-happened")
		}
		return say(cmd, args)
	}
	cmd.Example = "  lofamoctl response settle r7-12 --not-happened --reason 'the BMC log has no reset'"
	return cmd
}

func (a *app) breakerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "breaker close --reason REASON",
		Short: "Close the circuit breaker",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return usagef("response breaker %s: want close; 'lofamoctl get breaker' shows it", strings.Join(args, " "))
		},
	}
	var reason string
	closing := &cobra.Command{
		Use:     "close --reason REASON",
		Short:   "Close the circuit breaker: responses go on, and only what goes bad afterwards counts",
		Example: "  lofamoctl response breaker close --reason 'the switch of rack 7 is replaced'",
		Args:    exactly(),
	}
	closing.Flags().StringVar(&reason, "reason", "", "why, for people and the audit: 1 to 256 bytes")
	closing.RunE = func(cmd *cobra.Command, _ []string) error {
		if strings.TrimSpace(reason) == "" {
			return usagef("--reason is missing: want a few words that say why")
		}
		return a.withOperator(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.CloseBreaker(ctx, &lofamov1.CloseBreakerRequest{Reason: reason})
			if err != nil {
				return fmt.Errorf("response breaker close: %w", plain(err))
			}
			a.printBreaker(resp.GetBreaker())
			return nil
		})
	}
	cmd.AddCommand(closing)
	return cmd
}

package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

func parseResponseStates(names []string) ([]lofamov1.ResponseState, error) {
	var out []lofamov1.ResponseState
	for _, n := range names {
		v, ok := lofamov1.ResponseState_value["RESPONSE_"+strings.ToUpper(n)]
		if !ok || !slices.Contains(command.ResponseStateNames(), strings.ToLower(n)) {
			return nil, command.Usagef("--state %q: want %s", n, strings.Join(command.ResponseStateNames(), ", "))
		}
		out = append(out, lofamov1.ResponseState(v))
	}
	return out, nil
}

// GetResponsesCommand returns `lofamoctl get responses`.
func GetResponsesCommand(a *command.App) *cobra.Command {
	req := &lofamov1.ListResponsesRequest{}
	var states []string
	cmd := &cobra.Command{
		Use:     "responses",
		Aliases: []string{"resp"},
		Short:   "Responses to faults: their steps, and the conditions they wait for",
		Long: `Prints the open responses: one for each fault and policy. A response stays open while its fault lasts. WHY says
the condition it waits for, or why it has failed or expired; STEP is the next or current one.

States: proposed, waiting, approved, running, done, failed (a person must look), undone (its effects were undone),
expired (denied, not approved in time, or the fault ended first).`,
		Example: "  lofamoctl get responses\n  lofamoctl get responses --acting --state waiting\n" +
			"  lofamoctl get responses --all --node 1,0,1 -o wide\n  lofamoctl get responses --watch",
		Args: command.Exactly(),
	}
	o := command.GetFormats(cmd)
	f := cmd.Flags()
	f.StringVar(&req.Node, "node", "", "only responses for this node: id or coordinates")
	f.StringVar(&req.Policy, "policy", "", "only responses of this policy")
	f.StringSliceVar(&states, "state", nil, "only those in these states (comma-separated): "+strings.Join(command.ResponseStateNames(), ", "))
	f.BoolVar(&req.All, "all", false, "also closed responses, as long as they are kept")
	f.BoolVar(&req.Acting, "acting", false, "leave out responses of observe-only policies")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if req.States, err = parseResponseStates(states); err != nil {
			return err
		}
		return a.WithClient(cmd.Context(), func(ctx context.Context, s command.Session) error {
			if !o.Format.Structured() {
				a.LearnCluster(ctx, s)
			}
			if o.Watch {
				return watchResponses(a, ctx, s, req, o.Format)
			}
			resp, err := s.ListResponses(ctx, req)
			if err != nil {
				return fmt.Errorf("get responses: %w", command.Plain(err))
			}
			if o.Format.Structured() {
				return a.PrintMessage(o.Format, resp)
			}
			command.WarnBreaker(a, resp.GetBreaker())
			if len(resp.GetResponses()) == 0 {
				a.Printf("no response\n")
				return nil
			}
			return a.Table(command.ResponseRows(a, resp.GetResponses(), o.Format == command.FormatWide))
		})
	}
	return cmd
}

// watchResponses prints a table, then a line for every change; for machines an API message a line.
func watchResponses(a *command.App, ctx context.Context, s command.Session, req *lofamov1.ListResponsesRequest, f command.Format) error {
	defer a.Attend(ctx, s)()
	between := command.Documents{Format: f}
	w := responseWatch{get: s.GetResponse, all: req.GetAll()}
	err := s.WatchResponses(ctx, req, func(r *lofamov1.WatchResponsesResponse, first bool) error {
		if r = w.next(ctx, r, first); r == nil {
			return nil
		}
		if f.Structured() {
			between.Next(a)
		}
		if f.Structured() && f != command.FormatJSON {
			return a.PrintMessage(f, r)
		}
		if f.Structured() {
			b, err := command.ProtoJSON(r)
			if err != nil {
				return err
			}
			a.Printf("%s\n", b)
			return nil
		}
		command.WarnBreaker(a, r.GetBreaker())
		rows := command.ResponseRows(a, r.GetResponses(), f == command.FormatWide)
		for _, id := range r.GetGone() {
			rows = append(rows, []string{id, "-", "-", "no longer kept"})
		}
		if len(rows) == 1 {
			return nil
		}
		return a.Table(rows)
	})
	if errors.Is(ctx.Err(), context.Canceled) {
		err = nil // the person has seen enough
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("get responses: %w", command.Plain(err))
}

// responseWatch remembers the printed responses, so that a watch that continues at another supervisor prints only changes.
type responseWatch struct {
	get     func(context.Context, string) (*lofamov1.Response, error)
	all     bool              // the watch includes closed responses
	printed map[string]uint64 // version by id, of responses that may change; nil before the first message
	breaker *lofamov1.ResponseBreaker
}

// next returns the part of a message that is still to print; nil: none. first marks a supervisor's first message: a response that is
// missing there ended while no supervisor was watched.
func (w *responseWatch) next(ctx context.Context, r *lofamov1.WatchResponsesResponse, first bool) *lofamov1.WatchResponsesResponse {
	again := first && w.printed != nil
	if w.printed == nil {
		w.printed = make(map[string]uint64)
	}
	if again {
		if proto.Equal(r.GetBreaker(), w.breaker) {
			r.Breaker = nil
		}
		w.addEnded(ctx, r)
		r.Responses = slices.DeleteFunc(r.GetResponses(), func(x *lofamov1.Response) bool {
			version, known := w.printed[x.GetId()]
			return known && version == x.GetVersion()
		})
	}
	for _, x := range r.GetResponses() {
		if w.printed[x.GetId()] = x.GetVersion(); x.GetClosed() != nil && !w.all {
			delete(w.printed, x.GetId())
		}
	}
	for _, id := range r.GetGone() {
		delete(w.printed, id)
	}
	if r.GetBreaker() != nil {
		w.breaker = r.GetBreaker()
	}
	if again && r.GetBreaker() == nil && len(r.GetResponses())+len(r.GetGone()) == 0 {
		return nil
	}
	return r
}

// addEnded adds the last state of the printed responses that a supervisor's first message lacks, or says that they are gone. It keeps
// those that no supervisor answers for, until the next first message.
func (w *responseWatch) addEnded(ctx context.Context, r *lofamov1.WatchResponsesResponse) {
	there := make(map[string]bool)
	for _, x := range r.GetResponses() {
		there[x.GetId()] = true
	}
	for _, id := range slices.Sorted(maps.Keys(w.printed)) {
		if there[id] {
			continue
		}
		x, err := w.get(ctx, id)
		switch {
		case err == nil:
			r.Responses = append(r.Responses, x)
		case status.Code(err) == codes.NotFound:
			r.Gone = append(r.Gone, id)
		}
	}
}

// GetResponseCommand returns `lofamoctl get response`.
func GetResponseCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "response ID",
		Short:   "One response with its steps",
		Example: "  lofamoctl get response r7-12\n  lofamoctl get response r7-12 -o json",
		Args:    command.Exactly("ID (such as r7-12)"),
	}
	o := command.GetFormats(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return command.Query(a, cmd, "get response", o, func(ctx context.Context, s command.Session) (*lofamov1.Response, error) {
			if !o.Format.Structured() {
				a.LearnCluster(ctx, s)
			}
			return s.GetResponse(ctx, args[0])
		}, func(r *lofamov1.Response) error {
			return command.PrintResponse(a, r)
		})
	}
	return cmd
}

// GetBreakerCommand returns `lofamoctl get breaker`.
func GetBreakerCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "breaker",
		Short: "The circuit breaker of responses",
		Long: `Prints whether the circuit breaker is open. It opens when too many nodes fail in too short a time; a person closes it:
'lofamoctl response breaker close --reason REASON'.`,
		Args: command.Exactly(),
	}
	o := command.GetFormats(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return command.Query(a, cmd, "get breaker", o, func(ctx context.Context, s command.Session) (*lofamov1.ResponseBreaker, error) {
			return s.GetBreaker(ctx)
		}, func(b *lofamov1.ResponseBreaker) error {
			command.PrintBreaker(a, b)
			return nil
		})
	}
	return cmd
}

// ResponseCommand returns `lofamoctl response`.
func ResponseCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "response approve|deny|cancel|retry|settle|breaker",
		Short: "Approve, deny, cancel, retry or settle responses; close the circuit breaker",
		Long: `Approves, denies, cancels, retries and settles responses, and closes the circuit breaker. 'lofamoctl get responses'
has their IDs. Approving needs a certificate of the role approver, denying one of approver or operator, everything
else operator. Two approvals under one name count once.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("response %s: want approve, deny, cancel, retry, settle or breaker", strings.Join(args, " "))
		},
	}
	const idWanted = "ID (such as r7-12)"
	cmd.AddCommand(
		wordCommand(a, "approve ID", "Approve a response that waits for it", "", command.Exactly(idWanted), false, a.WithApprover,
			func(ctx context.Context, s command.Session, id, reason string) (*lofamov1.Response, error) {
				resp, err := s.ApproveResponse(ctx, &lofamov1.ApproveResponseRequest{Id: id, Reason: reason})
				return resp.GetResponse(), err
			}),
		wordCommand(a, "deny ID --reason REASON", "End a response that has done nothing yet",
			"It is proposed no more while its fault lasts, unless somebody retries it.", command.Exactly(idWanted), true, a.WithOperator,
			func(ctx context.Context, s command.Session, id, reason string) (*lofamov1.Response, error) {
				resp, err := s.DenyResponse(ctx, &lofamov1.DenyResponseRequest{Id: id, Reason: reason})
				return resp.GetResponse(), err
			}),
		wordCommand(a, "cancel ID --reason REASON", "End a response and undo its effects", "A running step is ended, as far as its executor can.",
			command.Exactly(idWanted), true, a.WithOperator,
			func(ctx context.Context, s command.Session, id, reason string) (*lofamov1.Response, error) {
				resp, err := s.CancelResponse(ctx, &lofamov1.CancelResponseRequest{Id: id, Reason: reason})
				return resp.GetResponse(), err
			}),
		wordCommand(a, "retry ID", "Retry a failed response, or propose a denied or expired one again",
			"A failed response keeps its approvals; a denied or expired one needs new ones.", command.Exactly(idWanted), false, a.WithOperator,
			func(ctx context.Context, s command.Session, id, reason string) (*lofamov1.Response, error) {
				resp, err := s.RetryResponse(ctx, &lofamov1.RetryResponseRequest{Id: id, Reason: reason})
				return resp.GetResponse(), err
			}),
		settleCommand(a), breakerCommand(a),
	)
	return cmd
}

// wordCommand is a command for a person's decision about a response.
func wordCommand(a *command.App, use, short, long string, args cobra.PositionalArgs, must bool,
	with func(context.Context, func(context.Context, command.Session) error) error,
	say func(ctx context.Context, s command.Session, id, reason string) (*lofamov1.Response, error)) *cobra.Command {
	verb, _, _ := strings.Cut(use, " ")
	var reason string
	cmd := &cobra.Command{Use: use, Short: short, Long: long,
		Example: "  lofamoctl response " + verb + " r7-12 --reason 'looked at it with Ann'", Args: args}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people and the audit: at most 256 bytes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if must && strings.TrimSpace(reason) == "" {
			return command.Usagef("--reason is missing: want a few words that say why")
		}
		return with(cmd.Context(), func(ctx context.Context, s command.Session) error {
			r, err := say(ctx, s, args[0], reason)
			if err != nil {
				return fmt.Errorf("response %s: %w", verb, command.Plain(err))
			}
			command.PrintWord(a, r)
			return nil
		})
	}
	return cmd
}

func settleCommand(a *command.App) *cobra.Command {
	var happened, not bool
	cmd := wordCommand(a, "settle ID --happened|--not-happened --reason REASON", "Settle the unknown outcome of a step",
		`A step such as a reset, whose outcome got lost and which cannot be looked at, waits for the node's next boot or for
somebody who knows. Use --happened only if you have seen the effect: the next steps rely on it.
For a step that could not be undone, --happened means that you undid it by hand: the undo goes on with the step before.`,
		command.Exactly("ID (such as r7-12)"), true, a.WithOperator,
		func(ctx context.Context, s command.Session, id, reason string) (*lofamov1.Response, error) {
			resp, err := s.SettleResponse(ctx, &lofamov1.SettleResponseRequest{Id: id, Happened: happened, Reason: reason})
			return resp.GetResponse(), err
		})
	cmd.Flags().BoolVar(&happened, "happened", false, "the step took effect, or a person has undone it by hand")
	cmd.Flags().BoolVar(&not, "not-happened", false, "the step did not take effect, and will not")
	say := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if happened == not {
			return command.Usagef("want one of --happened and --not-happened")
		}
		return say(cmd, args)
	}
	cmd.Example = "  lofamoctl response settle r7-12 --not-happened --reason 'the BMC log has no reset'"
	return cmd
}

func breakerCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "breaker close --reason REASON",
		Short: "Close the circuit breaker",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("response breaker %s: want close; 'lofamoctl get breaker' shows it", strings.Join(args, " "))
		},
	}
	var reason string
	closing := &cobra.Command{
		Use:     "close --reason REASON",
		Short:   "Close the circuit breaker: responses continue, and only later faults count",
		Example: "  lofamoctl response breaker close --reason 'the switch of rack 7 is replaced'",
		Args:    command.Exactly(),
	}
	closing.Flags().StringVar(&reason, "reason", "", "why, for people and the audit: 1 to 256 bytes")
	closing.RunE = func(cmd *cobra.Command, _ []string) error {
		if strings.TrimSpace(reason) == "" {
			return command.Usagef("--reason is missing: want a few words that say why")
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.CloseBreaker(ctx, &lofamov1.CloseBreakerRequest{Reason: reason})
			if err != nil {
				return fmt.Errorf("response breaker close: %w", command.Plain(err))
			}
			command.PrintBreaker(a, resp.GetBreaker())
			return nil
		})
	}
	cmd.AddCommand(closing)
	return cmd
}

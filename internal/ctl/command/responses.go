package command

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/response"
)

// ModeName returns the name of a policy's mode.
func ModeName(m lofamov1.PolicyMode) string {
	if m == lofamov1.PolicyMode_POLICY_MODE_UNSPECIFIED {
		return "-"
	}
	return strings.ReplaceAll(strings.ToLower(m.String()), "_", "-")
}

// ResponseStateName is the state in the words of the documentation.
func ResponseStateName(s lofamov1.ResponseState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "RESPONSE_"))
}

// ResponseStateNames returns the names of all states of a response.
func ResponseStateNames() []string {
	var out []string
	for n := range lofamov1.ResponseState_name {
		if n > 0 {
			out = append(out, ResponseStateName(lofamov1.ResponseState(n)))
		}
	}
	slices.Sort(out)
	return out
}

// ResponseTarget names the target of a response.
func (w Words) ResponseTarget(r *lofamov1.Response) string {
	if r.GetGroup() != "" {
		return "group " + w.Group(r.GetGroup())
	}
	return r.GetNode() + "/" + r.GetComponent()
}

// ResponseStep describes a response's position in its steps.
func ResponseStep(r *lofamov1.Response) string {
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

// untilText matches the end of a wait in the detail of a response.
var untilText = regexp.MustCompile(`until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$`)

// ResponseState returns the state of a response in words. An open response of an observe-only policy waits for nobody, in any
// state.
func ResponseState(r *lofamov1.Response) string {
	switch {
	case r.GetUndoing() && r.GetState() == lofamov1.ResponseState_RESPONSE_RUNNING:
		return "running back"
	case r.GetMode() == lofamov1.PolicyMode_OBSERVE_ONLY && r.GetClosed() == nil:
		return ModeName(r.GetMode())
	}
	return ResponseStateName(r.GetState())
}

// ResponseWhy returns the reason why a response waits, has failed or has expired. If it waits until a fixed time, the text includes the
// time left.
func ResponseWhy(a *App, r *lofamov1.Response) string {
	out := r.GetReason()
	if r.GetMode() == lofamov1.PolicyMode_OBSERVE_ONLY && out == "observe-only" {
		return "nothing is done"
	}
	if r.GetDetail() != "" {
		out += ": " + untilText.ReplaceAllStringFunc(r.GetDetail(), func(text string) string {
			at, err := time.Parse("until "+response.UntilLayout, text)
			if err != nil {
				return text
			}
			return a.Until(timestamppb.New(at))
		})
	}
	return Dash(Printable(strings.TrimPrefix(out, ": ")))
}

// ResponseRows returns the table of responses.
func ResponseRows(a *App, responses []*lofamov1.Response, wide bool) [][]string {
	head := []string{"ID", "FAULT", "POLICY", "STATE", "STEP", "SINCE", "WHY"}
	if wide {
		head = append(head, "MODE", "FAULT STATE", "CAUSE", "APPROVED BY", "CLOSED", "DIGEST")
	}
	rows := [][]string{head}
	for _, r := range responses {
		row := []string{r.GetId(), a.Words().ResponseTarget(r), r.GetPolicy(), ResponseState(r), ResponseStep(r), a.Since(r.GetProposed()),
			ResponseWhy(a, r)}
		if wide {
			var by []string
			for _, ap := range r.GetApprovals() {
				by = append(by, ap.GetSubject())
			}
			row = append(row, ModeName(r.GetMode()), StateName(r.GetFaultState()), CauseName(r.GetFaultCause()),
				Dash(strings.Join(by, ", ")), a.Clock(r.GetClosed()), Dash(r.GetDigest()))
		}
		rows = append(rows, row)
	}
	return rows
}

// PrintResponse prints one response with its steps.
func PrintResponse(a *App, r *lofamov1.Response) error {
	state := ResponseState(r)
	if why := ResponseWhy(a, r); why != "-" {
		state += ", " + why
	}
	head := [][]string{
		{"Response", r.GetId() + ", version " + strconv.FormatUint(r.GetVersion(), 10)},
		{"Policy", fmt.Sprintf("%s (%s, digest %s)", r.GetPolicy(), ModeName(r.GetMode()), r.GetDigest())},
		{"Fault", fmt.Sprintf("%s %s, cause %s, since %s", a.Words().ResponseTarget(r), StateName(r.GetFaultState()),
			CauseName(r.GetFaultCause()), a.Clock(r.GetFaultSince()))},
		{"State", state}, {"Proposed", a.Clock(r.GetProposed())},
	}
	add := func(is bool, name, text string) {
		if is {
			head = append(head, []string{name, text})
		}
	}
	add(r.GetUndoing(), "Undoing", "its effects are being undone")
	add(r.GetCancelled(), "Cancelled", "by a person")
	for _, ap := range r.GetApprovals() {
		add(true, "Approved", "by "+ap.GetSubject()+" at "+a.Clock(ap.GetAt()))
	}
	add(r.GetAsked() != nil, "Approvals", fmt.Sprintf("%d of %d that the policy wants, waited for since %s", len(r.GetApprovals()),
		r.GetApprovalsWanted(), a.Clock(r.GetAsked())))
	add(r.GetGone() != nil, "Fault gone", a.Clock(r.GetGone()))
	add(r.GetClosed() != nil, "Closed", a.Clock(r.GetClosed()))
	if err := a.Table(head); err != nil {
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
		if p := LabelText(s.GetParameters()); p != "" {
			what += " " + p
		}
		rows = append(rows, []string{
			mark, s.GetName(), Printable(what),
			strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.GetState().String(), "STEP_")), "_", " "),
			strconv.FormatUint(uint64(s.GetAttempt()), 10), a.Clock(s.GetStarted()), a.Clock(s.GetEnded()), changed,
			Dash(Printable(s.GetDetail())),
		})
	}
	a.Printf("\n")
	return a.Table(rows)
}

// PrintBreaker prints the state of the circuit breaker.
func PrintBreaker(a *App, b *lofamov1.ResponseBreaker) {
	switch {
	case b.GetOpen():
		a.Printf("OPEN since %s: %s\nonly notifications begin until somebody closes it: "+
			BreakerHint+"\n", a.Clock(b.GetAt()), Printable(b.GetDetail()))
	case b.GetClosedBy() != "":
		a.Printf("closed, by %s at %s\n", Printable(b.GetClosedBy()), a.Clock(b.GetAt()))
	default:
		a.Printf("closed\n")
	}
}

// PrintWord prints a response after a person's decision, in one line.
func PrintWord(a *App, r *lofamov1.Response) {
	why := ""
	if w := ResponseWhy(a, r); w != "-" {
		why = ", " + w
	}
	a.Printf("%s for %s is %s%s\n", r.GetId(), a.Words().ResponseTarget(r), ResponseState(r), why)
}

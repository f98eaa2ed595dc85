package api

import (
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/response"
)

// The API's names of the engine's states.
var (
	responseStates = map[lofamov1.ResponseState]response.State{
		lofamov1.ResponseState_RESPONSE_PROPOSED: response.Proposed, lofamov1.ResponseState_RESPONSE_WAITING: response.Waiting,
		lofamov1.ResponseState_RESPONSE_APPROVED: response.Approved,
		lofamov1.ResponseState_RESPONSE_RUNNING:  response.Running, lofamov1.ResponseState_RESPONSE_DONE: response.Done,
		lofamov1.ResponseState_RESPONSE_FAILED: response.Failed,
		lofamov1.ResponseState_RESPONSE_UNDONE: response.Undone, lofamov1.ResponseState_RESPONSE_EXPIRED: response.Expired,
	}
	stepStates = map[response.StepState]lofamov1.ResponseStepState{
		response.Pending: lofamov1.ResponseStepState_STEP_PENDING, response.Acting: lofamov1.ResponseStepState_STEP_ACTING,
		response.Acted:      lofamov1.ResponseStepState_STEP_ACTED,
		response.StepFailed: lofamov1.ResponseStepState_STEP_FAILED, response.Interrupted: lofamov1.ResponseStepState_STEP_INTERRUPTED,
		response.Undoing: lofamov1.ResponseStepState_STEP_UNDOING, response.PutBack: lofamov1.ResponseStepState_STEP_PUT_BACK,
	}
)

func responseStateNames() []string {
	var out []string
	for st := range responseStates {
		out = append(out, st.String())
	}
	slices.Sort(out)
	return out
}

func protoResponseState(s response.State) lofamov1.ResponseState {
	for p, is := range responseStates {
		if is == s {
			return p
		}
	}
	return lofamov1.ResponseState_RESPONSE_STATE_UNSPECIFIED
}

// reasonText returns a reason in the engine's words, or "" for none.
func reasonText(r response.Reason) string {
	if r == 0 {
		return ""
	}
	return r.String()
}

// protoResponse renders a response for the API.
func protoResponse(r *response.Response) *lofamov1.Response {
	out := &lofamov1.Response{
		Id: r.ID, Policy: r.Policy, Digest: r.Digest, Mode: protoMode(r.Mode), Node: string(r.Target.Node), Group: r.Target.Group,
		FaultState: lofamov1.State(r.FaultState), FaultCause: lofamov1.Cause(r.FaultCause), FaultSince: view.Timestamp(r.FaultSince),
		State: protoResponseState(r.State), Reason: reasonText(r.Reason), Detail: r.Detail, Step: uint32(r.Step), Undoing: r.Undoing,
		Cancelled: r.Cancelled, ApprovalsWanted: uint32(r.Guards.Approvals),
		Proposed: view.Timestamp(r.Proposed), Asked: view.Timestamp(r.Asked), Gone: view.Timestamp(r.Gone), Closed: view.Timestamp(r.Closed),
		Version: r.Version, UndoOnRecovery: r.Undo.OnRecovery, Token: r.Token,
	}
	if r.Target.Group == "" {
		out.Component = r.Target.Component.String()
	}
	if r.Undo.OnRecovery {
		out.UndoAfter = durationpb.New(r.Undo.After)
	}
	for _, a := range r.Approvals {
		out.Approvals = append(out.Approvals, &lofamov1.ResponseApproval{Subject: a.Subject, At: view.Timestamp(a.At)})
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		out.Steps = append(out.Steps, &lofamov1.ResponseStep{
			Name: s.Name, Executor: string(s.Kind), Parameters: s.Parameters, State: stepStates[s.State], Attempt: uint32(s.Attempt),
			Failures: uint32(s.Failures), Retries: uint32(s.Retries), Started: view.Timestamp(s.Started), Ended: view.Timestamp(s.Ended),
			Changed: s.Changed, Detail: s.Detail, Timeout: durationpb.New(s.Timeout),
		})
	}
	return out
}

func protoBreaker(b response.Breaker) *lofamov1.ResponseBreaker {
	return &lofamov1.ResponseBreaker{Open: b.Open, At: view.Timestamp(b.At), Detail: b.Detail, ClosedBy: b.ClosedBy}
}

package process

import (
	"fmt"
	"math"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Limits of a request.
const (
	maxName       = 256 // bytes
	maxParameters = 64
	maxParameter  = 4096 // bytes of a value
	maxTimeout    = response.MaxRemoteTimeout
)

// attemptOf decodes the attempt of a request.
func attemptOf(p *lofamov1.ExecutorAttempt) (response.Attempt, uint64, error) {
	a := response.Attempt{Response: p.GetResponse(), Step: int(p.GetStep()), Attempt: int(p.GetAttempt())}
	switch {
	case a.Response == "" || len(a.Response) > maxName:
		return a, 0, fmt.Errorf("attempt.response: given %d bytes: want 1 to %d", len(a.Response), maxName)
	case !fault.IsText(a.Response):
		return a, 0, fmt.Errorf("attempt.response: given %.40q: want UTF-8 without control characters", a.Response)
	case p.GetStep() > math.MaxInt16:
		return a, 0, fmt.Errorf("attempt.step: given %d: want at most %d", p.GetStep(), math.MaxInt16)
	case a.Attempt < 1 || p.GetAttempt() > math.MaxInt32:
		return a, 0, fmt.Errorf("attempt.attempt: given %d: want 1 to %d", p.GetAttempt(), math.MaxInt32)
	case p.GetToken() == 0:
		return a, 0, fmt.Errorf("attempt.token: given 0: want a token")
	}
	return a, p.GetToken(), nil
}

// jobOf decodes a request to a process of that cluster.
func jobOf(req *lofamov1.ExecutorDoRequest, cluster string) (executor.Job, error) {
	a, token, err := attemptOf(req.GetAttempt())
	if err != nil {
		return executor.Job{}, err
	}
	timeout := time.Duration(min(req.GetTimeoutMs(), uint64(maxTimeout/time.Millisecond)+1)) * time.Millisecond
	switch {
	case req.GetCluster() != cluster:
		return executor.Job{}, fmt.Errorf("cluster: given %q: want %q", req.GetCluster(), cluster)
	case req.GetIdempotencyKey() == "" || len(req.GetIdempotencyKey()) > maxName:
		return executor.Job{}, fmt.Errorf("idempotency_key: given %d bytes: want 1 to %d", len(req.GetIdempotencyKey()), maxName)
	case timeout <= 0 || timeout > maxTimeout:
		return executor.Job{}, fmt.Errorf("timeout_ms: given %d: want 1 to %d", req.GetTimeoutMs(), maxTimeout/time.Millisecond)
	case !response.Kind(req.GetKind()).Valid():
		return executor.Job{}, fmt.Errorf("kind: given %q: want one of %s", req.GetKind(), fault.List(response.Kinds()))
	case len(req.GetParameters()) > maxParameters:
		return executor.Job{}, fmt.Errorf("parameters: given %d: want at most %d", len(req.GetParameters()), maxParameters)
	}
	for k, v := range req.GetParameters() {
		if k == "" || len(k) > maxName || len(v) > maxParameter {
			return executor.Job{}, fmt.Errorf("parameters[%.40q]: given %d and %d bytes: want 1 to %d and at most %d", k, len(k), len(v),
				maxName, maxParameter)
		}
	}
	target, err := targetOf(req.GetTarget())
	if err != nil {
		return executor.Job{}, err
	}
	job := executor.Job{
		Effect: response.Effect{
			Attempt: a, Undo: req.GetUndo(), Kind: response.Kind(req.GetKind()), Parameters: req.GetParameters(), Target: target,
			Token: token, IdempotencyKey: req.GetIdempotencyKey(), Recheck: req.GetRecheck(), Timeout: timeout,
		},
		Cluster: cluster, Policy: req.GetPolicy(), Fault: faultOf(req.GetTarget()),
	}
	for _, m := range req.GetTarget().GetMembers() {
		job.Members = append(job.Members, fault.NodeID(m))
	}
	return job, nil
}

func targetOf(p *lofamov1.ExecutorTarget) (response.Target, error) {
	if p.GetGroup() != "" {
		if p.GetNode() != "" || p.GetComponent() != "" || len(p.GetGroup()) > maxName {
			return response.Target{}, fmt.Errorf("target: given a group of %d bytes, node %q and component %q: want a group of at most %d, or the "+
				"two others",
				len(p.GetGroup()), p.GetNode(), p.GetComponent(), maxName)
		}
		if !fault.IsText(p.GetGroup()) {
			return response.Target{}, fmt.Errorf("target.group: given %.40q: want UTF-8 without control characters", p.GetGroup())
		}
		return response.Target{Group: p.GetGroup()}, nil
	}
	if p.GetNode() == "" || len(p.GetNode()) > maxName {
		return response.Target{}, fmt.Errorf("target.node: given %d bytes: want 1 to %d", len(p.GetNode()), maxName)
	}
	if !fault.IsText(p.GetNode()) {
		return response.Target{}, fmt.Errorf("target.node: given %.40q: want UTF-8 without control characters", p.GetNode())
	}
	c, err := fault.ParseComponent(p.GetComponent())
	if err != nil {
		return response.Target{}, fmt.Errorf("target.component: %w", err)
	}
	return response.Target{Node: fault.NodeID(p.GetNode()), Component: c}, nil
}

// faultOf decodes the fault for display. It ignores states and causes of later versions.
func faultOf(p *lofamov1.ExecutorTarget) executor.Fault {
	f := executor.Fault{State: fault.Unknown, Cause: fault.CauseNone, Detail: p.GetDetail()}
	if s := p.GetState(); s > 0 && s <= lofamov1.State_FAILED {
		f.State = fault.State(s) //nolint:gosec // bounded above
	}
	if c := p.GetCause(); c > 0 && c <= lofamov1.Cause_BUS {
		f.Cause = fault.Cause(c) //nolint:gosec // bounded above
	}
	if p.GetSince().IsValid() {
		f.Since = p.GetSince().AsTime()
	}
	return f
}

// outcomes in the order of response.Outcome, which has the same numbers.
var outcomes = []lofamov1.ExecutorOutcome{
	lofamov1.ExecutorOutcome_SUCCEEDED, lofamov1.ExecutorOutcome_UNCHANGED, lofamov1.ExecutorOutcome_PARTLY,
	lofamov1.ExecutorOutcome_NOT_KNOWN, lofamov1.ExecutorOutcome_STALE_TOKEN,
}

func outcomeOf(o response.Outcome) lofamov1.ExecutorOutcome {
	if p := lofamov1.ExecutorOutcome(o); slices.Contains(outcomes, p) {
		return p
	}
	return lofamov1.ExecutorOutcome_NOT_KNOWN
}

func responseOf(r executor.Result) *lofamov1.ExecutorDoResponse {
	return &lofamov1.ExecutorDoResponse{Outcome: outcomeOf(r.Outcome), Detail: r.Detail}
}

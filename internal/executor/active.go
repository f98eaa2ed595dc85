package executor

import (
	"context"
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Active returns what an executor has to uphold, whose effects end by themselves if nobody does: the jobs that are done by what
// is committed, and not put back, of the kinds that it asks for. leads is false on a replica that does not lead: it upholds
// nothing. It may block until ctx ends. With an error it is not known, and what was upheld is upheld on.
type Active func(ctx context.Context, kinds ...response.Kind) (jobs []Job, leads bool, err error)

// StandingJobs picks from committed responses the steps of a kind that stand: done, not put back, and not being put back. A
// response that is closed has none any more. members returns those of a group fault; nil where nobody knows them.
func StandingJobs(cluster string, responses []*response.Response, members func(group string) []fault.NodeID, kinds ...response.Kind) []Job {
	var out []Job
	for _, r := range responses {
		if !r.Closed.IsZero() || r.Mode != response.Enforce {
			continue
		}
		for i, s := range r.Steps {
			if s.State != response.Acted || !s.Changed || !slices.Contains(kinds, s.Kind) {
				continue
			}
			j := Job{
				Effect: response.Effect{Attempt: response.Attempt{Response: r.ID, Step: i, Attempt: s.Attempt}, Kind: s.Kind,
					Parameters: s.Parameters, Target: r.Target, Token: r.Token},
				Cluster: cluster, Policy: r.Policy, Fault: Fault{State: r.FaultState, Cause: r.FaultCause, Since: r.FaultSince},
			}
			if r.Target.Group != "" && members != nil {
				j.Members = members(r.Target.Group)
			}
			out = append(out, j)
		}
	}
	return out
}

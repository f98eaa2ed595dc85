package executor

import (
	"context"
	"slices"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Active returns the jobs whose effects an executor must maintain, because these effects end by themselves: the jobs of the
// requested kinds that are committed as done, and not undone. leads is false on a replica that does not lead: it maintains
// nothing. Active may block until ctx ends. After an error the executor continues to maintain the earlier jobs.
type Active func(ctx context.Context, kinds ...response.Kind) (jobs []Job, leads bool, err error)

// StandingJobs returns the standing steps of the given kinds from committed responses: steps that are done, and neither undone
// nor being undone. A closed response has none. members returns the members of a group fault; nil if they are unknown.
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

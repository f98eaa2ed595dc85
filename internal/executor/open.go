package executor

import (
	"context"

	"github.com/lofamo/lofamo/pkg/response"
)

// Open says which of these responses are open by what is committed, as the cluster knows it: more is to come of them. One that nobody knows
// any more is not. It may block until ctx ends. An executor that marks what it does asks whose marks still speak for somebody.
type Open func(ctx context.Context, ids []string) (map[string]bool, error)

// OpenOf picks from committed responses those of the ids that are open.
func OpenOf(responses []*response.Response, ids []string) map[string]bool {
	open := make(map[string]bool, len(ids))
	for _, r := range responses {
		if r.Closed.IsZero() {
			open[r.ID] = true
		}
	}
	out := make(map[string]bool, len(ids))
	for _, id := range ids {
		out[id] = open[id]
	}
	return out
}

package executor

import (
	"context"

	"github.com/lofamo/lofamo/pkg/response"
)

// Open returns which of the given responses are open in the committed state, that is, have steps to come. An unknown
// response is not open. Open may block until ctx ends. Executors that mark their effects use it to find marks of closed
// responses.
type Open func(ctx context.Context, ids []string) (map[string]bool, error)

// OpenOf returns which of the given IDs belong to open responses.
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

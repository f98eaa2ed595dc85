package respond

import (
	"context"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/internal/executor"
)

// Open implements executor.Open. It reads from a quorum: this replica's own copy may lack a new response, which would
// then count as closed.
func (r *Responder) Open(ctx context.Context, ids []string) (map[string]bool, error) {
	all, err := r.cfg.Store.LoadResponses(ctx)
	if err == nil {
		err = errors.Join(all.Unread...)
	}
	if err != nil {
		return nil, fmt.Errorf("which responses are open: %w", err)
	}
	list, _ := apart(all.Records)
	return executor.OpenOf(list, ids), nil
}

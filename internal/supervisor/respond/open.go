package respond

import (
	"context"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// Open implements executor.Open. It reads from a quorum: this replica's own copy may lack a new response, which would
// then count as closed.
func (r *Responder) Open(ctx context.Context, ids []string) (map[string]bool, error) {
	list, err := r.Committed(ctx)
	if err != nil {
		return nil, fmt.Errorf("which responses are open: %w", err)
	}
	return executor.OpenOf(list, ids), nil
}

// Committed returns the committed responses, also closed ones. It reads from a quorum, and fails if a record cannot be read.
func (r *Responder) Committed(ctx context.Context) ([]*response.Response, error) {
	all, err := r.cfg.Store.LoadResponses(ctx)
	if err == nil {
		err = errors.Join(all.Unread...)
	}
	if err != nil {
		return nil, err
	}
	list, _ := apart(all.Records)
	return list, nil
}

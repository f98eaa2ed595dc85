package responder

import (
	"context"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/internal/executor"
)

// Open implements executor.Open. It asks for the word of a quorum: what the replica's own copy has not heard of yet would count as closed.
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

package respond

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// Open implements executor.Open. It reads from a quorum: this replica's own copy may lack a new response, which would
// then count as closed.
func (r *Responder) Open(ctx context.Context, ids []string) (map[string]bool, error) {
	list, unread, err := r.Committed(ctx)
	if err = cmp.Or(err, errors.Join(unread...)); err != nil {
		return nil, fmt.Errorf("load the open responses: %w", err)
	}
	return executor.OpenOf(list, ids), nil
}

// Committed returns the committed responses, also closed ones, and the errors of records that this version cannot read. It reads from a
// quorum.
func (r *Responder) Committed(ctx context.Context) (list []*response.Response, unread []error, err error) {
	all, err := r.cfg.Store.LoadResponses(ctx)
	if err != nil {
		return nil, nil, err
	}
	list, _ = apart(all.Records)
	return list, all.Unread, nil
}

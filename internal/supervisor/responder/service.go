// Package responder is the shell round the engine of responses: it tells the engine what the map, the store and people say,
// commits its records and its audit under the leader's fence, and has the executors carry out what it decides.
package responder

import (
	"context"
	"errors"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/audit"
)

// ErrNotLeader refuses a person's word on a replica that does not lead.
var ErrNotLeader = errors.New("this supervisor does not lead")

// Service is what the API asks of the responder.
type Service interface {
	// Ask gives the engine a person's word. It returns when what follows of it is committed. On a replica that does not lead it
	// fails with ErrNotLeader; what the engine refuses, it says why.
	Ask(ctx context.Context, a response.Asked) error
	// Responses returns what is committed, by id, on any replica.
	Responses(ctx context.Context) ([]*response.Response, response.Breaker, error)
	// Audit returns at most limit lines from number from on, in order, on any replica.
	Audit(ctx context.Context, from uint64, limit int) ([]AuditLine, error)
	// AuditHead says where the audit stands, and what was cut of it, on any replica.
	AuditHead(ctx context.Context) (store.AuditHead, error)
	// Changed is closed at the next change of a committed record, on any replica.
	Changed() <-chan struct{}
}

// AuditLine is one decision as it was committed, chained to the line before it: audit.Chain makes it, Marshal writes it.
type AuditLine = audit.Line

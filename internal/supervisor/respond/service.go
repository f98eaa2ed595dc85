// Package respond is the shell around the engine of responses: it feeds the engine from the map, the store and
// people, commits its records and its audit under the leader's fence, and lets executors carry out its decisions.
package respond

import (
	"context"
	"errors"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response"
)

var (
	// ErrNotLeader refuses a person's word on a replica that does not lead. Nothing of it is committed.
	ErrNotLeader = errors.New("this supervisor does not lead")
	// ErrUnsettled says that the lead was lost before it was known whether a person's word is committed.
	ErrUnsettled = errors.New("the lead was lost meanwhile")
)

// Service is the part of the responder that the API uses.
type Service interface {
	// Ask passes a person's request to the engine. It returns when the result is committed. It fails with
	// ErrNotLeader on a replica that does not lead, with ErrUnsettled if it loses the lead meanwhile, and with the engine's reason if the
	// engine refuses.
	Ask(ctx context.Context, a response.Asked) error
	// Responses returns the committed responses, by ID, on any replica.
	Responses(ctx context.Context) ([]*response.Response, response.Breaker, error)
	// Audit returns at most limit lines from number from on, in order, on any replica.
	Audit(ctx context.Context, from uint64, limit int) ([]AuditLine, error)
	// AuditHead returns the head of the audit and how much was cut off, on any replica.
	AuditHead(ctx context.Context) (store.AuditHead, error)
	// Changed is closed at the next change of a committed record, on any replica.
	Changed() <-chan struct{}
}

// AuditLine is one committed decision, chained to the line before it: response.ChainAudit makes it, Marshal writes it.
type AuditLine = response.AuditLine

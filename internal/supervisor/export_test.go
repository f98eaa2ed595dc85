package supervisor

import (
	"context"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// What tests of replicas over real sockets look at.
var NodeExecutors = (*Supervisor).nodeExecutors

// Term is the token of this replica's lead; 0: another one leads.
func (s *Supervisor) Term() uint64 { return s.engine.Term() }

// RenewEvery is how often it looks whether its certificate was renewed: before Start.
func (s *Supervisor) RenewEvery(d time.Duration) { s.renewEvery = d }

// Cert is the certificate that it signs with.
func (s *Supervisor) Cert() []byte { return s.signer.Cert() }

// MaskUnder masks a link for a response as who was sure to lead under a token, and was paused then.
func (s *Supervisor) MaskUnder(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner string) error {
	_, _, err := s.api.MaskFor(ctx, token, at, dir, owner, "test")
	return sure(err)
}

package supervisor

import (
	"context"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Internals for tests of replicas over real sockets.
var NodeExecutors = (*Supervisor).nodeExecutors

// FaultOf renders an incident for Kubernetes.
var FaultOf = faultOf

// Term returns the token of this replica's lead; 0: another one leads.
func (s *Supervisor) Term() uint64 { return s.engine.Term() }

// Lost records a loss of a node's message at this replica.
func (s *Supervisor) Lost() { s.engine.Lost() }

// Awareness returns what its responder reads the map and the evidence from.
func (s *Supervisor) Awareness() respond.Awareness { return awarenessOf{s.engine.Engine} }

// RenewEvery sets the interval of checks for a renewed certificate. Call it before Start.
func (s *Supervisor) RenewEvery(d time.Duration) { s.renewEvery = d }

// PatientLease lets a leader keep its lease through pauses of 10 s, and its lead while it is silent, on a busy machine: for tests in which
// the lead must not move by itself. A stop without a quorum, which takes a second to give up its lease, may take a minute more.
func PatientLease(s *Supervisor) {
	s.leadership.leaseTTL, s.leadership.patience, s.leadership.unquestioned = 10, time.Minute, true
}

// EndlessLease keeps a leader's lease for longer than any test waits.
func EndlessLease(s *Supervisor) { s.leadership.leaseTTL, s.leadership.patience = 600, time.Minute }

// StopServing ends the replica's gRPC service at once. The kernel then refuses connections to the service, as after the process's death.
func (s *Supervisor) StopServing() { s.api.grpc.Stop() }

// RaftHeldBy reports whether a replica's member leads raft, in the view of this replica's member.
func (s *Supervisor) RaftHeldBy(id string) bool {
	lead, _ := s.raftLead(id)
	return lead == raftHeld
}

// TakeRaftLead makes this replica's member raft's leader.
func (s *Supervisor) TakeRaftLead(ctx context.Context) error { return s.store.member.TakeRaftLead(ctx) }

// RaftAgain sets the interval at which this replica takes raft's lead back while it leads. Call it before Start.
func RaftAgain(d time.Duration) Option { return func(s *Supervisor) { s.leadership.raftAgain = d } }

// Leads reports whether this replica leads.
func (s *Supervisor) Leads() bool { return s.leads() }

// Cert returns the certificate that it signs with.
func (s *Supervisor) Cert() []byte { return s.signer.Cert() }

// MaskUnder masks a link for a response, like a leader that was paused after it confirmed its lead under a token.
func (s *Supervisor) MaskUnder(ctx context.Context, token uint64, at fault.NodeID, dir grid.Direction, owner string) error {
	_, _, err := s.api.MaskFor(ctx, token, at, dir, owner, "test", false)
	return sure(err)
}

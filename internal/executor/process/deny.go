package process

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
)

// denials holds the revoked certificates that the process refuses. They are stored on disk beside the ledger.
type denials struct {
	registry *pki.Registry
	verifier *pki.Verifier

	mu     sync.Mutex
	keeper *pki.DenyListKeeper
}

func newDenials(caFile, cluster string) (*denials, error) {
	d := &denials{registry: pki.NewRegistry()}
	var err error
	d.verifier, err = pki.LoadVerifier(caFile, cluster, pki.WithRegistry(d.registry))
	return d, err
}

// open loads the stored list. An unreadable list makes the start fail, because the process would obey supervisors that
// the list names. A list from before a change of the authority is ignored, because the process refuses all certificates
// of that authority.
func (d *denials) open(dir, cluster string, logger *slog.Logger) error {
	k, lost := pki.NewDenyListKeeper(dir, cluster, d.verifier, d.registry)
	if stranger := (x509.UnknownAuthorityError{}); errors.As(lost, &stranger) {
		logger.Warn("stored list of revoked certificates passed over: none is refused until a supervisor sends one", "err", lost)
	} else if lost != nil {
		return fmt.Errorf("revoked certificates: %w", lost)
	}
	d.keeper = k
	return nil
}

// take verifies a list and puts it in force if it is newer. It returns the version in force, and whether the list is new.
func (d *denials) take(signed *lofamov1.SignedDenyList) (version uint64, taken bool, err error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(signed)
	if err != nil {
		return 0, false, status.Error(codes.InvalidArgument, err.Error())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if taken, err = d.keeper.Take(raw); taken && err != nil {
		return 0, true, status.Error(codes.Unavailable, err.Error()) // in force, but lost at the next restart: the supervisor must send it again
	} else if err != nil {
		return 0, false, status.Error(codes.InvalidArgument, err.Error())
	}
	return d.keeper.List().GetVersion(), taken, nil
}

// refuse refuses calls over connections whose certificate was revoked after they were opened.
func (d *denials) refuse(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if p, ok := peer.FromContext(ctx); ok {
		if tls, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(tls.State.PeerCertificates) > 0 {
			if err := d.registry.CheckCertificate(tls.State.PeerCertificates[0]); err != nil {
				return nil, status.Errorf(codes.PermissionDenied, "%s: %v", info.FullMethod, err)
			}
		}
	}
	return next(ctx, req)
}

// Deny implements the service.
func (s *server) Deny(_ context.Context, req *lofamov1.ExecutorDenyRequest) (*lofamov1.ExecutorDenyResponse, error) {
	if req.GetSigned() == nil {
		return nil, status.Error(codes.InvalidArgument, "signed: missing: want a list that an operator signed")
	}
	version, taken, err := s.denials.take(req.GetSigned())
	if err != nil {
		return nil, err
	}
	if taken {
		s.logger.Info("list of revoked certificates in force", "version", version)
	}
	return &lofamov1.ExecutorDenyResponse{Version: version}, nil
}

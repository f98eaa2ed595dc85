package api

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/pkg/fault"
	transfer "github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// Bundles fetches large objects from halves.
type Bundles interface {
	// Fetch passes an object to emit in pieces, and blocks until it is complete, the context ends or emit fails.
	Fetch(ctx context.Context, origin fault.Origin, object string, maxSize uint64, emit func(*lofamov1.GetBundleResponse) error) error
}

// OutcomeKey is in the trailer of GetBundle when the transfer itself failed, or the caller was too slow: another
// replica is unlikely to succeed.
const OutcomeKey = "lofamo-outcome"

// GetBundle implements the service. Every replica talks to the node itself.
func (s *Server) GetBundle(req *lofamov1.GetBundleRequest, stream grpc.ServerStreamingServer[lofamov1.GetBundleResponse]) error {
	id, err := s.find(req.GetNode())
	if err != nil {
		return err
	}
	half := fault.HalfHost
	if req.GetHalf() != "" {
		if half, err = fault.ParseHalf(req.GetHalf()); err != nil {
			return status.Errorf(codes.InvalidArgument, "half: given %.20q: want host or dnp", req.GetHalf())
		}
	}
	most := cmp.Or(req.GetMaxBytes(), transfer.MaxSize)
	if most > transfer.MaxSize {
		return status.Errorf(codes.InvalidArgument, "max_bytes: given %d: want at most %d", most, transfer.MaxSize)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	go func() { // ends with the call
		select {
		case <-s.cfg.Stopping:
			cancel(errStopping)
		case <-ctx.Done():
		}
	}()
	origin := fault.Origin{Node: id, Half: half}
	err = s.cfg.Bundles.Fetch(ctx, origin, "bundle", most, stream.Send)
	outcome := (*ingest.OutcomeError)(nil)
	switch {
	case errors.As(err, &outcome):
		stream.SetTrailer(metadata.Pairs(OutcomeKey, outcome.Result.String()))
	case errors.Is(err, ingest.ErrBulkSlow):
		stream.SetTrailer(metadata.Pairs(OutcomeKey, "slow"))
	}
	return bundleStatus(origin, err)
}

// errStopping ends a transfer when the replica stops.
var errStopping = errors.New("this supervisor is stopping")

// bundleStatus converts the result of a transfer into the API's errors.
func bundleStatus(origin fault.Origin, err error) error {
	if err == nil {
		return nil
	}
	var outcome *ingest.OutcomeError
	code := codes.Unknown
	switch {
	case errors.Is(err, ingest.ErrBulkBusy):
		code = codes.ResourceExhausted
	case errors.Is(err, ingest.ErrBulkSlow):
		code = codes.DeadlineExceeded
	case errors.Is(err, errStopping):
		code = codes.Unavailable
	case errors.As(err, &outcome):
		code = codeOf(outcome)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	default:
		if st, ok := status.FromError(err); ok {
			return st.Err() // of the stream
		}
	}
	return status.Errorf(code, "bundle of %s: %v", origin, err)
}

func codeOf(e *ingest.OutcomeError) codes.Code {
	switch e.Result {
	case transfer.Timeout:
		return codes.Unavailable
	case transfer.DataLoss:
		return codes.DataLoss
	case transfer.Cancelled:
		return codes.Canceled
	case transfer.Refused:
		if strings.HasPrefix(e.Why, transfer.BusyPrefix) {
			return codes.ResourceExhausted
		}
		return codes.FailedPrecondition
	default:
		return codes.Internal
	}
}

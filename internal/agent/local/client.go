package local

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// ErrNotRunning is in the chain of an error when no host half listens, or when it ends before it answers.
var ErrNotRunning = errors.New("the host half is not running")

// Watch subscribes to the host half that listens at the socket of that path, and calls handle for every response
// until the context ends or handle returns an error, which Watch returns. Unlike package jobs it does not wait for
// the half.
func Watch(ctx context.Context, path string, nodes []string, handle func(*lofamov1.WatchFaultsResponse) error) error {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithNoProxy(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("ask the host half at %s: %w", path, err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := lofamov1.NewLocalClient(conn).WatchFaults(ctx, &lofamov1.WatchFaultsRequest{Nodes: nodes})
	for err == nil {
		var r *lofamov1.WatchFaultsResponse
		if r, err = stream.Recv(); err == nil {
			if err := handle(r); err != nil {
				return err
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case status.Code(err) == codes.Unavailable || errors.Is(err, io.EOF):
		return fmt.Errorf("ask the host half at %s: %w: %w", path, ErrNotRunning, err)
	}
	return fmt.Errorf("ask the host half at %s: %w", path, err)
}

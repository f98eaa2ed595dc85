package client

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// outcomeKey is in the trailer if the transfer failed and not the supervisor: another supervisor would fail too. The
// server uses the same key.
const outcomeKey = "lofamo-outcome"

// errNoEnd reports a stream that ended without its last response.
var errNoEnd = errors.New("the supervisor ended the bundle without saying that it is complete")

// GetBundle calls handle for every response until the bundle is complete or handle returns an error. If a supervisor
// fails, the next one starts the bundle again: handle then gets a progress with no byte received.
func (c *Client) GetBundle(ctx context.Context, req *lofamov1.GetBundleRequest, handle func(*lofamov1.GetBundleResponse) error) error {
	for f := c.find(c.start(), anyAnswer); ; {
		i, err := f.next(ctx)
		if err != nil {
			return err
		}
		verdict, err := c.bundleFrom(ctx, i, req, handle)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case verdict || !otherMayAnswer(err):
			return err
		}
		f.failed(i, err)
	}
}

// bundleFrom asks one supervisor. verdict reports that the error is about the bundle or came from handle.
func (c *Client) bundleFrom(ctx context.Context, i int, req *lofamov1.GetBundleRequest,
	handle func(*lofamov1.GetBundleResponse) error) (verdict bool, err error) {
	conn, err := c.conn(i)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The first response comes when the transfer starts. Later ones have no deadline.
	slow := time.AfterFunc(c.cfg.TryTimeout, cancel)
	defer slow.Stop()
	stream, err := lofamov1.NewFaultSupervisorClient(conn).GetBundle(ctx, req)
	if err != nil {
		return false, err
	}
	answered, complete := false, false
	for {
		r, err := stream.Recv()
		switch {
		case err != nil && !answered && !slow.Stop():
			return false, status.Errorf(codes.DeadlineExceeded, "no answer within %s", c.cfg.TryTimeout)
		case errors.Is(err, io.EOF) && complete:
			return false, nil
		case errors.Is(err, io.EOF):
			return true, errNoEnd
		case err != nil:
			return len(stream.Trailer().Get(outcomeKey)) > 0, err
		}
		answered = slow.Stop() || answered
		if err := handle(r); err != nil {
			return true, err
		}
		complete = r.GetProgress().GetComplete()
	}
}

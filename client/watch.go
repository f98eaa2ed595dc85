package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// WatchOptions say what to watch.
type WatchOptions struct {
	// After is the revision after which changes are wanted; 0 for only those from now on.
	After uint64
	// AsSeen also asks for changes before they are committed. Those have revision 0, are sent
	// again when committed, and may be lost or repeated when the supervisor is changed.
	AsSeen bool
	// Node narrows the watch to one node, id or coordinates; the selectors to what they choose.
	Node, Labels, Fields string
	// Initial hands the map over first, in one answer that is marked Synced: what is not normal, as events
	// from UNKNOWN. Not with After.
	Initial bool
	// Progress, when set, hears of every change of the supervisor that is watched: err is nil when
	// the watch stands, and why it fell otherwise. It must not block.
	Progress func(target string, err error)
}

// ErrStop ends a watch from within the handler: Watch then returns nil.
var ErrStop = errors.New("enough")

const (
	watchBackoffMin = 100 * time.Millisecond
	watchBackoffMax = 2 * time.Second
)

// Watch calls handle for every answer of the stream, in order of revisions, until ctx ends or
// handle returns an error. Each committed change is handed over exactly once, whichever replicas
// come and go meanwhile: every new stream resumes after the last revision handed over. Before the
// first answer, supervisors that do not answer end the watch; later ones are tried for ever.
func (c *Client) Watch(ctx context.Context, opts WatchOptions, handle func(*lofamov1.WatchResponse) error) error {
	w := watch{client: c, opts: opts, handle: handle, after: opts.After}
	if w.after == 0 && !opts.Initial {
		// "From now on" means from one revision on, so that a stream that breaks before its first
		// answer resumes without a gap.
		now, err := c.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
		if err != nil {
			return err
		}
		w.after = now.GetRevision()
		w.stood = true
	}
	return w.run(ctx)
}

type watch struct {
	client *Client
	opts   WatchOptions
	handle func(*lofamov1.WatchResponse) error
	after  uint64 // the last revision handed over
	stood  bool   // some supervisor has answered
	// initial are the events of the map so far, until it is complete.
	initial []*lofamov1.Event
}

func (w *watch) progress(i int, err error) {
	if w.opts.Progress != nil {
		w.opts.Progress(w.client.cfg.Targets[i], err)
	}
}

func (w *watch) run(ctx context.Context) error {
	backoff := watchBackoffMin
	n := len(w.client.cfg.Targets)
	var tried []Try
	for i := w.client.start(); ; i = (i + 1) % n {
		answered, err := w.stream(ctx, i)
		var stop handlerError
		switch {
		case errors.As(err, &stop):
			if errors.Is(stop.error, ErrStop) {
				return nil
			}
			return stop.error
		case ctx.Err() != nil:
			return ctx.Err()
		case status.Code(err) == codes.OutOfRange:
			return fmt.Errorf("watch after revision %d: %s", w.after, reason(err)) // it says what to do
		case !errors.Is(err, io.EOF) && !otherMayAnswer(err) && status.Code(err) != codes.Canceled:
			return err
		}
		w.progress(i, err)
		if answered {
			backoff, tried = watchBackoffMin, nil
		}
		tried = append(tried, Try{w.client.cfg.Targets[i], err})
		if len(tried) < n {
			continue
		}
		if !w.stood {
			return &NoAnswerError{tried}
		}
		tried = nil
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, watchBackoffMax)
	}
}

// handlerError marks an error as the handler's own.
type handlerError struct{ error }

// stream watches one supervisor until it fails. It says whether the supervisor answered at all.
func (w *watch) stream(ctx context.Context, i int) (answered bool, err error) {
	stub, err := w.client.stub(i)
	if err != nil {
		return false, err
	}
	if err := w.works(ctx, i); err != nil {
		return false, err
	}
	w.stood = true
	w.client.answered(i)
	// The supervisor is not told of a deadline: it would end the stream a moment before ctx ends, and
	// look as if it had failed.
	streaming, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(nil) })()
	s, err := stub.Watch(streaming, w.request())
	if err != nil {
		return false, err
	}
	w.initial = nil
	w.progress(i, nil)
	said := make(chan struct{}, 1)
	go w.probe(streaming, i, said, cancel)
	for first := true; ; first = false {
		answer, err := s.Recv()
		if err != nil {
			if why := context.Cause(streaming); why != nil && ctx.Err() == nil {
				err = why
			}
			return !first, err
		}
		select {
		case said <- struct{}{}:
		default:
		}
		if err := w.deliver(answer); err != nil {
			return true, handlerError{err}
		}
	}
}

// works asks a supervisor something. A stopped process accepts connections, and a stream may rightly say nothing for
// hours: a call with a deadline tells the two apart.
func (w *watch) works(ctx context.Context, i int) error {
	_, err := try(ctx, w.client, i, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListEventsResponse, error) {
		return s.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	})
	return err
}

// probe ends a stream that says nothing once its supervisor does not answer either.
func (w *watch) probe(ctx context.Context, i int, said <-chan struct{}, end context.CancelCauseFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-said:
		case <-time.After(w.client.cfg.Silence):
			if err := w.works(ctx, i); err != nil && ctx.Err() == nil {
				end(err)
				return
			}
		}
	}
}

// request resumes after what was handed over; nothing yet: where the watch is to begin.
func (w *watch) request() *lofamov1.WatchRequest {
	return &lofamov1.WatchRequest{
		AfterRevision: w.after, AsSeen: w.opts.AsSeen, Node: w.opts.Node, LabelSelector: w.opts.Labels, FieldSelector: w.opts.Fields,
		Initial: w.opts.Initial && w.after == 0,
	}
}

// deliver hands an answer over unless its revision was handed over before.
func (w *watch) deliver(answer *lofamov1.WatchResponse) error {
	rev := answer.GetRevision()
	if rev != 0 && rev <= w.after {
		return nil
	}
	if w.opts.Initial && w.after == 0 {
		// A map of which the supervisor fell away before its end is begun again by the next.
		w.initial = append(w.initial, answer.GetEvents()...)
		if !answer.GetSynced() {
			return nil
		}
		answer.Events, w.initial = w.initial, nil
	}
	if err := w.handle(answer); err != nil {
		return err
	}
	if rev != 0 {
		w.after = rev
	}
	return nil
}

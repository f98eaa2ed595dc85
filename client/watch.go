package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// WatchOptions select what Watch delivers.
type WatchOptions struct {
	// After is the revision after which changes are delivered; 0 delivers only changes from now on.
	After uint64
	// AfterIndex, with After, is the Event.index after which the changes of revision After itself are delivered too, for a
	// caller that stopped within that revision. 0 delivers no change of that revision.
	AfterIndex uint32
	// AsSeen also delivers changes before they are committed. Those have revision 0 and come again when they are
	// committed. They may be lost or repeated when the watch moves to another supervisor.
	AsSeen bool
	// Node limits the watch to one node, an id or coordinates. Labels and Fields are selectors, see docs/api.md.
	Node, Labels, Fields string
	// Initial delivers the current faults first, in one response that is marked Synced: all that is not NORMAL, as
	// events from UNKNOWN. The state before a Synced response is obsolete. A second one comes if the history was
	// compacted while no supervisor could be reached. Initial excludes After.
	Initial bool
	// Gap, if set, is called when changes were lost during an outage: the supervisors no longer keep those after
	// revision after, up to revision until. If until is less than after, their store was replaced, and nothing that the
	// new one holds up to until comes. The watch goes on after until. Without Gap, and for After itself, Watch fails with
	// ErrCompacted instead. With Initial a new list comes in both cases.
	Gap func(after, until uint64)
	// Outage is how long Watch waits for an answer of any supervisor, also for the first one, before it fails with a
	// *NoAnswerError. 0 means for ever, but then one must answer at the start.
	Outage time.Duration
	// Progress, if set, is called whenever the watch starts at a supervisor (err is nil) and when it fails there. It
	// must not block.
	Progress func(target string, err error)
}

// maxInitial bounds the events of one initial list: 100,000 nodes have fewer with all their links failed.
const maxInitial = 1 << 20

// goneAfter is how long supervisors may answer NotFound to a watch that one of them had accepted. A supervisor that has
// just started knows the nodes that joined later within seconds.
const goneAfter = time.Minute

// Watch calls handle with every response of the stream, in order of revisions, until ctx ends or handle returns an
// error, which Watch returns; nil for ErrStop.
//
// Every committed change comes exactly once, even if replicas die: a new stream continues after the last revision that
// handle took. Until a first supervisor has answered, Watch fails with a *NoAnswerError if none does. Later it retries
// for ever, with a pause of 50 ms to 2 s after each round; WatchOptions.Outage changes both. It fails with ErrCompacted
// if the changes after the last revision no longer exist, unless WatchOptions.Initial or WatchOptions.Gap is set. It
// fails with the gRPC code NotFound if WatchOptions.Node does not exist at the start, or if the supervisors have not
// known it for a minute.
//
// Watch holds one response in memory. A slow handler slows the stream; it does not make a queue grow.
func (c *Client) Watch(ctx context.Context, opts WatchOptions, handle func(*lofamov1.WatchResponse) error) error {
	if opts.Initial && opts.After > 0 {
		return fmt.Errorf("watch: Initial with After %d: want only one, the list has its own revision", opts.After)
	}
	if opts.AfterIndex > 0 && opts.After == 0 {
		return fmt.Errorf("watch: AfterIndex %d without After: want the revision of the event", opts.AfterIndex)
	}
	if opts.Outage < 0 {
		return fmt.Errorf("watch: Outage %v: want 0 or more", opts.Outage)
	}
	w := watch{client: c, opts: opts, handle: handle, after: opts.After, answeredAt: time.Now()}
	if opts.AfterIndex > 0 && w.after > 1 { // no event has revision 1, which is the empty store's
		w.after-- // and deliver drops what precedes: supervisors of earlier versions know no index
	}
	if w.after == 0 && !opts.Initial {
		if err := w.fromNow(ctx); err != nil {
			return err
		}
	}
	return w.run(ctx)
}

// fromNow sets the revision of now: "from now on" means from one revision on, so that a stream that breaks before its
// first response resumes without a gap.
func (w *watch) fromNow(ctx context.Context) error {
	for rounds := 0; ; rounds++ {
		now, err := w.client.ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
		if err == nil {
			w.after, w.stood, w.answeredAt = now.GetRevision(), true, time.Now()
			return nil
		}
		var none *NoAnswerError
		if !errors.As(err, &none) || w.givesUp() {
			return err
		}
		if err := pause(ctx, rounds); err != nil {
			return err
		}
	}
}

type watch struct {
	client *Client
	opts   WatchOptions
	handle func(*lofamov1.WatchResponse) error
	after  uint64 // the last revision that handle took
	stood  bool   // some supervisor has answered
	// accepted means that some supervisor has sent a response: the request is valid, and its node exists.
	accepted   bool
	answeredAt time.Time // when a supervisor last answered, or the start
	unknown    time.Time // since when supervisors have answered NotFound; zero: the last one took the watch
	// initial collects the events of the initial list until it is complete.
	initial []*lofamov1.Event
}

func (w *watch) progress(target string, err error) {
	if w.opts.Progress != nil {
		w.opts.Progress(target, err)
	}
}

// givesUp reports whether the supervisors have been silent for too long.
func (w *watch) givesUp() bool {
	if w.opts.Outage == 0 {
		return !w.stood
	}
	return time.Since(w.answeredAt) >= w.opts.Outage
}

func (w *watch) run(ctx context.Context) error {
	c := w.client
	rounds, next := 0, c.start() // rounds without an answer, and the supervisor that begins the next one
	for f := c.find(next, listOneEvent); ; {
		told := len(f.tried)
		i, err := f.next(ctx)
		var none *NoAnswerError
		if errors.As(err, &none) {
			for _, t := range none.Tried[told:] {
				w.progress(t.Target, t.Err)
			}
			if w.givesUp() {
				return none
			}
			if err := pause(ctx, rounds); err != nil {
				return err
			}
			rounds++
			f = c.find(next, listOneEvent)
			continue
		}
		answered := false
		if err == nil {
			answered, err = w.stream(ctx, i)
		}
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
			err = compactedError{words: fmt.Sprintf("watch after revision %d: %s", w.after, reason(err))} // it says what to do
			moved, gone := w.skip(ctx, i)
			if gone != nil {
				return err
			}
			answered = moved
		case !errors.Is(err, io.EOF) && !otherMayAnswer(err) && status.Code(err) != codes.Canceled && !w.mayStart(err):
			return err
		}
		w.progress(c.cfg.Targets[i], err)
		next = i + 1
		if answered {
			rounds, f = 0, c.find(next, listOneEvent)
		}
		f.failed(i, err)
	}
}

// listOneEvent is a check that the supervisor serves small reads of the history.
func listOneEvent(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := lofamov1.NewFaultSupervisorClient(conn).ListEvents(ctx, &lofamov1.ListEventsRequest{Limit: 1})
	return err
}

// handlerError is an error that the handler returned.
type handlerError struct{ error }

// stream watches one supervisor until it fails. It reports whether a response came.
func (w *watch) stream(ctx context.Context, i int) (answered bool, err error) {
	conn, err := w.client.conn(i)
	if err != nil {
		return false, err
	}
	w.stood = true
	defer func() { w.answeredAt = time.Now() }()
	// The supervisor does not see the deadline of ctx: it would end the stream a moment before ctx ends, and seem to
	// fail.
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	heard, leave := w.client.whileHeard(streaming, i)
	defer leave()
	begun := time.Now()
	s, err := lofamov1.NewFaultSupervisorClient(conn).Watch(heard, w.request())
	if err != nil {
		return false, err
	}
	w.initial = nil
	w.progress(w.client.cfg.Targets[i], nil)
	for first := true; ; first = false {
		answer, err := s.Recv()
		if err != nil {
			if why := context.Cause(heard); why != nil && ctx.Err() == nil {
				err = why
			}
			if !first || status.Code(err) != codes.NotFound || time.Since(begun) >= w.client.cfg.Silence {
				w.unknown = time.Time{} // it took the watch
			}
			return !first, err
		}
		w.accepted = true
		if err := w.deliver(answer); err != nil {
			return true, handlerError{err}
		}
	}
}

// mayStart reports whether the error may be that of a supervisor that has just started: it does not know the nodes yet
// that joined the cluster later. After goneAfter, the node was removed.
func (w *watch) mayStart(err error) bool {
	code := status.Code(err)
	if !w.accepted || code != codes.NotFound {
		return w.accepted && code == codes.FailedPrecondition
	}
	if w.unknown.IsZero() {
		w.unknown = time.Now()
	}
	return time.Since(w.unknown) < w.client.goneAfter
}

// skip goes on where the supervisors still keep changes, and reports whether it learned where that is. It fails if the
// caller did not allow that.
func (w *watch) skip(ctx context.Context, i int) (moved bool, err error) {
	switch {
	case w.opts.Initial && w.after > 0:
		w.after = 0 // list again
		return true, nil
	case w.opts.Gap == nil || !w.accepted:
		return false, ErrCompacted
	}
	kept, err := try(ctx, w.client, i, func(ctx context.Context, conn *grpc.ClientConn) (*lofamov1.ListEventsResponse, error) {
		return lofamov1.NewFaultSupervisorClient(conn).ListEvents(ctx, &lofamov1.ListEventsRequest{AfterRevision: w.after, Limit: 1})
	})
	if err != nil {
		return false, nil //nolint:nilerr // the next supervisor refuses the watch as well, and tells more
	}
	until := kept.GetRevision()
	if events := kept.GetEvents(); len(events) > 0 {
		until = events[0].GetRevision() // an earlier start is refused: what preceded the oldest change is not known
	}
	if until == w.after {
		return false, nil // this supervisor still refuses where it goes on
	}
	w.opts.Gap(w.after, until)
	w.after, w.opts.AfterIndex = until, 0 // the index is of the store that was
	return true, nil
}

// request continues after the last revision that handle took.
func (w *watch) request() *lofamov1.WatchRequest {
	return &lofamov1.WatchRequest{
		AfterRevision: w.after, AsSeen: w.opts.AsSeen, Node: w.opts.Node, LabelSelector: w.opts.Labels, FieldSelector: w.opts.Fields,
		Initial: w.opts.Initial && w.after == 0,
	}
}

// deliver calls handle unless it already took this revision.
func (w *watch) deliver(answer *lofamov1.WatchResponse) error {
	rev := answer.GetRevision()
	if rev != 0 && rev <= w.after {
		return nil
	}
	if w.opts.Initial && w.after == 0 {
		// If the supervisor dies before the end of the list, the next one starts it again.
		w.initial = append(w.initial, answer.GetEvents()...)
		if len(w.initial) > maxInitial {
			return fmt.Errorf("watch: the initial list has more than %d events", maxInitial)
		}
		if !answer.GetSynced() {
			return nil
		}
		answer.Events, w.initial = w.initial, nil
	}
	if w.opts.AfterIndex > 0 && rev == w.opts.After && len(answer.GetEvents()) > 0 {
		answer.Events = slices.DeleteFunc(answer.GetEvents(), func(ev *lofamov1.Event) bool {
			return ev.GetIndex() > 0 && ev.GetIndex() <= w.opts.AfterIndex
		})
		if len(answer.GetEvents()) == 0 {
			w.after = rev
			return nil
		}
	}
	if err := w.handle(answer); err != nil {
		return err
	}
	if rev != 0 {
		w.after = rev
	}
	return nil
}

package client

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// stagger is the silence of a supervisor after which a race also asks the next one. A dead machine refuses no connection, and gRPC
// notices one only after 10 s or more.
const stagger = 150 * time.Millisecond

// heardConn records when bytes arrive.
type heardConn struct {
	net.Conn
	heard func()
}

// Read implements net.Conn.
func (h heardConn) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if n > 0 {
		h.heard()
	}
	return n, err
}

// dialer returns the function that connects to supervisor i.
func (c *Client) dialer(i int) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return heardConn{conn, func() { c.heard[i].Store(int64(time.Since(c.made))) }}, nil
	}
}

// heardAt returns when supervisor i last sent a byte; the client's start if it never did.
func (c *Client) heardAt(i int) time.Time { return c.made.Add(time.Duration(c.heard[i].Load())) }

// untilSilent returns nil when supervisor i has been silent for a time: it sent no byte, although the client asked for one in the second
// half of that time. If the question fails, it returns nil at once. It returns the error of ctx if ctx ends first.
func (c *Client) untilSilent(ctx context.Context, i int, silence time.Duration) error {
	for from := time.Now(); ; {
		if at := c.heardAt(i); at.After(from) {
			from = at
		}
		if quiet := time.Since(from); quiet < silence/2 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(silence/2 - quiet):
			}
			continue
		}
		c.ask(ctx, i, from, silence/2)
		if err := ctx.Err(); err != nil {
			return err
		}
		if !c.heardAt(i).After(from) {
			return nil
		}
	}
}

// ask makes supervisor i send a byte. It returns at any answer, or after a time. Concurrent calls take turns and share an answer, so many
// idle watches of one client ask as rarely as one. from is when the last byte arrived.
func (c *Client) ask(ctx context.Context, i int, from time.Time, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-ctx.Done():
		return
	case c.asking[i] <- struct{}{}: // one at a time
	}
	defer func() { <-c.asking[i] }()
	if c.heardAt(i).After(from) {
		return
	}
	if conn, err := c.conn(i); err == nil {
		_ = anyAnswer(ctx, conn) // the connection records it
	}
}

// whileHeard returns a context that ends when supervisor i is silent for Config.Silence. Its cause is then a status that another
// supervisor may answer. The caller has to call stop.
func (c *Client) whileHeard(ctx context.Context, i int) (heard context.Context, stop func()) {
	heard, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.untilSilent(heard, i, c.cfg.Silence) == nil {
			cancel(status.Error(codes.Unavailable, fmt.Sprintf("it has been silent for %v", c.cfg.Silence)))
		}
	}()
	return heard, func() { cancel(nil); <-done }
}

// contest is one race.
type contest[T any] struct {
	c     *Client
	order []int // supervisors to ask
	ask   func(context.Context, *grpc.ClientConn) (T, error)

	entrants []entrant[T] // the first ones of order: the race has begun for them
	results  chan entrant[T]
	silent   chan int
	running  sync.WaitGroup
}

// entrant is a supervisor in a race.
type entrant[T any] struct {
	n            int // index in order
	answer       T
	err          error
	over, silent bool
}

// race asks supervisors until one answers. It asks the next one when one fails, and also when the last one is silent for a stagger. The
// slow ones stay in the race. A stale answer wins if each other supervisor fails or is silent; with a nil isStale none is stale. by is the
// supervisor that answered, also with an error that is an answer. tried is nil unless all failed.
func race[T any](ctx context.Context, c *Client, order []int, isStale func(T) bool,
	ask func(context.Context, *grpc.ClientConn) (T, error)) (answer T, by int, tried []Try, err error) {
	r := &contest[T]{c: c, order: order, ask: ask, results: make(chan entrant[T], len(order)),
		silent: make(chan int, len(order))}
	racing, cancel := context.WithCancel(ctx)
	defer r.running.Wait()
	defer cancel()
	var stale *entrant[T]
	r.enter(racing)
	for {
		select {
		case <-ctx.Done():
			return answer, 0, nil, ctx.Err()
		case n := <-r.silent:
			r.entrants[n].silent = true
		case e := <-r.results:
			if ctx.Err() != nil {
				return answer, 0, nil, ctx.Err()
			}
			good := e.err == nil && (isStale == nil || !isStale(e.answer))
			if good || e.err != nil && !otherMayAnswer(e.err) {
				c.answered(order[e.n])
				return e.answer, order[e.n], nil, e.err
			}
			e.over = true
			r.entrants[e.n] = e
			if e.err == nil && stale == nil {
				stale = &e
			}
		}
		switch {
		case r.waits():
		case len(r.entrants) < len(order):
			r.enter(racing)
		case stale != nil:
			c.answered(order[stale.n])
			return stale.answer, order[stale.n], nil, nil
		case !r.ended():
		default:
			for _, e := range r.entrants {
				tried = append(tried, Try{c.cfg.Targets[order[e.n]], e.err})
			}
			return answer, 0, tried, nil
		}
	}
}

// enter asks the next supervisor.
func (r *contest[T]) enter(ctx context.Context) {
	n := len(r.entrants)
	i := r.order[n]
	r.entrants = append(r.entrants, entrant[T]{n: n})
	r.running.Go(func() {
		answer, err := try(ctx, r.c, i, r.ask)
		r.results <- entrant[T]{n: n, answer: answer, err: err}
	})
	r.running.Go(func() {
		if r.c.untilSilent(ctx, i, stagger) == nil {
			r.silent <- n
		}
	})
}

// waits reports whether some supervisor is likely to answer.
func (r *contest[T]) waits() bool {
	for _, e := range r.entrants {
		if !e.over && !e.silent {
			return true
		}
	}
	return false
}

// ended reports whether all supervisors have failed.
func (r *contest[T]) ended() bool {
	for _, e := range r.entrants {
		if !e.over {
			return false
		}
	}
	return true
}

// finder finds one answering supervisor after the other, each once.
type finder struct {
	c     *Client
	order []int // those that are left
	tried []Try
	check func(context.Context, *grpc.ClientConn) error // which a supervisor has to answer
}

// find returns a finder that begins with supervisor first.
func (c *Client) find(first int, check func(context.Context, *grpc.ClientConn) error) *finder {
	return &finder{c: c, order: c.from(first), check: check}
}

// listSupervisors is a check that the supervisor serves small reads.
func listSupervisors(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := lofamov1.NewFaultSupervisorClient(conn).ListSupervisors(ctx, &lofamov1.ListSupervisorsRequest{})
	return err
}

// anyAnswer is a check that the supervisor is reached. A server without this service answers too.
func anyAnswer(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// next returns the next supervisor that answers, a *NoAnswerError if none is left, or the error that one answered with.
func (f *finder) next(ctx context.Context) (int, error) {
	if len(f.order) == 0 {
		return 0, &NoAnswerError{f.tried}
	}
	_, i, tried, err := race(ctx, f.c, f.order, nil, func(ctx context.Context, conn *grpc.ClientConn) (struct{}, error) {
		return struct{}{}, f.check(ctx, conn)
	})
	if tried != nil {
		f.order, f.tried = nil, append(f.tried, tried...)
		return 0, &NoAnswerError{f.tried}
	}
	return i, err
}

// failed takes a supervisor that next returned out.
func (f *finder) failed(i int, err error) {
	f.tried = append(f.tried, Try{f.c.cfg.Targets[i], err})
	order := f.order
	f.order = nil
	for _, k := range order {
		if k != i {
			f.order = append(f.order, k)
		}
	}
}

// from returns the indices of all supervisors, from one on and around.
func (c *Client) from(first int) []int {
	order := make([]int, len(c.cfg.Targets))
	for n := range order {
		order[n] = (first + n) % len(order)
	}
	return order
}

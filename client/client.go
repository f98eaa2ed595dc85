package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Config configures a Client.
type Config struct {
	// Targets are the gRPC addresses of all supervisors, host:port, at least one.
	Targets []string
	// TLS holds the client's certificate and checks the supervisors'. TLSFiles makes one.
	TLS *tls.Config
	// TryTimeout bounds one attempt of a read at one supervisor; 3 s when zero. A change has 40 s.
	TryTimeout time.Duration
	// Rounds is how many times a read asks all supervisors before it fails; 1 when zero. Between rounds it pauses.
	Rounds int
	// Silence is the time after which a watch leaves a supervisor that sends nothing, not even on request; 1 s when zero.
	Silence time.Duration
}

// maxMessage bounds one message, in bytes. A list of 27,000 nodes with their evidence is smaller.
const maxMessage = 64 << 20

// Client talks to the supervisors of one cluster. It connects on first use and is safe for concurrent use.
type Client struct {
	cfg       Config
	goneAfter time.Duration
	made      time.Time
	heard     []atomic.Int64  // by supervisor: nanoseconds from made until the last byte arrived
	asking    []chan struct{} // by supervisor: full while a call asks for a byte

	mu    sync.Mutex // guards the fields below
	conns []*grpc.ClientConn
	last  int // index of the target that last answered
}

// New returns a client. It checks the configuration and does not connect.
func New(cfg Config) (*Client, error) {
	if len(cfg.Targets) == 0 {
		return nil, errors.New("no supervisor address: want at least one host:port")
	}
	for _, t := range cfg.Targets {
		if _, _, err := net.SplitHostPort(t); err != nil {
			return nil, fmt.Errorf("supervisor address %q: want host:port: %w", t, err)
		}
	}
	if cfg.TLS == nil {
		return nil, errors.New("no TLS configuration: supervisors answer by mutual TLS only")
	}
	if cfg.TryTimeout < 0 || cfg.Silence < 0 || cfg.Rounds < 0 {
		return nil, fmt.Errorf("TryTimeout %v, Silence %v, Rounds %d: want none below zero", cfg.TryTimeout, cfg.Silence, cfg.Rounds)
	}
	cfg.Rounds = max(cfg.Rounds, 1)
	if cfg.TryTimeout == 0 {
		cfg.TryTimeout = 3 * time.Second
	}
	if cfg.Silence == 0 {
		cfg.Silence = time.Second
	}
	c := &Client{cfg: cfg, goneAfter: goneAfter, made: time.Now(), heard: make([]atomic.Int64, len(cfg.Targets)),
		conns: make([]*grpc.ClientConn, len(cfg.Targets))}
	for range cfg.Targets {
		c.asking = append(c.asking, make(chan struct{}, 1))
	}
	return c, nil
}

// Close closes the connections. Calls in progress fail.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for i, cc := range c.conns {
		if cc != nil {
			errs = append(errs, cc.Close())
			c.conns[i] = nil
		}
	}
	return errors.Join(errs...)
}

// Targets returns the addresses as configured.
func (c *Client) Targets() []string { return append([]string(nil), c.cfg.Targets...) }

// Answered returns the address of the supervisor that last answered. The next call and the next watch ask it first.
func (c *Client) Answered() string { return c.cfg.Targets[c.start()] }

func (c *Client) conn(i int) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cc := c.conns[i]; cc != nil {
		// A supervisor that was restarted should not have to wait for gRPC's own back-off.
		if cc.GetState() == connectivity.TransientFailure {
			cc.ResetConnectBackoff()
		}
		return cc, nil
	}
	cc, err := grpc.NewClient("passthrough:///"+c.cfg.Targets[i],
		grpc.WithTransportCredentials(credentials.NewTLS(c.cfg.TLS)),
		grpc.WithContextDialer(c.dialer(i)),
		grpc.WithNoProxy(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to supervisor %s: %w", c.cfg.Targets[i], err)
	}
	c.conns[i] = cc
	return cc, nil
}

func (c *Client) start() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

func (c *Client) answered(i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = i
}

// pauses between rounds and between attempts of a watch.
const (
	pauseMin = 100 * time.Millisecond
	pauseMax = 2 * time.Second
)

// pause waits before attempt n+1, counted from 0: half of a time that doubles with n, and a random part of the other
// half.
func pause(ctx context.Context, n int) error {
	d := min(pauseMin<<min(n, 10), pauseMax)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d/2 + rand.N(d/2+1)):
		return nil
	}
}

// call asks the supervisors until one answers, first the one that last answered.
func call[T any](ctx context.Context, c *Client, ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	return freshBy(ctx, c, nil, ask)
}

// freshBy is call. If isStale is set, it takes a stale answer only if no other supervisor has a fresh one.
func freshBy[T any](ctx context.Context, c *Client, isStale func(T) bool,
	ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	var zero T
	for round := 0; ; round++ {
		answer, _, tried, err := race(ctx, c, c.from(c.start()), isStale, func(ctx context.Context, conn *grpc.ClientConn) (T, error) {
			return ask(ctx, lofamov1.NewFaultSupervisorClient(conn))
		})
		if tried == nil {
			return answer, err
		}
		if round+1 >= c.cfg.Rounds {
			return zero, &NoAnswerError{tried}
		}
		if err := pause(ctx, round); err != nil {
			return zero, err
		}
	}
}

// try asks one supervisor.
func try[T any](ctx context.Context, c *Client, i int, ask func(context.Context, *grpc.ClientConn) (T, error)) (T, error) {
	var zero T
	conn, err := c.conn(i)
	if err != nil {
		return zero, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
	defer cancel()
	return ask(ctx, conn)
}

// ListEvents returns one page of committed changes, oldest first.
func (c *Client) ListEvents(ctx context.Context, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListEventsResponse, error) {
		return s.ListEvents(ctx, req)
	})
}

// ListReports returns the reports that the leader recently received and the delivery status of every node.
func (c *Client) ListReports(ctx context.Context, req *lofamov1.ListReportsRequest) (*lofamov1.ListReportsResponse, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListReportsResponse, error) {
		return s.ListReports(ctx, req)
	})
}

// ListSupervisors returns the replicas.
func (c *Client) ListSupervisors(ctx context.Context) (*lofamov1.ListSupervisorsResponse, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListSupervisorsResponse, error) {
		return s.ListSupervisors(ctx, &lofamov1.ListSupervisorsRequest{})
	})
}

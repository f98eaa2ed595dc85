// Package client asks the supervisors: it tries one replica after the other within bounded time,
// and keeps a watch going across them without losing or repeating a committed change.
//
// It knows addresses and a TLS configuration, not files or directories; internal/cluster and
// the programs find those. It decides nothing about the fault map.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Config says whom to ask.
type Config struct {
	// Targets are the gRPC addresses of the supervisors, host:port, at least one.
	Targets []string
	// TLS holds the client's certificate and the authority that the supervisors must be signed by.
	TLS *tls.Config
	// TryTimeout bounds one call to one supervisor; 3 s when zero.
	TryTimeout time.Duration
	// Silence is how long a watch may say nothing before the supervisor is asked whether it still works; 5 s
	// when zero.
	Silence time.Duration
}

// maxMessage bounds an answer: a list of 27,000 nodes with their evidence stays below it.
const maxMessage = 64 << 20

// Client is safe for concurrent use. It connects when first used.
type Client struct {
	cfg Config

	mu    sync.Mutex // guards the fields below
	conns []*grpc.ClientConn
	last  int // index of the target that answered last
}

// New checks the configuration. It does not connect.
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
	if cfg.TryTimeout == 0 {
		cfg.TryTimeout = 3 * time.Second
	}
	if cfg.Silence == 0 {
		cfg.Silence = 5 * time.Second
	}
	return &Client{cfg: cfg, conns: make([]*grpc.ClientConn, len(cfg.Targets))}, nil
}

// Close drops the connections.
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

// Answered returns the address of the supervisor that answered last: the next call begins with it, and so does the next watch.
func (c *Client) Answered() string { return c.cfg.Targets[c.start()] }

func (c *Client) stub(i int) (lofamov1.FaultSupervisorClient, error) {
	conn, err := c.conn(i)
	if err != nil {
		return nil, err
	}
	return lofamov1.NewFaultSupervisorClient(conn), nil
}

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

// NoAnswerError says that no supervisor answered, and what each said.
type NoAnswerError struct {
	Tried []Try
}

// Try is one supervisor that did not answer.
type Try struct {
	Target string
	Err    error
}

func (e *NoAnswerError) Error() string {
	var b strings.Builder
	b.WriteString("no supervisor answered; tried ")
	for i, t := range e.Tried {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (%s)", t.Target, reason(t.Err))
	}
	return b.String()
}

// Unwrap gives the errors of the single tries.
func (e *NoAnswerError) Unwrap() []error {
	out := make([]error, len(e.Tried))
	for i, t := range e.Tried {
		out[i] = t.Err
	}
	return out
}

// reason shortens gRPC's wording to what a person can use.
func reason(err error) string {
	st, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	msg := st.Message()
	if i := strings.LastIndex(msg, "transport: "); i >= 0 {
		msg = strings.Trim(msg[i+len("transport: "):], `"`)
	}
	if st.Code() == codes.DeadlineExceeded && strings.Contains(msg, context.DeadlineExceeded.Error()) {
		return "no answer in time" // else it is a supervisor's own word
	}
	return msg
}

// otherMayAnswer says whether another replica is worth asking after this error.
func otherMayAnswer(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Unknown, codes.Aborted, codes.Unimplemented, codes.ResourceExhausted:
		return true
	default:
		return false
	}
}

// call asks one supervisor after the other, beginning with the one that answered last.
func call[T any](ctx context.Context, c *Client, ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	var zero T
	var tried []Try
	first := c.start()
	for n := range c.cfg.Targets {
		i := (first + n) % len(c.cfg.Targets)
		answer, err := try(ctx, c, i, ask)
		if err == nil {
			c.answered(i)
			return answer, nil
		}
		if ctx.Err() != nil {
			return zero, ctx.Err()
		}
		if !otherMayAnswer(err) {
			return zero, err
		}
		tried = append(tried, Try{c.cfg.Targets[i], err})
	}
	return zero, &NoAnswerError{tried}
}

func try[T any](ctx context.Context, c *Client, i int, ask func(context.Context, lofamov1.FaultSupervisorClient) (T, error)) (T, error) {
	var zero T
	stub, err := c.stub(i)
	if err != nil {
		return zero, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.TryTimeout)
	defer cancel()
	return ask(ctx, stub)
}

// GetNode returns one node by id or coordinates.
func (c *Client) GetNode(ctx context.Context, node string) (*lofamov1.Node, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.Node, error) {
		return s.GetNode(ctx, &lofamov1.GetNodeRequest{Node: node})
	})
}

// ListEvents returns committed changes, oldest first.
func (c *Client) ListEvents(ctx context.Context, req *lofamov1.ListEventsRequest) (*lofamov1.ListEventsResponse, error) {
	return call(ctx, c, func(ctx context.Context, s lofamov1.FaultSupervisorClient) (*lofamov1.ListEventsResponse, error) {
		return s.ListEvents(ctx, req)
	})
}

// ListReports returns the reports that the leader has lately received, and how every node's fare.
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

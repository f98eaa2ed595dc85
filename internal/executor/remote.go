package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/response"
)

// RemoteKinds returns the kinds that an executor process may be configured for.
func RemoteKinds() []response.Kind {
	return []response.Kind{response.Command, response.PowerReset, response.SlurmDrain}
}

// Remote is a supervisor's client of the executor process: an executor whose attempts run in another process.
//
// It sends each attempt once. Without an answer it queries the outcome, which has no effect, and reports NotKnown if it
// cannot find out. It never repeats an attempt by itself.
type Remote struct {
	cluster string
	cfg     config.ExecutorClient // with defaults
	conn    *grpc.ClientConn
	client  lofamov1.ExecutorServiceClient
}

// NewRemote returns an executor that connects on first use with the supervisor's own certificate. It rejects a process whose
// certificate the registry revokes; a nil registry revokes none.
func NewRemote(cfg config.ExecutorClient, cluster string, tls config.SupervisorTLS, revoked *pki.Registry) (*Remote, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.Filled()
	conf, err := pki.ClientTLS(tls.Cert, tls.Key, tls.CA, pki.AllowRoles(pki.RoleExecutor))
	if err != nil {
		return nil, err
	}
	conf.ServerName = pki.ExecutorName(cluster)
	conf = revoked.WithTLS(conf)
	conn, err := grpc.NewClient("passthrough:///"+cfg.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithStatsHandler(sentHandler{}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: time.Duration(cfg.DialTimeout),
		}),
		// Detects a process that hangs, or whose host is gone, within 20 s.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("executor process %s: %w", cfg.Address, err)
	}
	return &Remote{cluster: cluster, cfg: cfg, conn: conn, client: lofamov1.NewExecutorServiceClient(conn)}, nil
}

// Close closes the connection. Running attempts continue at the other end.
func (x *Remote) Close() error { return x.conn.Close() }

// Deny sends the process the list of revoked certificates, a marshalled SignedDenyList. It skips a process of an earlier version,
// which has no such call, without an error: the caller repeats the list.
func (x *Remote) Deny(ctx context.Context, raw []byte) error {
	signed := new(lofamov1.SignedDenyList)
	if err := proto.Unmarshal(raw, signed); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(x.cfg.SettleTimeout))
	defer cancel()
	_, err := x.client.Deny(ctx, &lofamov1.ExecutorDenyRequest{Signed: signed})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// Do implements executor.Executor.
func (x *Remote) Do(ctx context.Context, j Job) Result {
	failpoint.Hit(failpoint.CallSending)
	defer func() { failpoint.Hit(failpoint.CallEnded) }()
	var sent atomic.Bool
	resp, err := x.client.Do(withSent(ctx, &sent), requestOf(ctx, j))
	if err == nil {
		return resultOf(resp)
	}
	if !sent.Load() {
		return Unchanged("executor process %s: %s", x.cfg.Address, said(err))
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return Unchanged("executor process %s: %s", x.cfg.Address, said(err))
	default:
		return x.settle(ctx, j, err)
	}
}

// Minimum and maximum pause between two queries for an outcome.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// Settle implements Settler.
func (x *Remote) Settle(ctx context.Context, j Job) Result {
	resp, err := x.ask(ctx, j, false)
	if err != nil {
		return NotKnown("executor process %s: it does not report the outcome: %s", x.cfg.Address, said(err))
	}
	r := resultOf(resp)
	if r.Outcome == response.StaleToken {
		return Unchanged("%s", r.Detail) // refused before it began
	}
	return r
}

// settle queries the outcome of an attempt after its answer was lost. Until the attempt's deadline it waits for the
// end. After the deadline or a cancellation it also stops the attempt. If this supervisor has lost leadership, the
// attempt continues, and the next leader asks for its outcome (Settle). A repeated query is safe: it never starts
// or repeats the attempt.
func (x *Remote) settle(ctx context.Context, j Job, lost error) Result {
	resp, err := x.ask(ctx, j, false)
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), ErrStopped):
		return NotKnown("executor process %s: it is not waited for any more, and may go on: %s", x.cfg.Address, said(lost))
	default:
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(x.cfg.SettleTimeout))
		defer cancel()
		if resp, err = x.ask(last, j, true); err == nil {
			break
		}
		return NotKnown("executor process %s: %s; the attempt's outcome: %s", x.cfg.Address, said(lost), said(err))
	}
	return resultOf(resp)
}

// ask repeats the query until it has an answer or ctx ends.
func (x *Remote) ask(ctx context.Context, j Job, stop bool) (resp *lofamov1.ExecutorDoResponse, err error) {
	req := &lofamov1.ExecutorSettleRequest{Attempt: attemptOf(j), Stop: stop}
	if !j.Began.IsZero() {
		req.Began = timestamppb.New(j.Began)
	}
	err = status.FromContextError(ctx.Err()).Err()
	for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, lastPause) {
		if resp, err = x.client.Settle(ctx, req); err == nil {
			return resp, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil, err
}

// said returns an error's message in one line.
func said(err error) string { return strings.Join(strings.Fields(status.Convert(err).Message()), " ") }

// requestOf returns the request; its timeout is the remaining time of the attempt.
func requestOf(ctx context.Context, j Job) *lofamov1.ExecutorDoRequest {
	timeout := j.Timeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	r := &lofamov1.ExecutorDoRequest{
		Attempt: attemptOf(j), IdempotencyKey: j.IdempotencyKey, Kind: string(j.Kind), Parameters: j.Parameters, Undo: j.Undo, Recheck: j.Recheck,
		TimeoutMs: uint64(max(timeout, time.Millisecond).Milliseconds()), //nolint:gosec // positive
		Cluster:   j.Cluster, Policy: j.Policy,
		Target: &lofamov1.ExecutorTarget{
			Group: j.Target.Group, State: lofamov1.State(j.Fault.State), Cause: lofamov1.Cause(j.Fault.Cause), Detail: j.Fault.Detail,
		},
	}
	if j.Target.Group == "" {
		r.Target.Node, r.Target.Component = string(j.Target.Node), j.Target.Component.String()
	}
	for _, m := range j.Members {
		r.Target.Members = append(r.Target.Members, string(m))
	}
	if !j.Fault.Since.IsZero() {
		r.Target.Since = timestamppb.New(j.Fault.Since)
	}
	return r
}

func attemptOf(j Job) *lofamov1.ExecutorAttempt {
	return &lofamov1.ExecutorAttempt{
		Response: j.Response, Step: uint32(j.Step), Attempt: uint32(j.Attempt.Attempt),
		Token: j.Token, //nolint:gosec // the engine's numbers are small
	}
}

// outcomes lists the known outcomes, with the numbers of response.Outcome. An outcome of a later version counts as
// NotKnown.
var outcomes = []lofamov1.ExecutorOutcome{
	lofamov1.ExecutorOutcome_SUCCEEDED, lofamov1.ExecutorOutcome_UNCHANGED, lofamov1.ExecutorOutcome_PARTLY,
	lofamov1.ExecutorOutcome_NOT_KNOWN, lofamov1.ExecutorOutcome_STALE_TOKEN,
}

func resultOf(r *lofamov1.ExecutorDoResponse) Result {
	if !slices.Contains(outcomes, r.GetOutcome()) {
		return NotKnown("the executor process says %s: %s", r.GetOutcome(), r.GetDetail())
	}
	return ResultOf(response.Outcome(r.GetOutcome()), r.GetDetail()) //nolint:gosec // one of those above
}

// sentHandler records when a request has left: before that it cannot have any effect.
type sentHandler struct{}

type sentKey struct{}

func withSent(ctx context.Context, sent *atomic.Bool) context.Context {
	return context.WithValue(ctx, sentKey{}, sent)
}

func (sentHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader, *stats.OutPayload:
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
		if _, whole := s.(*stats.OutPayload); whole {
			failpoint.Hit(failpoint.CallSent)
		}
	default:
	}
}

func (sentHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentHandler) HandleConn(context.Context, stats.ConnStats) {}

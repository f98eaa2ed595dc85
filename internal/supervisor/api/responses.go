package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Policies is the store of policies; see store.Etcd.
type Policies interface {
	Policies(ctx context.Context) (store.PolicySet, error)
	PolicySet(ctx context.Context) (store.PolicySet, error)
	PolicyHistory(ctx context.Context, name string) ([]store.StoredPolicy, error)
}

// Responses implements lofamov1.ResponseServiceServer.
type Responses struct {
	lofamov1.UnimplementedResponseServiceServer

	s        *Server
	policies Policies        // nil: a parent of regions
	service  respond.Service // nil: responses are switched off
	parsed   documents
	sources  response.Unconfigured // nil: all are configured
	notifier Notifier
	origin   string // of policies that only Keep changes; "": none
	keeping  sync.Mutex
	given    map[string]given // what Keep knows of objects, by name
	checks   *checks
	watched  watched
}

// watched caches the last read for all watchers: they need the same records at the same time, possibly thousands. A caller that
// has acquired turn owns the other fields.
type watched struct {
	turn    *semaphore.Weighted // of 1
	of      <-chan struct{}     // closed when the cache is outdated
	all     []*response.Response
	breaker response.Breaker
}

// NewResponses returns the service for a server. Without policies it serves a parent of regions, and without a
// responder a replica with responses switched off.
func NewResponses(s *Server, p Policies, r respond.Service) *Responses {
	return &Responses{s: s, policies: p, service: r, checks: newChecks(), watched: watched{turn: semaphore.NewWeighted(1)}}
}

// Which roles may make which requests. A replica forwards people's requests and makes none itself: otherwise one
// replica could act as any number of subjects.
var (
	operators = []pki.Role{pki.RoleOperator}
	approvers = []pki.Role{pki.RoleApprover}
	deniers   = []pki.Role{pki.RoleApprover, pki.RoleOperator}
)

// roleOf refuses a subject, "ROLE/NAME", whose role may not make the request.
func roleOf(by string, roles []pki.Role) error {
	role, _, _ := strings.Cut(by, "/")
	if slices.Contains(roles, pki.Role(role)) {
		return nil
	}
	var want []string
	for _, r := range roles {
		want = append(want, string(r))
	}
	return status.Errorf(codes.PermissionDenied, "role %s of %s may not make this request: want %s", role, by, strings.Join(want, " or "))
}

// parent refuses calls that a parent of regions cannot serve.
func (r *Responses) parent() error {
	if r.policies != nil {
		return nil
	}
	return cmp.Or(r.s.elsewhere(nil), errParent())
}

// ready refuses calls that need a responder.
func (r *Responses) ready() error {
	if err := r.parent(); err != nil {
		return err
	}
	if r.service == nil {
		return status.Error(codes.Unimplemented, "responses are switched off in this supervisor's configuration")
	}
	return nil
}

// read returns the committed responses and the breaker.
func (r *Responses) read(ctx context.Context) ([]*response.Response, response.Breaker, error) {
	if err := r.ready(); err != nil {
		return nil, response.Breaker{}, err
	}
	all, breaker, err := r.service.Responses(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = status.FromContextError(ctx.Err()).Err()
		} else {
			err = status.Error(codes.Unavailable, err.Error())
		}
		return nil, breaker, err
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, inOrder)
	return all, breaker, nil
}

// readOnce is read for watchers. changed must be obtained before the call. The result is shared.
func (r *Responses) readOnce(ctx context.Context, changed <-chan struct{}) ([]*response.Response, response.Breaker, error) {
	w := &r.watched
	if err := w.turn.Acquire(ctx, 1); err != nil {
		return nil, response.Breaker{}, status.FromContextError(err).Err()
	}
	defer w.turn.Release(1)
	if w.of != changed {
		all, breaker, err := r.read(ctx)
		if err != nil {
			return nil, breaker, err
		}
		w.of, w.all, w.breaker = changed, all, breaker
	}
	return w.all, w.breaker, nil
}

// inOrder is the order in which responses were proposed.
func inOrder(a, b *response.Response) int {
	at, an := idParts(a.ID)
	bt, bn := idParts(b.ID)
	return cmp.Or(cmp.Compare(at, bt), cmp.Compare(an, bn), cmp.Compare(a.ID, b.ID))
}

// idParts splits "r7-12": the leaders' tokens increase, and so do the numbers of each.
func idParts(id string) (token, number uint64) {
	t, n, _ := strings.Cut(strings.TrimPrefix(id, "r"), "-")
	token, _ = strconv.ParseUint(t, 10, 64)
	number, _ = strconv.ParseUint(n, 10, 64)
	return token, number
}

// responseFilter selects responses.
type responseFilter struct {
	node        fault.NodeID
	policy      string
	states      []lofamov1.ResponseState
	all, acting bool
}

func (r *Responses) filter(req *lofamov1.ListResponsesRequest) (f responseFilter, err error) {
	f = responseFilter{policy: req.GetPolicy(), states: req.GetStates(), all: req.GetAll(), acting: req.GetActing()}
	for _, st := range f.states {
		if _, ok := responseStates[st]; !ok {
			return f, invalid("states", "given %v: want one of %s", st, strings.Join(responseStateNames(), ", "))
		}
	}
	f.node, err = r.s.findOptional(req.GetNode())
	return f, err
}

func (f responseFilter) passes(r *response.Response) bool {
	return (f.all || r.Closed.IsZero()) && (!f.acting || r.Mode == response.Enforce) && (f.node == "" || f.node == r.Target.Node) &&
		(f.policy == "" || f.policy == r.Policy) &&
		(len(f.states) == 0 || slices.Contains(f.states, protoResponseState(r.State)))
}

// ListResponses implements the service.
func (r *Responses) ListResponses(ctx context.Context, req *lofamov1.ListResponsesRequest) (*lofamov1.ListResponsesResponse, error) {
	if err := r.ready(); err != nil {
		return nil, err
	}
	f, err := r.filter(req)
	if err != nil {
		return nil, err
	}
	all, breaker, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	resp := &lofamov1.ListResponsesResponse{Breaker: protoBreaker(breaker)}
	for _, is := range all {
		if f.passes(is) {
			resp.Responses = append(resp.Responses, protoResponse(is))
		}
	}
	return resp, nil
}

// GetResponse implements the service.
func (r *Responses) GetResponse(ctx context.Context, req *lofamov1.GetResponseRequest) (*lofamov1.Response, error) {
	return r.get(ctx, req.GetId())
}

// get returns one committed response.
func (r *Responses) get(ctx context.Context, id string) (*lofamov1.Response, error) {
	all, _, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(r *response.Response) bool { return r.ID == id })
	if i < 0 {
		return nil, status.Errorf(codes.NotFound, "response %.64q: there is none, or it is no longer kept", id)
	}
	return protoResponse(all[i]), nil
}

// watchPause is the minimum time between two answers to a watch. A watch may skip states in between.
const watchPause = 100 * time.Millisecond

// WatchResponses implements the service.
func (r *Responses) WatchResponses(req *lofamov1.WatchResponsesRequest,
	stream grpc.ServerStreamingServer[lofamov1.WatchResponsesResponse]) error {
	if err := r.ready(); err != nil {
		return err
	}
	f, err := r.filter(req.GetFilter())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	w := responseWatch{filter: f, known: map[string]uint64{}}
	for {
		changed := r.service.Changed()
		all, breaker, err := r.readOnce(ctx, changed)
		if err != nil {
			return err
		}
		if resp := w.next(all, breaker); resp != nil {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		pause := time.After(watchPause)
		if err := await(ctx, r.s.cfg.Stopping, changed); err != nil {
			return err
		}
		if err := await(ctx, r.s.cfg.Stopping, pause); err != nil {
			return err
		}
	}
}

// await waits for a channel, unless the call or this replica ends first.
func await[T any](ctx context.Context, stopping <-chan struct{}, next <-chan T) error {
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-stopping:
		return status.Error(codes.Unavailable, errStopping.Error())
	case <-next:
		return nil
	}
}

// responseWatch is the state of one watch.
type responseWatch struct {
	filter  responseFilter
	known   map[string]uint64 // version by id
	breaker response.Breaker
	begun   bool
}

// next returns the message for the present committed state, or nil if nothing changed.
func (w *responseWatch) next(all []*response.Response, breaker response.Breaker) *lofamov1.WatchResponsesResponse {
	resp := &lofamov1.WatchResponsesResponse{}
	there := make(map[string]bool, len(all))
	for _, r := range all {
		there[r.ID] = true
		was, known := w.known[r.ID]
		passes := w.filter.passes(r)
		if known && was == r.Version || !known && !passes {
			continue
		}
		resp.Responses = append(resp.Responses, protoResponse(r))
		if delete(w.known, r.ID); passes {
			w.known[r.ID] = r.Version
		}
	}
	for id := range w.known {
		if !there[id] {
			delete(w.known, id)
			resp.Gone = append(resp.Gone, id)
		}
	}
	slices.Sort(resp.Gone)
	if !w.begun || breaker != w.breaker {
		resp.Breaker = protoBreaker(breaker)
	} else if len(resp.GetResponses())+len(resp.GetGone()) == 0 {
		return nil
	}
	w.begun, w.breaker = true, breaker
	return resp
}

// word is a person's request.
type word struct {
	verb   response.Verb
	id     string // of a response; empty: the breaker
	reason string
	must   bool // a reason is required
	roles  []pki.Role
}

// askFor passes a person's request to the leader, and then answers with the result of done. It does not wait for a leader and repeats
// nothing: a leader that has just lost its term may have committed the request.
func askFor[R any](ctx context.Context, r *Responses, w word, done func(context.Context) (R, error),
	pass func(context.Context, lofamov1.ResponseServiceClient) (R, error)) (R, error) {
	var none R
	if err := r.ready(); err != nil {
		return none, err
	}
	if err := w.check(); err != nil {
		return none, err
	}
	return leadNow(ctx, r.s, changeTime, func(ctx context.Context, by string) (R, error) {
		if err := roleOf(by, w.roles); err != nil {
			return none, err
		}
		if err := r.service.Ask(ctx, response.Asked{Subject: by, Verb: w.verb, Response: w.id, Reason: w.reason}); err != nil {
			return none, r.refusal(ctx, w, err)
		}
		r.s.cfg.Logger.Info("a person's request for a response", "by", by, "verb", w.verb.String(), "response", w.id, "reason", w.reason)
		return done(ctx)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (R, error) {
		return pass(ctx, lofamov1.NewResponseServiceClient(conn))
	})
}

// maxResponseID bounds the name of a response, in bytes.
const maxResponseID = 64

// check refuses an invalid request.
func (w word) check() error {
	if n := len(w.id); w.verb != response.CloseBreaker && (n == 0 || n > maxResponseID) {
		return invalid("id", "given %.64q: want the id of a response, such as r7-12", w.id)
	}
	n, least := len(w.reason), 0
	if w.must {
		least = 1
	}
	if w.must && strings.TrimSpace(w.reason) == "" || n > maxReason || !fault.IsText(w.reason) {
		return invalid("reason", "given %d bytes, %.20q: want %d to %d without control characters", n, w.reason, least, maxReason)
	}
	return nil
}

// refusal returns the error for a person's refused request.
func (r *Responses) refusal(ctx context.Context, w word, err error) error {
	_, said := status.FromError(err)
	switch {
	case errors.Is(err, respond.ErrNotLeader):
		return engine.ErrNotLeading
	case errors.Is(err, respond.ErrUnsettled):
		return engine.ErrUnsettled
	case said, errors.Is(err, store.ErrConflict), errors.Is(err, engine.ErrUnsettled), errors.Is(err,
		engine.ErrNotLeading), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	if w.id != "" {
		if _, gone := r.get(ctx, w.id); status.Code(gone) == codes.NotFound {
			return gone
		}
	}
	return status.Errorf(codes.Aborted, "%v: nothing was changed", err)
}

// ApproveResponse implements the service.
func (r *Responses) ApproveResponse(ctx context.Context, req *lofamov1.ApproveResponseRequest) (*lofamov1.ApproveResponseResponse, error) {
	return askFor(ctx, r, word{response.Approve, req.GetId(), req.GetReason(), false, approvers},
		func(ctx context.Context) (*lofamov1.ApproveResponseResponse, error) {
			is, err := r.get(ctx, req.GetId())
			return &lofamov1.ApproveResponseResponse{Response: is}, err
		}, func(ctx context.Context, c lofamov1.ResponseServiceClient) (*lofamov1.ApproveResponseResponse, error) {
			return c.ApproveResponse(ctx, req)
		})
}

// DenyResponse implements the service.
func (r *Responses) DenyResponse(ctx context.Context, req *lofamov1.DenyResponseRequest) (*lofamov1.DenyResponseResponse, error) {
	return askFor(ctx, r, word{response.Deny, req.GetId(), req.GetReason(), true, deniers},
		func(ctx context.Context) (*lofamov1.DenyResponseResponse, error) {
			is, err := r.get(ctx, req.GetId())
			return &lofamov1.DenyResponseResponse{Response: is}, err
		}, func(ctx context.Context, c lofamov1.ResponseServiceClient) (*lofamov1.DenyResponseResponse, error) {
			return c.DenyResponse(ctx, req)
		})
}

// CancelResponse implements the service.
func (r *Responses) CancelResponse(ctx context.Context, req *lofamov1.CancelResponseRequest) (*lofamov1.CancelResponseResponse, error) {
	return askFor(ctx, r, word{response.Cancel, req.GetId(), req.GetReason(), true, operators},
		func(ctx context.Context) (*lofamov1.CancelResponseResponse, error) {
			is, err := r.get(ctx, req.GetId())
			return &lofamov1.CancelResponseResponse{Response: is}, err
		}, func(ctx context.Context, c lofamov1.ResponseServiceClient) (*lofamov1.CancelResponseResponse, error) {
			return c.CancelResponse(ctx, req)
		})
}

// RetryResponse implements the service.
func (r *Responses) RetryResponse(ctx context.Context, req *lofamov1.RetryResponseRequest) (*lofamov1.RetryResponseResponse, error) {
	return askFor(ctx, r, word{response.Retry, req.GetId(), req.GetReason(), false, operators},
		func(ctx context.Context) (*lofamov1.RetryResponseResponse, error) {
			is, err := r.get(ctx, req.GetId())
			return &lofamov1.RetryResponseResponse{Response: is}, err
		}, func(ctx context.Context, c lofamov1.ResponseServiceClient) (*lofamov1.RetryResponseResponse, error) {
			return c.RetryResponse(ctx, req)
		})
}

// SettleResponse implements the service.
func (r *Responses) SettleResponse(ctx context.Context, req *lofamov1.SettleResponseRequest) (*lofamov1.SettleResponseResponse, error) {
	verb := response.SettleNot
	if req.GetHappened() {
		verb = response.SettleHappened
	}
	return askFor(ctx, r, word{verb, req.GetId(), req.GetReason(), true, operators},
		func(ctx context.Context) (*lofamov1.SettleResponseResponse, error) {
			is, err := r.get(ctx, req.GetId())
			return &lofamov1.SettleResponseResponse{Response: is}, err
		}, func(ctx context.Context, c lofamov1.ResponseServiceClient) (*lofamov1.SettleResponseResponse, error) {
			return c.SettleResponse(ctx, req)
		})
}

// GetBreaker implements the service.
func (r *Responses) GetBreaker(ctx context.Context, _ *lofamov1.GetBreakerRequest) (*lofamov1.ResponseBreaker, error) {
	_, breaker, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	return protoBreaker(breaker), nil
}

// CloseBreaker implements the service.
func (r *Responses) CloseBreaker(ctx context.Context, req *lofamov1.CloseBreakerRequest) (*lofamov1.CloseBreakerResponse, error) {
	return askFor(ctx, r, word{response.CloseBreaker, "", req.GetReason(), true, operators},
		func(ctx context.Context) (*lofamov1.CloseBreakerResponse, error) {
			breaker, err := r.GetBreaker(ctx, nil)
			return &lofamov1.CloseBreakerResponse{Breaker: breaker}, err
		}, func(ctx context.Context, c lofamov1.ResponseServiceClient) (*lofamov1.CloseBreakerResponse, error) {
			return c.CloseBreaker(ctx, req)
		})
}

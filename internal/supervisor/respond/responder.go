package respond

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/notify"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// Store is the part of the store that the responder uses. Its methods block until the store answers or the context
// ends. Methods that read this replica's own copy need no quorum.
type Store interface {
	LoadResponses(ctx context.Context) (store.Responses, error) // as new as the cluster's
	ResponseWriter(fence store.Fence, from store.Responses, limits store.AuditLimits) *store.ResponseWriter
	Confirm(ctx context.Context, fence store.Fence) (store.Standing, error)

	OwnResponses(ctx context.Context) (store.Responses, error)
	Audit(ctx context.Context, from uint64, limit int) ([]response.AuditLine, store.AuditHead, error)
	FollowResponses(ctx context.Context, changed func()) error
	Policies(ctx context.Context) (store.PolicySet, error)
	WatchPolicies(ctx context.Context, each func(store.PolicySet)) error
	Maintenance(ctx context.Context) ([]store.Mark, uint64, error)
	FollowMaintenance(ctx context.Context, each func([]store.Mark, uint64)) error
}

// Awareness gives the responder the leader's evidence. Both methods block for a moment.
type Awareness interface {
	// Map returns the map as confirmed by a quorum. It fails while this replica does not lead, or has not begun to.
	Map(ctx context.Context) (view.Map, error)
	// Evidence returns the current evidence for the faults of these targets, with the states that it supports. It leaves
	// out targets that have no fault any more.
	Evidence(ctx context.Context, targets []response.Target) map[response.Target]response.Seen
}

// Config of a responder.
type Config struct {
	Cluster   string
	Limits    response.Config
	Audit     store.AuditLimits
	Store     Store
	Awareness Awareness
	Incidents *store.IncidentFeed // that the owner runs
	// Supervisors returns the replicas, where they run and which of them live.
	Supervisors func() []response.SupervisorInfo
	// Executors by kind. A step of any other kind fails with an error that says so.
	Executors map[response.Kind]executor.Executor
	// Targets are the names of the targets in the configuration, which policies may name besides the stored ones.
	Targets []string
	// SetTargets receives the stored targets, before any policy that names them is in force; nil: nothing does. It does not block.
	SetTargets func([]notify.Target)
	// Unconfigured returns the missing configuration key of a source of outside conditions; nil: all sources are configured.
	Unconfigured response.Unconfigured
	Metrics      *Metrics
	Logger       *slog.Logger
}

// Responder owns the engine of responses.
//
//	map, marks, policies, people, results ──► queue ──► engine ──► records and audit ──► store
//	                                                       │                               │ committed
//	                                                       └──────────── effects ──────────┴──► executors ──► results
//
// Run's goroutine owns the engine: it takes all queued inputs, steps the engine through them, and commits the result
// in one transaction. Later inputs wait for the next round. On a replica that does not lead, the engine only follows
// the map.
type Responder struct {
	cfg    Config
	engine *response.Engine
	feed   feed
	runner *runner
	queue  queue

	policies, marks latest

	term    *term // nil: not leading; only for Run
	leads   atomic.Bool
	broken  atomic.Bool                      // the newest term could not continue from the committed state
	breaker atomic.Pointer[response.Breaker] // nil: not leading
	now     time.Time                        // of the events that the engine is given; only for Run
	wake    time.Time
	told    []response.SupervisorInfo

	again   time.Duration // leadAgain, except in tests
	stopped chan struct{} // closed when Run has returned

	mu      sync.Mutex
	changed chan struct{} // see Changed
	trouble string        // the last trouble logged, while it lasts

	sources sourceNeeds

	hook func(failpoint.Point) // for tests; may be nil
}

// term is one term of leadership.
type term struct {
	ctx     context.Context //nolint:containedctx // a term is what ends with it
	fence   store.Fence
	begin   beginning
	writer  *store.ResponseWriter
	ended   chan struct{} // closed when the engine has lost the lead
	brought error         // why it did nothing at all
}

// beginning is the state with which a term begins.
type beginning struct {
	committed store.Responses
	at        view.Map
	sets      []input // policies and maintenance marks
}

// New returns a responder that follows nothing yet.
func New(cfg Config) (*Responder, error) {
	e, err := response.New(cfg.Limits)
	if err != nil {
		return nil, err
	}
	r := &Responder{cfg: cfg, engine: e, feed: newFeed(), again: leadAgain, stopped: make(chan struct{}), changed: make(chan struct{})}
	r.queue.signal = make(chan struct{}, 1)
	r.runner = newRunner(r)
	return r, nil
}

// at marks a step at which a failure may be injected.
func (r *Responder) at(p failpoint.Point) {
	failpoint.Hit(p)
	if r.hook != nil {
		r.hook(p)
	}
}

// supervisorsEvery is how often a leader checks where the replicas run.
const supervisorsEvery = time.Second

// followAgain is the pause before a failed watch is restarted.
const followAgain = 200 * time.Millisecond

// Run works until the context ends. It then waits up to stopTime for running attempts: an attempt that ignores its
// context continues until the process ends.
func (r *Responder) Run(ctx context.Context) {
	defer close(r.stopped)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.follow(ctx, &wg, "policies", func() error {
		return r.cfg.Store.WatchPolicies(ctx, func(set store.PolicySet) {
			r.queue.put(r.policiesInput(set))
		})
	})
	r.follow(ctx, &wg, "maintenance marks", func() error {
		return r.cfg.Store.FollowMaintenance(ctx, func(marks []store.Mark, rev uint64) {
			r.queue.put(input{event: response.MaintenanceChanged{Nodes: marked(marks)}, set: &r.marks, rev: rev})
		})
	})
	r.follow(ctx, &wg, "incidents", func() error { return r.followIncidents(ctx) })
	r.follow(ctx, &wg, "responses", func() error { return r.cfg.Store.FollowResponses(ctx, r.announce) })
	timer, replicas := time.NewTimer(0), time.NewTicker(supervisorsEvery)
	defer timer.Stop()
	defer replicas.Stop()
	for {
		look := false
		select {
		case <-ctx.Done():
			r.lose(nil)
			if !r.runner.wait(stopTime) {
				r.cfg.Logger.Warn("an executor continues after the request to end", "waited", stopTime)
			}
			return
		case <-r.queue.signal:
		case <-timer.C:
		case <-replicas.C:
			look = true
		}
		r.turn(look)
		timer.Stop()
		if r.term != nil && !r.wake.IsZero() {
			timer.Reset(max(0, time.Until(r.wake)))
		}
	}
}

// follow calls once repeatedly until the context ends.
func (r *Responder) follow(ctx context.Context, wg *sync.WaitGroup, what string, once func() error) {
	wg.Go(func() {
		for ctx.Err() == nil {
			err := once()
			if ctx.Err() == nil {
				r.cfg.Logger.Debug("following ended", "what", what, "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(followAgain):
			}
		}
	})
}

// announce notifies waiters that records have changed.
func (r *Responder) announce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Changed implements Service.
func (r *Responder) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// policiesInput returns policies and the targets that they may name as an input of the engine.
func (r *Responder) policiesInput(set store.PolicySet) input {
	ev := r.compile(set.Policies)
	ev.Targets = map[string]uint64{}
	for _, t := range set.Targets {
		ev.Targets[t.Name] = t.Revision
	}
	for _, name := range r.cfg.Targets {
		ev.Targets[name] = 1
	}
	return input{event: ev, set: &r.policies, rev: set.Revision, receivers: set.Receivers()}
}

// compile parses policies. For an unreadable policy, damaged or written by another version, it gives the engine the
// name: such a policy was not withdrawn.
func (r *Responder) compile(stored []store.StoredPolicy) response.PoliciesChanged {
	var out response.PoliciesChanged
	for _, p := range stored {
		docs, err := policy.Parse(p.JSON)
		if err != nil {
			out.Unread = append(out.Unread, p.Name)
			r.cfg.Logger.Error("a policy cannot be read: it begins nothing new here", "policy", p.Name, "version", p.Version, "err", err)
			continue
		}
		out.Policies = append(out.Policies, policy.Policies(docs)...)
	}
	return out
}

// take keeps a version of a set unless the engine has a newer one, and reports whether it did. Only Run's goroutine calls it.
func (r *Responder) take(in input) bool {
	if !in.set.take(in) {
		return false
	}
	if p, ok := in.event.(response.PoliciesChanged); ok {
		r.cfg.Metrics.policies(p.Policies, len(p.Unread))
		r.sources.set(p.Policies)
		r.WarnSources()
		if r.cfg.SetTargets != nil {
			r.cfg.SetTargets(in.receivers)
		}
	}
	return true
}

func marked(marks []store.Mark) []fault.NodeID {
	out := make([]fault.NodeID, len(marks))
	for i, m := range marks {
		out[i] = fault.NodeID(m.GetNode())
	}
	return out
}

// MapChanged reports a new version of this replica's copy of the map, and the changed nodes; nil: all may have
// changed. It does not block.
func (r *Responder) MapChanged(m view.Map, changed []fault.NodeID) { r.queue.putMap(m, changed) }

// OutsideChanged reports conditions of nodes that other programs have set. It does not block.
func (r *Responder) OutsideChanged(ev response.OutsideChanged) { r.queue.put(input{event: ev}) }

// Leading reports whether this replica's engine decides.
func (r *Responder) Leading() bool { return r.leads.Load() }

// Trouble returns, in words, any trouble on a leader that needs a person: the responder handles no faults, or does
// not do what policies want.
func (r *Responder) Trouble() (broken bool, breaker string) {
	if b := r.breaker.Load(); b != nil && b.Open {
		breaker = b.Detail
	}
	return r.broken.Load(), breaker
}

// Ask implements Service.
func (r *Responder) Ask(ctx context.Context, a response.Asked) error {
	if !r.Leading() {
		return ErrNotLeader
	}
	reply := make(chan error, 1)
	if !r.queue.put(input{event: a, reply: reply}) {
		return fmt.Errorf("%w: it has too much to do", ErrNotLeader)
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-r.stopped:
		select {
		case err := <-reply:
			return err
		default:
			return ErrUnsettled
		}
	}
}

// Responses implements Service. It leaves out unreadable records, which the leader logs.
func (r *Responder) Responses(ctx context.Context) ([]*response.Response, response.Breaker, error) {
	own, err := r.cfg.Store.OwnResponses(ctx)
	if err != nil {
		return nil, response.Breaker{}, err
	}
	list, breaker := apart(own.Records)
	return list, breaker, nil
}

func apart(records []response.Record) (list []*response.Response, b response.Breaker) {
	for _, rec := range records {
		switch rec := rec.(type) {
		case *response.Response:
			list = append(list, rec)
		case *response.Breaker:
			b = *rec
		}
	}
	return list, b
}

// Audit implements Service.
func (r *Responder) Audit(ctx context.Context, from uint64, limit int) ([]AuditLine, error) {
	lines, _, err := r.cfg.Store.Audit(ctx, from, limit)
	return lines, err
}

// AuditHead returns the head of the audit and how much was cut off, on any replica.
func (r *Responder) AuditHead(ctx context.Context) (store.AuditHead, error) {
	_, head, err := r.cfg.Store.Audit(ctx, 0, 0)
	return head, err
}

// Active implements executor.Active.
func (r *Responder) Active(ctx context.Context, kinds ...response.Kind) ([]executor.Job, bool, error) {
	if !r.Leading() {
		return nil, false, nil
	}
	own, err := r.cfg.Store.OwnResponses(ctx)
	if err != nil {
		return nil, false, err
	}
	list, _ := apart(own.Records)
	members := func(string) []fault.NodeID { return nil }
	if m, err := r.cfg.Awareness.Map(ctx); err == nil {
		members = func(id string) []fault.NodeID {
			g, _ := m.Group(id)
			return g.Members
		}
	}
	jobs := onePerIncident(executor.StandingJobs(r.cfg.Cluster, list, members, kinds...), own.Records)
	standing := r.standing()
	for i := range jobs { // words that came after the alert go out with its next repetition
		jobs[i].Fault = described(jobs[i].Fault, jobs[i].Target, deathOf(standing, jobs[i].Target))
	}
	return jobs, r.Leading(), nil
}

// errLost is returned to people whose request was not committed.
var errLost = errors.New("its consequences are not committed")

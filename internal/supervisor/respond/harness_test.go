package respond

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// lab is a cluster without its nodes: a real store, a map that tests write, and executors that outlive the leaders.
type lab struct {
	t     testing.TB
	c     *clientv3.Client
	store labStore
	plant *plant
	names *view.Names
	limit response.Config
	lives int // number of faults played so far

	executor executor.Executor // of commands: the plant, in one of its forms

	mu       sync.Mutex
	builder  *view.Builder
	now      view.Map
	live     []*replica
	evidence response.Evidence // for every target; At is filled in
	state    fault.State       // that the evidence supports; 0: not known
	blind    bool              // there is no evidence
	stored   bool              // committed faults carry evidence
	asked    int               // number of targets in requests for evidence
}

// labStore is the real store, except that it holds the policies itself.
type labStore struct {
	*store.Etcd

	policies  *[]store.StoredPolicy
	read      func() ([]store.StoredPolicy, uint64) // Policies; nil: it returns policies
	follow    func(each func(store.PolicySet))      // WatchPolicies until the context ends; nil: it calls each once
	confirmed *atomic.Int64                         // number of Confirm calls
}

func (s labStore) Confirm(ctx context.Context, fence store.Fence) (store.Standing, error) {
	s.confirmed.Add(1)
	return s.Etcd.Confirm(ctx, fence)
}

func (s labStore) Policies(context.Context) (store.PolicySet, error) {
	if s.read != nil {
		stored, revision := s.read()
		return store.PolicySet{Policies: stored, Revision: revision}, nil
	}
	return store.PolicySet{Policies: *s.policies, Revision: 1}, nil
}

func (s labStore) WatchPolicies(ctx context.Context, each func(store.PolicySet)) error {
	if s.follow != nil {
		s.follow(each)
	} else {
		each(store.PolicySet{Policies: *s.policies, Revision: 1})
	}
	<-ctx.Done()
	return ctx.Err()
}

// quick returns limits under which nothing waits.
func quick() response.Config {
	c := response.Default()
	c.MaxNodes, c.MaxPercent, c.MaxPerDomain, c.MaxPerPlane, c.Rate, c.NotifyRate, c.BreakerPercent, c.BreakerNodes = 1000, 100, 1000, 1000,
		100_000, 1<<20, 50, 1000
	c.Grace, c.StormDelay, c.Cooldown = 0, 0, 0
	c.LookAgain, c.RetryAfter, c.RetryMost = 5*time.Millisecond, time.Millisecond, time.Millisecond
	return c
}

const cordonAndTell = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: cordon}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: tell, executor: kubernetes.event, parameters: {reason: Memory}, timeout: 20s, retries: 10}
  - {name: cordon, executor: kubernetes.cordon, timeout: 20s, retries: 10}
  undo: {onRecovery: true, after: 1ms}
`

const reseat = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: reseat}
spec:
  mode: enforce
  match: fault.component == "memory" && fault.state == "FAILED"
  steps:
  - {name: reseat, executor: command, parameters: {command: reseat}, timeout: 20s, retries: 2}
`

func newLab(t testing.TB, dims grid.Dims, policies string) *lab {
	t.Helper()
	docs, err := policy.Parse([]byte(policies))
	must(t, err)
	var stored []store.StoredPolicy
	for _, d := range docs {
		stored = append(stored, store.StoredPolicy{Name: d.Name, Version: 1, JSON: d.JSON})
	}
	ids := map[grid.Coord]fault.NodeID{}
	for rank := range dims.Nodes() {
		ids[dims.At(rank)] = fault.DefaultNodeID(dims.At(rank))
	}
	e := supervisortest.NewEtcd(t, 1)
	l := &lab{t: t, c: e.Members[0].Client(), names: view.NewNames(dims, ids), limit: quick(),
		evidence: response.Evidence{Kind: fault.KindSelf, Own: true}}
	l.store = labStore{Etcd: store.NewEtcd(l.c, store.Options{MaxOps: 1000}), policies: &stored, confirmed: new(atomic.Int64)}
	l.plant = &plant{l: l, acts: map[string]int{}, on: map[string]bool{}, admitted: map[response.Attempt]int{}}
	l.executor = l.plant
	l.builder = view.NewBuilder(l.names, time.Now())
	for rank := range dims.Nodes() {
		l.set(ids[dims.At(rank)], fault.Normal)
	}
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// set makes a node's memory FAILED, or the whole node NORMAL, and notifies all replicas.
func (l *lab) set(id fault.NodeID, memory fault.State) {
	l.mu.Lock()
	at, ok := l.names.Coord(id)
	if !ok {
		l.t.Fatalf("no node %s", id)
	}
	revision := l.now.Revision + 1
	now := time.Now()
	st := awareness.NodeStatus{ID: id, Coord: at, State: fault.Normal, Cause: fault.CauseNone, Since: now, HostEpoch: 1, DNPEpoch: 1}
	for c := fault.ComponentHost; c.Valid(); c++ {
		if _, link := c.LinkDirection(); !link {
			st.Components = append(st.Components, awareness.ComponentStatus{Component: c, State: fault.Normal, Cause: fault.CauseNone, Since: now})
			if c == fault.ComponentMemory && memory != fault.Normal {
				st.Components[len(st.Components)-1].State, st.Components[len(st.Components)-1].Cause = memory, c.Cause()
			}
		}
	}
	entry := view.Entry{Status: st, Revision: revision}
	if l.stored && memory != fault.Normal {
		ev := l.evidence
		ev.At, ev.Witnesses = now, []string{string(id) + "/host"}
		entry.Faults = []view.FaultEvidence{{Component: fault.ComponentMemory, State: memory, Evidence: ev}}
	}
	if !l.builder.Set(entry) {
		l.t.Fatalf("no place for %s", id)
	}
	l.now = l.builder.Map(revision)
	m, live := l.now, l.live
	l.mu.Unlock()
	for _, r := range live {
		r.MapChanged(m, []fault.NodeID{id})
	}
}

// Map implements Awareness.
func (l *lab) Map(context.Context) (view.Map, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, nil
}

// Evidence implements Awareness.
func (l *lab) Evidence(_ context.Context, targets []response.Target) map[response.Target]response.Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[response.Target]response.Seen{}
	l.asked += len(targets)
	for _, target := range targets {
		if _, twice := out[target]; twice {
			l.t.Errorf("one request for evidence names %s twice", target)
		}
		if ev := l.evidence; !l.blind {
			ev.At, ev.Witnesses = time.Now(), []string{string(target.Node) + "/host"}
			out[target] = response.Seen{Target: target, State: l.state, Evidence: ev}
		}
	}
	return out
}

// elect replaces the election key and so deposes the previous leader.
func (l *lab) elect() store.Fence {
	l.t.Helper()
	const key = store.ElectionPrefix + "/test"
	_, err := l.c.Delete(l.t.Context(), key)
	must(l.t, err)
	resp, err := l.c.Put(l.t.Context(), key, "s")
	must(l.t, err)
	return store.Fence{Key: key, Rev: resp.Header.Revision}
}

// replica is one responder with its goroutines and an injected failure.
type replica struct {
	*Responder

	incidents *store.IncidentFeed

	name   string
	fence  store.Fence
	gather prometheus.Gatherer
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	point   failpoint.Point
	left    int           // hits until it stops
	hit     chan struct{} // closed when it has stopped
	release chan struct{} // closed when it resumes
	halted  bool          // all points block
	dead    bool          // it never resumes
}

// start starts a replica that leads at once. It stops, with all its work, when it reaches the point for the n-th
// time; n 0: never.
func (l *lab) start(point failpoint.Point, n int) *replica {
	l.t.Helper()
	r := &replica{point: point, left: n, hit: make(chan struct{}), release: make(chan struct{}), fence: l.elect()}
	r.name = fmt.Sprintf("leader %d", r.fence.Rev)
	logger, registry := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	r.gather = registry
	r.incidents = store.NewIncidentFeed(l.store.Etcd, logger)
	var err error
	r.Responder, err = New(Config{
		Cluster: "test", Limits: l.limit, Store: l.store, Incidents: r.incidents, Awareness: l, Metrics: NewMetrics(registry), Logger: logger,
		Supervisors: func() []response.SupervisorInfo { return []response.SupervisorInfo{{ID: "s1", Alive: true}} },
		Executors: map[response.Kind]executor.Executor{
			response.KubernetesEvent: l.plant, response.KubernetesCordon: l.plant, response.Command: l.executor,
		},
	})
	must(l.t, err)
	r.hook, r.again = r.pass, 20*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	l.mu.Lock()
	l.live = append(l.live, r)
	m := l.now
	l.mu.Unlock()
	r.MapChanged(m, nil)
	r.wg.Go(func() { r.incidents.Run(ctx) })
	r.wg.Go(func() { r.Run(ctx) })
	r.wg.Go(func() { r.Lead(ctx, r.fence) })
	return r
}

// gauge returns the value of one of its gauges or counters.
func (r *replica) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.gather.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no gauge %s", name)
	return 0
}

// counted returns the value of one of its counters with one label.
func (r *replica) counted(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := r.gather.Gather()
	must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no counter %s of %s", name, label)
	return 0
}

// pass is the hook of its failpoints.
func (r *replica) pass(p failpoint.Point) {
	r.mu.Lock()
	if r.left > 0 && p == r.point {
		if r.left--; r.left == 0 {
			r.halted = true
			close(r.hit)
		}
	}
	halted, release := r.halted, r.release
	r.mu.Unlock()
	if !halted {
		return
	}
	<-release
	r.mu.Lock()
	dead := r.dead
	r.mu.Unlock()
	if dead {
		runtime.Goexit() // only now, so that nothing else notices
	}
}

// goOn resumes a stopped replica and waits until it has done all it can. Its fence is gone, which it notices only
// when it commits.
func (l *lab) goOn(r *replica) {
	l.t.Helper()
	r.mu.Lock()
	was := r.halted && !r.dead
	if was {
		r.halted = false
		close(r.release)
	}
	r.mu.Unlock()
	if !was {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), supervisortest.Wait)
	defer cancel()
	for range 2 { // once for the effects begun, once for their results
		r.runner.wait(supervisortest.Wait)
		if err := r.Ask(ctx, response.Asked{Subject: "nobody", Verb: response.CloseBreaker}); err == nil || ctx.Err() != nil {
			l.t.Fatalf("%s: %v", r.name, err)
		}
	}
}

// end ends a replica for good. A stopped replica does nothing more.
func (l *lab) end(r *replica) {
	l.mu.Lock()
	var live []*replica
	for _, o := range l.live {
		if o != r {
			live = append(live, o)
		}
	}
	l.live = live
	l.mu.Unlock()
	r.mu.Lock()
	r.left = 0 // points that it reaches while it ends do not count
	if r.halted {
		r.dead = true
		close(r.release)
	}
	r.mu.Unlock()
	r.cancel()
	done := make(chan struct{})
	go func() {
		r.wg.Wait()
		r.runner.wait(supervisortest.Wait)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(supervisortest.Wait):
		l.t.Fatalf("%s does not end\n%s", r.name, stacks())
	}
}

// stacks returns what all goroutines do: a wait that fails is hard to explain without it.
func stacks() string {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // into memory it does not fail
	return b.String()
}

// committed reads the newest committed records and the breaker.
func (l *lab) committed() ([]*response.Response, response.Breaker) {
	l.t.Helper()
	got, err := l.store.LoadResponses(context.Background())
	must(l.t, err)
	if got.Unread != nil {
		l.t.Fatal(errors.Join(got.Unread...))
	}
	return apart(got.Records)
}

// await waits until a committed response satisfies want, or until also is closed (false).
func (l *lab) await(what string, also <-chan struct{}, want func(*response.Response) bool) (*response.Response, bool) {
	l.t.Helper()
	var found *response.Response
	ok := l.awaitAll(what, also, func(list []*response.Response) bool {
		if i := slices.IndexFunc(list, want); i >= 0 {
			found = list[i]
		}
		return found != nil
	})
	return found, ok
}

// awaitAll waits until the committed responses satisfy want, or until also is closed (false).
func (l *lab) awaitAll(what string, also <-chan struct{}, want func([]*response.Response) bool) bool {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), supervisortest.Wait)
	defer cancel()
	w := l.c.Watch(ctx, store.Prefix+"responses/head", clientv3.WithCreatedNotify())
	for {
		list, _ := l.committed()
		if want(list) {
			return true
		}
		select {
		case <-also:
			return false
		case _, ok := <-w:
			if !ok {
				for _, r := range list {
					l.t.Logf("%+v", *r)
				}
				l.t.Fatalf("%s: not within %s\n%s", what, supervisortest.Wait, stacks())
			}
		}
	}
}

// verify verifies the audit chain from end to end and returns its lines.
func (l *lab) verify() []response.AuditLine {
	l.t.Helper()
	lines, head, err := l.store.Audit(context.Background(), 0, 1<<30)
	must(l.t, err)
	var c response.AuditChecker
	for _, line := range lines {
		text, err := line.Marshal()
		must(l.t, err)
		must(l.t, c.Check(text))
	}
	if seq, hash := c.Last(); seq != head.Last || hash != fmt.Sprintf("%x", head.Hash) {
		l.t.Fatalf("the newest line is %d %s: the head says %+v", seq, hash, head)
	}
	return lines
}

// plant is the system that executors act on. It outlives the leaders, and guards as an executor should.
type plant struct {
	l     *lab
	guard executor.Guard

	mu       sync.Mutex
	newest   uint64                   // token
	admitted map[response.Attempt]int // number of times
	acts     map[string]int           // number of acts, by response, step and direction
	on       map[string]bool          // acts that stand, by response and step
	wrong    []string
	refused  int // because of its token
}

func (p *plant) bad(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrong = append(p.wrong, fmt.Sprintf(format, args...))
}

// acted returns the total number of acts.
func (p *plant) acted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, k := range p.acts {
		n += k
	}
	return n
}

// reset forgets all acts.
func (p *plant) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.acts)
	clear(p.on)
}

// Do implements executor.Executor.
func (p *plant) Do(_ context.Context, j executor.Job) executor.Result {
	p.intended(j)
	if r, ok := p.guard.Admit(j.Effect); !ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.Outcome == response.StaleToken {
			p.refused++
		}
		return r
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.admitted[j.Attempt]++; p.admitted[j.Attempt] > 1 {
		p.wrong = append(p.wrong, fmt.Sprintf("attempt %+v was made twice", j.Attempt))
	}
	if j.Token < p.newest {
		p.wrong = append(p.wrong, fmt.Sprintf("attempt %+v under token %d after %d", j.Attempt, j.Token, p.newest))
	}
	p.newest = j.Token
	key := fmt.Sprintf("%s/%d", j.Response, j.Step)
	if p.on[key] != j.Undo && j.Kind.Traits().Repeatable { // already in the desired state
		return executor.Done("it was so already")
	}
	p.on[key] = !j.Undo
	p.acts[j.IdempotencyKey]++
	return executor.Done("done")
}

// remembering is the plant as an executor that remembers its attempts.
type remembering struct{ *plant }

// Settle implements executor.Settler.
func (p remembering) Settle(_ context.Context, j executor.Job) executor.Result {
	p.intended(j)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.admitted[j.Attempt] > 0 {
		return executor.Done("it was made")
	}
	if r, ok := p.guard.Admit(j.Effect); !ok {
		return r
	}
	return executor.Unchanged("it never came")
}

// intended checks that the intent of an executor's job is committed.
func (p *plant) intended(j executor.Job) {
	key := (&response.Response{ID: j.Response}).Key()
	resp, err := p.l.c.Get(context.Background(), store.Prefix+"responses/records/"+key)
	if err == nil && len(resp.Kvs) == 1 {
		var rec response.Record
		if rec, err = store.DecodeRecord(key, resp.Kvs[0].Value); err == nil {
			if r := rec.(*response.Response); j.Step < len(r.Steps) && r.Steps[j.Step].Attempt >= j.Attempt.Attempt {
				return
			}
		}
	}
	p.bad("attempt %+v is not committed: %v", j.Attempt, err)
}

// check checks that no act was done twice, and that the records know every act that stands.
func (l *lab) check(what string) {
	l.t.Helper()
	p := l.plant
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.wrong {
		l.t.Errorf("%s: %s", what, w)
	}
	for key, n := range p.acts {
		if n > 1 {
			l.t.Errorf("%s: %s was done %d times", what, key, n)
		}
	}
	list, _ := l.committed()
	known := map[string]bool{}
	for _, r := range list {
		for i, s := range r.Steps {
			key := fmt.Sprintf("%s/%d", r.ID, i)
			known[key] = s.Attempt > 0
			if p.on[key] && !s.Changed {
				l.t.Errorf("%s: %s stands, and its record says that nothing was changed: %+v", what, key, s)
			}
		}
	}
	for key := range p.on {
		if !known[key] {
			l.t.Errorf("%s: %s was done, and nobody knows", what, key)
		}
	}
}

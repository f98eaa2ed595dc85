package respond

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/storetest"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

var _ Service = (*Responder)(nil)

// waits returns a condition: the response waits for a reason.
func waits(reason response.Reason) func(*response.Response) bool {
	return func(r *response.Response) bool { return r.State == response.Waiting && r.Reason == reason }
}

func state(s response.State) func(*response.Response) bool {
	return func(r *response.Response) bool { return r.State == s }
}

// An act whose result cannot be checked is done once, wherever the leader fails. If the executor remembers its attempts, the
// response ends without a person. Otherwise it has ended, or a person settles it.
func TestUncheckableActIsDoneOnce(t *testing.T) {
	for name, remembers := range map[string]bool{"the executor remembers": true, "the executor forgets": false} {
		t.Run(name, func(t *testing.T) { uncheckable(t, remembers) })
	}
}

func uncheckable(t *testing.T, remembers bool) {
	l := newLab(t, grid.Dims{X: 4, Y: 4, Z: 1}, reseat)
	if remembers {
		l.executor = remembering{l.plant}
	}
	for i, tc := range []struct {
		point failpoint.Point
		n     int
		done  int // number of acts so far
		asks  bool
	}{
		{failpoint.ResponderDecided, 1, 0, false}, {failpoint.ResponderCommitted, 1, 0, true}, {failpoint.ResponderStarting, 1, 0, true},
		{failpoint.ResponderEnded, 1, 1, true}, {failpoint.ResponderResult, 1, 1, true}, {failpoint.ResponderCommitted, 2, 1, false},
	} {
		what := fmt.Sprintf("%s, time %d", tc.point, tc.n)
		l.plant.reset()
		id := fault.DefaultNodeID(grid.Coord{X: i % 4, Y: i / 4})
		mine := func(want func(*response.Response) bool) func(*response.Response) bool {
			return func(r *response.Response) bool { return r.Target.Node == id && want(r) }
		}
		first := l.start(tc.point, tc.n)
		l.set(id, fault.Failed)
		<-first.hit
		if n := l.plant.acted(); n != tc.done {
			t.Errorf("%s: done %d times", what, n)
		}
		second := l.start("", 0)
		if tc.asks && !remembers {
			r, _ := l.await(what, nil, mine(waits(response.ReasonOutcome)))
			if err := second.Ask(t.Context(), response.Asked{Subject: "operator/ann", Verb: response.SettleNot, Response: r.ID,
				Reason: "looked"}); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			tc.done++ // repeated, as a person decided
		}
		l.await(what, nil, mine(state(response.Done)))
		if n := l.plant.acted(); n != max(tc.done, 1) {
			t.Errorf("%s: done %d times, want %d", what, n, max(tc.done, 1))
		}
		l.set(id, fault.Normal)
		l.await(what, nil, mine(func(r *response.Response) bool { return !r.Closed.IsZero() }))
		l.end(first)
		l.end(second)
	}
	l.verify()
}

// A leader that pauses between its commit and its act, longer than a commit proves its lead and longer than its
// lease, confirms the lead again and does not act. That holds after the commit, whose time it does not know, and
// before the executor.
func TestPausedLeaderConfirmsBeforeActing(t *testing.T) {
	for _, point := range []failpoint.Point{failpoint.ResponderCommitted, failpoint.ResponderStarting} {
		l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
		r := l.start(point, 1)
		l.set("n0-0-0", fault.Failed)
		<-r.hit
		l.elect()
		time.Sleep(sure + 10*time.Millisecond) // the code measures how long it paused
		l.goOn(r)
		if n := l.plant.acted(); n != 0 {
			t.Errorf("%s: done %d times under a fence that had fallen", point, n)
		}
		l.end(r)
	}
}

// A commit that is confirmed only by the head proves no lead: the leader confirms its lead before the act, however
// recent the commit.
func TestLostAnswerProvesNothing(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	lossy := clientv3.NewCtxClient(t.Context())
	lossy.KV, lossy.Watcher = &storetest.LossyKV{KV: l.c.KV, Lose: func(r *clientv3.TxnResponse) bool { return r.Succeeded }}, l.c.Watcher
	l.store.Etcd = store.NewEtcd(lossy, store.Options{MaxOps: 1000})
	r := l.start("", 0)
	defer l.end(r)
	asked := make(chan int64, 1)
	r.cfg.Executors[response.Command] = answers(func(context.Context, executor.Job) executor.Result {
		asked <- l.store.confirmed.Load()
		return executor.Done("done")
	})
	l.set("n0-0-0", fault.Failed)
	l.await("done", nil, state(response.Done))
	if n := <-asked; n == 0 {
		t.Error("begun, and nobody was asked who leads")
	}
	fallen := &term{ctx: t.Context(), fence: store.Fence{Key: r.fence.Key, Rev: r.fence.Rev - 1}}
	res, begun := r.runner.attempt(t.Context(), fallen, executor.Job{Effect: response.Effect{Kind: response.Command}}, time.Time{}, nil)
	if begun || res.Outcome != response.Unchanged || !strings.Contains(res.Detail, "cannot confirm") {
		t.Errorf("begun %t: %+v", begun, res)
	}
}

// Policies with kinds that have no executor fail with an error that says so. A panicking executor fails only
// its attempt. A nonsensical result is not believed.
func TestMissingOrBrokenExecutorFailsAttempt(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 2, Z: 1},
		strings.ReplaceAll(strings.ReplaceAll(reseat, "command, parameters: {command: reseat}", "kubernetes.cordon"), "retries: 2", "retries: 0"))
	r := l.start("", 0)
	defer l.end(r)
	delete(r.cfg.Executors, response.KubernetesCordon)
	for i, tc := range []struct {
		executor executor.Executor
		want     string
		changed  bool
	}{
		{nil, "there is no executor for kubernetes.cordon", false},
		{answers(func(context.Context, executor.Job) executor.Result { panic("out of order") }), "the executor broke down: out of order", true},
		{answers(func(context.Context, executor.Job) executor.Result { return executor.Result{Detail: "x"} }),
			"the executor gave outcome 0, which there is not: x", true},
		{answers(func(context.Context, executor.Job) executor.Result { return executor.Unchanged("no such node") }), "no such node", false},
	} {
		if tc.executor != nil {
			r.cfg.Executors = map[response.Kind]executor.Executor{response.KubernetesCordon: tc.executor}
		}
		id := fault.DefaultNodeID(grid.Coord{X: i % 2, Y: i / 2})
		l.set(id, fault.Failed)
		got, _ := l.await(tc.want, nil, func(r *response.Response) bool { return r.Target.Node == id && r.State == response.Failed })
		if s := got.Steps[0]; !strings.Contains(s.Detail, tc.want) || s.Changed != tc.changed {
			t.Errorf("%+v: want %q", s, tc.want)
		}
	}
}

type answers func(context.Context, executor.Job) executor.Result

func (a answers) Do(ctx context.Context, j executor.Job) executor.Result { return a(ctx, j) }

// The runner asks a running attempt to stop when its fault ends and when a person cancels. When the lead is lost, it
// only stops waiting.
func TestEndedFaultStopsAttempt(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 2, Z: 1}, reseat)
	r := l.start("", 0)
	defer l.end(r)
	begun, causes := make(chan executor.Job), make(chan error, 3)
	r.cfg.Executors[response.Command] = answers(func(ctx context.Context, j executor.Job) executor.Result {
		begun <- j
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return executor.Unchanged("stopped")
	})
	for i, stop := range []func(executor.Job){
		func(j executor.Job) { l.set(j.Target.Node, fault.Normal) },
		func(j executor.Job) {
			must(t, r.Ask(t.Context(), response.Asked{Subject: "operator/ann", Verb: response.Cancel, Response: j.Response}))
		},
		func(j executor.Job) { // makes a commit fail
			l.elect()
			if err := r.Ask(t.Context(), response.Asked{Subject: "operator/ann", Verb: response.Cancel, Response: j.Response}); !errors.Is(err,
				ErrNotLeader) {
				t.Errorf("%v", err)
			}
		},
	} {
		l.set(fault.DefaultNodeID(grid.Coord{X: i % 2, Y: i / 2}), fault.Failed)
		j := <-begun
		stop(j)
		wait(t, r)
		if cause := <-causes; errors.Is(cause, executor.ErrStopped) != (i < 2) {
			t.Errorf("%d: ended for %v", i, cause)
		}
	}
	if r.Leading() {
		t.Error("it leads, though a commit was refused")
	}
	if err := r.Ask(t.Context(), response.Asked{Subject: "operator/ann", Verb: response.CloseBreaker}); !errors.Is(err, ErrNotLeader) {
		t.Errorf("%v", err)
	}
}

// wait waits until no attempt runs.
func wait(t *testing.T, r *replica) {
	t.Helper()
	r.runner.mu.Lock()
	idle := r.runner.idle
	r.runner.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(supervisortest.Wait):
		t.Fatal("an attempt goes on")
	}
}

// A person's request is committed when the call returns, and a refused request returns the reason.
func TestRequestIsCommittedOnReturn(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 2, Z: 1}, strings.Replace(reseat, "  steps:", "  guards: {approvals: 2}\n  steps:", 1))
	r := l.start("", 0)
	defer l.end(r)
	changed := r.Changed()
	l.set("n0-0-0", fault.Failed)
	got, _ := l.await("approval", nil, waits(response.ReasonApproval))
	ask := func(subject string) error {
		return r.Ask(t.Context(), response.Asked{Subject: subject, Verb: response.Approve, Response: got.ID, Reason: "go"})
	}
	must(t, ask("approver/ann"))
	if list, _, err := r.Responses(t.Context()); err != nil || len(list) != 1 || len(list[0].Approvals) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := ask("approver/ann"); err == nil || !strings.Contains(err.Error(), "another subject") {
		t.Errorf("%v", err)
	}
	must(t, ask("approver/bob"))
	l.await("done", nil, state(response.Done))
	lines, err := r.Audit(t.Context(), 0, 100)
	must(t, err)
	var by []string
	for _, line := range lines {
		if line.Decision.Act == response.Approves {
			by = append(by, line.Decision.Subject)
		}
	}
	if !slices.Equal(by, []string{"approver/ann", "approver/bob"}) {
		t.Errorf("approved by %v", by)
	}
	if head, err := r.AuditHead(t.Context()); err != nil || head.Last != uint64(len(lines)) {
		t.Errorf("%+v, %v", head, err)
	}
	select {
	case <-changed:
	case <-time.After(supervisortest.Wait):
		t.Error("nobody was told of a change")
	}
}

// A leader that cannot read a record does nothing, and a later one that can continues.
func TestUnreadableRecordStopsLeader(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	const key = store.Prefix + "responses/records/response/r1-1"
	_, err := l.c.Put(t.Context(), key, `{"version":2}`)
	must(t, err)
	l.set("n0-0-0", fault.Failed)
	r := l.start("", 0)
	supervisortest.Eventually(t, "the term to be over", func() bool { return r.gauge(t, "lofamo_responses_broken") == 1 })
	if list, _, err := r.Responses(t.Context()); r.Leading() || len(list) != 0 || err != nil || l.plant.acted() != 0 {
		t.Errorf("leading %t, %v, %v", r.Leading(), list, err)
	}
	if broken, _ := r.Trouble(); !broken {
		t.Error("nobody is told")
	}
	second := l.start("", 0) // cannot read it either
	l.end(r)
	supervisortest.Eventually(t, "the next to complain", func() bool { return second.gauge(t, "lofamo_responses_broken") == 1 })
	_, err = l.c.Delete(t.Context(), key)
	must(t, err)
	l.await("done", nil, state(response.Done)) // by the one that could not before
	if broken, _ := second.Trouble(); broken || second.gauge(t, "lofamo_responses_broken") != 0 {
		t.Error("it still complains")
	}
	l.end(second)
}

// A leader reports an unreadable head at once, instead of retrying in silence.
func TestUnreadableHeadIsReported(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	const key = store.Prefix + "responses/head"
	for _, text := range []string{`{"term":1,"batch":1,"audit":{"last":0,"first":0},"more":1}`,
		`{"term":1,"batch":1,"audit":{"last":1,"first":1,"hash":"00"}}`} {
		_, err := l.c.Put(t.Context(), key, text)
		must(t, err)
		r := l.start("", 0)
		supervisortest.Eventually(t, "a complaint", func() bool {
			broken, _ := r.Trouble()
			return broken &&
				r.gauge(t, "lofamo_responses_broken") == 1
		})
		_, err = l.c.Delete(t.Context(), key)
		must(t, err)
		supervisortest.Eventually(t, "its end", func() bool { broken, _ := r.Trouble(); return !broken && r.Leading() })
		l.end(r)
	}
}

// The engine receives the name of an unreadable policy; the others count.
func TestUnreadablePolicyIsNamed(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	*l.store.policies = append(*l.store.policies,
		store.StoredPolicy{Name: "of-tomorrow", Version: 3, JSON: []byte(`{"apiVersion":"lofamo.io/v9"}`)})
	r := l.start("", 0)
	defer l.end(r)
	if got := r.compile(*l.store.policies); !slices.Equal(got.Unread, []string{"of-tomorrow"}) || len(got.Policies) != 1 ||
		got.Policies[0].Name != "reseat" {
		t.Errorf("%+v", got)
	}
	l.set("n0-0-0", fault.Failed)
	l.await("done", nil, state(response.Done))
}

// TestNewestPoliciesCount: a replica follows the policies, and reads them when it begins to lead. In its queue, an older reading may come
// after a newer one.
func TestNewestPoliciesCount(t *testing.T) {
	for _, tc := range []struct {
		name  string
		older bool // the reading for the lead
	}{{"the lead begins with older policies", true}, {"the lead begins with newer policies", false}} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
			followed, leads := make(chan struct{}), make(chan struct{})
			l.store.read = func() ([]store.StoredPolicy, uint64) {
				if tc.older {
					<-followed
					return nil, 1
				}
				return *l.store.policies, 2
			}
			l.store.follow = func(each func(store.PolicySet)) {
				if tc.older {
					each(store.PolicySet{Policies: *l.store.policies, Revision: 2})
				} else {
					<-leads
					each(store.PolicySet{Revision: 1})
				}
				close(followed)
			}
			r := l.start("", 0)
			defer l.end(r)
			supervisortest.Eventually(t, "the lead", r.Leading)
			close(leads)
			<-followed
			// The answer comes after all that the queue held before.
			_ = r.Ask(t.Context(), response.Asked{Subject: "someone", Verb: response.CloseBreaker})
			if got := r.gauge(t, "lofamo_responses_policies"); got != 1 { // gauge returns the first label's value: enforce
				t.Errorf("lofamo_responses_policies counts %v enforced policies, want 1", got)
			}
			l.set("n0-0-0", fault.Failed)
			l.await("done", nil, state(response.Done))
		})
	}
}

// A leader with a refused commit resumes the lead while its fence stands, from the committed state.
func TestRefusedCommitKeepsLead(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	r := l.start("", 0)
	defer l.end(r)
	l.set("n0-0-0", fault.Failed)
	first, _ := l.await("done", nil, state(response.Done))
	const key = store.Prefix + "responses/head"
	resp, err := l.c.Get(t.Context(), key)
	must(t, err)
	_, err = l.c.Put(t.Context(), key, string(resp.Kvs[0].Value)) // an outside writer
	must(t, err)
	l.set("n1-0-0", fault.Failed)
	second, _ := l.await("done too", nil, func(r *response.Response) bool { return r.Target.Node == "n1-0-0" && r.State == response.Done })
	if first.ID == second.ID || first.Token != second.Token {
		t.Errorf("%s of token %d and %s of token %d: want two of the same", first.ID, first.Token, second.ID, second.Token)
	}
	if n := l.plant.acted(); n != 2 {
		t.Errorf("done %d times, want 2", n)
	}
	lines, _, err := l.store.Audit(t.Context(), 1, 1000)
	must(t, err)
	want := 0.0
	for _, line := range lines {
		if line.Decision.Act == response.Proposes {
			want++
		}
	}
	if got := r.counted(t, "lofamo_responses_decisions_total", response.Proposes.String()); got != want {
		t.Errorf("%v proposals are counted, and the audit has %v: decisions of a refused commit count", got, want)
	}
}

// A leader acts on the evidence of the committed change: it sends no query, and cannot be ahead of its own commit.
func TestEvidenceArrivesWithChange(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, cordonAndTell)
	l.stored, l.blind = true, true
	r := l.start("", 0)
	defer l.end(r)
	supervisortest.Eventually(t, "a leader", r.Leading)
	l.set("n0-0-0", fault.Failed)
	l.await("done", nil, state(response.Done))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked != 0 {
		t.Errorf("%d questions for evidence, want none", l.asked)
	}
}

// A leader without evidence does nothing and reports it.
func TestLeaderWithoutEvidenceWaits(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, reseat)
	l.blind = true
	r := l.start("", 0)
	defer l.end(r)
	l.set("n0-0-0", fault.Failed)
	l.await("evidence", nil, waits(response.ReasonEvidenceAge))
	if n := l.plant.acted(); n != 0 {
		t.Errorf("done %d times", n)
	}
	l.mu.Lock()
	l.blind = false
	l.mu.Unlock()
	l.await("done", nil, state(response.Done))
}

// In a storm the leader answers as many faults as the limits allow, and all others wait. No effect begins before its
// record is committed.
func TestStormIsAnsweredWithinLimits(t *testing.T) {
	l := newLab(t, grid.Dims{X: 16, Y: 16, Z: 2}, cordonAndTell)
	l.limit.MaxNodes = 40
	r := l.start("", 0)
	defer l.end(r)
	for rank := range 512 {
		l.set(fault.DefaultNodeID(grid.Dims{X: 16, Y: 16, Z: 2}.At(rank)), fault.Failed)
	}
	l.awaitAll("40 done, and all others waiting", nil, func(list []*response.Response) bool {
		done, wait := 0, 0
		for _, r := range list {
			if r.State == response.Done {
				done++
			} else if waits(response.ReasonMaxNodes)(r) {
				wait++
			}
		}
		return done == 40 && wait == 472
	})
	l.check("a storm")
	l.verify()
}

// Executors must uphold the effects that stand by the committed records. A replica that does not lead upholds
// nothing.
func TestExecutorsUpholdCommittedEffects(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, cordonAndTell)
	r := l.start("", 0)
	l.set("n0-0-0", fault.Failed)
	l.await("done", nil, state(response.Done))
	jobs, leads, err := r.Active(t.Context(), response.KubernetesCordon)
	if err != nil || len(jobs) != 1 || !leads || jobs[0].Target.Node != "n0-0-0" || jobs[0].Cluster != "test" {
		t.Errorf("%+v, %t, %v", jobs, leads, err)
	}
	id := jobs[0].Response
	wantOpen := func(want bool) {
		t.Helper()
		if got, err := r.Open(t.Context(), []string{id, "r0-0"}); err != nil || len(got) != 2 || got[id] != want || got["r0-0"] {
			t.Errorf("open are %v, %v, want %s: %t", got, err, id, want)
		}
	}
	wantOpen(true)
	l.set("n0-0-0", fault.Normal)
	l.await("undone", nil, func(r *response.Response) bool { return !r.Closed.IsZero() })
	wantOpen(false)
	l.set("n0-0-0", fault.Failed)
	l.await("done again", nil, state(response.Done))
	l.end(r)
	if jobs, leads, err := r.Active(t.Context(), response.KubernetesCordon); err != nil || len(jobs) > 0 || leads {
		t.Errorf("%+v, %t, and it does not lead", jobs, leads)
	}
}

// A leader logs that an audit was changed behind its back, and continues.
func TestDamagedAuditIsLogged(t *testing.T) {
	l := newLab(t, grid.Dims{X: 2, Y: 1, Z: 1}, cordonAndTell)
	first := l.start("", 0)
	l.set("n0-0-0", fault.Failed)
	l.await("done", nil, state(response.Done))
	if n := first.gauge(t, "lofamo_responses_audit_failures_total"); n != 0 {
		t.Errorf("%v complaints of a sound audit", n)
	}
	l.end(first)
	second := l.start("", 0) // which finds it intact
	l.set("n0-0-0", fault.Normal)
	l.await("undone", nil, state(response.Undone))
	if n := second.gauge(t, "lofamo_responses_audit_failures_total"); n != 0 {
		t.Errorf("%v complaints of a sound audit", n)
	}
	l.end(second)
	resp, err := l.c.Get(t.Context(), store.Prefix+"responses/audit/", clientv3.WithPrefix())
	must(t, err)
	kv := resp.Kvs[len(resp.Kvs)-1]
	_, err = l.c.Put(t.Context(), string(kv.Key), strings.Replace(string(kv.Value), `"node":"n0-0-0"`, `"node":"n1-0-0"`, 1))
	must(t, err)
	third := l.start("", 0)
	defer l.end(third)
	l.set("n1-0-0", fault.Failed)
	l.await("done", nil, func(r *response.Response) bool { return r.Target.Node == "n1-0-0" && r.State == response.Done })
	if n := third.gauge(t, "lofamo_responses_audit_failures_total"); n != 1 {
		t.Errorf("%v complaints of a damaged audit, want 1", n)
	}
}

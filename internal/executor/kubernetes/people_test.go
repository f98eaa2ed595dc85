package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// claimed returns the acts whose effect others may remove, with a person's patches to remove and to set it.
func claimed() []personal {
	a := acts()
	return []personal{
		{a[0], `{"status":{"conditions":[{"$patch":"delete","type":"LofamoFault"}]}}`, ""},
		{a[1], `{"metadata":{"labels":{"lofamo.io/memory":null}}}`, `{"metadata":{"labels":{"lofamo.io/memory":"sick"}}}`},
		{a[2], `{"spec":{"unschedulable":null}}`, `{"spec":{"unschedulable":true}}`},
		{a[3], `{"spec":{"taints":null}}`, `{"spec":{"taints":[{"key":"lofamo.io/memory","value":"sick","effect":"NoSchedule"}]}}`},
		{a[4], `{"spec":{"taints":null}}`, `{"spec":{"taints":[{"key":"lofamo.io/memory","effect":"NoExecute"}]}}`},
		{a[5], `{"spec":{"unschedulable":null}}`, `{"spec":{"unschedulable":true}}`},
	}
}

type personal struct {
	act
	away, bring string // patches
}

// person changes a node as a person would.
func (p personal) person(t testing.TB, name, body string) {
	t.Helper()
	if p.kind == response.KubernetesCondition {
		status(t, name, body)
		return
	}
	patch(t, name, body)
}

// registry holds the committed open responses.
type registry struct{ open map[string]bool }

func (r *registry) Open(_ context.Context, ids []string) (map[string]bool, error) {
	out := map[string]bool{}
	for _, id := range ids {
		out[id] = r.open[id]
	}
	return out, nil
}

// newExecutorOf returns an executor that asks r which responses are open.
func newExecutorOf(t testing.TB, r *registry) *Executor {
	t.Helper()
	e := newExecutor(t, Config{}, nil)
	e.open = r.Open
	return e
}

// step returns the first attempt at a later step of the response.
func step(n int, j executor.Job) executor.Job {
	j.Step, j.Attempt.Attempt = n, 1
	j.IdempotencyKey = fmt.Sprintf("%s/%d", j.Response, n)
	return j
}

// TestEffectRemovedByPersonStaysRemoved: while a response is open, neither its next step nor another response restores an effect that
// a person has removed. After it ends, its mark has no effect and is removed.
func TestEffectRemovedByPersonStaysRemoved(t *testing.T) {
	cluster(t)
	for _, p := range claimed() {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Parallel()
			reg := &registry{open: map[string]bool{}}
			e, name := newExecutorOf(t, reg), aNode(t)
			job := func() executor.Job {
				j := p.job(responseID(), name)
				reg.open[j.Response] = true
				return j
			}
			refused := func(e *Executor, j executor.Job, by string) {
				t.Helper()
				want(t, e.Do(context.Background(), j), response.Unchanged, "which response "+by+" had set")
				if got := withoutMarks(theNode(t, name)); got != "" {
					t.Fatalf("over a person's word: %q", got)
				}
			}
			one, two := job(), job()
			do(t, e, one)
			p.person(t, name, p.away)
			if p.kind == response.KubernetesDrain { // evicted pods stay evicted
				want(t, e.Do(context.Background(), again(one)), response.Partly, "somebody has uncordoned it")
			} else {
				want(t, e.Do(context.Background(), again(one)), response.Unchanged, "which an earlier attempt had set")
			}
			refused(e, step(1, one), one.Response)
			refused(e, two, one.Response)
			refused(newExecutor(t, Config{}, nil), two, one.Response) // where the open responses are unknown
			delete(reg.open, one.Response)                            // closed without an undo
			three := job()
			do(t, e, three)
			if got := withoutMarks(theNode(t, name)); got != p.shows {
				t.Fatalf("after it was closed: %q", got)
			}
			if _, stands := theNode(t, name).Annotations[markKey(one.Response, 0)]; stands {
				t.Error("the mark of the closed response stands still")
			}
			do(t, e, undo(three))
			if got := state(theNode(t, name)); got != "" {
				t.Errorf("put back: %q", got)
			}
		})
	}
}

// TestEffectOfClosedResponseStays: the effect of a closed response stays when another response is undone, and the result names
// its holder. It ends when a person removes it.
func TestEffectOfClosedResponseStays(t *testing.T) {
	cluster(t)
	for _, p := range claimed() {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Parallel()
			reg := &registry{open: map[string]bool{}}
			e, name := newExecutorOf(t, reg), aNode(t)
			closed, other := p.job(responseID(), name), p.job(responseID(), name)
			do(t, e, closed)
			reg.open[other.Response] = true
			do(t, e, other)
			want(t, e.Do(context.Background(), undo(other)), response.Succeeded, "another response wants it")
			if got := withoutMarks(theNode(t, name)); got != p.shows {
				t.Fatalf("what was left to a person: %q", got)
			}
			p.person(t, name, p.away)
			other = p.job(responseID(), name)
			do(t, e, other)
			do(t, e, undo(other))
			if got := state(theNode(t, name)); got != "" {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestRandomClaimsAgreeWithNaiveModel: responses do, undo and close without an undo, and people remove and add state, in any order. A
// naive model of the claims predicts the state after each step.
func TestRandomClaimsAgreeWithNaiveModel(t *testing.T) {
	t.Parallel()
	reg := &registry{open: map[string]bool{}}
	e := newExecutorOf(t, reg)
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.SampledFrom(claimed()[:5]).Draw(rt, "kind")
		s := story{t: rt, tb: t, p: p, e: e, reg: reg, name: aNode(t), claims: map[string]bool{}, jobs: map[string]executor.Job{}}
		for i := range rapid.IntRange(2, 8).Draw(rt, "scenes") {
			switch rapid.IntRange(0, 7).Draw(rt, fmt.Sprint("scene", i)) {
			case 0, 1, 2:
				s.do(p.job(responseID(), s.name))
			case 3:
				s.some("again", func(id string) { s.do(step(s.jobs[id].Step+1, s.jobs[id])) })
			case 4:
				s.some("undone", s.undo)
			case 5:
				s.some("closed", func(id string) { delete(reg.open, id); delete(s.jobs, id) })
			case 6:
				p.person(t, s.name, p.away)
				s.there, s.ours = false, false
			case 7:
				if p.bring != "" && !s.there {
					p.person(t, s.name, p.bring)
					s.there, s.ours = true, false
				}
			}
			s.check()
		}
	})
}

// story is one node and its expected state in a naive model.
type story struct {
	t    *rapid.T
	tb   testing.TB
	p    personal
	e    *Executor
	reg  *registry
	name string

	there, ours bool                    // it is present; and a response has set it
	claims      map[string]bool         // marks, by annotation
	jobs        map[string]executor.Job // the latest step of each open response
}

// some picks an open response, if there is one.
func (s *story) some(what string, f func(id string)) {
	if ids := slices.Sorted(maps.Keys(s.jobs)); len(ids) > 0 {
		f(rapid.SampledFrom(ids).Draw(s.t, what))
	}
}

func (s *story) do(j executor.Job) {
	s.reg.open[j.Response], s.jobs[j.Response] = true, j
	want, dead := response.Succeeded, []string{}
	if !s.there {
		for key := range s.claims {
			if s.reg.open[ofMark(key)] {
				want = response.Unchanged
			} else {
				dead = append(dead, key)
			}
		}
	}
	if r := s.e.Do(context.Background(), j); r.Outcome != want {
		s.t.Fatalf("do of %s: %+v, want outcome %d", j.Response, r, want)
	}
	if want != response.Succeeded {
		return
	}
	for _, key := range dead {
		delete(s.claims, key)
	}
	s.claims[markKey(j.Response, j.Step)] = true
	s.there, s.ours = true, s.ours || !s.there
}

// undo undoes all steps of a response, the latest first, as the engine does.
func (s *story) undo(id string) {
	j := s.jobs[id]
	for n := j.Step; n >= 0; n-- {
		back := undo(step(n, j))
		if r := s.e.Do(context.Background(), back); r.Outcome != response.Succeeded {
			s.t.Fatalf("undo of %s: %+v", id, r)
		}
		delete(s.claims, markKey(id, n))
		for key := range s.claims { // dead ones
			if !s.there && !s.reg.open[ofMark(key)] {
				delete(s.claims, key)
			}
		}
		if s.there && s.ours && len(s.claims) == 0 {
			s.there, s.ours = false, false
		}
	}
	delete(s.jobs, id)
	delete(s.reg.open, id)
}

func (s *story) check() {
	n := theNode(s.tb, s.name)
	shows := ""
	if s.there {
		shows = s.p.shows
	}
	if got := withoutMarks(n); got != shows {
		s.t.Fatalf("%q, want %q", got, shows)
	}
	var got []string
	for k := range n.Annotations {
		if strings.HasPrefix(k, markPrefix) {
			got = append(got, k)
		}
	}
	slices.Sort(got)
	if want := slices.Sorted(maps.Keys(s.claims)); !slices.Equal(got, want) {
		s.t.Fatalf("marks %v, want %v", got, want)
	}
}

// ofMark returns the response ID of a mark in these tests.
func ofMark(key string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(key, markPrefix), ".")
	return id
}

package kubernetes

import (
	"context"
	"errors"
	"testing"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestMarksOfClosedResponsesDoNotPileUp: responses that close without an undo leave their effect, and a bounded number of marks. When a
// person has removed the effect, the next write of that sort removes all their marks. Marks of open responses stay.
func TestMarksOfClosedResponsesDoNotPileUp(t *testing.T) {
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
			var open []executor.Job
			for i := range 3 * maxAlike {
				j := job()
				do(t, e, j)
				if i%maxAlike == 0 {
					open = append(open, j)
				} else {
					delete(reg.open, j.Response)
				}
				if n := len(marks(theNode(t, name))); n > maxAlike+1 {
					t.Fatalf("%d marks after %d responses: want %d at most", n, i+1, maxAlike+1)
				}
			}
			all := marks(theNode(t, name))
			for _, j := range open {
				if _, marked := all[markKey(j.Response, 0)]; !marked {
					t.Errorf("the mark of open response %s is gone", j.Response)
				}
			}
			for _, j := range open {
				want(t, e.Do(context.Background(), undo(j)), response.Succeeded, "another response wants it")
				delete(reg.open, j.Response)
			}
			if got := withoutMarks(theNode(t, name)); got != p.shows {
				t.Fatalf("the write changed the state that is left to a person: %q", got)
			}
			last := job()
			do(t, e, last)
			p.person(t, name, p.away)
			do(t, e, undo(last))
			if got := state(theNode(t, name)); got != "" {
				t.Errorf("left after the last undo: %q", got)
			}
		})
	}
}

// TestUnknownResponsesKeepTheirMarks: a step that could remove worn marks leaves them if the store does not answer, and succeeds.
func TestUnknownResponsesKeepTheirMarks(t *testing.T) {
	reg := &registry{open: map[string]bool{}}
	e, name := newExecutorOf(t, reg), aNode(t)
	label := func(key string) executor.Job {
		return aJob(responseID(), name, response.KubernetesLabel, map[string]string{"key": key, "value": "x"})
	}
	one := label("one")
	do(t, e, one)
	patch(t, name, `{"metadata":{"labels":{"one":null}}}`)
	e.open = func(context.Context, []string) (map[string]bool, error) { return nil, errors.New("no quorum") }
	do(t, e, label("two"))
	if all := marks(theNode(t, name)); len(all) != 2 {
		t.Errorf("marks %v: want two", all)
	}
	e.open = reg.Open
	do(t, e, label("three"))
	if _, marked := marks(theNode(t, name))[markKey(one.Response, 0)]; marked {
		t.Error("the mark of a closed response is still there, and its label is not")
	}
}

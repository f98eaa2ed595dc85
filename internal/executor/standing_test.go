package executor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

func TestActiveStepsBecomeJobs(t *testing.T) {
	step := func(k response.Kind, s response.StepState, changed bool) response.StepRecord {
		return response.StepRecord{Step: response.Step{Name: "s", Kind: k}, State: s, Attempt: 2, Changed: changed}
	}
	node := response.Target{Node: "n1", Component: fault.ComponentHost}
	with := func(id string, t response.Target, steps ...response.StepRecord) *response.Response {
		return &response.Response{ID: id, Policy: "p", Mode: response.Enforce, Target: t, FaultState: fault.Failed, Token: 7, Steps: steps}
	}
	a := response.Alertmanager
	closed := with("closed", node, step(a, response.Acted, true))
	closed.Closed = time.Unix(1, 0)
	watched := with("watched", node, step(a, response.Acted, true))
	watched.Mode = response.ObserveOnly
	given := []*response.Response{
		with("stands", node, step(response.KubernetesCordon, response.Acted, true), step(a, response.Acted, true)),
		with("begun", node, step(a, response.Acting, true)),
		with("undoing", node, step(a, response.Undoing, true)),
		with("back", node, step(a, response.PutBack, false)),
		closed, watched,
		with("group", response.Target{Group: "g"}, step(a, response.Acted, true)),
	}
	var got []string
	members := func(group string) []fault.NodeID { return []fault.NodeID{"of " + fault.NodeID(group)} }
	for _, j := range StandingJobs("c", given, members, a) {
		got = append(got, j.Response)
		if j.Cluster != "c" || j.Policy != "p" || j.Kind != a || j.Token != 7 || j.Attempt.Attempt != 2 || j.Fault.State != fault.Failed {
			t.Errorf("%+v", j)
		}
		if want := j.Target.Group != ""; (len(j.Members) == 1 && j.Members[0] == "of g") != want {
			t.Errorf("%s: members %v", j.Response, j.Members)
		}
	}
	if diff := cmp.Diff([]string{"stands", "group"}, got); diff != "" {
		t.Error(diff)
	}
	if jobs := StandingJobs("c", given, nil, a); len(jobs) != 2 || jobs[0].Step != 1 || jobs[1].Members != nil {
		t.Errorf("%+v", jobs)
	}
}

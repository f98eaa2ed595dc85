package node

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// fakeMaker answers by node and records the calls.
type fakeMaker struct {
	by    map[fault.NodeID]executor.Result
	asked []fault.NodeID
}

func (a *fakeMaker) Make(ctx context.Context, node fault.NodeID, _ executor.Job, askFor time.Duration) executor.Result {
	a.asked = append(a.asked, node)
	if d, ok := ctx.Deadline(); !ok || askFor <= 0 || time.Until(d) > 30*time.Second {
		return executor.Partly("no bound")
	}
	return a.by[node]
}

// TestEurekaTriesNodesUntilOneRaises: Do tries one node after the other until one has raised the message. An unknown outcome is reported as
// such, since jobs are notified once even if it is raised again.
func TestEurekaTriesNodesUntilOneRaises(t *testing.T) {
	j := executor.Job{Effect: response.Effect{Kind: response.Eureka, Token: 5, Timeout: 30 * time.Second,
		Target: response.Target{Node: "bad"}}}
	no, unsure, done, stale := executor.Unchanged("no"), executor.NotKnown("?"), executor.Done("6 links"), executor.Stale("6")
	for name, tc := range map[string]struct {
		answers []executor.Result
		want    response.Outcome
		asked   int
	}{
		"the first":         {[]executor.Result{done, no}, response.Succeeded, 1},
		"the third":         {[]executor.Result{no, unsure, done}, response.Succeeded, 3},
		"none":              {[]executor.Result{no, no}, response.Unchanged, 2},
		"perhaps":           {[]executor.Result{unsure, no}, response.NotKnown, 2},
		"another leader":    {[]executor.Result{no, stale, done}, response.StaleToken, 2},
		"nobody is well":    {nil, response.Unchanged, 0},
		"no more than four": {[]executor.Result{no, no, no, no, done}, response.Unchanged, 4},
	} {
		t.Run(name, func(t *testing.T) {
			a := &fakeMaker{by: map[fault.NodeID]executor.Result{}}
			var nodes []fault.NodeID
			for i, r := range tc.answers {
				id := fault.NodeID(rune('a' + i))
				nodes = append(nodes, id)
				a.by[id] = r
			}
			e := NewEureka(a, func(about response.Target, _ []fault.NodeID) []fault.NodeID {
				if about.Node != "bad" {
					t.Errorf("about %s", about)
				}
				return nodes
			})
			r := e.Do(t.Context(), j)
			if r.Outcome != tc.want || r.Detail == "" || !slices.Equal(a.asked, nodes[:tc.asked]) {
				t.Errorf("%+v, asked %v", r, a.asked)
			}
		})
	}
	other := j
	other.Kind = response.Command
	if r := NewEureka(nil, nil).Do(t.Context(), other); r.Outcome != response.Unchanged {
		t.Errorf("%+v", r)
	}
}

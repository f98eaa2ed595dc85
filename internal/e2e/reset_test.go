package e2e

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/executor/process/powertest"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestNextLeaderLearnsOfReset kills the leader while a management controller resets a dead node. The next leader learns the
// outcome from the executor process: the response waits for no person, and the reset is not repeated.
func TestNextLeaderLearnsOfReset(t *testing.T) {
	t.Parallel()
	const dead = "n1-1-1"
	p := withPower(t, "2x2x2")
	var resets atomic.Int32
	hang := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(goOn)
	p.bmcs[dead].Instead(powertest.System+"/Actions/ComputerSystem.Reset", func(w http.ResponseWriter, _ *http.Request) {
		resets.Add(1)
		<-hang
		w.WriteHeader(http.StatusNoContent)
	})
	p.settled()
	p.inject(dead, simple(cluster.KillNode))
	eventually(t, "the reset of the dead node", func() bool { return resets.Load() == 1 })
	old := p.leader()
	p.kill(old)
	p.leads(old)
	waits := func(reason response.Reason) {
		t.Helper()
		var last []*lofamov1.Response
		defer func() {
			if t.Failed() {
				t.Logf("responses: %v", last)
			}
		}()
		eventually(t, "the reset to wait because: "+reason.String(), func() bool {
			list, err := p.Client.ListResponses(t.Context(), &lofamov1.ListResponsesRequest{Node: dead, Policy: "reset-node"})
			if err != nil {
				return false
			}
			last = list.GetResponses()
			return len(last) == 1 && last[0].GetReason() == reason.String()
		})
	}
	waits(response.ReasonOutcome)
	goOn()
	waits(response.ReasonUnseen)
	if n := resets.Load(); n != 1 {
		t.Errorf("%d resets, want 1", n)
	}
	p.start(old)
}

// Eureka notifies the jobs on all nodes of a response (Chaos router §4.1, §4.4.3). One node receives the supervisor's
// signed message and broadcasts it through the torus, and every host half that verifies it notifies its watchers. The
// executor needs the service network to one node only.
//
// Jobs are notified of a step once, regardless of the number of attempts and nodes, because host halves remember it.

package node

import (
	"context"
	"time"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// Maker makes an attempt through a node's agent.
type Maker interface {
	Make(ctx context.Context, node fault.NodeID, j executor.Job, askFor time.Duration) executor.Result
}

var _ Maker = (*Actor)(nil)

// Raisers returns the nodes that may raise the message: healthy ones, those near the fault first. It does not block.
type Raisers func(about response.Target, members []fault.NodeID) []fault.NodeID

// Maximum number of nodes to try, and the timeout for each to answer the first question.
const (
	maxRaisers = 4
	askFor     = 2 * time.Second
)

// Eureka executes responses of the kind eureka.
type Eureka struct {
	actor   Maker
	raisers Raisers
}

// NewEureka returns the executor.
func NewEureka(actor Maker, raisers Raisers) *Eureka { return &Eureka{actor, raisers} }

// Do implements executor.Executor.
func (e *Eureka) Do(ctx context.Context, j executor.Job) executor.Result {
	if j.Kind != response.Eureka || j.Undo {
		return executor.Unchanged("kind %s, undo %t: want %s, which cannot be undone", j.Kind, j.Undo, response.Eureka)
	}
	nodes := e.raisers(j.Target, j.Members)
	nodes = nodes[:min(len(nodes), maxRaisers)]
	if len(nodes) == 0 {
		return executor.Unchanged("no healthy node can raise it")
	}
	var last executor.Result
	unsure := false
	for i, id := range nodes {
		// Each node gets a share of the remaining time, so that there is time to try the last one.
		left := time.Until(deadline(ctx, j.Timeout))
		share, cancel := context.WithTimeout(ctx, left/time.Duration(len(nodes)-i))
		last = e.actor.Make(share, id, j, askFor)
		cancel()
		switch last.Outcome {
		case response.Succeeded:
			return executor.Done("by %s: %s", id, last.Detail)
		case response.StaleToken:
			return last
		case response.NotKnown:
			unsure = true
		default:
		}
		if ctx.Err() != nil {
			break
		}
	}
	if unsure {
		return executor.NotKnown("%s", last.Detail)
	}
	return last
}

func deadline(ctx context.Context, timeout time.Duration) time.Time {
	at := time.Now().Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(at) {
		return d
	}
	return at
}

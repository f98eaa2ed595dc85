package jobs

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// State is what the fault map says of a node or component: "NORMAL", "SICK", "FAILED", or "UNKNOWN" when nothing is known.
type State string

// The states.
const (
	Unknown State = "UNKNOWN"
	Normal  State = "NORMAL"
	Sick    State = "SICK"
	Failed  State = "FAILED"
)

// Faults is what has changed, or at first and when Stale begins or ends all.
type Faults struct {
	Nodes []Node
	// Stale says that the supervisors that are heard have no quorum, or none has been heard yet: what is said here may be old.
	Stale bool
	// Pending says that of some nodes nothing was told yet.
	Pending bool
}

// Node is what is known of one.
type Node struct {
	ID    string
	State State
	Cause string           // what of it is at fault; "NONE"
	Parts map[string]State // components that are SICK or FAILED, as "host" or "link/X+"
}

// WatchFaults calls handle with what is known of nodes, and then whenever something else is, until the context ends or
// handle returns an error, which it returns. No nodes: this one and its neighbours. At most 1,024 may be watched on one node.
func (c *Client) WatchFaults(ctx context.Context, nodes []string, handle func(Faults) error) error {
	var stopped error
	err := c.persist(ctx, "watch faults", func() error {
		s, err := c.api.WatchFaults(ctx, &lofamov1.WatchFaultsRequest{Nodes: nodes}, grpc.WaitForReady(true))
		for err == nil {
			var r *lofamov1.WatchFaultsResponse
			if r, err = s.Recv(); err == nil {
				if stopped = handle(faultsOf(r)); stopped != nil {
					return nil //nolint:nilerr // the caller gets it: it ends the watch, and is not tried again
				}
			}
		}
		return err
	})
	if stopped != nil {
		return stopped
	}
	return err
}

func faultsOf(r *lofamov1.WatchFaultsResponse) Faults {
	f := Faults{Stale: r.GetStale() || r.GetSupervisorsAge() == nil, Pending: r.GetPending()}
	for _, n := range r.GetNodes() {
		node := Node{ID: n.GetId(), State: State(n.GetState().String()), Cause: n.GetCause().String()}
		for _, p := range n.GetFaults() {
			if node.Parts == nil {
				node.Parts = make(map[string]State)
			}
			node.Parts[p.GetComponent()] = State(p.GetState().String())
		}
		f.Nodes = append(f.Nodes, node)
	}
	return f
}

// Eureka is what one process tells all others of its job.
type Eureka struct {
	Topic    string // 1 to 32 of a-z, 0-9 and '-': the job's own word
	Body     []byte // at most 512 bytes
	Priority int    // 0 lowest to 3

	// Of those that are heard alone:

	Node string // where it was raised, proved by a signature
	UID  uint32 // of who raised it; 0: root, who need not be of the job

	// Supervisor is set of what the cluster itself has to say, to all jobs, when it responds to a fault: Topic is then "lofamo",
	// Body a policy's text, Target what is at fault, "n1-0-0/memory", and Response the id of the response, of which it is heard
	// once. Empty: a process has raised it.
	Supervisor, Target, Response string
}

// Heard is what a watch of eurekas tells.
type Heard struct {
	// Eureka is nil when the watch begins: what is raised from then on is heard.
	Eureka *Eureka
	// Missed is how many were dropped before this one, because handle was too slow.
	Missed uint64
	// Again says, without a Eureka, that the watch has begun anew since the host half was restarted: what was raised meanwhile was
	// missed.
	Again bool
}

// WatchEureka calls handle with the eurekas of the user's job of that name, those raised on this node too, until the context ends or handle
// returns an error, which it returns.
func (c *Client) WatchEureka(ctx context.Context, job string, handle func(Heard) error) error {
	var stopped error
	again := false
	err := c.persist(ctx, "watch eurekas of "+job, func() error {
		s, err := c.api.WatchEureka(ctx, &lofamov1.WatchEurekaRequest{Job: job}, grpc.WaitForReady(true))
		for err == nil {
			var r *lofamov1.WatchEurekaResponse
			if r, err = s.Recv(); err == nil {
				h := heardOf(r)
				if h.Eureka == nil {
					h.Again, again = again, true
				}
				if stopped = handle(h); stopped != nil {
					return nil //nolint:nilerr // the caller gets it: it ends the watch, and is not tried again
				}
			}
		}
		return err
	})
	if stopped != nil {
		return stopped
	}
	return err
}

func heardOf(r *lofamov1.WatchEurekaResponse) Heard {
	h := Heard{Missed: r.GetMissed()}
	if e := r.GetEureka(); e != nil {
		h.Eureka = &Eureka{
			Topic: e.GetTopic(), Body: e.GetBody(), Priority: int(e.GetPriority()), Node: e.GetNode(), UID: e.GetUid(),
			Supervisor: e.GetSupervisor(), Target: e.GetTarget(), Response: e.GetResponse(),
		}
	}
	return h
}

// RaiseEureka tells all nodes that are connected to this one. Without an error the node's DNP half has taken it, and it is on its
// way. When the host half is restarted in the middle it is raised once more, and may be heard twice.
func (c *Client) RaiseEureka(ctx context.Context, job string, e Eureka) error {
	if e.Priority < 0 {
		return fmt.Errorf("raise eureka of %s: priority: given %d: want 0 to 3", job, e.Priority)
	}
	return c.persist(ctx, "raise eureka of "+job, func() error {
		_, err := c.api.RaiseEureka(ctx, &lofamov1.RaiseEurekaRequest{
			Job: job, Topic: e.Topic, Body: e.Body, Priority: uint32(e.Priority),
		}, grpc.WaitForReady(true))
		return explain(err)
	})
}

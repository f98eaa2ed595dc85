package jobs

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// State is the state of a node or component in the fault map: "NORMAL", "SICK", "FAILED", or "UNKNOWN" without
// information. A node that has left the torus, or whose place a spare has, is UNKNOWN.
type State string

// The states.
const (
	Unknown State = "UNKNOWN"
	Normal  State = "NORMAL"
	Sick    State = "SICK"
	Failed  State = "FAILED"
)

// Faults contains the changes. The first one, and those at the start and end of Stale, contain all nodes.
type Faults struct {
	Nodes []Node
	// Stale: the reachable supervisors have no quorum, or none has been reached yet. The states may be out of date.
	Stale bool
	// Pending: for some nodes there is no information yet.
	Pending bool
}

// Node is the state of one node.
type Node struct {
	ID    string
	State State
	Cause string           // the faulty part; "NONE"
	Parts map[string]State // SICK or FAILED components, e.g. "host" or "link/X+"
}

// WatchFaults calls handle with the state of nodes, and then with every change, until the context ends or handle
// returns an error, which it returns. No nodes: this one and its neighbours. A node supports at most 1,024 watched
// nodes, which its users share. If a barrier or another user takes a node's place, handle gets the node as Unknown.
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

// Eureka is a message from one process to all others of its job.
type Eureka struct {
	Topic    string // 1 to 32 of a-z, 0-9 and '-', chosen by the job
	Body     []byte // at most 512 bytes
	Priority int    // 0 lowest to 3

	// Only in received messages:

	Node string // its origin, proved by a signature
	UID  uint32 // of the sender; 0: root, who need not be part of the job

	// Supervisor is set for a message from the cluster itself, to all jobs, when it responds to a fault. Topic is then
	// "lofamo", Body a policy's text, Target the faulty component ("n1-0-0/memory"), and Response the id of the
	// response, which is delivered once. Empty: a process has raised it.
	Supervisor, Target, Response string
}

// Heard is an event of a watch for eurekas.
type Heard struct {
	// Eureka is nil when the watch begins: messages raised from then on are delivered.
	Eureka *Eureka
	// Missed is the number of messages dropped before this one because handle was too slow.
	Missed uint64
	// Again is set, without a Eureka, when the watch has restarted because the host half did: messages raised meanwhile
	// were lost.
	Again bool
}

// WatchEureka calls handle with the eurekas of the user's job of that name, including those raised on this node, until
// the context ends or handle returns an error, which it returns.
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

// RaiseEureka sends a message to all nodes connected to this one. Without an error, the node's DNP half has accepted it
// and it is on its way. If the host half restarts during the call, the message is raised again and may arrive twice.
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

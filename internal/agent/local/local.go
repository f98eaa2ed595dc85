// Package local serves the jobs of a node: the host half's view of the fault map, with every change, eurekas and
// barriers (api/lofamo/v1/local.proto; seed 003 §4.4.3, §6.1). It decides nothing about faults. Permissions come from
// the kernel's peer credentials and the configuration. Package jobs counts and bounds; the DNP half carries eurekas
// and arrivals to other nodes.
//
// # The status for people
//
// The package also has a running host half's status for people on its own node (status.go): the state of its reports,
// its paths, and whether it can reach any supervisor. It contacts no supervisor, so it answers where none can be
// reached. The host half serves it on another Unix socket, which only its owner may use; `lofamo-agent status` queries
// it. It is for people and scripts on the node, not a part of the API.
package local

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Half is the host half. Its methods may be called from any goroutine and do not block.
type Half interface {
	// Known returns the view of the given nodes; without arguments, of the node and its neighbours.
	Known(ids []fault.NodeID) hostcore.Known
	// Watch sets the nodes that somebody here watches.
	Watch(ids []fault.NodeID)
	// Self returns the node and the half's boot epoch in use.
	Self() (fault.NodeID, fault.Epoch)
	// SinceBoot is the time since the machine was booted, sleep included.
	SinceBoot() time.Duration
	// Sign makes the envelope of a eureka of this half.
	Sign(m *lofamov1.JobEureka) ([]byte, error)
	// Post puts a message for the DNP half into its mailbox. It takes no lock of the half.
	Post(m jobs.Mail) error
}

// Server implements lofamov1.LocalServer.
type Server struct {
	lofamov1.UnimplementedLocalServer

	half     Half
	policy   Policy
	calls    *calls
	eurekas  *eurekas
	barriers *barriers
	watches
}

// New returns a server, which serves barriers while Run runs.
func New(half Half, p Policy) *Server {
	return &Server{half: half, policy: p, calls: newCalls(), eurekas: newEurekas(), barriers: newBarriers(), watches: watches{opens: opens}}
}

// Heard handles a mail from the DNP half about jobs. It does not block.
func (s *Server) Heard(m jobs.Mail) {
	switch m.Kind {
	case jobs.Taken:
		s.eurekas.taken(m)
	case jobs.Status:
		s.stepBarriers(jobs.Answered{Mail: m})
	default: // Delivered is verified first: see Deliver
	}
}

// Deliver takes a verified eureka of another node. It does not block.
func (s *Server) Deliver(m *lofamov1.JobEureka) { s.eurekas.deliver(m) }

// Changed informs the watchers that the view of nodes has changed. It does not block.
func (s *Server) Changed(ids []fault.NodeID) {
	s.barriers.fatesChanged(ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches.open {
		for _, id := range ids {
			if w.watches(id) {
				w.changed[id] = true
			}
		}
		if len(w.changed) > 0 {
			w.tell()
		}
	}
}

// Aged tells all watchers that the view has become stale, or is current again. It does not block.
func (s *Server) Aged() {
	s.barriers.fatesChanged(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches.open {
		w.all = true
		w.tell()
	}
}

// WatchFaults implements the service.
func (s *Server) WatchFaults(req *lofamov1.WatchFaultsRequest, stream grpc.ServerStreamingServer[lofamov1.WatchFaultsResponse]) error {
	who, err := s.admit(stream.Context(), lofamov1.Local_WatchFaults_FullMethodName)
	if err != nil {
		return err
	}
	w, err := s.open(who.uid, req.GetNodes())
	if err != nil {
		return err
	}
	defer s.close(w)
	ids := w.nodes
	for {
		k := s.known(w, ids)
		resp := &lofamov1.WatchFaultsResponse{Revision: k.Revision, Pending: k.Pending}
		if !k.Heard.IsZero() {
			resp.SupervisorsAge = durationpb.New(time.Since(k.Heard))
		}
		if resp.Stale = k.Stale; k.Stale && !k.Confirmed.IsZero() {
			resp.StaleAge = durationpb.New(time.Since(k.Confirmed))
		}
		for _, n := range k.Nodes {
			resp.Nodes = append(resp.Nodes, render(n))
		}
		if len(resp.GetNodes()) > 0 { // else the changed nodes are those of other watchers
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		if ids, err = s.await(stream.Context(), w); err != nil {
			return err
		}
	}
}

// known returns the view of the given nodes that a watcher watches; without arguments, of all that it watches.
func (s *Server) known(w *watcher, ids []fault.NodeID) hostcore.Known {
	if len(w.nodes) > 0 || len(ids) == 0 {
		return s.half.Known(ids)
	}
	k := s.half.Known(nil) // only the half knows the neighbours
	k.Nodes = slices.DeleteFunc(k.Nodes, func(n *lofamov1.NodeView) bool { return !slices.Contains(ids, fault.NodeID(n.GetId())) })
	return k
}

// await returns the nodes to send to a watcher: at least one changed node, or all that it watches.
func (s *Server) await(ctx context.Context, w *watcher) ([]fault.NodeID, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-w.wake:
		}
		// The previous call may have taken the changes of this wake-up already: then there is nothing to send.
		ids, all := s.take(w)
		if all {
			return w.nodes, nil
		}
		if len(ids) > 0 {
			return ids, nil
		}
	}
}

// take empties the pending changes of a watcher, and returns whether to send everything again.
func (s *Server) take(w *watcher) (ids []fault.NodeID, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids = make([]fault.NodeID, 0, len(w.changed))
	for id := range w.changed {
		ids = append(ids, id)
	}
	clear(w.changed)
	slices.Sort(ids)
	all, w.all = w.all, false
	return ids, all
}

func render(n *lofamov1.NodeView) *lofamov1.LocalNode {
	out := &lofamov1.LocalNode{Id: n.GetId(), State: n.GetState(), Cause: n.GetCause(), Groups: n.GetGroups(), Maintenance: n.GetMaintenance()}
	for _, f := range n.GetFaults() {
		out.Faults = append(out.Faults, &lofamov1.LocalFault{Component: fault.Component(f.GetComponent()).String(), State: f.GetState(),
			Cause: f.GetCause()})
	}
	return out
}

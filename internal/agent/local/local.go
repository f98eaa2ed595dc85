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
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// maxWatchers bounds the simultaneous watchers.
const maxWatchers = 64

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

	// The half calls Changed under its own lock. So no lock that Changed takes may be held during a call to the half.
	order    sync.Mutex // of calls to the half's Watch
	mu       sync.Mutex
	watchers map[*watcher]bool
}

// watcher is one stream. Changed nodes wait in a set, so that a slow reader gets the newest state of each node, and
// no queue grows.
type watcher struct {
	nodes   []fault.NodeID // none: the node and its neighbours
	changed map[fault.NodeID]bool
	all     bool          // send everything again
	wake    chan struct{} // has room for one
}

// New returns a server, which serves barriers while Run runs.
func New(half Half, p Policy) *Server {
	return &Server{half: half, policy: p, calls: newCalls(), eurekas: newEurekas(), barriers: newBarriers(), watchers: make(map[*watcher]bool)}
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
	for w := range s.watchers {
		for _, id := range ids {
			if len(w.nodes) == 0 || slices.Contains(w.nodes, id) {
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
	for w := range s.watchers {
		w.all = true
		w.tell()
	}
}

func (w *watcher) tell() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// WatchFaults implements the service.
func (s *Server) WatchFaults(req *lofamov1.WatchFaultsRequest, stream grpc.ServerStreamingServer[lofamov1.WatchFaultsResponse]) error {
	if _, err := s.admit(stream.Context(), lofamov1.Local_WatchFaults_FullMethodName); err != nil {
		return err
	}
	w, err := s.open(req.GetNodes())
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

// open admits a watcher.
func (s *Server) open(names []string) (*watcher, error) {
	w := &watcher{changed: make(map[fault.NodeID]bool), wake: make(chan struct{}, 1)}
	for _, name := range names {
		if !servicenet.ValidID(name) {
			return nil, status.Errorf(codes.InvalidArgument, "nodes: given %q: want ids of nodes", name)
		}
		w.nodes = append(w.nodes, fault.NodeID(name))
	}
	slices.Sort(w.nodes)
	w.nodes = slices.Compact(w.nodes)
	s.order.Lock()
	defer s.order.Unlock()
	all, err := s.add(w)
	if err == nil {
		s.half.Watch(all)
	}
	return w, err
}

// add adds a watcher, unless there are too many, and returns the nodes that all of them watch.
func (s *Server) add(w *watcher) ([]fault.NodeID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) >= maxWatchers {
		return nil, status.Errorf(codes.ResourceExhausted, "%d watchers: the maximum on one node", maxWatchers)
	}
	s.watchers[w] = true
	all := s.watched()
	if len(all) > servicenet.MaxInterest {
		delete(s.watchers, w)
		return nil, status.Errorf(codes.ResourceExhausted, "nodes: %d would be watched on this node: want at most %d", len(all),
			servicenet.MaxInterest)
	}
	return all, nil
}

func (s *Server) close(w *watcher) {
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	delete(s.watchers, w)
	all := s.watched()
	s.mu.Unlock()
	s.half.Watch(all)
}

// rewatch updates the half's watched nodes after the barriers' nodes have changed.
func (s *Server) rewatch() {
	s.order.Lock()
	defer s.order.Unlock()
	s.mu.Lock()
	all := s.watched()
	s.mu.Unlock()
	s.half.Watch(all)
}

// watched returns the nodes of all watchers and, if all of the barriers' nodes fit beside them, those too.
func (s *Server) watched() []fault.NodeID {
	var all []fault.NodeID
	for w := range s.watchers {
		all = append(all, w.nodes...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	more := slices.Concat(all, s.barriers.watching())
	slices.Sort(more)
	if more = slices.Compact(more); len(more) <= servicenet.MaxInterest {
		return more
	}
	return all
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

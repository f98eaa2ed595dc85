package local

import (
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// maxWatchers bounds the simultaneous watchers.
const maxWatchers = 64

// opens limits the watches that a user opens. Each change of the watched nodes makes the supervisors send the view again.
var opens = jobs.Limit{Rate: 1, Burst: 128}

// watches is the state of the watchers, and of the nodes that this node watches for them and for the barriers.
type watches struct {
	// The half calls Changed under its own lock. So no lock that Changed takes may be held during a call to the half.
	order sync.Mutex // of calls to the half's Watch; it guards opens and nodes
	opens jobs.Limit
	nodes []fault.NodeID // of the last call to the half's Watch, in order
	mu    sync.Mutex
	open  []*watcher // the oldest first
}

// watcher is one stream. Changed nodes wait in a set, so that a slow reader gets the newest state of each node, and
// no queue grows.
type watcher struct {
	uid     uint32
	nodes   []fault.NodeID // in order; none: the node and its neighbours
	changed map[fault.NodeID]bool
	all     bool          // send everything again
	wake    chan struct{} // has room for one
}

// newWatcher checks a request.
func newWatcher(uid uint32, names []string) (*watcher, error) {
	w := &watcher{uid: uid, changed: make(map[fault.NodeID]bool), wake: make(chan struct{}, 1)}
	for _, name := range names {
		if !servicenet.ValidID(name) {
			return nil, status.Errorf(codes.InvalidArgument, "nodes: given %q: want ids of nodes", name)
		}
		w.nodes = append(w.nodes, fault.NodeID(name))
	}
	slices.Sort(w.nodes)
	w.nodes = slices.Compact(w.nodes)
	return w, nil
}

// watches reports whether the watcher gets the states of a node.
func (w *watcher) watches(id fault.NodeID) bool {
	_, found := slices.BinarySearch(w.nodes, id)
	return found || len(w.nodes) == 0
}

// tell wakes the stream.
func (w *watcher) tell() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// open begins a watch, if all of its nodes have room.
func (s *Server) open(uid uint32, names []string) (*watcher, error) {
	w, err := newWatcher(uid, names)
	if err != nil {
		return nil, err
	}
	s.order.Lock()
	defer s.order.Unlock()
	if !s.opens.Take(time.Now(), uid) {
		return nil, status.Errorf(codes.ResourceExhausted, "watches: uid %d opens too many: want at most %.0f a second, or %.0f at once", uid,
			opens.Rate, opens.Burst)
	}
	open := s.watchers()
	mine := 0
	for _, other := range open {
		if other.uid == uid {
			mine++
		}
	}
	if !jobs.Room(maxWatchers, len(open), uid, mine) {
		return nil, status.Errorf(codes.ResourceExhausted, "uid %d opens too many watches of faults: want at most %d on one node, and half of "+
			"that of one user", uid, maxWatchers)
	}
	open = append(open, w)
	nodes := interest(open, s.barriers.watching())
	room := 0
	for _, id := range w.nodes {
		if _, found := slices.BinarySearch(nodes, id); found {
			room++
		}
	}
	if room < len(w.nodes) {
		return nil, status.Errorf(codes.ResourceExhausted, "nodes: given %d: want at most %d beside the other watches and barriers: this node "+
			"watches at most %d, which its users share", len(w.nodes), room, servicenet.MaxInterest)
	}
	s.setWatchers(open)
	s.watchNodes(nodes)
	return w, nil
}

func (s *Server) close(w *watcher) {
	s.order.Lock()
	defer s.order.Unlock()
	open := slices.DeleteFunc(s.watchers(), func(other *watcher) bool { return other == w })
	s.setWatchers(open)
	s.watchNodes(interest(open, s.barriers.watching()))
}

// rewatch updates the half's watched nodes after the barriers' nodes have changed.
func (s *Server) rewatch() {
	s.order.Lock()
	defer s.order.Unlock()
	s.watchNodes(interest(s.watchers(), s.barriers.watching()))
}

// watchers returns a copy of the list.
func (s *Server) watchers() []*watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.watches.open)
}

func (s *Server) setWatchers(open []*watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches.open = open
}

// watchNodes sets the half's watched nodes. Watchers of a node that no longer has room learn that its state is unknown. The caller holds
// order.
func (s *Server) watchNodes(nodes []fault.NodeID) {
	var lost []fault.NodeID
	for _, id := range s.nodes {
		if _, found := slices.BinarySearch(nodes, id); !found {
			lost = append(lost, id)
		}
	}
	s.nodes = nodes
	s.half.Watch(nodes)
	if len(lost) > 0 {
		s.Changed(lost)
	}
}

// interest returns the nodes to watch, in order. The barriers' nodes and the watchers' have equal shares, and so do the users among the
// watchers. A share that is not used is free for the others. Of one user, the oldest watches come first.
func interest(open []*watcher, barriers []fault.NodeID) []fault.NodeID {
	of := make(map[uint32][]fault.NodeID)
	for _, w := range open {
		of[w.uid] = append(of[w.uid], w.nodes...)
	}
	users := make([][]fault.NodeID, 0, len(of))
	for _, uid := range slices.Sorted(maps.Keys(of)) {
		own, _ := jobs.Turns(servicenet.MaxInterest, of[uid]) // each node once
		users = append(users, own)
	}
	watched, _ := jobs.Turns(servicenet.MaxInterest, users...)
	all, _ := jobs.Turns(servicenet.MaxInterest, barriers, watched)
	slices.Sort(all)
	return all
}

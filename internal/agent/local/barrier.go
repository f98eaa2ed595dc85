package local

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// maxWait bounds BarrierRequest.wait.
const maxWait = 24 * time.Hour

// barriers is the shell around jobs.Barriers.
type barriers struct {
	mu    sync.Mutex
	limit jobs.Limit
	core  *jobs.Barriers
	last  uint64                       // call
	calls map[uint64]chan jobs.Outcome // that wait
	watch []fault.NodeID               // from the core's last output, the most important first
	names map[fault.NodeID]bool        // of watch
	wake  time.Time                    // of the core; zero: no caller waits
	kick  chan struct{}                // has room for one: look at wake and fates again
	fates bool                         // the states of the nodes have changed
}

func newBarriers() *barriers {
	return &barriers{
		limit: jobs.Limit{Rate: 500, Burst: 1000}, core: jobs.NewBarriers(), calls: make(map[uint64]chan jobs.Outcome),
		kick: make(chan struct{}, 1),
	}
}

// Barrier implements the service.
func (s *Server) Barrier(ctx context.Context, req *lofamov1.BarrierRequest) (*lofamov1.BarrierResponse, error) {
	who, err := s.admit(ctx, lofamov1.Local_Barrier_FullMethodName)
	if err != nil {
		return nil, err
	}
	call, err := s.barrierCall(who.uid, req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	done := make(chan jobs.Outcome, 1)
	if err := s.arrive(&call, done); err != nil {
		return nil, err
	}
	select {
	case o := <-done:
		return s.barrierEnd(call, o)
	case <-ctx.Done():
		s.leave(call.ID)
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// barrierCall checks a request. The members are sorted.
func (s *Server) barrierCall(uid uint32, req *lofamov1.BarrierRequest) (jobs.Call, error) {
	c := jobs.Call{
		Name:         jobs.Name{UID: uid, Job: req.GetJob(), Name: req.GetName(), Generation: req.GetGeneration()},
		Participants: int(max(req.GetParticipants(), 1)), Participant: req.GetParticipant(),
	}
	if c.Participant == "" {
		c.Participant = "0"
	}
	if err := jobs.CheckName("job", c.Name.Job, servicenet.MaxJob); err != nil {
		return c, err
	}
	if err := jobs.CheckName("name", c.Name.Name, servicenet.MaxTopic); err != nil {
		return c, err
	}
	switch {
	case c.Name.Generation == 0:
		return c, fmt.Errorf("generation: given 0: want at least 1")
	case c.Participants > jobs.MaxParticipants:
		return c, fmt.Errorf("participants: given %d: want 1 to %d", c.Participants, jobs.MaxParticipants)
	case len(c.Participant) > jobs.MaxParticipant || !servicenet.ValidID(c.Participant):
		return c, fmt.Errorf("participant: given %q: want 1 to %d of [A-Za-z0-9._-]", c.Participant, jobs.MaxParticipant)
	}
	if req.GetWait() != nil {
		w := req.GetWait().AsDuration()
		if !req.GetWait().IsValid() || w < time.Millisecond || w > maxWait {
			return c, fmt.Errorf("wait: given %v: want 1ms to %v", w, maxWait)
		}
		c.Until = time.Now().Add(w)
	}
	return c, s.members(&c, req.GetMembers())
}

// members fills in the nodes of a barrier, in order.
func (s *Server) members(c *jobs.Call, names []string) error {
	if n := len(names); n < 1 || n > jobs.MaxMembers {
		return fmt.Errorf("members: given %d: want 1 to %d", n, jobs.MaxMembers)
	}
	for _, name := range names {
		c.Members = append(c.Members, fault.NodeID(name))
	}
	slices.Sort(c.Members)
	self, _ := s.half.Self()
	var in bool
	if c.Rank, in = slices.BinarySearch(c.Members, self); !in {
		return fmt.Errorf("members: given %d without this node: want %s among them", len(names), self)
	}
	for i, id := range c.Members {
		if i > 0 && c.Members[i-1] == id {
			return fmt.Errorf("members: given %q twice: want each once", id)
		}
		if !servicenet.ValidID(string(id)) {
			return fmt.Errorf("members: given %q: want ids of nodes", id)
		}
	}
	return nil
}

// arrive begins a call.
func (s *Server) arrive(c *jobs.Call, done chan jobs.Outcome) error {
	b := s.barriers
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if !b.limit.Take(now, c.Name.UID) {
		return status.Errorf(codes.ResourceExhausted, "barriers: uid %d arrives too often: want at most %.0f times a second, or %.0f at once",
			c.Name.UID, b.limit.Rate, b.limit.Burst)
	}
	b.last++
	c.ID = b.last
	b.calls[c.ID] = done
	s.apply(b.core.Step(now, *c))
	return nil
}

func (s *Server) leave(id uint64) {
	b := s.barriers
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.calls, id)
	s.apply(b.core.Step(time.Now(), jobs.Left{ID: id}))
}

// apply executes the core's output. It runs under the barriers' mutex, and the half has a mutex of its own. So apply
// calls the half only to post, which takes none; the loop does the rest.
func (s *Server) apply(out jobs.Output) {
	b := s.barriers
	for _, m := range out.Mail {
		_ = s.half.Post(m) // sent again until the core gives up
	}
	for _, o := range out.Outcomes {
		if done := b.calls[o.ID]; done != nil {
			done <- o
			delete(b.calls, o.ID)
		}
	}
	b.wake = out.Wake
	if out.Rewatch {
		b.watch, b.fates = out.Watch, true
		b.names = make(map[fault.NodeID]bool, len(b.watch))
		for _, id := range b.watch {
			b.names[id] = true
		}
	}
	b.look()
}

func (b *barriers) look() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// Run looks after the barriers until ctx ends.
func (s *Server) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.barriers.kick:
		case <-timer.C:
			s.stepBarriers(jobs.Tick{})
		}
		if watch, changed := s.barriers.lookAtFates(); changed {
			s.rewatch()
			s.stepBarriers(jobs.Fates{Failed: s.failed(watch)})
		}
		timer.Reset(s.barriers.rest())
	}
}

func (b *barriers) watching() []fault.NodeID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watch
}

// lookAtFates returns the nodes of the barriers, and whether to check their states.
func (b *barriers) lookAtFates() ([]fault.NodeID, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := b.fates
	b.fates = false
	return b.watch, changed
}

// rest returns the time until the next work is due.
func (b *barriers) rest() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake.IsZero() {
		return time.Hour
	}
	return max(0, time.Until(b.wake))
}

func (s *Server) stepBarriers(ev jobs.Event) {
	s.barriers.mu.Lock()
	defer s.barriers.mu.Unlock()
	s.apply(s.barriers.core.Step(time.Now(), ev))
}

// failed returns the nodes that the map calls FAILED. A stale map shows nothing about the present.
func (s *Server) failed(ids []fault.NodeID) []fault.NodeID {
	if len(ids) == 0 {
		return nil
	}
	k := s.half.Known(ids)
	if k.Stale {
		return nil
	}
	var out []fault.NodeID
	for _, n := range k.Nodes {
		if n.GetState() == lofamov1.State_FAILED {
			out = append(out, fault.NodeID(n.GetId()))
		}
	}
	return out
}

// fatesChanged makes the loop check the states of nodes. The caller holds the half's lock.
func (b *barriers) fatesChanged(ids []fault.NodeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ids != nil && !slices.ContainsFunc(ids, func(id fault.NodeID) bool { return b.names[id] }) {
		return
	}
	b.fates = true
	b.look()
}

// barrierEnd is the answer to a call.
func (s *Server) barrierEnd(c jobs.Call, o jobs.Outcome) (*lofamov1.BarrierResponse, error) {
	what := fmt.Sprintf("barrier %s/%s generation %d", c.Name.Job, c.Name.Name, c.Name.Generation)
	switch o.End {
	case jobs.Complete:
		return &lofamov1.BarrierResponse{Members: uint32(len(c.Members))}, nil
	case jobs.Late:
		here := ""
		if o.Here < c.Participants {
			here = fmt.Sprintf("; of this node's participants %d of %d have arrived", o.Here, c.Participants)
		}
		return nil, withInfo(codes.DeadlineExceeded, ReasonMissing, o.Nodes, "%s: missing: %s%s", what, list(o.Nodes), here)
	case jobs.Gone:
		return nil, withInfo(codes.Aborted, ReasonGone, o.Nodes, "%s: cannot be complete: gone: %s", what, list(o.Nodes))
	case jobs.Silent:
		return nil, unavailable(ReasonSilent, "%s: the DNP half does not answer", what)
	case jobs.Alone:
		return nil, unavailable(ReasonNoLinks, "%s: no link of this node lives", what)
	case jobs.Overloaded:
		return nil, status.Errorf(codes.ResourceExhausted, "%s: the DNP half has too many barriers", what)
	case jobs.Differs:
		return nil, status.Errorf(codes.InvalidArgument, "participants: given %d: want %d, as others of this node say for the %s", c.Participants,
			o.Here, what)
	case jobs.TooMany:
		return nil, status.Errorf(codes.ResourceExhausted, "%s: too many barriers, or calls that wait, on this node: want at most %d and %d, "+
			"and half of that of one user", what, jobs.MaxBarriers, jobs.MaxWaiting)
	default:
		return nil, status.Errorf(codes.InvalidArgument, "%s: the DNP half refuses it", what)
	}
}

// list returns the names of the first twenty nodes.
func list(ids []fault.NodeID) string {
	s := fault.List(ids[:min(len(ids), 20)])
	if more := len(ids) - 20; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

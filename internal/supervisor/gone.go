package supervisor

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
)

const (
	// endsEvery is the minimum interval between two terms that this replica ends. It limits the harm of forged refusals.
	endsEvery = 10 * time.Second
	// endWithin bounds the attempts to end one term. Afterwards the election lease has ended anyway.
	endWithin = store.LeaseTTL * time.Second
	// endPause is the pause after a failed attempt.
	endPause = 20 * time.Millisecond
	// answerTime is the time that the store has for its answer to an attempt after the attempts have ended.
	answerTime = 250 * time.Millisecond

	// raftWithin is the maximum wait for raft's election before the term of a leader that is gone ends. Raft elects another leader 0.5 to
	// 1 s after the last heartbeat, and repeats a split election. It loses an attempt that goes to a dead leader.
	raftWithin = 2 * time.Second
	// silentWithin is the time in which a leader must fall silent after raft has elected another member. Three questions take 0.6 s.
	silentWithin = time.Second
	// raftPoll is the interval at which a replica compares raft's leader with the list of replicas.
	raftPoll = time.Second
)

// replaceGone ends the term of each leader that is gone or silent, so that candidates need not wait for its election lease, until ctx ends.
func (s *Supervisor) replaceGone(ctx context.Context) {
	var last time.Time // when this replica ended a term
	for ctx.Err() == nil {
		leader, fence, changed := s.store.observer.Term()
		term, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		var ended atomic.Bool
		if leader != "" && leader != s.cfg.ID {
			returns := func(ctx context.Context) bool { return s.engine.peers.Returns(ctx, leader) }
			for _, l := range s.losses(leader, fence) {
				wg.Go(func() {
					if endLost(term, last.Add(endsEvery), l, returns) {
						ended.Store(true)
						s.logger.Info("ended the leader's term", "leader", leader, "term", fence.Rev, "reason", l.reason)
					}
				})
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		cancel()
		wg.Wait()
		if ended.Load() {
			last = time.Now()
		}
	}
}

// loss is a way in which a replica loses the leader.
type loss struct {
	reason string
	lost   func(context.Context) bool                    // true as soon as the leader is lost; false when ctx ends
	end    func(context.Context) (ended bool, err error) // ends the term; ended is false if it had already ended
}

// losses returns the ways in which this replica may lose the leader of a term.
func (s *Supervisor) losses(leader string, fence store.Fence) []loss {
	end := func(ctx context.Context) (bool, error) {
		return answered(ctx, func(ctx context.Context) (bool, error) { return s.store.EndTerm(ctx, fence) })
	}
	gone := loss{"its machine refuses connections", func(ctx context.Context) bool { return s.engine.peers.Gone(ctx, leader) }, end}
	silent := loss{"it does not answer", func(ctx context.Context) bool { return s.engine.peers.Silent(ctx, leader) }, end}
	if s.store.member != nil {
		raft := raftView(func() (raftLead, <-chan struct{}) { return s.raftLead(leader) })
		gone, silent = raft.afterElection(gone), raft.confirmed(silent)
	}
	if s.leadership.unquestioned {
		return []loss{gone}
	}
	return []loss{gone, silent}
}

// raftLead tells whether the leader's member of etcd leads raft, in the view of this replica's member.
type raftLead uint8

const (
	raftUnknown raftLead = iota // no member leads raft, or this replica does not know the leader's member
	raftHeld                    // the leader's member leads raft
	raftMoved                   // a quorum of members has elected another one
)

// raftLead returns what this replica knows of the leader's member, and a channel that is closed when raft elects another member.
func (s *Supervisor) raftLead(leader string) (lead raftLead, changed <-chan struct{}) {
	member, changed := s.store.member.RaftLeader()
	for _, sup := range s.engine.replicas.all() {
		switch {
		case sup.GetId() != leader || sup.GetEtcdMember() == "" || member == "":
		case sup.GetEtcdMember() == member:
			return raftHeld, changed
		default:
			return raftMoved, changed
		}
	}
	return raftUnknown, changed
}

// raftView returns the present raftLead, and a channel that is closed when raft elects another member.
type raftView func() (raftLead, <-chan struct{})

// await returns true as soon as the view is a given one, and false when ctx ends.
func (v raftView) await(ctx context.Context, want raftLead) bool {
	for ctx.Err() == nil {
		lead, changed := v()
		if lead == want {
			return true
		}
		select {
		case <-changed:
		case <-time.After(raftPoll):
		case <-ctx.Done():
		}
	}
	return false
}

// afterElection ends the term of a leader whose process is gone only after raft has elected another member, or after raftWithin. Such a
// process needs no other evidence.
func (v raftView) afterElection(l loss) loss {
	end := l.end
	l.end = func(ctx context.Context) (bool, error) {
		elected, cancel := context.WithTimeout(ctx, raftWithin)
		v.await(elected, raftMoved)
		cancel()
		return end(ctx)
	}
	return l
}

// confirmed requires of a silent leader that its member led raft until the silence, and that a quorum of members has elected another one
// since. So a leader that is too busy for questions keeps the lead while its member sends raft's heartbeats.
func (v raftView) confirmed(l loss) loss {
	lost, end := l.lost, l.end
	l.reason += ", and raft has elected another member"
	l.lost = func(ctx context.Context) bool {
		for v.await(ctx, raftHeld) {
			if v.lostWithin(ctx, lost) {
				return true
			}
		}
		return false
	}
	l.end = func(ctx context.Context) (bool, error) {
		if !v.await(ctx, raftMoved) {
			return false, ctx.Err()
		}
		return end(ctx)
	}
	return l
}

// lostWithin returns true as soon as lost does, and false when ctx ends or silentWithin after raft has elected another member.
func (v raftView) lostWithin(ctx context.Context, lost func(context.Context) bool) bool {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if v.await(ctx, raftMoved) {
			pause(ctx, silentWithin)
			cancel()
		}
	})
	return lost(ctx)
}

// endLost ends a term when its leader is lost, but not earlier than a given time. A leader that returned before the end is watched again.
// endLost reports whether this replica has ended the term, and returns at the latest answerTime after ctx ends.
func endLost(ctx context.Context, earliest time.Time, l loss, returns func(context.Context) bool) bool {
	for l.lost(ctx) {
		early, cancel := context.WithDeadline(ctx, earliest)
		back := returns(early)
		cancel()
		if back {
			continue
		}
		if endTerm(ctx, returns, l.end) {
			return true
		}
		pause(ctx, endPause) // the news that another replica has ended the term may be on its way
	}
	return false
}

// endTerm repeats end until that has an outcome, returns reports that the leader is back, endWithin has passed or ctx ends. It reports
// whether end has ended the term.
func endTerm(ctx context.Context, returns func(context.Context) bool, end func(context.Context) (ended bool, err error)) bool {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if returns(ctx) {
			cancel()
		}
	})
	for ctx.Err() == nil {
		if ended, err := end(ctx); err == nil {
			return ended
		}
		pause(ctx, endPause)
	}
	return false
}

// answered makes an attempt that may outlive ctx by answerTime. The news that the term has ended may arrive before the store's answer, and
// only the answer tells which replica has ended it.
func answered(ctx context.Context, end func(context.Context) (bool, error)) (ended bool, err error) {
	attempt, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		pause(attempt, answerTime)
		cancel()
	})
	defer stop()
	return end(attempt)
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

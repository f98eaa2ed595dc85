package supervisor

import (
	"context"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
)

const (
	// endsEvery is the minimum interval between two terms that this replica ends. It limits the harm of forged refusals.
	endsEvery = 10 * time.Second
	// endWithin bounds the attempts to end one term. Afterwards the election lease has ended anyway.
	endWithin = store.LeaseTTL * time.Second
	// endTime bounds one attempt. Raft forwards an attempt to the leader that it believes in, and loses the attempt if that leader is dead.
	endTime = 250 * time.Millisecond
	// endPause is the pause after a failed attempt.
	endPause = 20 * time.Millisecond
)

// replaceGone ends the term of each leader that is gone or silent, so that candidates need not wait for its election lease, until ctx ends.
// If the leader's member was raft's leader too, raft elects another one first: nothing ends the term before a quorum of members has found
// it silent.
func (s *Supervisor) replaceGone(ctx context.Context) {
	var last time.Time // when this replica ended a term
	for ctx.Err() == nil {
		leader, fence, changed := s.store.observer.Term()
		term, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if leader != "" && leader != s.cfg.ID {
			gone := func(ctx context.Context) bool { return s.engine.peers.Gone(ctx, leader) }
			returns := func(ctx context.Context) bool { return s.engine.peers.Returns(ctx, leader) }
			end := func(ctx context.Context) (bool, error) { return s.store.EndTerm(ctx, fence) }
			wg.Go(func() {
				if endGone(term, last.Add(endsEvery), gone, returns, end) {
					last = time.Now()
					s.logger.Info("ended the leader's term: its machine refuses connections, or it does not answer", "leader", leader, "term", fence.Rev)
				}
			})
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		cancel()
		wg.Wait()
	}
}

// endGone ends a term when its leader is gone, but not earlier than a given time. A leader that returned before the end is watched again.
// endGone reports whether end has ended the term, and returns at the latest when ctx ends.
func endGone(ctx context.Context, earliest time.Time, gone, returns func(context.Context) bool,
	end func(context.Context) (ended bool, err error)) bool {
	for gone(ctx) {
		early, cancel := context.WithDeadline(ctx, earliest)
		back := returns(early)
		cancel()
		if back {
			continue
		}
		if endTerm(ctx, returns, end) {
			return true
		}
		select { // the news that another replica has ended the term may be on its way
		case <-time.After(endPause):
		case <-ctx.Done():
		}
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
		attempt, cancel := context.WithTimeout(ctx, endTime)
		ended, err := end(attempt)
		cancel()
		if err == nil {
			return ended
		}
		select {
		case <-time.After(endPause):
		case <-ctx.Done():
		}
	}
	return false
}

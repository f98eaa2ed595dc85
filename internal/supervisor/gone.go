package supervisor

import (
	"context"
	"sync"
	"time"
)

const (
	// endsEvery is the minimum interval between two terms that this replica ends. It limits the harm of forged refusals.
	endsEvery = 10 * time.Second
	// endWithin bounds the attempts to end one term. Afterwards the longest election lease has ended anyway.
	endWithin = 8 * time.Second
	// endTime bounds one attempt, which waits while raft has no leader.
	endTime = time.Second
	// endPause is the pause after the first failed attempt. The pauses double.
	endPause = 20 * time.Millisecond
)

// replaceGone ends the term of each leader whose process is gone, so that candidates need not wait for its election lease, until ctx ends.
// If that process was raft's leader too, raft elects another one first.
func (s *Supervisor) replaceGone(ctx context.Context) {
	var last time.Time // when this replica ended a term
	for ctx.Err() == nil {
		leader, fence, changed := s.store.observer.Term()
		term, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if leader != "" && leader != s.cfg.ID {
			wg.Go(func() {
				if !s.engine.peers.Gone(term, leader) || !last.IsZero() && time.Since(last) < endsEvery {
					return
				}
				if endTerm(term, func(ctx context.Context) bool { return s.engine.peers.Refuses(ctx, leader) },
					func(ctx context.Context) (bool, error) { return s.store.EndTerm(ctx, fence) }) {
					last = time.Now()
					s.logger.Info("ended the leader's term: the kernel of its machine refuses connections", "leader", leader, "term", fence.Rev)
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

// endTerm repeats end until that has an outcome, the leader's kernel no longer refuses connections, endWithin has passed or ctx ends. It
// reports whether end has ended the term.
func endTerm(ctx context.Context, refuses func(context.Context) bool, end func(context.Context) (ended bool, err error)) bool {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for pause := endPause; ctx.Err() == nil && refuses(ctx); pause *= 2 {
		attempt, cancel := context.WithTimeout(ctx, endTime)
		ended, err := end(attempt)
		cancel()
		if err == nil {
			return ended
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return false
}

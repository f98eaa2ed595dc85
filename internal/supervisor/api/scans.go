package api

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// scanWait limits how long a call waits until its subject's other reads of events are over.
const scanWait = 10 * time.Second

// scans lets each subject read the kept events once at a time: one read decodes up to all of these events.
type scans struct {
	limit time.Duration // on the wait for a turn

	mu       sync.Mutex
	subjects map[string]*scanner
}

// scanner is a subject that reads events.
type scanner struct {
	calls int // with those that wait
	turn  *semaphore.Weighted
}

// begin waits for the turn of the caller's subject. Call end when the read is over.
func (s *scans) begin(ctx context.Context) (end func(), err error) {
	by, err := subject(ctx)
	if err != nil {
		return func() {}, nil // not over TLS: no such call comes from outside
	}
	is := s.enter(by)
	waits, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	if err := is.turn.Acquire(waits, 1); err != nil {
		s.leave(by)
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		return nil, status.Errorf(codes.ResourceExhausted,
			"events: other reads by %s took all of the last %v: ask for less, or less often", by, s.limit)
	}
	return func() {
		is.turn.Release(1)
		s.leave(by)
	}, nil
}

func (s *scans) enter(by string) *scanner {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.subjects[by]
	if is == nil {
		if s.subjects == nil {
			s.subjects = map[string]*scanner{}
		}
		is = &scanner{turn: semaphore.NewWeighted(1)}
		s.subjects[by] = is
	}
	is.calls++
	return is
}

func (s *scans) leave(by string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if is := s.subjects[by]; is != nil {
		if is.calls--; is.calls == 0 {
			delete(s.subjects, by)
		}
	}
}

// beginScan waits for the turn of the caller's subject, and returns the bounds of the kept events as of a revision or later. Call end when
// the read is over.
func (s *Server) beginScan(ctx context.Context, revision uint64) (b store.Bounds, end func(), err error) {
	if end, err = s.scans.begin(ctx); err != nil {
		return b, nil, err
	}
	if b, err = boundsFrom(ctx, s.cfg.Copy, revision); err != nil {
		end()
		return b, nil, status.Error(codes.Unavailable, err.Error())
	}
	return b, end, nil
}

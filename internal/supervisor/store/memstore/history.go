package memstore

import (
	"context"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// Bounds implements the store.
func (s *Store) Bounds(context.Context) (store.Bounds, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := store.Bounds{Oldest: s.trimmed + 1, Next: s.trimmed + 1 + uint64(len(s.events)), Revision: s.rev}
	if s.commits > 0 {
		b.Written = s.rev
	}
	return b, nil
}

// EventsFrom implements the store.
func (s *Store) EventsFrom(_ context.Context, number uint64, limit int) (uint64, []*lofamov1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := max(number, s.trimmed+1)
	var out []*lofamov1.Event
	for n := first; n <= s.trimmed+uint64(len(s.events)) && len(out) < limit; n++ {
		out = append(out, proto.CloneOf(s.events[n-s.trimmed-1]))
	}
	return first, out, nil
}

// MapNow implements the store.
func (s *Store) MapNow(ctx context.Context) (store.Snapshot, error) { return s.Load(ctx) }

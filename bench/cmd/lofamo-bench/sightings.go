package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// sightings notify waiters when a watcher first sees an event.
type sightings struct {
	mu   sync.Mutex
	wait map[string]chan time.Time
	err  error // that ended the watcher
}

func newSightings() *sightings { return &sightings{wait: map[string]chan time.Time{}} }

// of returns a function that waits for the watcher's next sighting of what, from now on.
func (s *sightings) of(what string) func(context.Context) (time.Time, error) {
	seen := make(chan time.Time, 1)
	s.mu.Lock()
	s.wait[what] = seen
	s.mu.Unlock()
	return func(ctx context.Context) (time.Time, error) {
		select {
		case at := <-seen:
			return at, nil
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			return time.Time{}, fmt.Errorf("%s: not seen: %w", what, errors.Join(ctx.Err(), s.err))
		}
	}
}

// ofAll waits for several, and returns when each was seen.
func (s *sightings) ofAll(what []string) func(context.Context) ([]time.Time, error) {
	var each []func(context.Context) (time.Time, error)
	for _, w := range what {
		each = append(each, s.of(w))
	}
	return func(ctx context.Context) (out []time.Time, err error) {
		for _, wait := range each {
			at, err := wait(ctx)
			if err != nil {
				return nil, err
			}
			out = append(out, at)
		}
		return out, nil
	}
}

// saw is the watcher's word.
func (s *sightings) saw(what string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.wait[what]; c != nil {
		c <- at
		delete(s.wait, what)
	}
}

// ended notes why the watcher sees nothing more.
func (s *sightings) ended(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

package api

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// hangingCopy is a copy of a store without a quorum, in which a call of the named method hangs while its query waits.
type hangingCopy struct {
	*memstore.Store

	hang  atomic.Pointer[string]
	hangs chan struct{} // gets an element from each call that hangs
}

func (c *hangingCopy) wait(ctx context.Context, method string) error {
	if hang := c.hang.Load(); hang == nil || *hang != method {
		return nil
	}
	c.hangs <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func (c *hangingCopy) Bounds(ctx context.Context) (store.Bounds, error) {
	if err := c.wait(ctx, "Bounds"); err != nil {
		return store.Bounds{}, err
	}
	return c.Store.Bounds(ctx)
}

// Revision fails: there is no quorum.
func (*hangingCopy) Revision(context.Context) (uint64, error) { return 0, errors.New("no quorum") }

func (c *hangingCopy) MapNow(ctx context.Context) (store.Snapshot, error) {
	if err := c.wait(ctx, "MapNow"); err != nil {
		return store.Snapshot{}, err
	}
	return c.Store.MapNow(ctx)
}

// TestQueryThatHangsDelaysNoOther: while one query of the copy waits for the store, others end with their own deadline, or are
// answered as soon as the store answers them.
func TestQueryThatHangsDelaysNoOther(t *testing.T) {
	for method, answered := range map[string]bool{
		"Bounds": true,
		"MapNow": false, // only one query at a time reads the whole map
	} {
		t.Run(method, func(t *testing.T) {
			h := serve(t, 16)
			c := &hangingCopy{Store: h.store, hangs: make(chan struct{}, 1)}
			s := New(Config{Names: view.NewNames(grid.Dims{X: 1, Y: 1, Z: 1}, nil), Copy: c})
			c.hang.Store(&method)
			ctx, cancel := context.WithCancel(t.Context())
			first := make(chan error, 1)
			go func() {
				_, err := s.stale(ctx)
				first <- err
			}()
			<-c.hangs
			c.hang.Store(nil)
			second := make(chan error, 1)
			go func() {
				patience := time.Minute
				if !answered {
					patience = 50 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := s.stale(ctx)
				second <- err
			}()
			select {
			case err := <-second:
				if answered != (err == nil) {
					t.Errorf("the second query: %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the second query waits for the first")
			}
			cancel()
			if err := <-first; !errors.Is(err, context.Canceled) {
				t.Errorf("the first query: %v", err)
			}
			if _, err := s.stale(t.Context()); err != nil {
				t.Errorf("a query after the first: %v", err)
			}
		})
	}
}

// TestEndedWatchWaitsForNoStore: a watch that begins without a quorum, while the store hangs, ends when its client leaves.
func TestEndedWatchWaitsForNoStore(t *testing.T) {
	method := "Bounds"
	c := &hangingCopy{Store: memstore.New(1), hangs: make(chan struct{}, 1)}
	c.hang.Store(&method)
	s := New(Config{Copy: c})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.startOf(ctx, 0)
		ended <- err
	}()
	<-c.hangs
	cancel()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the watch has a revision to begin with")
		}
	case <-time.After(10 * time.Second):
		t.Error("the watch goes on without its client")
	}
}

// hangingResponses is a responder whose store hangs.
type hangingResponses struct {
	*memory

	hangs chan struct{} // gets an element from each read
}

func (r hangingResponses) Responses(ctx context.Context) ([]*response.Response, response.Breaker, error) {
	r.hangs <- struct{}{}
	<-ctx.Done()
	return nil, response.Breaker{}, ctx.Err()
}

// TestEndedWatchOfResponsesWaitsForNoOther: while a watch of responses waits for the store on behalf of all, another one ends when
// its client leaves.
func TestEndedWatchOfResponsesWaitsForNoOther(t *testing.T) {
	m := newMemory(t, twoApprovals)
	service := hangingResponses{m, make(chan struct{}, 1)}
	r := NewResponses(responsesOf(t, m, alone{}).s, unasked(), service)
	read := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, _, err := r.readOnce(ctx, service.Changed())
			ended <- err
		}()
		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := read(ctx)
	<-service.hangs
	left, leave := context.WithCancel(t.Context())
	second := read(left)
	leave()
	select {
	case err := <-second:
		if status.Code(err) != codes.Canceled {
			t.Errorf("the second watch: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second watch waits for the first")
	}
	cancel()
	if err := <-first; status.Code(err) != codes.Canceled {
		t.Errorf("the first watch: %v", err)
	}
}

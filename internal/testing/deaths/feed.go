package deaths

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// feed is a growing list that others wait on. It is safe for concurrent use.
type feed[T any] struct {
	mu    sync.Mutex
	items []dated[T]
	more  chan struct{} // closed and replaced whenever items grows
}

// dated is an item with the time of its arrival.
type dated[T any] struct {
	of T
	at time.Time
}

func newFeed[T any]() *feed[T] { return &feed[T]{more: make(chan struct{})} }

func (f *feed[T]) add(of T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.items = append(f.items, dated[T]{of, time.Now()})
	close(f.more)
	f.more = make(chan struct{})
}

// mark returns the present end.
func (f *feed[T]) mark() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.items)
}

// since returns the items after a mark.
func (f *feed[T]) since(mark int) []dated[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.items[mark:len(f.items):len(f.items)]
}

// wait returns the first item after mark that match accepts. what names it in the error.
func (f *feed[T]) wait(ctx context.Context, mark int, bound time.Duration, what string, match func(T) bool) (dated[T], error) {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for next := mark; ; {
		f.mu.Lock()
		fresh, more := f.items[next:], f.more
		f.mu.Unlock()
		for _, i := range fresh {
			if match(i.of) {
				return i, nil
			}
		}
		next += len(fresh)
		select {
		case <-more:
		case <-ctx.Done():
			return dated[T]{}, fmt.Errorf("%s: not within %s", what, bound)
		}
	}
}

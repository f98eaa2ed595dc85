package view

import (
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
)

// current is a set of stored objects by key, as of the newest revision that it was given. The objects are immutable. Its
// methods may be called from any goroutine, and also on a nil *current, which is empty.
type current[K comparable, V proto.Message] struct {
	mu       sync.RWMutex
	revision uint64
	of       map[K]V
	changed  chan struct{} // closed on the next change
}

func newCurrent[K comparable, V proto.Message]() current[K, V] {
	return current[K, V]{of: make(map[K]V), changed: make(chan struct{})}
}

// get returns the object of a key, or nil.
func (c *current[K, V]) get(k K) (v V) {
	if c == nil {
		return v
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.of[k]
}

func (c *current[K, V]) len() int {
	if c == nil {
		return 0
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.of)
}

// all returns the objects in order, their revision, and a channel that is closed on the next change.
func (c *current[K, V]) all(order func(a, b V) int) ([]V, uint64, <-chan struct{}) {
	if c == nil {
		return nil, 0, nil
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.SortedFunc(maps.Values(c.of), order), c.revision, c.changed
}

// replace sets all objects, as of a revision of the store. It ignores a revision that is not newer.
func (c *current[K, V]) replace(of map[K]V, revision uint64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if revision <= c.revision {
		return
	}
	c.revision = revision
	if !maps.EqualFunc(c.of, of, func(a, b V) bool { return proto.Equal(a, b) }) {
		c.of = of
		c.signal()
	}
}

// change applies a commit to the objects. It ignores a revision that is not newer.
func (c *current[K, V]) change(revision uint64, edit func(of map[K]V)) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if revision <= c.revision {
		return
	}
	c.revision = revision
	edit(c.of)
	c.signal()
}

func (c *current[K, V]) signal() {
	close(c.changed)
	c.changed = make(chan struct{})
}

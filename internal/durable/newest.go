package durable

import (
	"sync"
	"time"
)

// Newest writes values in its own goroutine, one at a time. It drops a value if a newer one arrives before its turn. The owner can thus
// wait for the disk where the order matters, but not long for a disk that hangs. Newest is safe for concurrent use.
type Newest[T any] struct {
	write func(T)

	mu   sync.Mutex
	next *T            // to be written after the present one; nil: none
	done chan struct{} // closed when all is written; nil: nothing is being written
	late bool          // an earlier Write has given up waiting
}

// NewNewest returns a writer that calls write.
func NewNewest[T any](write func(T)) *Newest[T] { return &Newest[T]{write: write} }

// Write writes v, or a newer value, and reports whether that has happened within the given time. After a timeout, further calls return at
// once, until all values are written.
func (n *Newest[T]) Write(v T, within time.Duration) bool {
	n.mu.Lock()
	n.next = &v
	if n.done == nil {
		n.done, n.late = make(chan struct{}), false
		go n.run(n.done)
	}
	if n.late {
		within = 0
	}
	done := n.done
	n.mu.Unlock()
	if Within(done, within) {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.late = n.late || n.done == done
	return false
}

// Flush waits until all values are written, at most for the given time, and reports whether they are.
func (n *Newest[T]) Flush(within time.Duration) bool {
	n.mu.Lock()
	done := n.done
	n.mu.Unlock()
	return done == nil || Within(done, within)
}

// run writes until there is nothing left to write.
func (n *Newest[T]) run(done chan struct{}) {
	for {
		n.mu.Lock()
		v := n.next
		n.next = nil
		if v == nil {
			n.done = nil
			close(done)
			n.mu.Unlock()
			return
		}
		n.mu.Unlock()
		n.write(*v)
	}
}

// Within waits until done is closed, at most for the given time, and reports whether it is closed.
func Within(done <-chan struct{}, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		select { // a starved process finds both at once
		case <-done:
		default:
			return false
		}
	}
	return true
}

package railtest

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Fake is a rail in memory to one supervisor. Its queue is bounded: when it is full, the newest is
// refused with ErrBusy and counted.
type Fake struct {
	target string
	limit  int

	mu      sync.Mutex
	closed  bool
	size    int
	waiting [][]byte
	deliver func([]byte)
	refused uint64
}

var _ servicenet.Rail = (*Fake)(nil)

// NewFake returns a rail to target that accepts envelopes of at most limit bytes and holds size of these.
func NewFake(target string, limit, size int) *Fake {
	return &Fake{target: target, limit: limit, size: size}
}

// Send implements servicenet.Rail.
func (f *Fake) Send(to string, b []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case to != f.target:
		return fmt.Errorf("send on the fake rail: supervisor %q: %w", to, servicenet.ErrNoTarget)
	case len(b) == 0:
		return fmt.Errorf("send on the fake rail: %w", servicenet.ErrEmpty)
	case len(b) > f.limit:
		return fmt.Errorf("send on the fake rail: given %d bytes: want at most %d: %w", len(b), f.limit, servicenet.ErrTooLong)
	case f.closed:
		return fmt.Errorf("send on the fake rail: %w", servicenet.ErrClosed)
	case f.deliver != nil:
		f.deliver(b)
	case len(f.waiting) == f.size:
		f.refused++
		return fmt.Errorf("send on the fake rail: %w", servicenet.ErrBusy)
	default:
		f.waiting = append(f.waiting, bytes.Clone(b))
	}
	return nil
}

// Read delivers the waiting envelopes, and from now on all that are sent, in order. deliver must not call the rail,
// and does not keep b.
func (f *Fake) Read(deliver func(b []byte)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deliver = deliver
	for _, b := range f.waiting {
		deliver(b)
	}
	f.waiting = nil
}

// Refused returns the number of envelopes that the full queue refused.
func (f *Fake) Refused() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// Close closes the rail.
func (f *Fake) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// Package railtest is the contract of servicenet.Rail as a test suite, and a rail in memory that keeps it. Every rail
// runs the suite over its real transport. The suite covers nothing that is specific to one rail: rates, addresses,
// transit times.
package railtest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/servicenet"
)

// patience bounds the waits for expected events.
const patience = time.Minute

// Harness is one rail with its far end. Run takes a fresh one for each test and closes it at the end.
type Harness struct {
	Rail    servicenet.Rail
	Target  string // a supervisor that the rail reaches
	Unknown string // a target that it does not know; empty for a rail without targets
	Limit   int    // bytes of the longest envelope

	// Read makes the far end read: it calls deliver with all envelopes, the waiting ones first, and deliver does not
	// keep b. Until then the far end does not read. It is called once at most.
	Read func(deliver func(b []byte))
	// Refused counts the envelopes that the rail refused with servicenet.ErrBusy.
	Refused func() uint64
	// Lost counts envelopes that Send accepted and that may not arrive. A rail that sends an envelope several times
	// (gossip) may count one that arrives nevertheless.
	Lost func() uint64
	// Close closes the rail's near end. Closing twice does nothing.
	Close func()
}

// Run runs the suite. make builds a harness and leaves the rest of its cleaning up to t.
func Run(t *testing.T, make func(t *testing.T) Harness) {
	for _, tc := range []struct {
		name string
		f    func(*testing.T, *harness)
	}{
		{"arrives whole", arrivesWhole},
		{"too long is refused", tooLongIsRefused},
		{"nothing is refused", nothingIsRefused},
		{"unknown target is refused", unknownTargetIsRefused},
		{"buffer is the caller's", bufferIsTheCallers},
		{"many at once", manyAtOnce},
		{"never blocks, and counts", neverBlocksAndCounts},
		{"closed", closed},
		{"closed while sending", closedWhileSending},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &harness{Harness: make(t), arrived: map[string]int{}, change: newSignal()}
			t.Cleanup(h.Close)
			tc.f(t, h)
		})
	}
}

func newSignal() chan struct{} { return make(chan struct{}, 1) }

// harness adds a record of the arrived envelopes.
type harness struct {
	Harness
	mu      sync.Mutex
	arrived map[string]int
	n       uint64
	change  chan struct{}
}

func (h *harness) read() {
	h.Read(func(b []byte) {
		h.mu.Lock()
		h.arrived[string(b)]++
		h.n++
		h.mu.Unlock()
		select {
		case h.change <- struct{}{}:
		default:
		}
	})
}

// until waits for a condition on the arrived envelopes. Losses are not announced, so it polls too.
func (h *harness) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	end := time.After(patience)
	for {
		h.mu.Lock()
		done := ok()
		n := h.n
		h.mu.Unlock()
		if done {
			return
		}
		select {
		case <-h.change:
		case <-time.After(10 * time.Millisecond):
		case <-end:
			t.Fatalf("waited %s for %s: %d have arrived, %d are counted as lost", patience, what, n, h.Lost())
		}
	}
}

// send sends, again and again while the rail is busy.
func (h *harness) send(t *testing.T, b []byte) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		err := h.Rail.Send(h.Target, b)
		switch {
		case err == nil:
			return
		case !errors.Is(err, servicenet.ErrBusy) || time.Now().After(end):
			t.Fatalf("send %d bytes: %v", len(b), err)
		}
		time.Sleep(time.Millisecond) // the far end is reading
	}
}

// envelope is one of n bytes that differs from all others of its kind, and has every value in it.
func envelope(kind string, i, n int) []byte {
	b := fmt.Appendf(nil, "%s %d ", kind, i)
	r := rand.New(rand.NewPCG(uint64(i), uint64(n)))
	for len(b) < n {
		b = append(b, byte(r.Uint32()))
	}
	return b[:n]
}

func arrivesWhole(t *testing.T, h *harness) {
	h.read()
	var sent [][]byte
	for i, n := range []int{1, 2, 3, 4, 7, 8, 63, 64, 65, 255, 256, 257, 511, 1023, h.Limit / 2, h.Limit - 1, h.Limit} {
		b := envelope(fmt.Sprint(i%10), i, n)
		h.send(t, b)
		sent = append(sent, b)
		// One at a time: this is not about losses.
		h.until(t, fmt.Sprintf("an envelope of %d bytes", n), func() bool { return h.arrived[string(b)] == 1 })
	}
	if n := h.count(); int(n) != len(sent) {
		t.Errorf("%d sent, %d have arrived", len(sent), n)
	}
}

func tooLongIsRefused(t *testing.T, h *harness) {
	h.read()
	for _, n := range []int{h.Limit + 1, 2 * h.Limit, 1 << 16} {
		if err := h.Rail.Send(h.Target, make([]byte, n)); !errors.Is(err, servicenet.ErrTooLong) {
			t.Errorf("send %d bytes: %v, want ErrTooLong", n, err)
		}
	}
	h.onlyMarker(t)
}

// count returns the number of envelopes that have arrived. More may arrive, because a member may send an envelope and still count it as
// lost.
func (h *harness) count() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// onlyMarker checks that nothing was sent before.
func (h *harness) onlyMarker(t *testing.T) {
	t.Helper()
	h.send(t, []byte("marker"))
	h.until(t, "the marker", func() bool { return h.arrived["marker"] == 1 })
	if n := h.count(); n != 1 {
		t.Errorf("%d others have arrived", n-1)
	}
}

func nothingIsRefused(t *testing.T, h *harness) {
	h.read()
	for _, b := range [][]byte{nil, {}} {
		if err := h.Rail.Send(h.Target, b); !errors.Is(err, servicenet.ErrEmpty) {
			t.Errorf("send nothing: %v, want ErrEmpty", err)
		}
	}
	h.onlyMarker(t)
}

func unknownTargetIsRefused(t *testing.T, h *harness) {
	h.read()
	if h.Unknown == "" {
		for i, to := range []string{"", "anybody"} {
			b := envelope("to", i, 20)
			if err := h.Rail.Send(to, b); err != nil {
				t.Errorf("send to %q, which this rail ignores: %v", to, err)
			}
			h.until(t, "it", func() bool { return h.arrived[string(b)] == 1 })
		}
		return
	}
	for _, to := range []string{"", h.Unknown} {
		if err := h.Rail.Send(to, []byte("report")); !errors.Is(err, servicenet.ErrNoTarget) {
			t.Errorf("send to %q: %v, want ErrNoTarget", to, err)
		}
	}
	h.onlyMarker(t)
}

func bufferIsTheCallers(t *testing.T, h *harness) {
	const n = 30
	buf := make([]byte, 100)
	for i := range n {
		copy(buf, envelope("reused", i, len(buf)))
		if err := h.Rail.Send(h.Target, buf); err != nil && !errors.Is(err, servicenet.ErrBusy) {
			t.Fatal(err)
		}
		clear(buf) // before the far end has read
	}
	h.read()
	h.until(t, "the first", func() bool { return h.n > 0 })
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range n {
		delete(h.arrived, string(envelope("reused", i, len(buf))))
	}
	if len(h.arrived) > 0 {
		t.Errorf("%d altered", len(h.arrived))
	}
}

func manyAtOnce(t *testing.T, h *harness) {
	h.read()
	const senders, each = 8, 100
	var accepted, busy atomic.Uint64
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				switch err := h.Rail.Send(h.Target, envelope(fmt.Sprint("from", s), i, 20+i)); {
				case err == nil:
					accepted.Add(1)
				case errors.Is(err, servicenet.ErrBusy):
					busy.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	h.accounted(t, accepted.Load(), busy.Load())
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range senders {
		for i := range each {
			b := string(envelope(fmt.Sprint("from", s), i, 20+i))
			if h.arrived[b] > 1 {
				t.Errorf("%q has arrived %d times", b[:8], h.arrived[b])
			}
			delete(h.arrived, b)
		}
	}
	if len(h.arrived) > 0 {
		t.Errorf("%d altered", len(h.arrived))
	}
}

// accounted checks that no envelope has vanished: every accepted one has arrived or is counted as lost, and every
// refused one is counted too.
func (h *harness) accounted(t *testing.T, accepted, busy uint64) {
	t.Helper()
	if accepted == 0 {
		t.Error("nothing was accepted")
	}
	h.until(t, fmt.Sprintf("the %d accepted to arrive or be counted as lost", accepted), func() bool { return h.n+h.Lost() >= accepted })
	if arrived, lost := h.count(), h.Lost(); max(arrived, lost) > accepted {
		t.Errorf("%d accepted, but %d have arrived and %d are counted as lost", accepted, arrived, lost)
	}
	if got := h.Refused(); got != busy {
		t.Errorf("%d refused, but %d are counted", busy, got)
	}
}

func neverBlocksAndCounts(t *testing.T, h *harness) {
	var accepted, busy uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 10_000 {
			switch err := h.Rail.Send(h.Target, envelope("flood", i, 200)); {
			case err == nil:
				accepted++
			case errors.Is(err, servicenet.ErrBusy):
				busy++
			default:
				t.Errorf("send %d: %v", i, err)
				return
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("10,000 sends without a reader took more than %s", patience)
	}
	h.read()
	h.accounted(t, accepted, busy)
}

func closed(t *testing.T, h *harness) {
	h.Close()
	for range 3 {
		err, ok := within(func() error { return h.Rail.Send(h.Target, []byte("report")) })
		if !ok || !errors.Is(err, servicenet.ErrClosed) {
			t.Fatalf("send on a closed rail: %v, want ErrClosed", err)
		}
	}
	h.Close()
}

func within(f func() error) (error, bool) {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err, true
	case <-time.After(patience):
		return nil, false
	}
}

func closedWhileSending(t *testing.T, h *harness) {
	h.read()
	var wg sync.WaitGroup
	begun := make(chan struct{}, 4)
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				err := h.Rail.Send(h.Target, []byte("report"))
				if errors.Is(err, servicenet.ErrClosed) {
					return
				}
				if err != nil && !errors.Is(err, servicenet.ErrBusy) {
					t.Error(err)
					return
				}
				if i == 10 {
					begun <- struct{}{}
				}
			}
		})
	}
	for range 4 {
		<-begun
	}
	h.Close()
	if _, ok := within(func() error { wg.Wait(); return nil }); !ok {
		t.Error("senders hang on a closed rail")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for b := range h.arrived {
		if !bytes.Equal([]byte(b), []byte("report")) {
			t.Errorf("%q has arrived", b)
		}
	}
}

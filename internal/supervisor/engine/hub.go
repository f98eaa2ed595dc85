package engine

import (
	"sync"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// hub publishes changes to subscribers before they are committed. A subscriber with a full buffer is cut off: its
// channel is closed.
type hub struct {
	mu   sync.Mutex
	subs map[chan *lofamov1.Event]struct{} // nil while this replica does not lead
}

func (h *hub) open() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subs = make(map[chan *lofamov1.Event]struct{})
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subs {
		close(ch)
	}
	h.subs = nil
}

func (h *hub) subscribe(buffer int) (<-chan *lofamov1.Event, func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		return nil, nil, ErrNotLeading
	}
	ch := make(chan *lofamov1.Event, buffer)
	h.subs[ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, ok := h.subs[ch]; ok {
			delete(h.subs, ch)
			close(ch)
		}
	}, nil
}

func (h *hub) publish(ev *lofamov1.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for ch := range h.subs {
		select {
		case ch <- ev:
		default:
			delete(h.subs, ch)
			close(ch)
		}
	}
}

func (h *hub) empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs) == 0
}

package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local/jobs"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// jobMail holds the mails about jobs for which the DNP half's mailbox had no room. They may fill only a part of the
// mailbox (mailbox.Offer), and wait here otherwise.
type jobMail struct {
	mu      sync.Mutex
	queue   jobs.Queue
	waiting chan struct{} // has room for one: there are some
}

// errQueued is the error for a request that finds the queue full.
var errQueued = errors.New("too many messages about jobs wait for the DNP half")

// Post implements local.Half.
func (h *hostHalf) Post(m jobs.Mail) error {
	p := &h.jobMail
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.Len() == 0 {
		if err := h.offer(m); !errors.Is(err, mailbox.ErrDropped) {
			return err
		}
	}
	if !p.queue.Add(m) {
		return fmt.Errorf("tell the DNP half: %w", errQueued)
	}
	select {
	case p.waiting <- struct{}{}:
	default:
	}
	return nil
}

func (h *hostHalf) offer(m jobs.Mail) error {
	return h.box.Offer(mailbox.Message{Type: mailbox.Jobs, Payload: m.Append(nil)})
}

// postWaiting sends queued messages until ctx ends. It sleeps while the queue is empty.
func (h *hostHalf) postWaiting(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.jobMail.waiting:
		}
		for again := time.NewTicker(half.PostAgain); ; {
			if h.postSome() {
				again.Stop()
				break
			}
			select {
			case <-ctx.Done():
				again.Stop()
				return
			case <-again.C:
			}
		}
	}
}

// postSome sends as much as the mailbox takes, and reports whether the queue is now empty. Without a mailbox it drops
// the messages: the requester retries or gets an error.
func (h *hostHalf) postSome() bool {
	p := &h.jobMail
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue.Send(func(m jobs.Mail) bool { return !errors.Is(h.offer(m), mailbox.ErrDropped) })
	return p.queue.Len() == 0
}

// postDropped is how many mails found no room.
func (h *hostHalf) postDropped() uint64 {
	h.jobMail.mu.Lock()
	defer h.jobMail.mu.Unlock()
	return h.jobMail.queue.Dropped()
}

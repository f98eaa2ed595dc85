package responder

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/pkg/response/audit"
)

// loadTime bounds one attempt to load what a term begins with.
const loadTime = 5 * time.Second

// stopTime is how long the executors are waited for when the lead is lost. Who takes longer goes on alone, under a token that is
// refused wherever it can be.
const stopTime = 500 * time.Millisecond

// leadAgain is the pause before a replica that has lost the lead of responses, or cannot go on with what is committed, looks whether it can.
const leadAgain = 5 * time.Second

// Lead has the engine lead under a fence until the context ends or the fence falls. A commit that is refused while the fence stands, and records that
// cannot be read, end one term of it: another one begins with what is committed by then. When it returns nothing new is begun.
func (r *Responder) Lead(ctx context.Context, fence store.Fence) {
	defer r.recovered()
	for {
		r.lead(ctx, fence)
		select {
		case <-ctx.Done():
			return
		case <-r.stopped:
			return
		case <-time.After(r.again):
		}
		if _, err := r.cfg.Store.Confirm(ctx, fence); errors.Is(err, store.ErrNotLeader) {
			r.cfg.Logger.Debug("another supervisor leads", "err", err)
			return
		}
	}
}

// lead is one term.
func (r *Responder) lead(ctx context.Context, fence store.Fence) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &term{ctx: ctx, fence: fence, ended: make(chan struct{})}
	if !r.load(t) || !r.queue.put(input{lead: t}) {
		return
	}
	select {
	case <-ctx.Done():
		cancel()
		r.queue.put(input{lose: t})
		select {
		case <-t.ended:
		case <-r.stopped:
		}
	case <-t.ended:
	case <-r.stopped:
	}
	cancel()
	r.runner.wait(stopTime)
}

// complain says, once, that nothing is done about faults, and why.
func (r *Responder) complain(err error) {
	r.mu.Lock()
	said := r.trouble == err.Error()
	r.trouble = err.Error()
	r.mu.Unlock()
	r.broken.Store(true)
	r.cfg.Metrics.broken(true)
	if !said {
		r.cfg.Logger.Error("the responses that are committed cannot be gone on with: nothing is done about faults until this leader or another can", "err", err)
	}
}

// recovered ends the complaint.
func (r *Responder) recovered() {
	r.mu.Lock()
	r.trouble = ""
	r.mu.Unlock()
	r.broken.Store(false)
	r.cfg.Metrics.broken(false)
}

// loadPatience is for how long a store that does not answer is no more than that.
const loadPatience = 30 * time.Second

// load reads what a term begins with, trying again until it has; false: the context ended first. What cannot be read is complained of at once.
func (r *Responder) load(t *term) bool {
	for began := time.Now(); t.ctx.Err() == nil; {
		ctx, cancel := context.WithTimeout(t.ctx, loadTime)
		err := r.loadOnce(ctx, t)
		cancel()
		if err == nil {
			return true
		}
		if t.ctx.Err() == nil && (errors.Is(err, store.ErrUnreadable) || time.Since(began) > loadPatience) {
			r.complain(err)
		}
		r.cfg.Logger.Debug("the responses cannot be begun with yet", "err", err)
		select {
		case <-t.ctx.Done():
		case <-time.After(followAgain):
		}
	}
	return false
}

func (r *Responder) loadOnce(ctx context.Context, t *term) error {
	committed, err := r.cfg.Store.LoadResponses(ctx)
	if err != nil {
		return err
	}
	// By that read this replica's copy is as new as the cluster's.
	stored, _, err := r.cfg.Store.Policies(ctx)
	if err != nil {
		return err
	}
	marks, _, err := r.cfg.Store.Maintenance(ctx)
	if err != nil {
		return err
	}
	m, err := r.cfg.Awareness.Map(ctx)
	if err != nil {
		return err
	}
	r.verify(ctx, committed.Audit)
	t.begin = beginning{committed, m, r.compile(stored), marked(marks)}
	t.writer = r.cfg.Store.ResponseWriter(t.fence, committed, r.cfg.Audit)
	return nil
}

// verified is how many of the newest lines of the audit a new leader looks at before it goes on with them.
const verified = 1000

// verify complains of an audit whose newest lines cannot be read, or whose chain is broken. It is gone on with all the same: what was done
// has to be written down, and whoever reads it finds the place.
func (r *Responder) verify(ctx context.Context, head store.AuditHead) {
	if head.Last == 0 {
		return
	}
	from := max(head.First, head.Last-min(head.Last, verified))
	lines, _, err := r.cfg.Store.Audit(ctx, from, verified+1)
	var chain audit.Checker
	for _, l := range lines {
		if err == nil && l.Seq <= head.Last {
			var text []byte
			if text, err = l.Marshal(); err == nil {
				err = chain.Check(text)
			}
		}
	}
	if seq, hash := chain.Last(); err == nil && (seq != head.Last || hash != hex.EncodeToString(head.Hash[:])) {
		err = fmt.Errorf("the newest line is %d with hash %.16s: the head says %d with %.16x", seq, hash, head.Last, head.Hash)
	}
	if err != nil && ctx.Err() == nil {
		r.cfg.Metrics.AuditFailures.Inc()
		r.cfg.Logger.Error("the audit of responses is damaged", "err", err)
	}
}

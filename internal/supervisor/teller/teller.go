// Package teller tells the nodes whose digests come to this replica what of the fault map concerns them:
// the shell around package downflow. It follows the replica's own copy of the store, so that it works on
// every replica and without a leader.
package teller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/downflow"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Store is what is followed; its methods need no quorum.
type Store interface {
	Tree(ctx context.Context, prefix string, own bool) ([]store.Entry, uint64, error)
	Follow(ctx context.Context, after uint64, wanted func(key string) bool) <-chan store.Change
}

// Sender sends a message to the host half of a node. It does not block and may lose it.
type Sender interface {
	Tell(node fault.NodeID, told *lofamov1.Told)
}

// Config of a Teller.
type Config struct {
	Names        *view.Names
	Store        Store
	Sender       Sender
	DigestPeriod time.Duration
	DigestMisses int
	Metrics      *metrics.Metrics
	Logger       *slog.Logger
}

// queue bounds what waits of the halves; beyond it their words are dropped and counted, for each digest says
// the same again.
const queue = 4096

// Teller is one replica's. Digest and Interest may be called from any goroutine; they do not block.
type Teller struct {
	cfg     Config
	machine *downflow.Machine
	heard   chan any // downflow.Digest or *lofamov1.Interest
}

// New returns one; Run makes it work.
func New(cfg Config) *Teller {
	return &Teller{
		cfg: cfg, heard: make(chan any, queue),
		machine: downflow.New(downflow.Config{
			Window: time.Duration(cfg.DigestMisses) * cfg.DigestPeriod, Again: cfg.DigestPeriod * 4 / 5, Backlog: max(10*time.Second, 4*cfg.DigestPeriod),
		}),
	}
}

// Digest notes what a host half's digest says of what it was told.
func (t *Teller) Digest(d downflow.Digest) { t.submit(d) }

// Interest notes which nodes a node wants to be told of.
func (t *Teller) Interest(m *lofamov1.Interest) { t.submit(m) }

func (t *Teller) submit(what any) {
	select {
	case t.heard <- what:
	default:
		t.cfg.Metrics.Dropped.WithLabelValues("told").Inc()
	}
}

// retryAfter is the pause before the store is followed anew.
const retryAfter = time.Second

// Run works until the context ends.
func (t *Teller) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.follow(ctx); ctx.Err() == nil {
			t.cfg.Logger.Warn("following the map for what nodes are told", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// follow reads the copy and tells what changes of it until the watch ends.
func (t *Teller) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, from, err := t.read(ctx)
	if err != nil {
		return err
	}
	changes := t.cfg.Store.Follow(ctx, from, wanted)
	expire := time.NewTicker(max(time.Second, time.Duration(t.cfg.DigestMisses)*t.cfg.DigestPeriod))
	defer expire.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case what := <-t.heard:
			t.hears(what, r)
		case <-expire.C:
			t.machine.Expire(time.Now())
			t.cfg.Metrics.Told.Set(float64(t.machine.Len()))
		case c, ok := <-changes:
			if !ok {
				return fmt.Errorf("the watch ended at revision %d", r.revision)
			}
			if c.Err != nil {
				return c.Err
			}
			if err := t.changed(c.UpstreamChange, r); err != nil {
				return err
			}
		}
	}
}

// read returns the copy as it is, and a revision after which nothing of it is missing.
func (t *Teller) read(ctx context.Context) (*replica, uint64, error) {
	r, from := newReplica(t.cfg.Names), uint64(0)
	for i, kind := range kinds {
		entries, revision, err := t.cfg.Store.Tree(ctx, kind, true)
		if err != nil {
			return nil, 0, err
		}
		for _, e := range entries {
			if _, err := r.apply(&lofamov1.Document{Key: kind + e.Key, Value: e.Value}); err != nil {
				return nil, 0, err
			}
		}
		if i == 0 {
			from = revision // what was read after it comes again, to the same end
		}
	}
	r.revision = from
	return r, from, nil
}

func (t *Teller) hears(what any, r *replica) {
	now := time.Now()
	switch w := what.(type) {
	case downflow.Digest:
		t.tell(t.machine.Heard(now, w, r))
	case *lofamov1.Interest:
		t.tell(t.machine.Interested(now, w, r))
	}
}

func (t *Teller) changed(c *lofamov1.UpstreamChange, r *replica) error {
	var nodes []fault.NodeID
	for _, d := range c.GetDocuments() {
		list, err := r.apply(d)
		if err != nil {
			return err
		}
		nodes = append(nodes, list...)
	}
	r.revision = c.GetRevision()
	t.tell(t.machine.Changed(time.Now(), nodes, r))
	return nil
}

func (t *Teller) tell(list []downflow.Tell) {
	for _, one := range list {
		t.cfg.Sender.Tell(one.Node, one.Told)
	}
}

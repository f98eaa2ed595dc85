// Package notify tells nodes about faults that concern them: their own, their neighbours', and those of the nodes of their jobs
// (Yost, Chaos router §6.1). It also sends them the list of revoked certificates.
//
// Every replica notifies the nodes whose digests reach it, from its own copy of the committed map, with or without a leader. A node whose
// path moves to another replica is notified by that one. A half's digest states the revision that it holds; after a loss the Machine sends
// the whole view again.
//
//	unknown ──digest──► sent the whole ──change──► sent the change ──digest without it──► sent the whole
//	   ▲                                                                                      │
//	   └───────────────────────── no digest for Window ◄─────────────────────────────────────┘
//
// Machine (machine.go) is pure: it decides what each node is sent, sends nothing and keeps no map. Notifier (notify.go) is the shell around
// it. Denials (denials.go) repeat the deny list until each node has it.
package notify

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/denylist"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Sender sends a message to the host half of a node. It does not block and may lose it.
type Sender interface {
	Tell(node fault.NodeID, told *lofamov1.Told)
	Deny(node fault.NodeID, part *lofamov1.DenyPart)
}

// Config configures a Notifier.
type Config struct {
	Names        *view.Names
	Marks        *view.Marks
	Sender       Sender
	DigestPeriod time.Duration
	DigestMisses int
	Metrics      *metrics.Metrics
}

// queue bounds the waiting messages of the halves. Further ones are dropped and counted, for each digest repeats
// them.
const queue = 4096

// Notifier notifies the nodes of one replica. Digest, Interest and Changed may be called from any goroutine; they do not block.
type Notifier struct {
	cfg     Config
	machine *Machine
	heard   chan any           // Digest or *lofamov1.Interest
	woken   chan struct{}      // has room for one: announces a newer map
	lists   chan denylist.List // has room for one: the newest
	highest atomic.Uint64

	mu      sync.Mutex
	now     view.Map // the newest
	changed []fault.NodeID
	all     bool // everything may have changed
}

// New returns a notifier. Run does its work.
func New(cfg Config) *Notifier {
	return &Notifier{
		cfg: cfg, heard: make(chan any, queue), woken: make(chan struct{}, 1), lists: make(chan denylist.List, 1),
		machine: NewMachine(MachineConfig{
			Window: time.Duration(cfg.DigestMisses) * cfg.DigestPeriod, Again: cfg.DigestPeriod * 4 / 5, Backlog: max(10*time.Second, 4*cfg.DigestPeriod),
		}),
	}
}

// Digest records the position that a host half's digest acknowledges.
func (t *Notifier) Digest(d Digest) { t.submit(d) }

// Interest records the nodes that a node wants news about.
func (t *Notifier) Interest(m *lofamov1.Interest) { t.submit(m) }

func (t *Notifier) submit(what any) {
	select {
	case t.heard <- what:
	default:
		t.cfg.Metrics.Dropped.WithLabelValues("told").Inc()
	}
}

// Changed sets a newer map and the changed nodes. nil means that any node may have changed.
func (t *Notifier) Changed(m view.Map, nodes []fault.NodeID) {
	t.mu.Lock()
	t.now, t.all = m, t.all || nodes == nil
	t.changed = append(t.changed, nodes...)
	t.mu.Unlock()
	select {
	case t.woken <- struct{}{}:
	default:
	}
}

// take returns the newest map and the changes since the last call.
func (t *Notifier) take() (m view.Map, nodes []fault.NodeID, all bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, nodes, all = t.now, t.changed, t.all
	t.changed, t.all = nil, false
	return m, nodes, all
}

// Run works until the context ends.
func (t *Notifier) Run(ctx context.Context) {
	k := &known{names: t.cfg.Names, marks: t.cfg.Marks}
	marked, others := t.cfg.Marks.All()
	expire := time.NewTicker(max(time.Second, time.Duration(t.cfg.DigestMisses)*t.cfg.DigestPeriod))
	defer expire.Stop()
	deny := &denials{nodes: make(map[fault.NodeID]*denied), highest: &t.highest, send: t.cfg.Sender.Deny}
	heard := (<-chan any)(nil) // until there is a map
	for {
		select {
		case <-ctx.Done():
			return
		case what := <-heard:
			if d, ok := what.(Digest); ok {
				deny.heard(time.Now(), d.Node, d.Denied, t.cfg.DigestPeriod)
			}
			t.hears(what, k)
		case l := <-t.lists:
			deny.replace(time.Now(), l.GetVersion(), l.Parts(), t.cfg.DigestPeriod)
		case <-expire.C:
			t.machine.Expire(time.Now())
			t.cfg.Metrics.Told.Set(float64(t.machine.Len()))
		case <-t.woken:
			heard = t.heard
			t.follow(k)
		case <-others:
			before := marked
			marked, others = t.cfg.Marks.All()
			t.tell(t.machine.Renew(time.Now(), slices.Concat(nodesOf(before), nodesOf(marked)), k))
		}
	}
}

// follow switches to the newest map.
func (t *Notifier) follow(k *known) {
	m, nodes, all := t.take()
	nodes = append(nodes, moved(k.Map, m)...)
	k.Map = m
	if all {
		nodes = nil
		for rank := range m.Len() {
			nodes = append(nodes, m.ID(rank))
		}
	}
	t.tell(t.machine.Changed(nodes, k))
}

func (t *Notifier) hears(what any, k *known) {
	now := time.Now()
	switch w := what.(type) {
	case Digest:
		t.tell(t.machine.Heard(now, w, k))
	case *lofamov1.Interest:
		t.tell(t.machine.Interested(now, w, k))
	}
}

func (t *Notifier) tell(list []Tell) {
	for _, one := range list {
		t.cfg.Sender.Tell(one.Node, one.Told)
	}
}

func nodesOf(marks []*lofamov1.Maintenance) []fault.NodeID {
	out := make([]fault.NodeID, len(marks))
	for i, m := range marks {
		out[i] = fault.NodeID(m.GetNode())
	}
	return out
}

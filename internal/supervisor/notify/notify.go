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
	"sync"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Sender sends a message to the host half of a node. It does not block and may lose it.
type Sender interface {
	Notify(node fault.NodeID, update *lofamov1.FaultUpdate)
	Deny(node fault.NodeID, part *lofamov1.DenyPart)
}

// Config configures a Notifier.
type Config struct {
	Names  *view.Names
	Marks  *view.Marks
	Sender Sender
	// NoQuorum returns the time this replica has been without a quorum. 0: it has one; negative: it has had none since
	// its start. It may be called from any goroutine.
	NoQuorum     func() time.Duration
	DigestPeriod time.Duration
	DigestMisses int
	Metrics      *metrics.Metrics
}

// queue bounds the waiting messages of the halves. Further ones are dropped and counted, for each digest repeats
// them.
const queue = 4096

// gatherTime is the least time between two looks at the messages of halves. In a large torus a wake-up for each of them costs
// more than its handling, and an answer only repeats earlier messages.
const gatherTime = 10 * time.Millisecond

// Notifier notifies the nodes of one replica. Digest, Interest and Changed may be called from any goroutine; they do not block.
type Notifier struct {
	cfg     Config
	machine *Machine
	woken   chan struct{}     // has room for one: announces a newer map
	arrived chan struct{}     // has room for one: announces the first of heard
	lists   chan pki.DenyList // has room for one: the newest
	highest atomic.Uint64
	claims  claims

	mu      sync.Mutex
	heard   []any    // Digest or *lofamov1.Interest, at most queue since the last look
	now     view.Map // the newest
	changed []fault.NodeID
	all     bool // everything may have changed
}

// New returns a notifier. Run does its work.
func New(cfg Config) *Notifier {
	return &Notifier{
		cfg: cfg, claims: claims{known: make(map[fault.NodeID]Known)},
		woken: make(chan struct{}, 1), arrived: make(chan struct{}, 1), lists: make(chan pki.DenyList, 1),
		machine: NewMachine(MachineConfig{
			Window: time.Duration(cfg.DigestMisses) * cfg.DigestPeriod, Again: cfg.DigestPeriod * 4 / 5,
			Backlog: max(10*time.Second, 4*cfg.DigestPeriod),
		}),
	}
}

// Claimed returns what more than half of the managed nodes know of the store. Only a leader hears from so many.
func (t *Notifier) Claimed() Known { return t.claims.majority(t.cfg.Names.Topology()) }

// Digest records the position that a host half's digest acknowledges.
func (t *Notifier) Digest(d Digest) {
	t.claims.note(d)
	t.submit(d)
}

// Forwarded records what a digest states that came to another replica, which notifies its half.
func (t *Notifier) Forwarded(d Digest) { t.claims.note(d) }

// Interest records the nodes that a node wants news about.
func (t *Notifier) Interest(m *lofamov1.Interest) { t.submit(m) }

func (t *Notifier) submit(what any) {
	t.mu.Lock()
	n := len(t.heard)
	if n < queue {
		t.heard = append(t.heard, what)
	}
	t.mu.Unlock()
	switch n {
	case 0:
		select {
		case t.arrived <- struct{}{}:
		default:
		}
	case queue:
		t.cfg.Metrics.Dropped.WithLabelValues("told").Inc()
	}
}

// gathered returns the messages since the last call.
func (t *Notifier) gathered() []any {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.heard
	t.heard = make([]any, 0, min(queue, len(list)+len(list)/2))
	return list
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
	k := &known{names: t.cfg.Names, marks: t.cfg.Marks, noQuorum: t.cfg.NoQuorum}
	marked, others := t.cfg.Marks.All()
	expire := time.NewTicker(max(time.Second, time.Duration(t.cfg.DigestMisses)*t.cfg.DigestPeriod))
	defer expire.Stop()
	deny := &denials{nodes: make(map[fault.NodeID]*denied), highest: &t.highest, send: t.cfg.Sender.Deny}
	gather := time.NewTimer(gatherTime)
	gather.Stop()
	defer gather.Stop()
	var looked time.Time
	look := func() {
		looked = time.Now()
		for _, what := range t.gathered() {
			if d, ok := what.(Digest); ok {
				deny.heard(looked, d.Node, d.Denied, t.cfg.DigestPeriod)
			}
			t.hears(what, k)
		}
	}
	arrived := (<-chan struct{})(nil) // until there is a map
	for {
		select {
		case <-ctx.Done():
			return
		case <-arrived:
			if wait := gatherTime - time.Since(looked); wait > 0 {
				gather.Reset(wait)
			} else {
				look()
			}
		case <-gather.C:
			look()
		case l := <-t.lists:
			deny.replace(time.Now(), l.GetVersion(), l.Parts(), t.cfg.DigestPeriod)
		case <-expire.C:
			t.machine.Expire(time.Now())
			deny.expire(time.Now())
			t.cfg.Metrics.Notified.Set(float64(t.machine.Len()))
		case <-t.woken:
			arrived = t.arrived
			t.follow(k)
		case <-others:
			before := marked
			marked, others = t.cfg.Marks.All()
			t.send(t.machine.Renew(time.Now(), remarked(before, marked), k))
		}
	}
}

// follow switches to the newest map.
func (t *Notifier) follow(k *known) {
	m, nodes, all := t.take()
	nodes = append(nodes, moved(k.Map, m)...)
	other := append(lacking(k.Map, m), lacking(m, k.Map)...)
	k.Map = m
	if all {
		nodes = nil
		for rank := range m.Len() {
			nodes = append(nodes, m.ID(rank))
		}
	}
	t.send(t.machine.Changed(nodes, k))
	t.send(t.machine.Renew(time.Now(), other, k)) // a map of another topology may have the revision of the earlier one
}

func (t *Notifier) hears(what any, k *known) {
	now := time.Now()
	switch w := what.(type) {
	case Digest:
		t.send(t.machine.Heard(now, w, k))
	case *lofamov1.Interest:
		t.send(t.machine.Interested(now, w, k))
	}
}

func (t *Notifier) send(list []Notice) {
	for _, one := range list {
		t.cfg.Sender.Notify(one.Node, one.Update)
	}
}

// remarked returns the nodes whose marks differ between two lists. A mark that was removed and set again differs too.
func remarked(before, now []*lofamov1.Maintenance) []fault.NodeID {
	differ := make(map[*lofamov1.Maintenance]bool)
	for _, m := range before {
		differ[m] = true
	}
	for _, m := range now {
		if differ[m] {
			delete(differ, m)
		} else {
			differ[m] = true
		}
	}
	out := make([]fault.NodeID, 0, len(differ))
	for m := range differ {
		out = append(out, fault.NodeID(m.GetNode()))
	}
	return out // Renew sorts
}

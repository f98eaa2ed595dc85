package engine

import (
	"sync"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/awareness"
)

// known is the stored topology, shared by the term's goroutine and by operators' changes.
type known struct {
	mu  sync.Mutex
	now store.Topology
}

func (k *known) get() store.Topology {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// stage notes that nodes are about to be written under the next generation, which is garbage until the switch.
func (k *known) stage() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now.Newest++
}

func (k *known) set(now store.Topology) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now.Newest = max(now.Newest, k.now.Newest)
	k.now = now
}

func (k *known) samePlaces(to *topology.Topology) bool {
	now := k.get().Topology
	return now != nil && now.SamePlaces(to)
}

// relabel applies a committed topology with the same nodes at the same places. The machine keeps all its evidence.
func (t *term) relabel(w *write, revision uint64) {
	was, now := t.topology.get(), *w.Topology
	now.Topology = now.At(revision)
	garbage := now.Garbage
	for _, n := range was.Spares() {
		if _, ok := now.Node(n.ID); !ok && t.e.cfg.Marks.Of(n.ID) != nil {
			garbage = append(garbage, store.MaintenanceKey(string(n.ID)))
		}
	}
	now.Garbage = nil
	t.topology.set(now)
	t.e.cfg.Names.Set(now.Topology)
	t.committed.Relabel(now.Topology)
	cfg := t.e.awareness(now.Topology)
	t.incidents.Relabel(cfg.Labels, cfg.DomainLabels)
	t.step(t.asOf(time.Now()), awareness.Labelled{Labels: cfg.Labels, DomainLabels: cfg.DomainLabels})
	if len(garbage) > 0 {
		t.takeWrite(write{Write: store.Write{Deletes: garbage}, reply: make(chan written, 1)})
	}
}

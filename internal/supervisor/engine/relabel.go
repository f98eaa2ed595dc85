package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
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

// followPlaces applies a committed topology.
func (t *term) followPlaces(w *write, revision uint64) {
	if w.moves {
		t.move(w, revision)
		return
	}
	t.relabel(w, revision)
}

// ErrTopology says that the machine cannot follow a topology. It was not committed.
var ErrTopology = errors.New("supervisors cannot follow this topology")

// checkPlaces returns an ErrTopology for a change of places that the machine cannot follow. After the commit it would be too
// late: every leader would fail to begin its term.
func (t *term) checkPlaces(w *write) error {
	if !w.moves {
		return nil
	}
	if err := t.e.awareness(w.Topology.Topology).Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrTopology, err)
	}
	return nil
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
	garbage = append(garbage, t.dropPositions(t.strays.follow(was.Topology, now.Topology))...)
	now.Garbage = nil
	t.topology.set(now)
	t.e.cfg.Names.Set(now.Topology)
	t.committed.Relabel(now.Topology)
	cfg := t.e.awareness(now.Topology)
	t.incidents.Relabel(cfg.Labels, cfg.DomainLabels)
	t.step(t.asOf(time.Now()), awareness.Labelled{Labels: cfg.Labels, DomainLabels: cfg.DomainLabels})
	t.collect(garbage)
}

// collect deletes records that mean nothing any more, and reports the events of their ends. The store splits a write that
// exceeds one transaction.
func (t *term) collect(garbage []string, events ...*lofamov1.Event) {
	if len(garbage) > 0 {
		t.takeWrite(write{Write: store.Write{Deletes: garbage, Events: events}, reply: make(chan written, 1)})
	}
}

// move applies a committed topology in which nodes have other places. The machine keeps the evidence of all nodes that
// stay. The documents of nodes that have left are deleted: they would be wrong when a node returns to its old place. That of
// a node with another place remains until the next batch replaces it: if this leader ends before, the next one reads the boot
// epochs of the former place from it. The term takes no input between the write and this step, so that no batch holds
// states of nodes that have left.
func (t *term) move(w *write, revision uint64) {
	was, now := t.topology.get(), *w.Topology
	now.Topology = now.At(revision)
	cfg := t.e.awareness(now.Topology)
	garbage := now.Garbage
	for _, n := range was.Nodes {
		to, ok := now.Node(n.ID)
		if !ok && t.e.cfg.Marks.Of(n.ID) != nil {
			garbage = append(garbage, store.MaintenanceKey(string(n.ID)))
		}
		if !n.Spare && (!ok || to.Spare || to.Coord != n.Coord) {
			if !ok || to.Spare {
				garbage = append(garbage, store.NodeKey(string(n.ID)))
			}
			t.forget(n.ID)
		}
	}
	masks, _, _ := t.e.cfg.Masks.All()
	_, none := keptMasks(now.Dims, masks)
	at := time.Now()
	ends := t.e.maskEnds(none, at) // before Names has the new places
	garbage = append(garbage, t.dropPositions(t.strays.follow(was.Topology, now.Topology))...)
	garbage, now.Garbage = append(garbage, maskKeys(none)...), nil
	t.topology.set(now)
	t.e.cfg.Names.Set(now.Topology)
	var changed []fault.NodeID
	t.committed, changed = t.committed.Move(t.e.cfg.Names, at)
	to := awareness.Moved{Dims: cfg.Dims, IDs: cfg.IDs, Labels: cfg.Labels, DomainLabels: cfg.DomainLabels, Revision: cfg.Revision}
	t.incidents.Move(to)
	t.collect(garbage, ends...) // before the new documents of the same nodes
	t.step(t.asOf(at), to)
	if t.e.cfg.Revoked != nil {
		t.step(t.asOf(at), t.e.cfg.Revoked())
	}
	for _, id := range append(changed, t.machine.Relinked()...) {
		t.touch(id)
	}
}

// forget drops what the term knows about a node beside the machine.
func (t *term) forget(id fault.NodeID) {
	delete(t.touched, id)
	delete(t.health, id)
	delete(t.senders, id)
	delete(t.reported, id)
	t.watchdogs.Forget(id)
	delete(t.hostBegan, id)
	delete(t.traced, id)
	t.open.traces[id] = awareness.MachineTrace{}
	delete(t.publishedLast, id)
	for _, h := range [...]fault.Half{fault.HalfHost, fault.HalfDNP} {
		delete(t.words, fault.Origin{Node: id, Half: h})
		delete(t.wordsOf, fault.Origin{Node: id, Half: h})
		delete(t.wordsIn, fault.Origin{Node: id, Half: h})
	}
}

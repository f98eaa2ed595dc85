package supervisor

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/peering"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
)

// Times for instructions on peers.
const (
	// peersSettle is how long nodes' statuses are collected before planning: a starting cluster sends many at once,
	// and each plan reads all statuses.
	peersSettle = 200 * time.Millisecond
	// peersAsk is the time after a term's start until the leader asks nodes that never reported their ends: most
	// report unasked.
	peersAsk = 20 * time.Second
	// peersStore bounds one attempt to store the nodes' statuses.
	peersStore = 5 * time.Second
	// peersPuts is the number of nodes whose statuses one commit stores.
	peersPuts = 40
	// peersPace is the pause between questions to two nodes.
	peersPace = 20 * time.Millisecond
	// peersShare bounds the share of its time that this replica spends on planning.
	peersShare = 10
	// peersBound is the largest torus whose statuses are stored, and whose silent nodes get questions. A node takes
	// half a kilobyte in the store. In a larger torus the next leader begins with the statuses that nodes send then;
	// spares and their neighbours report unasked.
	peersBound = 20_000
)

// peerWord implements word for peers and for the places of spares.
type peerWord struct {
	s       *Supervisor
	records peering.Records // as stored, and as reported since
	put     map[fault.NodeID]bool
	plan    peering.Plan
	topo    *topology.Topology // the topology of the plan; nil: no plan
	dirty   time.Time          // since when the plan is outdated; zero: it is current
	settle  time.Duration      // how long it may be outdated
	askAt   time.Time
	lacking int
}

func newPeerOrders(s *Supervisor) *orders[peering.Word, *lofamov1.PeerStatus] {
	return newOrders(s, "peers", order.Config[peering.Word, *lofamov1.PeerStatus]{
		Retry: order.Retry{First: 500 * time.Millisecond, Most: 10 * time.Second}, Asks: 2,
		Holds: func(st *lofamov1.PeerStatus, w peering.Word) bool { return peering.Held(st) == w && !st.GetLost() },
		// A waiting spare has no boot epoch, and may have started with an empty disk.
		Anew: func(st *lofamov1.PeerStatus) bool { return st.GetLost() || st.GetEpoch() == 0 },
		Life: peering.Life,
	}, &peerWord{s: s})
}

// begin loads the stored records.
func (k *peerWord) begin(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, peersStore)
	defer cancel()
	records, err := k.s.store.Peers(ctx)
	if err != nil {
		k.s.logger.Info("where the ends of links are is not known yet", "err", err)
		return false
	}
	now := time.Now()
	*k = peerWord{s: k.s, records: records, put: make(map[fault.NodeID]bool), askAt: now.Add(peersAsk), dirty: now, settle: peersSettle}
	return true
}

// said records a status. Spares count too.
func (k *peerWord) said(st *lofamov1.PeerStatus) bool {
	id := fault.NodeID(st.GetNode())
	if _, listed := k.s.names.Topology().Node(id); !listed {
		return false
	}
	kept := peering.Keep(k.records[id], st)
	if !proto.Equal(k.records[id], kept) {
		k.records[id], k.put[id] = kept, true
		if k.dirty.IsZero() {
			k.dirty = time.Now()
		}
	}
	return !st.GetConfiguration() // such a status says nothing about its peers
}

func (*peerWord) changed() <-chan struct{} { return nil }

// follow stores the nodes' statuses, and then makes a new plan if the present one is outdated: the records are stored
// before other nodes receive instructions from them.
func (k *peerWord) follow(ctx context.Context, m *order.Standing[peering.Word, *lofamov1.PeerStatus]) time.Time {
	now, topo := time.Now(), k.s.names.Topology()
	if at := k.dirty.Add(k.settle); !k.dirty.IsZero() && now.Before(at) {
		return at
	}
	if k.topo != topo || !k.dirty.IsZero() {
		if !k.store(ctx, topo) {
			return now.Add(orderTime)
		}
		k.plan, k.topo, k.dirty = peering.Of(topo, k.records), topo, time.Time{}
		k.settle = max(peersSettle, peersShare*time.Since(now))
		if n := len(k.plan.Lacking); n != k.lacking {
			k.lacking = n
			k.s.logger.Info("nodes that cannot be told of all their peers, for nobody has said where these are", "nodes", k.plan.Lacking)
		}
		m.Forget(func(id fault.NodeID) bool { _, listed := topo.Node(id); return !listed })
		k.ask(m, topo)
	}
	m.Wanted(now, k.plan.Words, topo.Revision)
	return time.Time{}
}

// ask schedules questions to nodes that never reported their ends.
func (k *peerWord) ask(m *order.Standing[peering.Word, *lofamov1.PeerStatus], topo *topology.Topology) {
	if len(topo.Nodes) > peersBound {
		return
	}
	for i, n := range topo.Placed() {
		if len(k.records[n.ID].GetEnds()) == 0 {
			m.Ask(n.ID, k.askAt.Add(time.Duration(i)*peersPace))
		}
	}
}

// store commits the nodes' statuses, and deletes the records of nodes that no longer exist.
func (k *peerWord) store(ctx context.Context, topo *topology.Topology) bool {
	gone := func(id fault.NodeID) bool { _, listed := topo.Node(id); return !listed }
	var deletes []string
	for _, id := range slices.Sorted(maps.Keys(k.records)) {
		if gone(id) {
			deletes = append(deletes, store.PeersKey(id))
			delete(k.records, id)
			delete(k.put, id)
		}
	}
	if len(topo.Nodes) > peersBound {
		clear(k.put)
	}
	ids := slices.Sorted(maps.Keys(k.put))
	for len(ids)+len(deletes) > 0 {
		var w store.Write
		n := min(len(ids), peersPuts)
		for _, id := range ids[:n] {
			kv, err := store.PeersPut(k.records[id])
			if err != nil {
				k.s.logger.Error("what a node says of its links is not kept", "node", id, "err", err)
				continue
			}
			w.Puts = append(w.Puts, kv)
		}
		d := min(len(deletes), peersPuts)
		w.Deletes = deletes[:d]
		if !k.write(ctx, w) {
			return false
		}
		for _, id := range ids[:n] {
			delete(k.put, id)
		}
		ids, deletes = ids[n:], deletes[d:]
	}
	return true
}

func (k *peerWord) write(ctx context.Context, w store.Write) bool {
	ctx, cancel := context.WithTimeout(ctx, peersStore)
	defer cancel()
	if _, err := k.s.engine.Write(ctx, w); err != nil {
		k.s.logger.Info("where the ends of links are is not stored yet", "err", err)
		return false
	}
	return true
}

func (k *peerWord) message(o order.Order[peering.Word]) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: o.Want.Order(o.Node, o.Number, o.Life)}}
}

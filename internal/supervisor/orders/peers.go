package orders

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Times for instructions on peers.
const (
	// peersAsk is the time after a term's start until the leader asks nodes that never reported their ends: most
	// report unasked.
	peersAsk = 20 * time.Second
	// peersStore bounds one attempt to store the nodes' statuses.
	peersStore = 5 * time.Second
	// peersPuts is the number of nodes whose statuses one commit stores.
	peersPuts = 40
	// peersPace is the pause between questions to two nodes.
	peersPace = 20 * time.Millisecond
	// peersHeard is the time for which a node counts as heard after a status. A waiting spare sends one every 10 s.
	peersHeard = 30 * time.Second
	// peersBound is the largest torus whose statuses are stored, and whose silent nodes get questions. A node takes
	// half a kilobyte in the store. In a larger torus the next leader begins with the statuses that nodes send then;
	// spares and their neighbours report unasked.
	peersBound = 20_000
)

// peers is the content of peers and of the places of spares.
type peers struct {
	cfg     *Config
	records peerRecords // as stored, and as reported since
	put     map[fault.NodeID]bool
	epochs  peerEpochs
	plan    peerPlan
	topo    *topology.Topology // the topology of the plan; nil: no plan
	dirty   bool               // the plan is outdated
	askAt   time.Time
	lacking int
	// settled is the torus that nodes away from newer changes get, and settledAt when it was set: see planPeers.
	settled   grid.Dims
	settledAt time.Time
	change    <-chan struct{}         // closed when the topology changes
	waited    time.Duration           // for the store, in the last follow
	foreign   map[fault.NodeID]string // why ends that a node stated last do not count

	mu    sync.Mutex
	ends  map[fault.NodeID]statedEnds
	heard map[fault.NodeID]time.Time // time of the newest status in this term
}

const (
	// settlePace is the shortest interval at which all nodes get a changed torus, and settleEach its part for each node: an
	// order is a signature.
	settlePace = 2 * time.Second
	settleEach = 2 * time.Millisecond
)

func newPeers(cfg *Config) (*peers, *standing[peerWord, *lofamov1.PeerStatus]) {
	k := &peers{cfg: cfg}
	return k, newStanding(cfg, servicenet.OrderPeers, order.Config[peerWord, *lofamov1.PeerStatus]{
		Asks:  2,
		Holds: func(st *lofamov1.PeerStatus, w peerWord) bool { return w.heldBy(st) && !st.GetLost() },
		// A waiting spare has no boot epoch, and may have started with an empty disk.
		Anew: func(st *lofamov1.PeerStatus) bool { return st.GetLost() || st.GetEpoch() == 0 || k.epochs.wentBack(st) },
		Life: peerLife,
	}, k)
}

// statedEnds is what a node has stated about its ends of links.
type statedEnds struct {
	directions uint8 // a bit for each
	follows    bool  // it follows a torus that changes
	placed     bool  // it has a place by an order
	moves      bool  // its agent can move it to another place
}

// Ends implements topology.Ends, from the nodes' reports to this leader and those that it has loaded.
func (k *peers) Ends(id fault.NodeID) (directions uint8, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, known := k.ends[id]
	return e.directions, known
}

// Follows implements topology.Ends.
func (k *peers) Follows(id fault.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, known := k.ends[id]
	return !known || e.follows
}

// Placed reports whether a node's agent has its place by an order.
func (k *peers) Placed(id fault.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ends[id].placed
}

// Moves implements topology.Ends.
func (k *peers) Moves(id fault.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ends[id].moves
}

// Heard reports whether a node has sent a status lately, and to this leader. Ends may be from long ago.
func (k *peers) Heard(id fault.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, heard := k.heard[id]
	return heard && time.Since(at) < peersHeard
}

// note makes a record's ends known.
func (k *peers) note(id fault.NodeID, r *lofamov1.PeerStatus) {
	if len(r.GetEnds()) == 0 {
		return
	}
	e := statedEnds{follows: r.GetTorus() != "", placed: r.GetSpare() && r.GetCoord() != "", moves: r.GetMoves()}
	for i, end := range byDirection(r.GetEnds()) {
		if end.Address != "" {
			e.directions |= 1 << i
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ends[id] = e
}

// begin loads the stored records.
func (k *peers) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, peersStore)
	defer cancel()
	records, err := k.cfg.Store.Peers(ctx)
	if err != nil {
		return fmt.Errorf("load the ends of links: %w", err)
	}
	k.records, k.put, k.plan, k.topo, k.dirty, k.epochs = records, make(map[fault.NodeID]bool), peerPlan{}, nil, false, peerEpochs{}
	k.foreign = make(map[fault.NodeID]string)
	k.askAt, k.lacking, k.settledAt = time.Now().Add(peersAsk), 0, time.Time{}
	k.mu.Lock()
	k.ends, k.heard = make(map[fault.NodeID]statedEnds, len(records)), make(map[fault.NodeID]time.Time)
	k.mu.Unlock()
	for id, r := range records {
		k.note(id, r)
	}
	return nil
}

func (*peers) status(m *lofamov1.Message) *lofamov1.PeerStatus { return m.GetPeerStatus() }

// said records a status. Spares count too. A record that differs only in the boot epoch is stored with its next change, unless the stored
// one has none. Until then, statuses of the stored epoch say the same about the node.
func (k *peers) said(st *lofamov1.PeerStatus) bool {
	id := fault.NodeID(st.GetNode())
	n, listed := k.cfg.Names.Topology().Node(id)
	if !listed {
		return false
	}
	st = k.ownEnds(n, st)
	was, now := k.records[id], time.Now()
	if !k.epochs.take(now, fault.Epoch(was.GetEpoch()), st) {
		return false
	}
	k.mu.Lock()
	k.heard[id] = now
	k.mu.Unlock()
	kept := keepPeers(was, st)
	if k.records[id] = kept; !samePeers(was, kept) {
		k.put[id], k.dirty = true, true
		k.note(id, kept)
	}
	return !st.GetConfiguration() // such a status says nothing about its peers
}

func (k *peers) changed() <-chan struct{} { return k.change }

// follow stores the nodes' statuses, and then makes a new plan if the present one is outdated: the records are stored
// before other nodes receive instructions from them.
func (k *peers) follow(ctx context.Context, m *order.Standing[peerWord, *lofamov1.PeerStatus]) error {
	k.change, k.waited = k.cfg.Names.Changed(), 0
	topo := k.cfg.Names.Topology()
	for _, q := range k.epochs.questions(time.Now()) {
		k.question(q.node, q.try)
	}
	k.settle(topo, time.Now())
	if k.topo != topo || k.dirty {
		if err := k.store(ctx, topo); err != nil {
			return err
		}
		k.plan, k.topo, k.dirty = planPeers(topo, k.settled, k.records), topo, false
		if n := len(k.plan.Lacking); n != k.lacking {
			k.lacking = n
			k.cfg.Logger.Info("orders of peers are incomplete: no node has reported the addresses", "nodes", k.plan.Lacking)
		}
		m.Forget(unlisted(topo))
		k.ask(m, topo)
	}
	m.Wanted(time.Now(), k.plan.Words, topo.Revision)
	return nil
}

// settle gives all nodes the present torus, unless they have got one lately.
func (k *peers) settle(topo *topology.Topology, now time.Time) {
	pace := max(settlePace, time.Duration(len(topo.Nodes))*settleEach)
	if k.settled == topo.Dims && !k.settledAt.IsZero() || now.Before(k.settledAt.Add(pace)) {
		return
	}
	k.settled, k.settledAt, k.dirty = topo.Dims, now, true
}

// ask schedules questions to nodes that never reported their ends, and to all spares that have not reported to this leader.
func (k *peers) ask(m *order.Standing[peerWord, *lofamov1.PeerStatus], topo *topology.Topology) {
	if len(topo.Nodes) > peersBound {
		return
	}
	for i, n := range topo.Placed() {
		if len(k.records[n.ID].GetEnds()) == 0 {
			m.Ask(n.ID, k.askAt.Add(time.Duration(i)*peersPace))
		}
	}
	for i, n := range topo.Spares() { // a node that joins waits for this
		m.Ask(n.ID, time.Now().Add(time.Duration(i)*peersPace))
	}
}

// question makes a node state its peers. It sends an order that the node answers but does not follow, because the order does not
// name the node's life, and its number 1 is not newer than that of the node's last order. try counts from 1.
func (k *peers) question(id fault.NodeID, try int) {
	k.cfg.Sender.Order(id, servicenet.OrderPeers, func(string) *lofamov1.Message {
		return &lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: peerWord{}.Order(id, 1, 0)}}
	}, Relays(k.cfg.Names, id, try))
}

// unlisted returns whether a node is absent from a topology.
func unlisted(topo *topology.Topology) func(fault.NodeID) bool {
	return func(id fault.NodeID) bool { _, listed := topo.Node(id); return !listed }
}

// store commits the nodes' statuses, and deletes the records of nodes that no longer exist.
func (k *peers) store(ctx context.Context, topo *topology.Topology) error {
	gone := unlisted(topo)
	var deletes []string
	for _, id := range slices.Sorted(maps.Keys(k.records)) {
		if gone(id) {
			deletes = append(deletes, store.PeersKey(id))
			delete(k.records, id)
			delete(k.put, id)
			delete(k.foreign, id)
			k.mu.Lock()
			delete(k.ends, id)
			delete(k.heard, id)
			k.mu.Unlock()
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
				k.cfg.Logger.Error("report on the ends of links not stored", "node", id, "err", err)
				continue
			}
			w.Puts = append(w.Puts, kv)
		}
		d := min(len(deletes), peersPuts)
		w.Deletes = deletes[:d]
		if err := k.write(ctx, w); err != nil {
			return err
		}
		for _, id := range ids[:n] {
			delete(k.put, id)
		}
		ids, deletes = ids[n:], deletes[d:]
	}
	return nil
}

func (k *peers) write(ctx context.Context, w store.Write) error {
	ctx, cancel := context.WithTimeout(ctx, peersStore)
	defer cancel()
	begun := time.Now()
	defer func() { k.waited += time.Since(begun) }()
	if _, err := k.cfg.Store.Write(ctx, w); err != nil {
		return fmt.Errorf("store the ends of links: %w", err)
	}
	return nil
}

func (k *peers) message(o order.Order[peerWord]) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_PeerOrder{PeerOrder: o.Want.Order(o.Node, o.Number, o.Life)}}
}

package supervisor

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
)

// orderQueue bounds the waiting statuses. It drops further ones, and the machine asks the node again.
const orderQueue = 1024

// orderTime is the interval between checks for a new lead or for nodes that changed their places.
const orderTime = time.Second

// word defines a kind of instruction for nodes, such as their masks or their peers. One goroutine calls its methods.
type word[W comparable, S order.Status] interface {
	// begin is called when this replica leads; false: not ready, to be called again.
	begin(ctx context.Context) bool
	// said takes a node's status. It returns false for a node that this kind does not concern.
	said(st S) bool
	// follow gives the machine the desired instructions. No order is sent before at, when follow is called again;
	// zero: send at once.
	follow(ctx context.Context, m *order.Standing[W, S]) (at time.Time)
	// changed is closed when the desired instructions change; nil: there is no such signal.
	changed() <-chan struct{}
	// message returns an order as a message.
	message(o order.Order[W]) *lofamov1.Message
}

// orders sends instructions to nodes until they confirm them, while this replica leads.
type orders[W comparable, S order.Status] struct {
	s     *Supervisor
	what  string // kind of word
	cfg   order.Config[W, S]
	word  word[W, S]
	heard chan S
	term  func() uint64 // of this replica's lead; 0: another one leads
	send  func(o order.Order[W])

	mu    sync.Mutex
	saids []S // nil unless requested
	shown bool
}

func newOrders[W comparable, S order.Status](s *Supervisor, what string, cfg order.Config[W, S], w word[W, S]) *orders[W, S] {
	return &orders[W, S]{
		s: s, what: what, cfg: cfg, word: w, heard: make(chan S, orderQueue),
		term: func() uint64 { return s.engine.Term() },
		send: func(o order.Order[W]) {
			s.ingest.sender.Order(o.Node, what, w.message(o), s.viaNeighbours(o.Node, o.Try, o.Asked))
		},
	}
}

// Heard takes a node's status. It does not block.
func (k *orders[W, S]) Heard(st S) {
	select {
	case k.heard <- st:
	default:
		k.s.metrics.Dropped.WithLabelValues(k.what).Inc()
	}
}

// Said returns the statuses that nodes sent to this replica since it leads.
func (k *orders[W, S]) Said() []S {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saids
}

// run works until the context ends.
func (k *orders[W, S]) run(ctx context.Context) {
	var m *order.Standing[W, S] // nil while another leads
	var term uint64             // the term of m
	timer := time.NewTicker(orderTime)
	defer timer.Stop()
	var heard []S // statuses that just arrived
	for {
		changed := k.word.changed()
		switch now := k.term(); {
		case now == 0:
			m = nil
		case m != nil && now == term:
		case k.word.begin(ctx): // also after another replica led between two checks
			m, term = order.NewStanding(k.cfg), now
		default:
			m = nil
		}
		if m != nil { // includes statuses from before the machine: they came because this replica leads
			k.take(m, heard)
		}
		heard = heard[:0]
		wake := k.work(ctx, m)
		select {
		case <-ctx.Done():
			return
		case st := <-k.heard:
			heard = k.all(append(heard, st))
		case <-changed:
		case <-timer.C:
		case <-wake:
		}
	}
}

// all returns the given statuses and all waiting ones, so that the machine follows them together.
func (k *orders[W, S]) all(heard []S) []S {
	for len(heard) < orderQueue {
		select {
		case st := <-k.heard:
			heard = append(heard, st)
		default:
			return heard
		}
	}
	return heard
}

// take gives the machine the nodes' statuses.
func (k *orders[W, S]) take(m *order.Standing[W, S], heard []S) {
	for _, st := range heard {
		if k.word.said(st) {
			m.Heard(time.Now(), st)
		}
	}
}

// work sends the orders that are due, and returns when to check again; nil: no node is outstanding.
func (k *orders[W, S]) work(ctx context.Context, m *order.Standing[W, S]) <-chan time.Time {
	var all []S
	var wake <-chan time.Time
	if m != nil {
		if at := k.word.follow(ctx, m); at.IsZero() {
			wake = k.order(m)
		} else {
			wake = time.After(time.Until(at))
		}
		if k.shown { // the cost grows with the number of answering nodes
			all = m.Said()
		}
	}
	k.mu.Lock()
	k.saids = all
	k.mu.Unlock()
	return wake
}

func (k *orders[W, S]) order(m *order.Standing[W, S]) <-chan time.Time {
	due, wake := m.Tick(time.Now())
	for _, o := range due {
		k.send(o)
		if !o.Asked && o.Try > 1 && o.Try&(o.Try-1) == 0 {
			k.s.logger.Info("a node has not said that it has what it was told: sent again", "what", k.what, "node", o.Node, "word", o.Want, "try", o.Try)
		}
	}
	if wake.IsZero() {
		return nil
	}
	return time.After(time.Until(wake))
}

// viaNeighbours returns the neighbours that relay an order too, from the second try on, unless it is a question.
func (s *Supervisor) viaNeighbours(node fault.NodeID, try int, asked bool) []fault.NodeID {
	at, ok := s.names.Coord(node)
	if !ok || asked || try < 2 {
		return nil
	}
	topo := s.names.Topology()
	var out []fault.NodeID
	for _, c := range topo.Dims.Neighbours(at) {
		if n, known := topo.Place(c); known {
			out = append(out, n.ID)
		}
	}
	return out
}

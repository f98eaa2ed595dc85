package supervisor

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
)

// orderQueue bounds the statuses that wait; beyond it they are dropped: who is not heard is asked again.
const orderQueue = 1024

// orderTime is how often it is looked whether this replica leads now, or nodes have changed their places.
const orderTime = time.Second

// word is a kind of word that nodes are told: on their masks, on their peers. Its methods are called by one goroutine.
type word[W comparable, S order.Status] interface {
	// begin is called when this replica leads; false: it is not ready, and is asked again.
	begin(ctx context.Context) bool
	// said is told what a node says. It returns false for a node that has no part in it.
	said(st S) bool
	// follow tells the machine what is wanted. Nothing is ordered before at, when it is to be called again; zero: as soon as anything happens.
	follow(ctx context.Context, m *order.Standing[W, S]) (at time.Time)
	// changed is closed when something else is wanted; nil: there is nothing to tell of it.
	changed() <-chan struct{}
	// message is an order as it is sent.
	message(o order.Order[W]) *lofamov1.Message
}

// orders has nodes told words until they say that they have them, while this replica leads.
type orders[W comparable, S order.Status] struct {
	s     *Supervisor
	what  string // kind of word
	cfg   order.Config[W, S]
	word  word[W, S]
	heard chan S
	term  func() uint64 // of this replica's lead; 0: another one leads
	send  func(o order.Order[W])

	mu    sync.Mutex
	saids []S // nil unless somebody wants to know
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

// Heard takes what a node says. It does not block.
func (k *orders[W, S]) Heard(st S) {
	select {
	case k.heard <- st:
	default:
		k.s.metrics.Dropped.WithLabelValues(k.what).Inc()
	}
}

// Said returns what nodes said to this replica since it leads.
func (k *orders[W, S]) Said() []S {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saids
}

// run works until the context ends.
func (k *orders[W, S]) run(ctx context.Context) {
	var m *order.Standing[W, S] // nil while another leads
	var term uint64             // that it is of
	timer := time.NewTicker(orderTime)
	defer timer.Stop()
	var heard []S // that have just come
	for {
		changed := k.word.changed()
		switch now := k.term(); {
		case now == 0:
			m = nil
		case m != nil && now == term:
		case k.word.begin(ctx): // also where another one has led between two looks
			m, term = order.NewStanding(k.cfg), now
		default:
			m = nil
		}
		if m != nil { // also what came before the machine was there: it came because this replica leads
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

// all is what has come with what waits besides, so that it is followed once.
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

// take tells the machine what nodes have said.
func (k *orders[W, S]) take(m *order.Standing[W, S], heard []S) {
	for _, st := range heard {
		if k.word.said(st) {
			m.Heard(time.Now(), st)
		}
	}
}

// work sends what is due, and returns when to look again; nil: nobody is waited for.
func (k *orders[W, S]) work(ctx context.Context, m *order.Standing[W, S]) <-chan time.Time {
	var all []S
	var wake <-chan time.Time
	if m != nil {
		if at := k.word.follow(ctx, m); at.IsZero() {
			wake = k.order(m)
		} else {
			wake = time.After(time.Until(at))
		}
		if k.shown { // it costs as much as there are nodes that have spoken
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

// viaNeighbours are the neighbours through which an order goes as well, from the second try on, unless it is a question.
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

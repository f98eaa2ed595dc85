package orders

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
)

// content defines a kind whose orders set a content W that a node holds, and reports in S. One goroutine calls its
// methods.
type content[W comparable, S order.Status] interface {
	// begin begins a term, as of kind.
	begin(ctx context.Context) error
	// status returns the report in an answer.
	status(m *lofamov1.Message) S
	// said takes a node's report. It returns false for a node that this kind does not concern.
	said(st S) bool
	// follow gives the machine the wanted contents. After an error no order is sent.
	follow(ctx context.Context, m *order.Standing[W, S]) error
	// changed is closed when the wanted contents change; nil: there is no such signal.
	changed() <-chan struct{}
	// message returns an order as a message.
	message(o order.Order[W]) *lofamov1.Message
}

// listed is a content that a list defines; nodes that are not in it have the default content.
type listed[W comparable, S order.Status] struct {
	names *view.Names
	get   func(*lofamov1.Message) S
	// wanted returns the list, its revision in the store, and a channel that is closed when it changes. It does not block.
	wanted func() (map[fault.NodeID]W, uint64, <-chan struct{})
	order  func(order.Order[W]) *lofamov1.Message
	change <-chan struct{} // of the list in use
}

func (*listed[W, S]) begin(context.Context) error { return nil }

func (k *listed[W, S]) status(m *lofamov1.Message) S { return k.get(m) }

func (k *listed[W, S]) said(st S) bool {
	return k.names.Known(fault.NodeID(st.GetNode()))
}

func (k *listed[W, S]) changed() <-chan struct{} {
	return k.change
}

func (k *listed[W, S]) follow(_ context.Context, m *order.Standing[W, S]) error {
	wanted, revision, changed := k.wanted()
	k.change = changed
	m.Forget(func(id fault.NodeID) bool { return !k.names.Known(id) })
	m.Wanted(time.Now(), wanted, max(revision, k.names.Topology().Revision))
	return nil
}

func (k *listed[W, S]) message(o order.Order[W]) *lofamov1.Message { return k.order(o) }

// again is how long the leader waits for a node's report.
var again = order.Retry{First: 500 * time.Millisecond, Most: 10 * time.Second}

// standing is a kind that sends each node its content until the node reports that it holds it.
type standing[W comparable, S order.Status] struct {
	content[W, S]
	name    string
	cfg     *Config
	machine order.Config[W, S]
	m       *order.Standing[W, S] // of the term
	sending time.Duration         // of the orders in the last work

	mu    sync.Mutex
	saids []S // nil unless requested
	shown bool
}

func newStanding[W comparable, S order.Status](cfg *Config, name string, machine order.Config[W, S], c content[W, S]) *standing[W, S] {
	machine.Retry = again
	return &standing[W, S]{content: c, name: name, cfg: cfg, machine: machine}
}

// Said returns the reports that nodes sent to this replica since it leads.
func (k *standing[W, S]) Said() []S {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saids
}

func (k *standing[W, S]) show(saids []S) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saids = saids
}

func (k *standing[W, S]) begin(ctx context.Context, _ uint64) error {
	k.m = order.NewStanding(k.machine)
	return k.content.begin(ctx)
}

func (k *standing[W, S]) end() { k.show(nil) }

func (k *standing[W, S]) heard(now time.Time, m *lofamov1.Message) {
	if st := k.status(m); k.said(st) {
		k.m.Heard(now, st)
	}
}

func (k *standing[W, S]) work(ctx context.Context) (wake time.Time, err error) {
	k.sending = 0
	if err = k.follow(ctx, k.m); err == nil {
		wake = k.send()
	}
	if k.shown { // the cost grows with the number of answering nodes
		k.show(k.m.Said())
	}
	return wake, err
}

// send sends the orders that are due, and returns when the next one is.
func (k *standing[W, S]) send() time.Time {
	due, wake := k.m.Tick(time.Now())
	begun := time.Now()
	defer func() { k.sending = time.Since(begun) }()
	for _, o := range due {
		var via []fault.NodeID
		if !o.Asked {
			via = Relays(k.cfg.Names, o.Node, o.Try)
		}
		k.cfg.Sender.Order(o.Node, k.name, func(string) *lofamov1.Message { return k.message(o) }, via)
		if !o.Asked && logged(o.Try) {
			k.cfg.Logger.Info("order sent again: the node has not reported its content", "kind", k.name, "node", o.Node,
				"content", o.Want, "try", o.Try)
		}
	}
	return wake
}

// newPlain returns a kind without messages of its own.
func newPlain(cfg *Config, kind order.Plain) *standing[order.Content, *lofamov1.OrderStatus] {
	return newStanding(cfg, kind.Kind(), order.PlainConfig(kind.Heard), &listed[order.Content, *lofamov1.OrderStatus]{
		names: cfg.Names, get: (*lofamov1.Message).GetOrderStatus, wanted: kind.Wanted,
		order: func(o order.Order[order.Content]) *lofamov1.Message { return order.PlainMessage(kind.Kind(), o) },
	})
}

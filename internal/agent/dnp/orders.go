package dnp

import (
	"context"
	"fmt"

	"github.com/lofamo/lofamo/pkg/order"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
)

// Option changes the construction of the half.
type Option func(*order.Registry[order.PlainNode])

// WithOrder adds a kind of order that has no messages of its own. The supervisors must know it too.
func WithOrder(kind string, n order.PlainNode) Option {
	return func(r *order.Registry[order.PlainNode]) { r.Register(kind, n) }
}

// ordersWaiting bounds the orders that wait to be applied. Beyond it the node refuses orders, and the supervisors send
// them again.
const ordersWaiting = 64

// plainOrders stores and applies plain orders, outside the half and without its mutex: both may take long.
type plainOrders struct {
	kinds order.Registry[order.PlainNode]
	keep  newest[[]byte]
	apply chan order.Application
}

func newPlainOrders(options []Option) plainOrders {
	p := plainOrders{keep: make(newest[[]byte], 1), apply: make(chan order.Application, ordersWaiting)}
	for _, o := range options {
		o(&p.kinds)
	}
	return p
}

var errOrdersWait = fmt.Errorf("%d orders wait already", ordersWaiting)

// applyOrders starts the storing and applying of orders that the machine wants. The caller holds the mutex.
func (d *dnpHalf) applyOrders(out *dnpcore.Output) {
	if out.KeepOrders != nil {
		d.plain.keep.put(out.KeepOrders)
	}
	for _, a := range out.ApplyOrders {
		select {
		case d.plain.apply <- a:
		default:
			d.then(dnpcore.OrderApplied{Order: a, Err: errOrdersWait})
		}
	}
}

// runOrders applies orders until ctx ends.
func (d *dnpHalf) runOrders(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-d.plain.apply:
			kind, _ := d.plain.kinds.Of(a.Kind)
			d.step(dnpcore.OrderApplied{Order: a, Err: kind.Apply(a.Content)})
		}
	}
}

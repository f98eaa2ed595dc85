package supervisor

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/peering"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// orderChannel is this replica's end of the order channel (package order): it sends orders of all kinds while this
// replica leads, and receives the answers.
type orderChannel struct {
	s             *Supervisor
	masks         *orders[chanmask.Mask, *lofamov1.MaskStatus]
	peers         *orders[peering.Word, *lofamov1.PeerStatus]
	configuration *configurers
	mapping       *mappers
	plain         []*orders[order.Content, *lofamov1.OrderStatus]
}

func newOrderChannel(s *Supervisor) *orderChannel {
	c := &orderChannel{s: s, masks: newMaskOrders(s), peers: newPeerOrders(s), configuration: newConfigurers(s), mapping: newMappers(s)}
	for _, kind := range s.plain {
		c.plain = append(c.plain, newPlainOrders(s, kind))
	}
	return c
}

// answers registers the receiver of the answers to each kind of order.
func (c *orderChannel) answers() (r order.Registry[ingest.Answers]) {
	r.Register(servicenet.OrderMask, taken((*lofamov1.Message).GetMaskStatus, c.masks.Heard))
	peers := taken((*lofamov1.Message).GetPeerStatus, c.peers.Heard)
	peers.Unplaced = true // spares answer too; peerWord checks the topology
	r.Register(servicenet.OrderPeers, peers)
	r.Register(servicenet.OrderConfiguration, taken((*lofamov1.Message).GetConfigurationStatus, c.configuration.Configured))
	r.Register(servicenet.OrderMapping, taken((*lofamov1.Message).GetMapFindings, c.mapping.Mapped))
	r.Register(servicenet.OrderDiagnosis, taken((*lofamov1.Message).GetDiagnosisFindings, c.s.ingest.diagnose.Findings))
	r.Register(servicenet.OrderProcedure, taken((*lofamov1.Message).GetProcedureStatus, c.s.ingest.diagnose.Status))
	r.Register(servicenet.OrderAct, taken((*lofamov1.Message).GetActStatus, c.s.respond.actor.Heard))
	for _, k := range c.plain {
		r.Register(k.what, taken((*lofamov1.Message).GetOrderStatus, k.Heard))
	}
	return r
}

// taken passes on statuses of one type.
func taken[S any](get func(*lofamov1.Message) *S, take func(*S)) ingest.Answers {
	return ingest.Answers{Take: func(m *lofamov1.Message) { take(get(m)) }}
}

// run sends orders until the context ends. Diagnoses, procedures and actions are sent by their callers.
func (c *orderChannel) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { c.masks.run(ctx) })
	wg.Go(func() { c.peers.run(ctx) })
	wg.Go(func() { c.configuration.run(ctx) })
	wg.Go(func() { c.mapping.run(ctx) })
	for _, k := range c.plain {
		wg.Go(func() { k.run(ctx) })
	}
	wg.Wait()
}

// plainWord implements word for a kind without messages of its own.
type plainWord struct {
	s    *Supervisor
	kind order.Plain
}

func newPlainOrders(s *Supervisor, kind order.Plain) *orders[order.Content, *lofamov1.OrderStatus] {
	retry := order.Retry{First: 500 * time.Millisecond, Most: 10 * time.Second}
	return newOrders(s, kind.Kind(), order.PlainConfig(retry), plainWord{s, kind})
}

func (plainWord) begin(context.Context) bool { return true }

func (k plainWord) said(st *lofamov1.OrderStatus) bool {
	if !k.s.names.Known(fault.NodeID(st.GetNode())) {
		return false
	}
	k.kind.Heard(st)
	return true
}

func (k plainWord) changed() <-chan struct{} {
	_, _, changed := k.kind.Wanted()
	return changed
}

func (k plainWord) follow(_ context.Context, m *order.Standing[order.Content, *lofamov1.OrderStatus]) time.Time {
	wanted, revision, _ := k.kind.Wanted()
	m.Forget(func(id fault.NodeID) bool { return !k.s.names.Known(id) })
	m.Wanted(time.Now(), wanted, max(revision, k.s.names.Topology().Revision))
	return time.Time{}
}

func (k plainWord) message(o order.Order[order.Content]) *lofamov1.Message {
	return order.PlainMessage(k.kind.Kind(), o)
}

package dnpcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// This half's end of the order channel (package order). Each kind is registered here with what takes its orders; all answers leave by
// answerOrder.

// orderKind takes verified orders of one kind.
type orderKind struct {
	take func(now time.Time, o servicenet.Opened)
	// shared says that this half takes orders to other nodes too, which they have broadcast.
	shared bool
}

// registerOrders registers the kinds that this half knows, and the plain ones.
func (m *Machine) registerOrders(plain *order.Registry[order.PlainNode]) {
	kinds := map[string]orderKind{
		servicenet.OrderMask:  {take: func(now time.Time, o servicenet.Opened) { m.onMaskOrder(now, o.Msg.GetMaskOrder()) }},
		servicenet.OrderPeers: {take: func(now time.Time, o servicenet.Opened) { m.onPeerOrder(now, o.Msg.GetPeerOrder()) }},
		servicenet.OrderConfiguration: {take: func(now time.Time, o servicenet.Opened) {
			m.onTorusConfiguration(now, o.Msg.GetTorusConfiguration(), o.Raw)
		}},
		servicenet.OrderMapping: {take: func(now time.Time, o servicenet.Opened) { m.onMapOrder(now, o.Msg.GetMapOrder(), o.Name) }},
		servicenet.OrderDiagnosis: {take: func(now time.Time,
			o servicenet.Opened) {
			m.onDiagnosisOrder(now, o.Msg.GetDiagnosisOrder(), o.Name)
		}},
		servicenet.OrderProcedure: {take: m.onProcedureOrder, shared: true},
		servicenet.OrderAct:       {take: func(_ time.Time, o servicenet.Opened) { m.onActOrder(o.Msg.GetActOrder(), o.Raw) }},
	}
	for kind, k := range kinds {
		m.orders.Register(kind, k)
	}
	for _, kind := range plain.Kinds() {
		m.orders.Register(kind, orderKind{take: func(_ time.Time, o servicenet.Opened) { m.plainOutput(m.plain.Order(o.Msg.GetOrder())) }})
	}
}

// onOrder takes a verified order of a supervisor.
func (m *Machine) onOrder(now time.Time, head servicenet.Order, o servicenet.Opened) {
	kind, known := m.orders.Of(head.Kind)
	switch {
	case !kind.shared && head.Node != "" && head.Node != m.self:
		m.note(NoteRefused, "a %s order to %q", head.Kind, head.Node)
	case !known:
		m.plainOutput(m.plain.Order(o.Msg.GetOrder())) // which says so
	default:
		kind.take(now, o)
	}
}

// answerOrder has an answer to an order signed and sent up.
func (m *Machine) answerOrder(attempt int, status *lofamov1.Message) {
	m.out.Seal = append(m.out.Seal, Seal{Order: status, Attempt: attempt})
}

// refuseRun notes that a run was refused by its number.
func (m *Machine) refuseRun(what string, n *lofamov1.OrderNumber, by string, verdict order.Verdict) {
	m.note(NoteRefused, "a %s order of %s of term %d: it is %s", what, by, n.GetTerm(), verdict)
}

// OrdersKept says that this Output.KeepOrders is on disk, or that the disk refuses it.
type OrdersKept struct{ Stored []byte }

// OrderApplied says what became of an order of a plain kind (Output.ApplyOrders).
type OrderApplied struct {
	Order order.Application
	Err   error // nil: it is in force
}

func (OrdersKept) dnpEvent()   {}
func (OrderApplied) dnpEvent() {}

// onCarriedOut takes what the shell says of orders that this half has taken.
func (m *Machine) onCarriedOut(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case MaskKept:
		m.onMaskKept(now, ev.State)
	case PeersKept:
		m.onPeersKept(now, ev.State)
	case OrdersKept:
		m.plainOutput(m.plain.Kept(ev.Stored))
	case OrderApplied:
		m.plainOutput(m.plain.Applied(ev.Order, ev.Err))
	default:
	}
}

// plainOutput passes on what follows from an order of a plain kind.
func (m *Machine) plainOutput(out order.NodeOutput) {
	if out.Keep != nil {
		m.out.KeepOrders = out.Keep
	}
	m.out.ApplyOrders = append(m.out.ApplyOrders, out.Apply...)
	for _, st := range out.Answer {
		m.answerOrder(0, &lofamov1.Message{Body: &lofamov1.Message_OrderStatus{OrderStatus: st}})
	}
	for _, text := range out.Notes {
		m.note(NoteRefused, "%s", text)
	}
}

// newPlain returns the machine of the plain kinds. What it cannot read it asks the supervisors for.
func (m *Machine) newPlain(cfg Config) {
	m.plain, _ = order.NewNode(fault.Origin{Node: m.self, Half: fault.HalfDNP}, m.Epoch, &cfg.Orders, cfg.StoredOrders)
	m.registerOrders(&cfg.Orders)
}

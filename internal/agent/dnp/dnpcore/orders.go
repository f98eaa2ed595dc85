package dnpcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// This half's end of the order channel (package order). Each kind of order is registered here with its handler; all
// answers leave by answerOrder.

// orderKind is the handler of verified orders of one kind.
type orderKind struct {
	take func(now time.Time, o servicenet.Opened)
	// shared says that this half also handles orders to other nodes, which those nodes have broadcast.
	shared bool
}

// registerOrders registers the kinds that this half knows, including the plain ones.
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

// onOrder dispatches a verified order of a supervisor.
func (m *Machine) onOrder(now time.Time, head servicenet.Order, o servicenet.Opened) {
	kind, known := m.orders.Of(head.Kind)
	switch {
	case !kind.shared && head.Node != "" && head.Node != m.self:
		m.note(NoteRefused, "a %s order to %q", head.Kind, head.Node)
	case !known:
		m.plainOutput(m.plain.Order(o.Msg.GetOrder())) // it reports the unknown kind
	default:
		kind.take(now, o)
	}
}

// answerOrder sends a signed answer to an order up.
func (m *Machine) answerOrder(attempt int, status *lofamov1.Message) {
	m.out.Seal = append(m.out.Seal, Seal{Order: status, Attempt: attempt})
}

// refuseRun notes that a run was refused because of its number.
func (m *Machine) refuseRun(what string, n *lofamov1.OrderNumber, by string, verdict order.Verdict) {
	m.note(NoteRefused, "a %s order of %s of term %d: it is %s", what, by, n.GetTerm(), verdict)
}

// OrdersKept reports that this Output.KeepOrders is on disk, or the disk's error.
type OrdersKept struct {
	Stored []byte
	Err    error // nil: it is on disk
}

// OrderApplied reports the outcome of an order of a plain kind (Output.ApplyOrders).
type OrderApplied struct {
	Order order.Application
	Err   error // nil: it is in force
}

func (OrdersKept) dnpEvent()   {}
func (OrderApplied) dnpEvent() {}

// onCarriedOut takes the shell's reports on orders that this half accepted.
func (m *Machine) onCarriedOut(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case MaskKept:
		m.onMaskKept(now, ev)
	case PeersKept:
		m.onPeersKept(now, ev)
	case OrdersKept:
		m.plainOutput(m.plain.Kept(ev.Stored, ev.Err))
	case OrderApplied:
		m.plainOutput(m.plain.Applied(ev.Order, ev.Err))
	default:
	}
}

// plainOutput carries out the effects of an order of a plain kind.
func (m *Machine) plainOutput(out order.NodeOutput) {
	if out.Keep != nil {
		m.out.KeepOrders = out.Keep
	}
	m.out.ApplyOrders = append(m.out.ApplyOrders, out.Apply...)
	for _, st := range out.Answer {
		m.answerOrder(0, &lofamov1.Message{Body: &lofamov1.Message_OrderStatus{OrderStatus: st}})
	}
	if out.Lost != nil {
		m.note(NoteUnreadable, "stored orders lost: the node asks the supervisors for them: %v", out.Lost)
	}
	for _, text := range out.Notes {
		m.note(NoteRefused, "%s", text)
	}
}

// newPlain creates the machine of the plain kinds. It asks the supervisors for any stored order that it cannot read.
func (m *Machine) newPlain(cfg Config) {
	m.plain = order.NewNode(fault.Origin{Node: m.self, Half: fault.HalfDNP}, m.Epoch, &cfg.Orders, cfg.StoredOrders, cfg.OrdersLost)
	m.registerOrders(&cfg.Orders)
}

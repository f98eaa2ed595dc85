package servicenet

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// The kinds of orders that have messages of their own. Package order explains orders; these are their forms on the
// wire.
const (
	OrderMask          = "mask"          // MaskOrder, MaskStatus
	OrderPeers         = "peers"         // PeerOrder, PeerStatus
	OrderConfiguration = "configuration" // TorusConfiguration, ConfigurationStatus
	OrderMapping       = "mapping"       // MapOrder, MapFindings
	OrderDiagnosis     = "diagnosis"     // DiagnosisOrder, DiagnosisFindings
	OrderProcedure     = "procedure"     // ProcedureOrder, ProcedureStatus
	OrderAct           = "act"           // ActOrder, ActStatus
)

// Order is the common part of all kinds of orders.
type Order struct {
	Kind string
	Node fault.NodeID // the node that carries it out; empty: the node that receives it
	// Term is the term of the leader, as its fencing tokens are: the store revision of its election. 0: the order
	// names none. The numbers of masks, peers and configurations are revisions of their contents and no terms: a
	// leader goes on under a term that is lower.
	Term    uint64
	ReplyTo string // ip:port at which the leader wants the answer too; empty: none
}

// OrderStatus is the common part of all kinds of answers to orders.
type OrderStatus struct {
	Kind string
	By   fault.Origin // the half that answers
}

// OrderOf returns the order in a message; false: it has none.
func OrderOf(m *lofamov1.Message) (Order, bool) {
	for i := range orderForms {
		if o, ok := orderForms[i].order(m); ok {
			return o, true
		}
	}
	return Order{}, false
}

// OrderStatusOf returns the answer to an order in a message; false: it has none.
func OrderStatusOf(m *lofamov1.Message) (OrderStatus, bool) {
	for i := range orderForms {
		if s, ok := orderForms[i].status(m); ok {
			return s, true
		}
	}
	return OrderStatus{}, false
}

// orderForm is the wire form of a kind. Its functions return false for messages of other forms.
type orderForm struct {
	order       func(*lofamov1.Message) (Order, bool)
	checkOrder  func(*lofamov1.Message) error
	status      func(*lofamov1.Message) (OrderStatus, bool)
	checkStatus func(*lofamov1.Message) error
}

// orderForms has a row for each kind, and one for all kinds that have no messages of their own.
var orderForms = [...]orderForm{
	formOf((*lofamov1.Message).GetMaskOrder, checkMaskOrder, func(o *lofamov1.MaskOrder) Order {
		return Order{Kind: OrderMask, Node: fault.NodeID(o.GetNode())}
	}, (*lofamov1.Message).GetMaskStatus, checkMaskStatus, func(s *lofamov1.MaskStatus) OrderStatus {
		return OrderStatus{OrderMask, OriginOf(s)}
	}),
	formOf((*lofamov1.Message).GetPeerOrder, checkPeerOrder, func(o *lofamov1.PeerOrder) Order {
		return Order{Kind: OrderPeers, Node: fault.NodeID(o.GetNode())}
	}, (*lofamov1.Message).GetPeerStatus, checkPeerStatus, func(s *lofamov1.PeerStatus) OrderStatus {
		return OrderStatus{OrderPeers, dnpOf(s.GetNode())}
	}),
	formOf((*lofamov1.Message).GetTorusConfiguration, checkTorusConfiguration, func(*lofamov1.TorusConfiguration) Order {
		return Order{Kind: OrderConfiguration}
	}, (*lofamov1.Message).GetConfigurationStatus, checkConfigurationStatus, func(s *lofamov1.ConfigurationStatus) OrderStatus {
		return OrderStatus{OrderConfiguration, dnpOf(s.GetNode())}
	}),
	formOf((*lofamov1.Message).GetMapOrder, checkMapOrder, func(o *lofamov1.MapOrder) Order {
		return Order{OrderMapping, fault.NodeID(o.GetNode()), o.GetNumber().GetTerm(), o.GetReplyTo()}
	}, (*lofamov1.Message).GetMapFindings, checkMapFindings, func(f *lofamov1.MapFindings) OrderStatus {
		return OrderStatus{OrderMapping, dnpOf(f.GetNode())}
	}),
	formOf((*lofamov1.Message).GetDiagnosisOrder, checkDiagnosisOrder, func(o *lofamov1.DiagnosisOrder) Order {
		return Order{OrderDiagnosis, fault.NodeID(o.GetNode()), o.GetNumber().GetTerm(), o.GetReplyTo()}
	}, (*lofamov1.Message).GetDiagnosisFindings, checkDiagnosisFindings, func(f *lofamov1.DiagnosisFindings) OrderStatus {
		return OrderStatus{OrderDiagnosis, OriginOf(f)}
	}),
	formOf((*lofamov1.Message).GetProcedureOrder, checkProcedureOrder, func(o *lofamov1.ProcedureOrder) Order {
		return Order{OrderProcedure, fault.NodeID(o.GetNode()), o.GetNumber().GetTerm(), o.GetReplyTo()}
	}, (*lofamov1.Message).GetProcedureStatus, checkProcedureStatus, func(s *lofamov1.ProcedureStatus) OrderStatus {
		return OrderStatus{OrderProcedure, OriginOf(s)}
	}),
	formOf((*lofamov1.Message).GetActOrder, checkActOrder, func(o *lofamov1.ActOrder) Order {
		return Order{OrderAct, fault.NodeID(o.GetNode()), o.GetToken(), o.GetReplyTo()}
	}, (*lofamov1.Message).GetActStatus, checkActStatus, func(s *lofamov1.ActStatus) OrderStatus {
		return OrderStatus{OrderAct, OriginOf(s)}
	}),
	formOf((*lofamov1.Message).GetOrder, checkOrder, func(o *lofamov1.Order) Order {
		return Order{Kind: o.GetKind(), Node: fault.NodeID(o.GetNode())}
	}, (*lofamov1.Message).GetOrderStatus, checkOrderStatus, func(s *lofamov1.OrderStatus) OrderStatus {
		return OrderStatus{s.GetKind(), OriginOf(s)}
	}),
}

// formOf makes a row of three functions for an order (its getter, its check and its common part) and the same three
// for its answer.
func formOf[O, S any](
	order func(*lofamov1.Message) *O, checkOrder func(*O) error, head func(*O) Order,
	status func(*lofamov1.Message) *S, checkStatus func(*S) error, by func(*S) OrderStatus,
) orderForm {
	return orderForm{
		order: func(m *lofamov1.Message) (Order, bool) {
			if o := order(m); o != nil {
				return head(o), true
			}
			return Order{}, false
		},
		checkOrder: func(m *lofamov1.Message) error { return checkOrder(order(m)) },
		status: func(m *lofamov1.Message) (OrderStatus, bool) {
			if s := status(m); s != nil {
				return by(s), true
			}
			return OrderStatus{}, false
		},
		checkStatus: func(m *lofamov1.Message) error { return checkStatus(status(m)) },
	}
}

// dnpOf returns the DNP half of a node: the sender of messages that name no half.
func dnpOf(node string) fault.Origin {
	return fault.Origin{Node: fault.NodeID(node), Half: fault.HalfDNP}
}

// checkOrderBody checks an order or an answer to one. is is false if the message is neither.
func checkOrderBody(m *lofamov1.Message) (is bool, err error) {
	for i := range orderForms {
		if _, ok := orderForms[i].order(m); ok {
			return true, orderForms[i].checkOrder(m)
		}
		if _, ok := orderForms[i].status(m); ok {
			return true, orderForms[i].checkStatus(m)
		}
	}
	return false, nil
}

// Bounds of orders that have no messages of their own. A status fits a datagram also relayed.
const (
	MaxOrderKind    = 32  // bytes
	MaxOrderContent = 512 // bytes
)

func checkOrder(o *lofamov1.Order) error {
	if n := len(o.GetContent()); n > MaxOrderContent {
		return refuse(RefusedField, "order.content: given %d bytes: want at most %d", n, MaxOrderContent)
	}
	return firstError(
		checkOrderKind("order.kind", o.GetKind()),
		checkID("order.node", o.GetNode()),
		atLeastOne("order.number", o.GetNumber()),
	)
}

func checkOrderStatus(s *lofamov1.OrderStatus) error {
	if e := s.GetEpoch(); e == 0 || e > uint64(MaxEpoch) {
		return refuse(RefusedField, "order_status.epoch: given %d: want 1 to %d", e, uint64(MaxEpoch))
	}
	return firstError(
		checkOrderKind("order_status.kind", s.GetKind()),
		checkHalf("order_status", s),
		checkText("order_status.error", s.GetError()),
	)
}

func checkOrderKind(field, kind string) error {
	if !ValidOrderKind(kind) {
		return refuse(RefusedField, "%s: given %.40q: want 1 to %d bytes of a-z and '-'", field, kind, MaxOrderKind)
	}
	switch kind {
	case OrderMask, OrderPeers, OrderConfiguration, OrderMapping, OrderDiagnosis, OrderProcedure, OrderAct:
		return refuse(RefusedField, "%s: given %q: want a kind without messages of its own", field, kind)
	}
	return nil
}

// ValidOrderKind reports whether kind can be the name of a kind: 1 to MaxOrderKind bytes of a-z and '-'.
func ValidOrderKind(kind string) bool {
	ok := len(kind) >= 1 && len(kind) <= MaxOrderKind
	for i := 0; ok && i < len(kind); i++ {
		ok = kind[i] >= 'a' && kind[i] <= 'z' || kind[i] == '-'
	}
	return ok
}

package servicenet

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Orders that name a term have the term of the leader. The revision in a mask order or in a word to the node is no
// term.
func TestOrderNamesTermOfLeader(t *testing.T) {
	n := &lofamov1.OrderNumber{Term: 7, Count: 1}
	for i, tc := range []struct {
		m    *lofamov1.Message
		want uint64
	}{
		{&lofamov1.Message{Body: &lofamov1.Message_ActOrder{ActOrder: actOrder()}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{Number: n}}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: &lofamov1.ProcedureOrder{Number: n}}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_MapOrder{MapOrder: &lofamov1.MapOrder{Number: n}}}, 7},
		{&lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{}}}, 0},
		{&lofamov1.Message{Body: &lofamov1.Message_MaskOrder{MaskOrder: &lofamov1.MaskOrder{Number: 9}}}, 0},
		{&lofamov1.Message{Body: &lofamov1.Message_FaultUpdate{FaultUpdate: &lofamov1.FaultUpdate{Revision: 9}}}, 0},
		{&lofamov1.Message{}, 0},
		{nil, 0},
	} {
		if o, _ := OrderOf(tc.m); o.Term != tc.want {
			t.Errorf("%d: %d, want %d", i, o.Term, tc.want)
		}
	}
}

// Every field of an order without a message of its own is checked, and so is every field of the answer.
func TestPlainOrdersAreChecked(t *testing.T) {
	order := func(edit func(*lofamov1.Order)) *lofamov1.Message {
		m := plainOrder()
		edit(m.GetOrder())
		return m
	}
	status := func(edit func(*lofamov1.OrderStatus)) *lofamov1.Message {
		m := plainOrderStatus()
		edit(m.GetOrderStatus())
		return m
	}
	for _, tc := range []struct {
		field string // empty: the message is good
		m     *lofamov1.Message
	}{
		{"", plainOrder()},
		{"", plainOrderStatus()},
		{"order.kind", order(func(o *lofamov1.Order) { o.Kind = "" })},
		{"order.kind", order(func(o *lofamov1.Order) { o.Kind = strings.Repeat("x", MaxOrderKind+1) })},
		{"order.kind", order(func(o *lofamov1.Order) { o.Kind = "Fan" })},
		{"order.node", order(func(o *lofamov1.Order) { o.Node = "" })},
		{"order.number", order(func(o *lofamov1.Order) { o.Number = 0 })},
		{"order.content", order(func(o *lofamov1.Order) { o.Content = make([]byte, MaxOrderContent+1) })},
		{"order_status.kind", status(func(s *lofamov1.OrderStatus) { s.Kind = "a b" })},
		{"order_status.node", status(func(s *lofamov1.OrderStatus) { s.Node = "a b" })},
		{"order_status.half", status(func(s *lofamov1.OrderStatus) { s.Half = 0 })},
		{"order_status.epoch", status(func(s *lofamov1.OrderStatus) { s.Epoch = 0 })},
		{"order_status.error", status(func(s *lofamov1.OrderStatus) { s.Error = "\x1b" })},
	} {
		err := checkBody(tc.m)
		if tc.field == "" && err != nil || tc.field != "" && (err == nil || !strings.Contains(err.Error(), tc.field)) {
			t.Errorf("%q: %v", tc.field, err)
		}
	}
}

// Each kind has one form of orders and one of answers, and no two kinds share a message.
func TestEachMessageHasOneOrderKind(t *testing.T) {
	orders := map[string]*lofamov1.Message{
		OrderMask:          {Body: &lofamov1.Message_MaskOrder{MaskOrder: &lofamov1.MaskOrder{Node: "n"}}},
		OrderPeers:         {Body: &lofamov1.Message_PeerOrder{PeerOrder: &lofamov1.PeerOrder{Node: "n"}}},
		OrderConfiguration: {Body: &lofamov1.Message_TorusConfiguration{TorusConfiguration: &lofamov1.TorusConfiguration{}}},
		OrderMapping:       {Body: &lofamov1.Message_MapOrder{MapOrder: &lofamov1.MapOrder{Node: "n"}}},
		OrderDiagnosis:     {Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{Node: "n"}}},
		OrderProcedure:     {Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: &lofamov1.ProcedureOrder{Node: "n"}}},
		OrderAct:           {Body: &lofamov1.Message_ActOrder{ActOrder: &lofamov1.ActOrder{Node: "n"}}},
		"fan-curve":        {Body: &lofamov1.Message_Order{Order: &lofamov1.Order{Kind: "fan-curve", Node: "n"}}},
	}
	answers := map[string]*lofamov1.Message{
		OrderMask:          {Body: &lofamov1.Message_MaskStatus{MaskStatus: &lofamov1.MaskStatus{Node: "n"}}},
		OrderPeers:         {Body: &lofamov1.Message_PeerStatus{PeerStatus: &lofamov1.PeerStatus{Node: "n"}}},
		OrderConfiguration: {Body: &lofamov1.Message_ConfigurationStatus{ConfigurationStatus: &lofamov1.ConfigurationStatus{Node: "n"}}},
		OrderMapping:       {Body: &lofamov1.Message_MapFindings{MapFindings: &lofamov1.MapFindings{Node: "n"}}},
		OrderDiagnosis:     {Body: &lofamov1.Message_DiagnosisFindings{DiagnosisFindings: &lofamov1.DiagnosisFindings{Node: "n"}}},
		OrderProcedure:     {Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: &lofamov1.ProcedureStatus{Node: "n"}}},
		OrderAct:           {Body: &lofamov1.Message_ActStatus{ActStatus: &lofamov1.ActStatus{Node: "n"}}},
		"fan-curve":        {Body: &lofamov1.Message_OrderStatus{OrderStatus: &lofamov1.OrderStatus{Kind: "fan-curve", Node: "n"}}},
	}
	if len(orders) != len(orderForms) || len(answers) != len(orderForms) {
		t.Fatalf("%d orders and %d answers for %d forms: add the new form here", len(orders), len(answers), len(orderForms))
	}
	for kind, m := range orders { // a kind with messages of its own is no plain one
		reserved := m.GetOrder() == nil
		for field, err := range map[string]error{
			"order.kind":        checkOrder(&lofamov1.Order{Kind: kind, Node: "n", Number: 1}),
			"order_status.kind": checkOrderStatus(&lofamov1.OrderStatus{Kind: kind, Node: "n", Half: 1, Epoch: 1}),
		} {
			if (err != nil) != reserved || reserved && !strings.Contains(err.Error(), field+`: given "`+kind+`"`) {
				t.Errorf("%s %q: %v", field, kind, err)
			}
		}
	}
	for kind, m := range orders {
		if o, ok := OrderOf(m); !ok || o.Kind != kind || o.Node != "n" && kind != OrderConfiguration {
			t.Errorf("order of kind %s: %+v", kind, o)
		}
		if _, ok := OrderStatusOf(m); ok {
			t.Errorf("the order of kind %s counts as an answer", kind)
		}
		if _, role := bySpeaker(m); role != RoleSupervisor {
			t.Errorf("order of kind %s: said by a %s", kind, role)
		}
	}
	for kind, m := range answers {
		if s, ok := OrderStatusOf(m); !ok || s.Kind != kind || s.By.Node != "n" {
			t.Errorf("answer of kind %s: %+v", kind, s)
		}
		if _, ok := OrderOf(m); ok {
			t.Errorf("the answer of kind %s counts as an order", kind)
		}
		if said, role := bySpeaker(m); role != RoleNode || said.Node != "n" {
			t.Errorf("answer of kind %s: said by %s, a %s", kind, said, role)
		}
	}
	longest := &lofamov1.OrderStatus{
		Kind: strings.Repeat("k", MaxOrderKind), Node: strings.Repeat("n",
			MaxNodeID), Half: lofamov1.Half_HALF_DNP, Epoch: uint64(MaxEpoch), Number: 1 << 62, Sum: 1,
		Lost: true, Error: strings.Repeat("e", fault.MaxDetail),
	}
	if err := checkOrderStatus(longest); err != nil || proto.Size(longest) > MaxReportSize {
		t.Errorf("the longest answer has %d bytes, %v: want at most %d, so that it fits a relayed datagram", proto.Size(longest), err,
			MaxReportSize)
	}
}

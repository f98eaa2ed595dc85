package hostcore

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Act is an order to act that was verified. Who makes acts on this node is asked what becomes of it; Acted is the answer.
type Act struct {
	Order    *lofamov1.ActOrder
	Envelope []byte // as the supervisor signed it: others may have to have its word
	came     Received
}

// By returns the supervisor whose order it is.
func (a Act) By() string { return a.came.Opened.Name }

// Acted says what became of an order to act.
type Acted struct {
	Act    Act
	Status *lofamov1.ActStatus // Node, Half and Epoch are the machine's to fill in
}

func (Acted) hostEvent() {}

// onActOrder takes an order to this node. It decides nothing: the ledger does, and the agent's configuration.
func (m *Machine) onActOrder(ev Received, o *lofamov1.ActOrder) {
	m.out.Acts = append(m.out.Acts, Act{Order: o, Envelope: ev.Opened.Raw, came: ev})
}

// onActed answers by the way that the order came, and by all others that a supervisor is told to listen on.
func (m *Machine) onActed(ev Acted) {
	st := ev.Status
	st.Node, st.Half, st.Epoch = string(m.self), lofamov1.Half_HALF_HOST, uint64(m.Epoch())
	m.reply(ev.Act.came, ev.Act.Order.GetReplyTo(), Send{Order: &lofamov1.Message{Body: &lofamov1.Message_ActStatus{ActStatus: st}}})
}

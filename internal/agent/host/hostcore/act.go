package hostcore

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/actions"
)

// Act is a verified order to act. The action runner of this node executes it and answers with Acted.
type Act struct {
	Order    *lofamov1.ActOrder
	Envelope []byte // as the supervisor signed it: others may have to have its word
	came     Received
}

// By returns the supervisor whose order it is.
func (a Act) By() string { return a.came.Opened.Name }

// Acted is the outcome of an order to act.
type Acted struct {
	Act    Act
	Status *lofamov1.ActStatus // Node, Half and Epoch are the machine's to fill in
}

func (Acted) hostEvent() {}

// onActOrder handles an order to this node. It decides nothing: the ledger and the agent's configuration do. A restart of a DNP half
// with another kernel is for the daemon there.
func (m *Machine) onActOrder(ev Received, o *lofamov1.ActOrder) {
	if order := actions.FromWire(o); m.cfg.Window && order.Half() == fault.HalfDNP && m.verdict == watchdog.Alive {
		if ev.Path != fault.PathTorus {
			m.passDown(m.self, ev.Opened.Raw)
		}
		return
	}
	m.out.Acts = append(m.out.Acts, Act{Order: o, Envelope: ev.Opened.Raw, came: ev})
}

// onActed answers on the path of the order, and on all others that the supervisor listens on.
func (m *Machine) onActed(ev Acted) {
	st := ev.Status
	st.Node, st.Half, st.Epoch = string(m.self), lofamov1.Half_HALF_HOST, uint64(m.Epoch())
	m.reply(ev.Act.came, ev.Act.Order.GetReplyTo(), Send{Order: &lofamov1.Message{Body: &lofamov1.Message_ActStatus{ActStatus: st}}})
}

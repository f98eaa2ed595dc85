package dnpcore

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/actions"
)

// Acted reports the outcome of an order to act (Output.Acts).
type Acted struct {
	Status *lofamov1.ActStatus // the machine fills in Node, Half and Epoch
}

func (Acted) dnpEvent() {}

// onActOrder handles an order to act that arrived through the torus. It passes the order to the host half. If that half
// is not alive, this half executes the order, so that a supervisor can still restart the node's host half. It also executes the restart
// of a DNP half with a kernel of its own.
func (m *Machine) onActOrder(o *lofamov1.ActOrder, envelope []byte) {
	order := actions.FromWire(o)
	if own := m.cfg.Window && order.Half() == fault.HalfDNP; m.verdict == watchdog.Alive && !own {
		m.toHost(envelope)
	} else {
		m.out.Acts = append(m.out.Acts, o)
	}
}

func (m *Machine) onActed(ev Acted) {
	st := ev.Status
	st.Node, st.Half, st.Epoch = string(m.self), lofamov1.Half_HALF_DNP, uint64(m.Epoch())
	m.answerOrder(1, &lofamov1.Message{Body: &lofamov1.Message_ActStatus{ActStatus: st}})
}

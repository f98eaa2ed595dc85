package dnpcore

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Acted reports the outcome of an order to act (Output.Acts).
type Acted struct {
	Status *lofamov1.ActStatus // the machine fills in Node, Half and Epoch
}

func (Acted) dnpEvent() {}

// onActOrder handles an order to act that arrived through the torus. It passes the order to the host half. If that half
// is not alive, this half executes the order, so that a supervisor can still restart the node's host half.
func (m *Machine) onActOrder(o *lofamov1.ActOrder, envelope []byte) {
	if m.verdict == watchdog.Alive {
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

package dnpcore

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Acted says what became of an order to act (Output.Acts).
type Acted struct {
	Status *lofamov1.ActStatus // Node, Half and Epoch are the machine's to fill in
}

func (Acted) dnpEvent() {}

// onActOrder takes an order to act that came by the torus: it is the host half's to pass on, and this half's where that one does
// not live, so that a node whose host half is to be restarted can be told so.
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

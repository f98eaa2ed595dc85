package dnp

import (
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
)

// onDeadHosts takes the fault map's view of the neighbours' hosts. A message of another length is of a later version, and ignored.
func (d *dnpHalf) onDeadHosts(payload []byte) {
	if dead, ok := half.ReadDirections(payload); ok {
		d.step(dnpcore.DeadHosts{Dead: dead})
	}
}

// onSetting sets registers as the host half wants them. The mailbox belongs to this node's user, or goes through the
// authenticated window.
func (d *dnpHalf) onSetting(payload []byte) {
	values, err := half.ReadSettings(payload)
	if err != nil {
		d.step(dnpcore.Exception{Register: watchdog.AddrRDMA, Bits: watchdog.RDMAMailboxBad})
		return
	}
	ev := dnpcore.Set{}
	for _, v := range values {
		ev.Values = append(ev.Values, dnpcore.Store{Addr: v.Addr, Value: v.Value})
	}
	d.step(ev)
}

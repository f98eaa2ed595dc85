package dnp

import (
	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
)

// toAct handles orders to act that arrived through the torus for a host half that is not alive.
func (d *dnpHalf) toAct(orders []*lofamov1.ActOrder) {
	for _, o := range orders {
		answer := func(st *lofamov1.ActStatus) { d.step(dnpcore.Acted{Status: st}) }
		d.acting.Take(half.ActionRequest{Order: o, Apart: d.window.Apart(), Answer: answer})
	}
}

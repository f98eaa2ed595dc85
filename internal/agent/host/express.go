package host

import (
	"github.com/lofamo/lofamo/pkg/torus/procedure"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local"
)

// procedures reads the counters of procedures; nil: the DNP half takes no part, or is of an earlier version.
func (h *hostHalf) procedures() *local.ProcedureStatus {
	all := h.page.File.Counters()
	c := all[half.ProcedureCounts:]
	state := procedure.State(c[half.CountState])
	if !state.Valid() {
		return nil
	}
	return &local.ProcedureStatus{
		State: state.String(), Wave: c[half.CountWave], Clear: c[half.CountClear], NotClear: c[half.CountNotClear], Refused: c[half.CountRefused],
		HeldUp: c[half.CountHeldUp], Waiting: c[half.CountWaiting], Held: c[half.CountHeld],
	}
}

func (s sink) procedures(p *local.ProcedureStatus) {
	if p == nil {
		return
	}
	for state := procedure.Normal; state <= procedure.Diagnostics; state++ {
		s.gauge("lofamo_agent_procedure_state", one(p.State == state.String()), state.String())
	}
	s.counter("lofamo_agent_procedures_total", uint64(p.Clear), "clear")
	s.counter("lofamo_agent_procedures_total", uint64(p.NotClear), "not-clear")
	s.counter("lofamo_agent_procedures_total", uint64(p.Refused), "refused")
	s.counter("lofamo_agent_procedure_held_up_total", uint64(p.HeldUp))
	s.gauge("lofamo_agent_procedure_waiting", float64(p.Waiting))
}

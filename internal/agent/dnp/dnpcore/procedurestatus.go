package dnpcore

import (
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/procedure"
)

// unaccounted returns the members that were silent at the time-out, as far as this half knows, and those that held
// messages.
func (m *Machine) unaccounted(of *procedure.Result) (silent, holding []uint32) {
	set := procedure.Joined
	if of.Dropped() {
		set = procedure.Present
	}
	if here, known := m.inSet(of.Key, set); known {
		for r := range m.cfg.Topo.Dims.Places() {
			if _, in := slices.BinarySearch(here, r); !in && m.cfg.Topo.Dims.Contains(m.cfg.Topo.Dims.At(r)) {
				silent = append(silent, uint32(r))
			}
		}
	}
	stuck, _ := m.inSet(of.Key, procedure.Stuck)
	for _, r := range stuck {
		holding = append(holding, uint32(r))
	}
	return silent, holding
}

// procedureStatus returns this half's state in the procedure.
func (m *Machine) procedureStatus() *lofamov1.ProcedureStatus {
	p := &m.procedure
	k := p.machine.Key()
	s := &lofamov1.ProcedureStatus{
		Node: string(m.self), Half: lofamov1.Half_HALF_DNP, Epoch: uint64(m.Epoch()), Wave: k.Wave, Starter: uint32(k.Starter),
		State: lofamov1.ProcedureState(p.machine.State()), Round: p.machine.Round(), Clear: p.machine.Clear(), Held: uint32(p.drain.holds),
		Cause: p.cause,
	}
	if o := p.machine.Order(); o != (procedure.Order{}) {
		s.Number = &lofamov1.OrderNumber{Term: o.Term, Count: o.Count}
	}
	return s
}

func (m *Machine) sayProcedure(s *lofamov1.ProcedureStatus, attempt int) {
	m.answerOrder(attempt, &lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: s}})
}

func (m *Machine) sayStatus(s *lofamov1.ProcedureStatus) {
	servicenet.FitProcedureStatus(s)
	m.sayProcedure(s, 1)
}

// sayAgain repeats the outcome of the last order to a supervisor that has not received it.
func (m *Machine) sayAgain() {
	p := &m.procedure
	number := p.order.GetNumber()
	switch {
	case m.inhibited() && p.machine.Order() == orderOf(number):
		m.sayProcedure(m.procedureStatus(), 2)
	case p.last != nil && p.last.GetNumber() != nil && same(p.last.GetNumber(), number):
		m.sayProcedure(p.last, 2)
	default:
		m.sayRefusal(p.order, "this half took no part")
	}
}

// sayRefusal reports why there is no procedure.
func (m *Machine) sayRefusal(o *lofamov1.ProcedureOrder, why string) {
	s := &lofamov1.ProcedureStatus{
		Number: o.GetNumber(), Node: string(m.self), Half: lofamov1.Half_HALF_DNP, Epoch: uint64(m.Epoch()),
		State: lofamov1.ProcedureState_PROCEDURE_NORMAL, Error: why,
	}
	servicenet.FitProcedureStatus(s)
	m.sayProcedure(s, 1)
}

// ProcedureStats returns the counters.
func (m *Machine) ProcedureStats() ProcedureStats {
	p := &m.procedure
	s := p.stats
	if p.machine != nil {
		s.State, s.Wave, s.Waiting = p.machine.State(), p.machine.Key().Wave, len(p.drain.waiting)
		if m.inhibited() {
			s.Held = p.drain.holds
		}
	}
	return s
}

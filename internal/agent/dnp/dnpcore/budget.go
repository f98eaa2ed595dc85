package dnpcore

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// Spent is the processor time that the half's process has used since its start. The shell sends it about once a second.
type Spent struct{ Total time.Duration }

func (Spent) dnpEvent() {}

// onSpent adjusts the periodic work to the half's budget of processor time.
func (m *Machine) onSpent(now time.Time, ev Spent) {
	halfcore.FollowBudget(&m.budget, now, ev.Total, m.note, NoteOverBudget, NoteBudgetEased, m.selfTest.machine.Rarer, func(times int) {
		if m.express.machine != nil {
			m.express.machine.RarerPings(times)
		}
	})
}

// Budget returns the half's budget of processor time for inspection: only Step gives it measurements.
func (m *Machine) Budget() *halfcore.Budget { return &m.budget }

// ProcessorTime describes for digests how late the half runs, and the work that it gives up; nil: nothing to report.
func (m *Machine) ProcessorTime() *lofamov1.ProcessorTime {
	return halfcore.ProcessorTime(&m.lateness, &m.budget)
}

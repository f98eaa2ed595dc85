package diagnose

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/procedure"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
)

// Kept is what outlives the leader. Its methods block until the store answers or the context ends.
type Kept interface {
	// Write commits, where this replica leads.
	Write(ctx context.Context, w store.Write) (uint64, error)
	// LastDiagnosis and LastProcedure return what was committed last; nil: there is none.
	LastDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error)
	LastProcedure(ctx context.Context) (*lofamov1.ProcedureReport, error)
	// LastOrdered is the procedure that was ordered and has no report; nil: there is none.
	LastOrdered(ctx context.Context) (*store.Ordered, error)
}

// keepTime bounds the commit of a report. One that the store does not take is given to whoever waits for it all the same.
const keepTime = 5 * time.Second

// LastDiagnosis returns the report that was committed last; nil: there is none. Any replica has it.
func (m *Manager) LastDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error) {
	return m.cfg.Kept.LastDiagnosis(ctx)
}

// LastProcedure returns the report that was committed last; nil: there is none. Any replica has it.
func (m *Manager) LastProcedure(ctx context.Context) (*lofamov1.ProcedureReport, error) {
	return m.cfg.Kept.LastProcedure(ctx)
}

// keep commits reports, where there are any, beside what else is written. Nobody who has gone meanwhile keeps it from that.
func (m *Manager) keep(ctx context.Context, w store.Write, d *lofamov1.DiagnosisReport, p *lofamov1.ProcedureReport) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
	defer cancel()
	var errs []error
	if d != nil {
		kv, err := store.DiagnosisPut(d)
		w.Puts, errs = append(w.Puts, kv), append(errs, err)
	}
	if p != nil {
		kv, err := store.ProcedurePut(p)
		w.Puts, errs = append(w.Puts, kv), append(errs, err)
	}
	err := errors.Join(errs...)
	if err == nil {
		_, err = m.cfg.Kept.Write(ctx, w)
	}
	if err != nil {
		m.cfg.Logger.Warn("the report of a diagnosis or procedure is not kept", "err", err)
	}
}

// Status takes what a half said of a procedure. It does not block. What is of another order than the one under way is late, and says nothing any more.
func (m *Manager) Status(st *lofamov1.ProcedureStatus) {
	if r := m.runOf(st.GetNumber()); r != nil {
		select {
		case r.said <- st: // never of a diagnosis, whose channel is nil
		default: // it is asked for again
		}
		return
	}
	if !m.Leading() || st.GetNumber() != nil {
		return
	}
	select {
	case m.strays <- st:
	default:
	}
}

// A node has begun too many procedures by itself when they are more than tooMany within tooManyIn. It is named; its own budget, and the rest of all
// others, bound what it does (pkg/torus/procedure).
const (
	tooMany   = 3
	tooManyIn = time.Hour
)

// Strays makes reports of the procedures that nodes begin by themselves, until the context ends.
func (m *Manager) Strays(ctx context.Context) {
	strays, starters := procedure.NewStrays(m.cfg.Procedures), procedure.NewStarters(tooMany, tooManyIn)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case st := <-m.strays:
			strays.Said(time.Now(), st, func() (procedure.Plan, bool) {
				places, err := m.cfg.Places(ctx)
				return procedure.Whole(m.cfg.Names.Dims(), places), err == nil
			})
		case <-timer.C:
		}
		now := time.Now()
		done, wake := strays.Tick(now)
		for _, s := range done {
			m.stray(ctx, now, s, starters)
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(0, time.Until(wake)))
		}
	}
}

// stray keeps the report of a procedure that nobody has ordered, and names who begins too many. Of what one half may have made up nothing is kept, nor of
// what a node has begun since it was named: no single node fills the history, or keeps people from procedures of their own.
func (m *Manager) stray(ctx context.Context, now time.Time, s procedure.Stray, starters *procedure.Starters) {
	r := s.Report
	r.Started, r.TookMs, r.Supervisor = timestamppb.New(s.Began), uint32(now.Sub(s.Began).Milliseconds()), m.cfg.Self
	if !s.Vouched {
		m.cfg.Logger.Info("a procedure of which one node alone tells, and not the one that is said to have begun it", "starter", s.Node, "wave", r.GetWave())
		return
	}
	n, tell := starters.Began(now, s.Node)
	if n > tooMany && !tell {
		m.cfg.Logger.Debug("one more procedure of a node that begins too many", "node", s.Node, "wave", r.GetWave())
		return
	}
	m.mu.Lock()
	m.ended = now
	m.mu.Unlock()
	var w store.Write
	if tell {
		text := fmt.Sprintf("it has begun %d procedures by itself within %s: look at it, or take it out of use", n, starters.Window())
		m.cfg.Logger.Warn("a node begins too many procedures", "node", s.Node, "procedures", n, "within", starters.Window())
		w.Events = append(w.Events, view.StarterEvent(s.Node, text, m.cfg.Self, now))
	}
	m.concluded(ctx, r, w)
}

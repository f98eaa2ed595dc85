package orders

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
)

// Reports is the storage that outlives the leader. Its methods block until the store answers or the context ends.
// All reads fail with store.ErrUndecodable for a value that cannot be decoded.
type Reports interface {
	// Write commits, where this replica leads.
	Write(ctx context.Context, w store.Write) (uint64, error)
	// LastDiagnosis and LastProcedure return the latest committed report, or nil for none.
	LastDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error)
	LastProcedure(ctx context.Context) (*lofamov1.ProcedureReport, error)
	// LastOrdered returns the ordered procedure that has no report, or nil for none.
	LastOrdered(ctx context.Context) (*store.Ordered, error)
	// PolicyRuns returns the policy's latest tests of links and its latest procedure.
	PolicyRuns(ctx context.Context) ([]store.PolicyRun, error)
}

// keepTime bounds the commit of a report. The caller receives the report even if the commit fails.
const keepTime = 5 * time.Second

// LastDiagnosis returns the latest committed report, or nil for none. It works on any replica.
func (m *Diagnoses) LastDiagnosis(ctx context.Context) (*lofamov1.DiagnosisReport, error) {
	return m.cfg.Reports.LastDiagnosis(ctx)
}

// LastProcedure returns the latest committed report, or nil for none. It works on any replica.
func (m *Diagnoses) LastProcedure(ctx context.Context) (*lofamov1.ProcedureReport, error) {
	return m.cfg.Reports.LastProcedure(ctx)
}

// keep commits the given reports together with the other writes, and the times of the policy's own. It does so even if
// the caller's context has ended.
func (m *Diagnoses) keep(ctx context.Context, w store.Write, d *lofamov1.DiagnosisReport, p *lofamov1.ProcedureReport) {
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
	if ran := ranByPolicy(d, p); len(ran) > 0 {
		if kv, err := m.policyRuns(ctx, ran); err != nil {
			m.cfg.Logger.Warn("store the policy's runs: the next leader counts only the last report", "err", err)
		} else {
			w.Puts = append(w.Puts, kv)
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		_, err = m.cfg.Reports.Write(ctx, w)
	}
	if err != nil {
		m.cfg.Logger.Warn("the report of a diagnosis or procedure is not kept", "err", err)
	}
}

// Status processes a half's status of a procedure. It does not block. A status of an order other than the present
// one is late and ignored.
func (m *Diagnoses) Status(st *lofamov1.ProcedureStatus) {
	if r := m.runOf(st.GetNumber()); r != nil {
		select {
		case r.said <- st: // never of a diagnosis, whose channel is nil
		default: // requested again later
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

// A node that begins more than tooMany procedures by itself within tooManyIn is named. Its own budget and the
// pause of the other nodes limit the effect (pkg/torus/procedure).
const (
	tooMany   = 3
	tooManyIn = time.Hour
)

// Strays makes reports of the procedures that nodes begin by themselves, until the context ends.
func (m *Diagnoses) Strays(ctx context.Context) {
	unordered, starters := newStrays(m.cfg.Procedures), newStartCounts(tooMany, tooManyIn)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case st := <-m.strays:
			unordered.Said(time.Now(), st, func() (procedurePlan, bool) {
				places, err := m.cfg.Places(ctx)
				return wholeTorus(m.cfg.Names.Topology().Dims, places), err == nil
			})
		case <-timer.C:
		}
		now := time.Now()
		done, wake := unordered.Tick(now)
		for _, s := range done {
			m.stray(ctx, now, s, starters)
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(0, time.Until(wake)))
		}
	}
}

// stray stores the report of a procedure without an order, and names nodes that begin too many. It stores no
// report that a single half may have invented, and none of a node after it was named. So no single node can fill
// the history, or keep operators from procedures of their own.
func (m *Diagnoses) stray(ctx context.Context, now time.Time, s finishedStray, starters *startCounts) {
	r := s.Report
	r.Started, r.TookMs, r.Supervisor = timestamppb.New(s.Began), uint32(now.Sub(s.Began).Milliseconds()), m.cfg.Self
	if !s.Vouched {
		m.cfg.Logger.Info("procedure not reported: only one node confirms it, and not its starter", "starter", s.Node, "wave",
			r.GetWave())
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

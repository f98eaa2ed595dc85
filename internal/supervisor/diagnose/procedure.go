package diagnose

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/procedure"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Procedure says what a fault management procedure is for.
type Procedure struct {
	Node         fault.NodeID // who is to begin it; empty: whoever is well
	Diagnose     bool         // links are tested when the torus is empty
	DrainTimeout time.Duration
	Reason       string
	Subject      string // who asks
}

// PauseError refuses a procedure that comes too soon after the last.
type PauseError struct{ Left time.Duration }

func (e *PauseError) Error() string {
	return fmt.Sprintf("the last procedure ended too short a time ago: try again in %s", max(time.Second, e.Left.Round(time.Second)))
}

// ErrLost is a procedure that had begun when this replica ceased to lead. The nodes go on, and the next leader makes a report of what they say of their end.
var ErrLost = errors.New("this supervisor leads no more; the procedure goes on without it: lofamoctl get procedure tells what became of it")

// RefusedError is a procedure that nobody can, or wants to, begin.
type RefusedError struct{ error }

// Unwrap returns why.
func (e *RefusedError) Unwrap() error { return e.error }

// Procedure has the torus gone through a procedure, and tells of its progress when there is some. Once it has begun it goes on to its report,
// which is committed, also when nobody is there to be told; it ends without one when this replica leads no more (ErrLost). progress must not block for
// long; what it fails with ends the telling.
func (m *Manager) Procedure(ctx context.Context, req Procedure, progress func(*lofamov1.ProcedureProgress) error) (*lofamov1.ProcedureReport, error) {
	if !m.Leading() {
		return nil, ErrNotLeading
	}
	places, err := m.cfg.Places(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	plan, err := procedure.NewPlan(m.cfg.Names.Dims(), places, procedure.Options{
		Starter: req.Node, Diagnose: req.Diagnose, DrainTimeout: req.DrainTimeout, Hop: m.cfg.Hop, Late: m.cfg.Late,
	})
	if err != nil {
		return nil, refusal(err)
	}
	r := m.newRun(Request{Rounds: 1, Subject: req.Subject})
	r.said = make(chan *lofamov1.ProcedureStatus, 1024+4*len(places))
	if req.Diagnose {
		if err := r.plan(); err != nil {
			return nil, refusal(err)
		}
	}
	if err := m.begin(r); err != nil {
		return nil, err
	}
	defer m.end()
	if err := m.rested(ctx); err != nil {
		return nil, err
	}
	p := &procedureRun{run: r, asked: req, plan: plan, machine: procedure.New(time.Now(), plan, m.cfg.Procedures), progress: progress}
	m.cfg.Logger.Info("procedure ordered", "by", req.Subject, "reason", req.Reason, "diagnose", req.Diagnose, "members", len(plan.Members), "delay", plan.Delay, "starters", plan.Starters)
	report, err := p.through()
	if err == nil {
		m.mu.Lock()
		m.ended = time.Now()
		m.mu.Unlock()
	}
	if errors.Is(err, ErrNotLeading) {
		err = ErrLost
	}
	if err != nil {
		m.cfg.Metrics.Procedure(metrics.ProcedureFailed, time.Since(r.started))
		m.cfg.Logger.Warn("procedure failed", "by", req.Subject, "err", err)
		return nil, err
	}
	m.concluded(ctx, report)
	return report, nil
}

func refusal(err error) error {
	if errors.Is(err, ErrNotLeading) {
		return err
	}
	return &RefusedError{err}
}

// concluded tells of a procedure that is over, and keeps its report.
func (m *Manager) concluded(ctx context.Context, r *lofamov1.ProcedureReport, more ...*lofamov1.Event) {
	result := metrics.ProcedureClear
	if !r.GetClear() {
		result = metrics.ProcedureNotClear
	}
	m.cfg.Metrics.Procedure(result, time.Duration(r.GetTookMs())*time.Millisecond)
	m.cfg.Logger.Info("procedure over", "by", r.GetSubject(), "reason", r.GetReason(), "starter", r.GetStarter(), "wave", r.GetWave(), "clear", r.GetClear(),
		"silent", r.GetSilent(), "holding", r.GetHolding(), "rounds", r.GetRounds(), "took_ms", r.GetTookMs())
	now := time.Now()
	events := append([]*lofamov1.Event{view.ProcedureEvent(r, now)}, more...)
	d := r.GetDiagnosis()
	if d != nil {
		m.diagnosed(d)
		events = append(events, view.DiagnosisEvent(d, "", now))
	}
	m.keep(ctx, events, d, r)
}

// rested refuses a procedure that comes too soon after the last, also where another replica has led that one.
func (m *Manager) rested(ctx context.Context) error {
	m.mu.Lock()
	led, ended := m.led, m.ended
	m.mu.Unlock()
	if !ended.IsZero() {
		return tooSoon(m.cfg.Pause - time.Since(ended))
	}
	last, err := m.cfg.Kept.LastProcedure(ctx)
	if err != nil { // the nodes have a rest of their own
		m.cfg.Logger.Warn("when the last procedure was is not known", "err", err)
	}
	if last == nil {
		return nil
	}
	// By wall clocks, of two replicas: they may differ, or be set. So it never counts for longer than a pause from when this replica led on.
	until := last.GetStarted().AsTime().Add(time.Duration(last.GetTookMs())*time.Millisecond + m.cfg.Pause)
	return tooSoon(min(time.Until(until), m.cfg.Pause-time.Since(led)))
}

// tooSoon refuses what comes so much too soon.
func tooSoon(left time.Duration) error {
	if left > 0 {
		return &PauseError{left}
	}
	return nil
}

// procedureRun is one procedure, and what nodes find in it.
type procedureRun struct {
	*run

	asked    Procedure
	plan     procedure.Plan
	machine  *procedure.Machine
	progress func(*lofamov1.ProcedureProgress) error // nil: nobody is there to be told
	told     *lofamov1.ProcedureProgress
	toldAt   time.Time
}

// through has it gone through, and returns the report.
func (p *procedureRun) through() (*lofamov1.ProcedureReport, error) {
	if err := p.follow(); err != nil {
		return nil, err
	}
	report := p.machine.Report()
	if p.asked.Diagnose && (p.machine.Diagnosed() || p.heard()) {
		// What has not come by now is asked for: the same order again is no new test. Who has never heard of the order tests its links now.
		if err := p.collect(context.Background(), func(*lofamov1.DiagnosisProgress) error { return nil }); err != nil {
			return nil, err
		}
		report.Diagnosis = p.report()
	}
	report.Started, report.TookMs = timestamppb.New(p.started), uint32(time.Since(p.started).Milliseconds())
	report.Subject, report.Reason, report.Supervisor = p.asked.Subject, p.asked.Reason, p.m.cfg.Self
	return report, nil
}

// heard says whether some node has told what it found.
func (p *procedureRun) heard() bool {
	for _, n := range p.nodes {
		if n.heard() {
			return true
		}
	}
	return false
}

// follow gives orders and takes what is said, until the machine says that it is over.
func (p *procedureRun) follow() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	out := p.machine.Step(time.Now(), procedure.Tick{})
	for {
		for _, o := range out.Orders {
			p.giveOrder(o)
		}
		p.tell(out.Done)
		if out.Done {
			if err := p.machine.Err(); err != nil {
				return &RefusedError{err}
			}
			return nil
		}
		wake := out.Wake
		if p.behind() {
			wake = earlier(wake, p.toldAt.Add(tellEvery))
		}
		timer.Reset(time.Until(wake))
		select {
		case <-p.over:
			return ErrNotLeading
		case f := <-p.in:
			p.take(f)
			out.Orders = nil
		case st := <-p.said:
			out = p.machine.Step(time.Now(), procedure.Said{Status: st})
		case <-timer.C:
			out = p.machine.Step(time.Now(), procedure.Tick{})
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// behind says whether there is news that was not told.
func (p *procedureRun) behind() bool {
	at := p.machine.Progress()
	return p.progress != nil && (at.GetState() != p.told.GetState() || at.GetRound() != p.told.GetRound() || at.GetEnded() != p.told.GetEnded())
}

// tell tells of progress: of another state but the two that take turns in the drain at once, of the rest not oftener than each tellEvery.
func (p *procedureRun) tell(last bool) {
	at := p.machine.Progress()
	turns := at.GetState() == lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR || at.GetState() == lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN && at.GetRound() > 1
	entered := at.GetState() != p.told.GetState() && !turns
	if !p.behind() || !entered && !last && time.Since(p.toldAt) < tellEvery {
		return
	}
	p.told, p.toldAt = at, time.Now()
	if err := p.progress(at); err != nil {
		p.progress = nil
	}
}

// giveOrder sends one order.
func (p *procedureRun) giveOrder(o procedure.Order) {
	coord, _ := p.m.cfg.Names.Coord(o.Node)
	p.m.give(o.Node, o.Try, p.gateways(coord), func(replyTo string) *lofamov1.Message {
		return &lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: &lofamov1.ProcedureOrder{
			Number: p.number, Node: string(o.Node), Diagnose: p.plan.Diagnose, Absent: p.plan.Absent, DelayUs: uint32(p.plan.Delay.Microseconds()),
			HopUs: uint32(p.plan.Hop.Microseconds()), DrainTimeoutMs: uint32(p.plan.DrainTimeout.Milliseconds()), ReplyTo: replyTo, Reason: p.asked.Reason, Ask: o.Ask,
		}}}
	})
}

package orders

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// ProcedureRequest is a request for a fault management procedure.
type ProcedureRequest struct {
	Node         fault.NodeID // node that begins; empty: any healthy one
	Diagnose     bool         // links are tested when the torus is empty
	DrainTimeout time.Duration
	Reason       string
	Subject      string // requester
}

// PauseError refuses a procedure that comes too soon after the last.
type PauseError struct{ Left time.Duration }

func (e *PauseError) Error() string {
	return fmt.Sprintf("the last procedure ended too short a time ago: try again in %s", max(time.Second, e.Left.Round(time.Second)))
}

// ErrLost says that this replica ceased to lead after the procedure had begun. The nodes continue, and the next
// leader makes a report from their final statuses.
var ErrLost = errors.New("this supervisor no longer leads; the procedure continues without it: lofamoctl get procedure shows its outcome")

// RefusedError says that no node can, or will, begin the procedure.
type RefusedError struct{ error }

// Unwrap returns why.
func (e *RefusedError) Unwrap() error { return e.error }

// Procedure runs a procedure in the torus and reports its progress. Once the procedure has begun, it continues to
// its committed report even if the caller is gone. It ends without a report if this replica ceases to lead
// (ErrLost). progress must not block for long; its first error ends the progress reports.
func (m *Diagnoses) Procedure(ctx context.Context, req ProcedureRequest,
	progress func(*lofamov1.ProcedureProgress) error) (*lofamov1.ProcedureReport, error) {
	if !m.Leading() {
		return nil, ErrNotLeading
	}
	places, err := m.cfg.Places(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	plan, err := newProcedurePlan(m.cfg.Names.Topology().Dims, places, procedureOptions{
		Starter: req.Node, Diagnose: req.Diagnose, DrainTimeout: req.DrainTimeout, Hop: m.cfg.Hop, Late: m.cfg.Late,
	})
	if err != nil {
		return nil, refusal(err)
	}
	r := m.newRun(DiagnosisRequest{Rounds: 1, Subject: req.Subject})
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
	if err := m.takenUp(ctx); err != nil {
		return nil, err
	}
	p := &procedureRun{diagnosisRun: r, began: r.started, asked: req, plan: plan, progress: progress}
	if err := p.intend(ctx); err != nil {
		return nil, err
	}
	p.machine = newProcedureMachine(time.Now(), plan, m.cfg.Procedures)
	m.cfg.Logger.Info("procedure ordered", "by", req.Subject, "reason", req.Reason, "diagnose", req.Diagnose, "members", len(plan.Members),
		"delay", plan.Delay, "starters", plan.Starters)
	return p.end(ctx)
}

// resumeFirst is the time after a term's beginning during which an earlier leader's procedure takes precedence
// over new ones.
const resumeFirst = 5 * time.Second

// takenUp refuses a procedure until this leader follows the earlier leader's procedure. A new order would replace the
// earlier one in the store, and its outcome would be lost.
func (m *Diagnoses) takenUp(ctx context.Context) error {
	m.mu.Lock()
	led := m.led
	m.mu.Unlock()
	if time.Since(led) >= resumeFirst {
		return nil
	}
	o, err := m.cfg.Reports.LastOrdered(ctx)
	if err == nil && o != nil && o.Term != m.term.Load() {
		return ErrBusy
	}
	return nil // if the store does not answer, it accepts no new order either; a new order replaces one that cannot be decoded
}

// intend commits the order before it is sent, so that the next leader can continue it if this one fails.
func (p *procedureRun) intend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	kv, err := store.OrderedPut(store.Ordered{
		Term: p.number.GetTerm(), Count: p.number.GetCount(), Subject: p.asked.Subject, Reason: p.asked.Reason, Started: p.began,
		Diagnose: p.asked.Diagnose,
		Delay:    p.plan.Delay, Hop: p.plan.Hop, Drain: p.plan.DrainTimeout, Absent: p.plan.Absent,
	})
	if err == nil {
		_, err = p.m.cfg.Reports.Write(ctx, store.Write{Puts: []store.KV{kv}})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUncommitted, err)
	}
	return nil
}

// end runs the procedure to its end and stores the outcome.
func (p *procedureRun) end(ctx context.Context) (*lofamov1.ProcedureReport, error) {
	m := p.m
	report, err := p.through()
	over := store.Write{Deletes: []string{store.OrderedKey}}
	switch {
	case err == nil:
		m.mu.Lock()
		m.ended = time.Now()
		m.mu.Unlock()
		m.concluded(ctx, report, over)
		return report, nil
	case errors.Is(err, ErrNotLeading):
		err = ErrLost
	default:
		m.keep(ctx, over, nil, nil) // no node has begun it
	}
	m.cfg.Metrics.Procedure(metrics.ProcedureFailed, time.Since(p.started))
	m.cfg.Logger.Warn("procedure failed", "by", p.asked.Subject, "err", err)
	return nil, err
}

// resumeEvery is the interval between checks whether this newly elected replica has the map.
const resumeEvery = 200 * time.Millisecond

// Resume takes up an earlier leader's procedure that has no report: it asks the nodes that had the order for the
// outcome. It returns when there is a report, or nothing to report, or if it cannot decode the order. While the store does not answer, it
// asks again.
func (m *Diagnoses) Resume(ctx context.Context) {
	tick := time.NewTicker(resumeEvery)
	defer tick.Stop()
	for warned := false; ; {
		err := m.resume(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		switch {
		case errors.Is(err, ErrNotLeading), errors.Is(err, ErrBusy): // it passes soon
		case !errors.Is(err, ErrNotRead):
			m.cfg.Logger.Warn("outcome of the last procedure unknown", "err", err)
			return
		case !warned:
			m.cfg.Logger.Warn("read the ordered procedure: retrying", "err", err)
			warned = true
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Diagnoses) resume(ctx context.Context) error {
	o, err := m.cfg.Reports.LastOrdered(ctx)
	if errors.Is(err, store.ErrUndecodable) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRead, err)
	}
	if o == nil || o.Term == m.term.Load() { // this leader's own procedure is running
		return nil
	}
	places, err := m.cfg.Places(ctx)
	if err != nil {
		return err
	}
	r := m.newRun(DiagnosisRequest{Rounds: 1, Subject: o.Subject})
	r.number = &lofamov1.OrderNumber{Term: o.Term, Count: o.Count}
	r.said = make(chan *lofamov1.ProcedureStatus, 1024+4*len(places))
	if o.Diagnose {
		if err := r.plan(); err != nil {
			return err
		}
	}
	plan := orderedBefore(m.cfg.Names.Topology().Dims, places, o.Absent,
		procedureOptions{Diagnose: o.Diagnose, DrainTimeout: o.Drain, Hop: o.Hop}, o.Delay)
	if err := m.begin(r); err != nil {
		return err
	}
	defer m.end()
	m.cfg.Logger.Info("following a procedure of an earlier leader", "by", o.Subject, "reason", o.Reason, "term", o.Term, "count", o.Count)
	p := &procedureRun{diagnosisRun: r, began: o.Started, resumed: true, asked: ProcedureRequest{Diagnose: o.Diagnose,
		DrainTimeout: o.Drain, Reason: o.Reason, Subject: o.Subject}, plan: plan}
	p.machine = resumeProcedureMachine(time.Now(), plan, m.cfg.Procedures)
	if _, err := p.end(ctx); err != nil && !errors.Is(err, ErrLost) {
		return err
	}
	return nil
}

// errUnheard is an earlier leader's procedure whose order reached no node, or no living node.
var errUnheard = errors.New("no node reports it")

// ErrUncommitted says that the store did not accept the order, so no order was sent.
var ErrUncommitted = errors.New("nothing was ordered: the store does not accept the order")

func refusal(err error) error {
	if errors.Is(err, ErrNotLeading) || errors.Is(err, ErrNotRead) {
		return err
	}
	return &RefusedError{err}
}

// concluded records a finished procedure, and stores its report together with the other writes.
func (m *Diagnoses) concluded(ctx context.Context, r *lofamov1.ProcedureReport, w store.Write) {
	result := metrics.ProcedureClear
	if !r.GetClear() {
		result = metrics.ProcedureNotClear
	}
	m.cfg.Metrics.Procedure(result, time.Duration(r.GetTookMs())*time.Millisecond)
	m.cfg.Logger.Info("procedure over", "by", r.GetSubject(), "reason", r.GetReason(), "starter", r.GetStarter(), "wave", r.GetWave(), "clear",
		r.GetClear(),
		"silent", r.GetSilent(), "holding", r.GetHolding(), "rounds", r.GetRounds(), "took_ms", r.GetTookMs())
	now := time.Now()
	events := []*lofamov1.Event{view.ProcedureEvent(r, now)}
	d := r.GetDiagnosis()
	if d != nil {
		m.diagnosed(d)
		events = append(events, view.DiagnosisEvent(d, "", now))
	}
	w.Events = append(events, w.Events...)
	m.keep(ctx, w, d, r)
}

// rested refuses a procedure that comes too soon after the last one, even if another replica ordered that.
func (m *Diagnoses) rested(ctx context.Context) error {
	m.mu.Lock()
	ended := m.ended
	m.mu.Unlock()
	if !ended.IsZero() {
		return tooSoon(m.cfg.Pause - time.Since(ended))
	}
	last, err := m.cfg.Reports.LastProcedure(ctx)
	if err != nil { // the nodes have a rest of their own
		m.cfg.Logger.Warn("when the last procedure was is not known", "err", err)
	}
	if last == nil {
		return nil
	}
	return tooSoon(m.left(endOf(last), m.cfg.Pause))
}

// endOf returns when a diagnosis or procedure with a report ended, by the clock of the replica that made the report.
func endOf(r interface {
	GetStarted() *timestamppb.Timestamp
	GetTookMs() uint32
}) time.Time {
	return r.GetStarted().AsTime().Add(time.Duration(r.GetTookMs()) * time.Millisecond)
}

// left returns the rest of a pause after a diagnosis or procedure. The time of its end may come from another replica's clock, which
// may be wrong. So the pause ends at the latest one whole pause after this replica began to lead.
func (m *Diagnoses) left(ended time.Time, pause time.Duration) time.Duration {
	m.mu.Lock()
	led := m.led
	m.mu.Unlock()
	return min(time.Until(ended.Add(pause)), pause-time.Since(led))
}

// tooSoon returns an error if some of the pause is left.
func tooSoon(left time.Duration) error {
	if left > 0 {
		return &PauseError{left}
	}
	return nil
}

// procedureRun is one procedure, with the nodes' findings.
type procedureRun struct {
	*diagnosisRun

	began    time.Time // when it was ordered, also by an earlier leader
	resumed  bool      // of an earlier leader
	asked    ProcedureRequest
	plan     procedurePlan
	machine  *procedureMachine
	progress func(*lofamov1.ProcedureProgress) error // nil: no caller is waiting
	told     *lofamov1.ProcedureProgress
	toldAt   time.Time
}

// through runs the procedure to its end and returns the report.
func (p *procedureRun) through() (*lofamov1.ProcedureReport, error) {
	if err := p.follow(); err != nil {
		return nil, err
	}
	if p.resumed && !p.machine.Heard() {
		return nil, errUnheard
	}
	report := p.machine.Report()
	if p.asked.Diagnose && (p.machine.Diagnosed() || p.heard()) {
		// Ask for the missing findings: a repeated order is no new test. A node that never received the order tests
		// its links now.
		if err := p.collect(context.Background(), func(*lofamov1.DiagnosisProgress) error { return nil }); err != nil {
			return nil, err
		}
		report.Diagnosis = p.report()
	}
	report.Started, report.TookMs = timestamppb.New(p.began), uint32(max(0, time.Since(p.began)).Milliseconds())
	report.Subject, report.Reason, report.Supervisor = p.asked.Subject, p.asked.Reason, p.m.cfg.Self
	return report, nil
}

// heard reports whether any node has sent findings.
func (p *procedureRun) heard() bool {
	for _, n := range p.nodes {
		if n.heard() {
			return true
		}
	}
	return false
}

// follow sends orders and processes statuses until the machine says that the procedure is over.
func (p *procedureRun) follow() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	out := p.machine.Step(time.Now(), procedureTick{})
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
			wake = fault.Earlier(wake, p.toldAt.Add(tellEvery))
		}
		timer.Reset(time.Until(wake))
		select {
		case <-p.over:
			return ErrNotLeading
		case f := <-p.in:
			p.take(f)
			out.Orders = nil
		case st := <-p.said:
			out = p.machine.Step(time.Now(), procedureSaid{Status: st})
		case <-timer.C:
			out = p.machine.Step(time.Now(), procedureTick{})
		}
	}
}

// behind reports whether there is unreported progress.
func (p *procedureRun) behind() bool {
	at := p.machine.Progress()
	return p.progress != nil && (at.GetState() != p.told.GetState() || at.GetRound() != p.told.GetRound() ||
		at.GetEnded() != p.told.GetEnded())
}

// tell reports progress: a new state at once, except for the two alternating states of the drain, and other
// progress at intervals of at least tellEvery.
func (p *procedureRun) tell(last bool) {
	at := p.machine.Progress()
	turns := at.GetState() == lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR ||
		at.GetState() == lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN && at.GetRound() > 1
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
func (p *procedureRun) giveOrder(o procedureOrder) {
	node, _ := p.topo.Node(o.Node)
	p.m.give(o.Node, servicenet.OrderProcedure, o.Try, p.gateways(node.Coord), func(replyTo string) *lofamov1.Message {
		return &lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: &lofamov1.ProcedureOrder{
			Number: p.number, Node: string(o.Node), Diagnose: p.plan.Diagnose, Absent: p.plan.Absent, DelayUs: uint32(p.plan.Delay.Microseconds()),
			HopUs: uint32(p.plan.Hop.Microseconds()), DrainTimeoutMs: uint32(p.plan.DrainTimeout.Milliseconds()), ReplyTo: replyTo,
			Reason: p.asked.Reason, Ask: o.Ask,
		}}}
	})
}

package orders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Topologies has the present topology.
type Topologies interface{ Topology() *topology.Topology }

// DiagnosisConfig configures Diagnoses.
type DiagnosisConfig struct {
	Self    string // this supervisor's id
	Names   Topologies
	Sender  Sender
	Reports Reports
	Metrics *metrics.Metrics
	Logger  *slog.Logger
	Timing  diagnosisTiming // its zero: DefaultTiming

	// Places returns the present places of the torus in the fault map, by rank. It fails with ErrNotLeading if this
	// replica does not lead, with ErrNotRead if the store does not answer, or with the reason that rules out any procedure.
	Places func(context.Context) ([]Place, error)
	// Hop is the duration of an express broadcast's hop without loss, Late its bound with repeats. Pause is the
	// minimum time between procedures.
	Hop, Late, Pause time.Duration
	Procedures       ProcedureTiming // its zero: defaultProcedure
}

// diagnosisTiming bounds a diagnosis.
type diagnosisTiming struct {
	// Again is the time a node has to complete its answer before the order is repeated.
	Again time.Duration
	// Quiet is the time without news after which silent nodes are given up. Least is the minimum time they have, plus
	// a second for each round after the first.
	Quiet, Least time.Duration
	// Most bounds the whole, beside a second for each round and 1,000 nodes.
	Most time.Duration
}

// defaultDiagnosis allows for a run of 1.2 s with lost probes, a late start, and answers that travel by way of
// neighbours.
func defaultDiagnosis() diagnosisTiming {
	return diagnosisTiming{Again: 400 * time.Millisecond, Quiet: 1500 * time.Millisecond, Least: 3 * time.Second, Most: 8 * time.Second}
}

// tellEvery is the minimum interval between progress messages. They all fit the transport's buffer (64 KiB) even
// if the caller has stopped reading, so such a caller delays neither the diagnosis nor other callers.
const tellEvery = 100 * time.Millisecond

// Errors of a diagnosis that has not begun.
var (
	ErrNotLeading = errors.New("this supervisor does not lead")
	ErrBusy       = errors.New("another diagnosis or procedure runs: try again in some seconds")
)

// DiagnosisRequest describes a diagnosis.
type DiagnosisRequest struct {
	Node    fault.NodeID   // empty: all nodes
	Link    grid.Direction // of Node; invalid: all its links
	Rounds  int            // 1 to diagnosis.MaxRounds
	Subject string         // requester
}

func (r DiagnosisRequest) String() string {
	switch {
	case r.Node == "":
		return "all"
	case r.Link.Valid():
		return fmt.Sprintf("link %s %s", r.Node, r.Link)
	}
	return fmt.Sprintf("node %s", r.Node)
}

// Diagnoses runs diagnoses and procedures. Its methods may be called from any goroutine.
type Diagnoses struct {
	cfg    DiagnosisConfig
	term   atomic.Uint64
	strays chan *lofamov1.ProcedureStatus // of procedures that this leader has not ordered

	damaged sync.Once // logs a value that cannot be decoded

	mu      sync.Mutex
	count   uint64        // orders in the term
	running *diagnosisRun // nil: none
	over    chan struct{} // closed when the term ends; nil: it does not lead
	led     time.Time     // since when it leads
	ended   time.Time     // end of the last procedure; zero: none since this replica leads
}

// strayQueue bounds the waiting statuses of procedures without an order. Further ones are dropped: the report is
// made from the others.
const strayQueue = 1024

// NewDiagnoses returns a manager that does not lead.
func NewDiagnoses(cfg DiagnosisConfig) *Diagnoses {
	if cfg.Timing == (diagnosisTiming{}) {
		cfg.Timing = defaultDiagnosis()
	}
	if cfg.Procedures == (ProcedureTiming{}) {
		cfg.Procedures = defaultProcedure()
	}
	return &Diagnoses{cfg: cfg, strays: make(chan *lofamov1.ProcedureStatus, strayQueue)}
}

// Lead says that this replica leads; no later leader has a lower term. 0: it leads no more.
func (m *Diagnoses) Lead(term uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count, m.led, m.ended = 0, time.Now(), time.Time{}
	m.term.Store(term)
	if m.over != nil {
		close(m.over)
		m.over = nil
	}
	if term == 0 {
		return
	}
	m.over = make(chan struct{})
	for {
		select {
		case <-m.strays: // from an earlier term, whose procedure the leader in between has reported
		default:
			return
		}
	}
}

// Leading reports whether this replica leads.
func (m *Diagnoses) Leading() bool { return m.term.Load() != 0 }

// Findings processes a half's answer to an order. It does not block.
func (m *Diagnoses) Findings(f *lofamov1.DiagnosisFindings) {
	if r := m.runOf(f.GetNumber()); r != nil {
		select {
		case r.in <- f:
		default: // requested again later
		}
	}
}

// runOf returns the current run if it has this order's number, else nil.
func (m *Diagnoses) runOf(n *lofamov1.OrderNumber) *diagnosisRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.running; r != nil && n.GetTerm() == r.number.GetTerm() && n.GetCount() == r.number.GetCount() {
		return r
	}
	return nil
}

// Run runs a diagnosis and reports its progress. It ends with a report, or with the context; progress must not
// block for long.
func (m *Diagnoses) Run(ctx context.Context, req DiagnosisRequest,
	progress func(*lofamov1.DiagnosisProgress) error) (*lofamov1.DiagnosisReport, error) {
	if !m.Leading() { // the leader may know another topology
		return nil, ErrNotLeading
	}
	r := m.newRun(req)
	if err := r.plan(); err != nil {
		return nil, err
	}
	if err := m.begin(r); err != nil {
		return nil, err
	}
	defer m.end()
	r.ask(ctx)
	if err := r.collect(ctx, progress); err != nil {
		m.cfg.Metrics.Diagnosis(metrics.DiagnosisFailed, time.Since(r.started))
		return nil, err
	}
	report := r.report()
	m.diagnosed(report)
	m.keep(ctx, store.Write{Events: []*lofamov1.Event{view.DiagnosisEvent(report, req.Node, time.Now())}}, report, nil)
	return report, nil
}

// diagnosed records a finished diagnosis in metrics and events.
func (m *Diagnoses) diagnosed(r *lofamov1.DiagnosisReport) {
	result := metrics.DiagnosisClean
	switch {
	case len(r.GetFaults()) > 0:
		result = metrics.DiagnosisFaults
	case view.Wrong(r):
		result = metrics.DiagnosisOpen
	}
	m.cfg.Metrics.Diagnosis(result, time.Duration(r.GetTookMs())*time.Millisecond)
	m.cfg.Logger.Info("diagnosis made", "of", r.GetScope(), "by", r.GetSubject(), "nodes", r.GetNodes(), "silent", r.GetSilent(),
		"faults", len(r.GetFaults()), "took_ms", r.GetTookMs())
}

// begin assigns a number to a run that has none, and makes it the current run.
func (m *Diagnoses) begin(r *diagnosisRun) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.over == nil:
		return ErrNotLeading
	case m.running != nil:
		return ErrBusy
	}
	if r.number == nil {
		m.count++
		r.number = &lofamov1.OrderNumber{Term: m.term.Load(), Count: m.count}
	}
	r.in = make(chan *lofamov1.DiagnosisFindings, 1024+8*len(r.at))
	r.over, r.started = m.over, time.Now()
	m.running = r
	return nil
}

func (m *Diagnoses) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = nil
}

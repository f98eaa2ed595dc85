// Package diagnose has nodes test their links, and says what follows from what they found (seed 003 §5.2.2, §5.2.3.2). The leader alone
// does it: its orders carry its term, so that a half refuses those of a supervisor that led once. It decides nothing about
// findings: that is pkg/torus/diagnosis.
//
//	order ──► host half: "I live" ──► DNP half tests ──► findings, link by link ──► collate ──► report
//	  ▲                                                          │
//	  └────────── again, and by neighbours, to who has not said everything
//
// One diagnosis runs at a time. It ends when all have said everything, or when nothing new has come for a while; whoever
// did not answer is named.
//
// The fault management procedure (seed 003 §4.5), which drains the torus first, is ordered from here as well: it takes turns with diagnoses,
// its orders are of the same numbers and go the same ways, and what nodes find in it is drawn together by the same code. When it asks whom,
// and what became of it, internal/supervisor/procedure says.
//
// Reports are committed before anybody gets them, so that they outlive the leader; in history stands an event of each.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/bulk"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/procedure"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Config of a manager.
type Config struct {
	Self    string // this supervisor's id
	ReplyTo string // its first report address
	// DirectAddr returns where a node is reached straight at this moment; false: nowhere.
	DirectAddr func(fault.NodeID) (bulk.Place, bool)
	Names      bulk.Names
	Signer     servicenet.Signer
	Kept       Kept
	Metrics    *metrics.Metrics
	Logger     *slog.Logger
	Timing     Timing // its zero: DefaultTiming

	// Places are those of the torus, by rank, as the fault map has them now. It fails with ErrNotLeading where this replica does not lead, and
	// with what stands against any procedure.
	Places func(context.Context) ([]procedure.Place, error)
	// Hop is a hop of an express broadcast that nothing is lost of, Late its bound with repeats; Pause is from one procedure to the next at least.
	Hop, Late, Pause time.Duration
	Procedures       procedure.Timing // its zero: procedure.DefaultTiming
}

// Timing bounds a diagnosis.
type Timing struct {
	// Again is how long a node has to say everything until it is asked again.
	Again time.Duration
	// Quiet is for how long nothing new must have come until those who have not answered are given up, and Least how long they
	// have at least, beside a second for each round after the first.
	Quiet, Least time.Duration
	// Most bounds the whole, beside a second for each round and 1,000 nodes.
	Most time.Duration
}

// DefaultTiming gives a run, which takes 1.2 s where probes are lost, time to begin late and to be said by way of neighbours.
func DefaultTiming() Timing {
	return Timing{Again: 400 * time.Millisecond, Quiet: 1500 * time.Millisecond, Least: 3 * time.Second, Most: 8 * time.Second}
}

// tellEvery is the least time between two words of progress. So all of them fit what the transport holds for a caller that has stopped reading
// (64 KiB): it holds up no diagnosis, and with it no other caller's.
const tellEvery = 100 * time.Millisecond

// What a diagnosis fails with before it begins.
var (
	ErrNotLeading = errors.New("this supervisor does not lead")
	ErrBusy       = errors.New("another diagnosis or procedure runs: try again in some seconds")
)

// Request says what to test.
type Request struct {
	Node    fault.NodeID   // empty: all nodes
	Link    grid.Direction // of Node; invalid: all its links
	Rounds  int            // 1 to diagnosis.MaxRounds
	Subject string         // who asks
}

func (r Request) String() string {
	switch {
	case r.Node == "":
		return "all"
	case r.Link.Valid():
		return fmt.Sprintf("link %s %s", r.Node, r.Link)
	}
	return fmt.Sprintf("node %s", r.Node)
}

// Manager makes diagnoses and has procedures gone through. Its methods may be called from any goroutine.
type Manager struct {
	cfg    Config
	term   atomic.Uint64
	strays chan *lofamov1.ProcedureStatus // of procedures that this leader has not ordered

	mu      sync.Mutex
	count   uint64        // orders in the term
	running *run          // nil: none
	over    chan struct{} // closed when the term ends; nil: it does not lead
	led     time.Time     // since when it leads
	ended   time.Time     // the last procedure; zero: none since this replica leads
}

// strayQueue bounds the words of procedures of nobody's order that wait; beyond it they are dropped: what is said of the rest makes the report.
const strayQueue = 1024

// New returns a manager that does not lead.
func New(cfg Config) *Manager {
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming()
	}
	if cfg.Procedures == (procedure.Timing{}) {
		cfg.Procedures = procedure.DefaultTiming()
	}
	return &Manager{cfg: cfg, strays: make(chan *lofamov1.ProcedureStatus, strayQueue)}
}

// Lead says that this replica leads, in a term that no later leader has a lower one than; 0: it leads no more.
func (m *Manager) Lead(term uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count, m.led, m.ended = 0, time.Now(), time.Time{}
	m.term.Store(term)
	if m.over != nil {
		close(m.over)
		m.over = nil
	}
	if term != 0 {
		m.over = make(chan struct{})
	}
}

// Leading says whether it does.
func (m *Manager) Leading() bool { return m.term.Load() != 0 }

// Findings takes what a half said to an order. It does not block.
func (m *Manager) Findings(f *lofamov1.DiagnosisFindings) {
	if r := m.runOf(f.GetNumber()); r != nil {
		select {
		case r.in <- f:
		default: // it is asked for again
		}
	}
}

// runOf is what runs, if it is of this order; nil otherwise.
func (m *Manager) runOf(n *lofamov1.OrderNumber) *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.running; r != nil && n.GetTerm() == r.number.GetTerm() && n.GetCount() == r.number.GetCount() {
		return r
	}
	return nil
}

// Run makes a diagnosis, and tells of its progress when there is some. It ends when it has a report, or when the context
// does; progress must not block for long.
func (m *Manager) Run(ctx context.Context, req Request, progress func(*lofamov1.DiagnosisProgress) error) (*lofamov1.DiagnosisReport, error) {
	if !m.Leading() { // who leads may know another topology
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

// diagnosed tells of a diagnosis that was made.
func (m *Manager) diagnosed(r *lofamov1.DiagnosisReport) {
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

// begin gives a run its number, unless it has one, and the turn to it.
func (m *Manager) begin(r *run) error {
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

func (m *Manager) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = nil
}

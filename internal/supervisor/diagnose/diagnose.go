// Package diagnose has nodes test their links, and says what follows from what they found (seed 003 §5.2.2, §5.2.3.2). The leader alone
// does it: its orders carry its term, so that a half refuses those of a supervisor that led once. It decides nothing about
// findings: that is pkg/torus/diagnosis.
//
//	order ──► host half: "I live" ──► DNP half tests ──► findings, link by link ──► collate ──► report
//	  ▲                                                          │
//	  └────────── again, and by neighbours, to who has not said everything
//
// One diagnosis runs at a time. It ends when all have said everything, or when nothing new has come for a while; whoever
// did not answer is named. The report is kept until the next one, or until this replica leads no more.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/bulk"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/diagnosis"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Config of a manager.
type Config struct {
	Self    string // this supervisor's id
	ReplyTo string // its first report address
	// Straight returns where a node is reached straight at this moment; false: nowhere.
	Straight func(fault.NodeID) (bulk.Place, bool)
	Names    bulk.Names
	Signer   servicenet.Signer
	Logger   *slog.Logger
	Timing   Timing // its zero: DefaultTiming
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
	ErrBusy       = errors.New("another diagnosis runs: try again in some seconds")
	ErrNone       = errors.New("no diagnosis was made since this supervisor leads")
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

// Manager makes diagnoses. Its methods may be called from any goroutine.
type Manager struct {
	cfg  Config
	term atomic.Uint64
	last atomic.Pointer[lofamov1.DiagnosisReport]

	mu      sync.Mutex
	count   uint64 // orders in the term
	running *run   // nil: none
}

// New returns a manager that does not lead.
func New(cfg Config) *Manager {
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming()
	}
	return &Manager{cfg: cfg}
}

// Lead says that this replica leads, in a term that no later leader has a lower one than; 0: it leads no more.
func (m *Manager) Lead(term uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count = 0
	m.term.Store(term)
	m.last.Store(nil)
}

// Leading says whether it does.
func (m *Manager) Leading() bool { return m.term.Load() != 0 }

// Last returns the last report; ErrNone, ErrNotLeading.
func (m *Manager) Last() (*lofamov1.DiagnosisReport, error) {
	if !m.Leading() {
		return nil, ErrNotLeading
	}
	if r := m.last.Load(); r != nil {
		return r, nil
	}
	return nil, ErrNone
}

// Findings takes what a half said to an order. It does not block.
func (m *Manager) Findings(f *lofamov1.DiagnosisFindings) {
	m.mu.Lock()
	r := m.running
	m.mu.Unlock()
	if r == nil || f.GetNumber().GetTerm() != r.number.GetTerm() || f.GetNumber().GetCount() != r.number.GetCount() {
		return
	}
	select {
	case r.in <- f:
	default: // it is asked for again
	}
}

// Run makes a diagnosis, and tells of its progress when there is some. It ends when it has a report, or when the context
// does; progress must not block for long.
func (m *Manager) Run(ctx context.Context, req Request, progress func(*lofamov1.DiagnosisProgress) error) (*lofamov1.DiagnosisReport, error) {
	r, err := m.begin(req)
	if err != nil {
		return nil, err
	}
	defer m.end()
	started := time.Now()
	if err := r.collect(ctx, progress); err != nil {
		return nil, err
	}
	report := r.report()
	report.Started, report.TookMs = timestamppb.New(started), uint32(time.Since(started).Milliseconds())
	report.Scope, report.Subject, report.Supervisor = req.String(), req.Subject, m.cfg.Self
	m.mu.Lock()
	if m.term.Load() == r.number.GetTerm() {
		m.last.Store(report)
	}
	m.mu.Unlock()
	m.cfg.Logger.Info("diagnosis made", "of", report.GetScope(), "by", report.GetSubject(), "nodes", report.GetNodes(), "silent", report.GetSilent(),
		"faults", len(report.GetFaults()), "took_ms", report.GetTookMs())
	return report, nil
}

func (m *Manager) begin(req Request) (*run, error) {
	if !m.Leading() { // who leads may know another topology
		return nil, ErrNotLeading
	}
	r := &run{m: m, req: req, nodes: map[fault.NodeID]*node{}, at: map[grid.Coord]fault.NodeID{}}
	if err := r.plan(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.term.Load() == 0:
		return nil, ErrNotLeading
	case m.running != nil:
		return nil, ErrBusy
	}
	m.count++
	r.number = &lofamov1.OrderNumber{Term: m.term.Load(), Count: m.count}
	r.in = make(chan *lofamov1.DiagnosisFindings, 1024+8*len(r.nodes))
	m.running = r
	return r, nil
}

func (m *Manager) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = nil
}

// run is one diagnosis. Its goroutine owns everything but the channel.
type run struct {
	m      *Manager
	req    Request
	number *lofamov1.OrderNumber
	in     chan *lofamov1.DiagnosisFindings
	nodes  map[fault.NodeID]*node
	order  []fault.NodeID // of the nodes, by rank
	at     map[grid.Coord]fault.NodeID
	news   time.Time // when something new was last said
}

// node is one that was asked.
type node struct {
	id       fault.NodeID
	coord    grid.Coord
	links    uint32 // asked for
	tested   uint32 // as its DNP half said; 0: not yet
	known    uint32 // of these
	host     diagnosis.Word
	own      diagnosis.Test
	found    []diagnosis.Finding
	refused  string // why there was no test
	asked    int    // times
	gateways []fault.NodeID
}

// dnp says whether the DNP half has said everything.
func (n *node) dnp() bool { return n.refused != "" || n.tested != 0 && n.known == n.tested }

// done says whether nothing more is waited for: that its host half lives, its DNP half may say as well.
func (n *node) done() bool { return n.dnp() && (n.host != diagnosis.NoWord || n.own.Answered > 0) }

func (n *node) heard() bool { return n.known != 0 || n.refused != "" || n.host != diagnosis.NoWord }

// plan says who tests what: a link is tested from both its ends.
func (r *run) plan() error {
	names, dims := r.m.cfg.Names, r.m.cfg.Names.Dims()
	all := names.All()
	for _, id := range all {
		if c, ok := names.Coord(id); ok {
			r.at[c] = id
		}
	}
	add := func(c grid.Coord, d grid.Direction) {
		id, ok := r.at[c]
		if !ok {
			return
		}
		n := r.nodes[id]
		if n == nil {
			n = &node{id: id, coord: c}
			r.nodes[id] = n
		}
		n.links |= 1 << d.Index()
	}
	both := func(c grid.Coord, d grid.Direction) {
		if peer, ok := dims.Neighbour(c, d); ok {
			add(c, d)
			add(peer, d.Opposite())
		}
	}
	switch c, ok := names.Coord(r.req.Node); {
	case r.req.Node == "":
		for c := range r.at {
			for _, d := range dims.Links() {
				both(c, d)
			}
		}
	case !ok:
		return fmt.Errorf("node %q: is not in the topology", r.req.Node)
	case r.req.Link.Valid() && !dims.HasLink(r.req.Link):
		return fmt.Errorf("link %s of node %s: a torus of %s has none", r.req.Link, r.req.Node, dims)
	case r.req.Link.Valid():
		both(c, r.req.Link)
	default:
		for _, d := range dims.Links() {
			both(c, d)
		}
	}
	if len(r.nodes) == 0 {
		return fmt.Errorf("there is no link to test in a torus of %s", dims)
	}
	for _, id := range all {
		if n := r.nodes[id]; n != nil {
			r.order = append(r.order, id)
			n.gateways = r.gateways(n)
		}
	}
	return nil
}

// gateways are the nodes by which one is reached when it is not straight: its neighbours, and those behind them.
func (r *run) gateways(n *node) []fault.NodeID {
	dims := r.m.cfg.Names.Dims()
	var out []fault.NodeID
	add := func(c grid.Coord) {
		if id, ok := r.at[c]; ok && id != n.id && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	near := dims.Neighbours(n.coord)
	for _, c := range near {
		add(c)
	}
	for _, c := range near {
		for _, far := range dims.Neighbours(c) {
			add(far)
		}
	}
	return out
}

// collect asks, and takes what is said, until everything is or the time is over.
func (r *run) collect(ctx context.Context, progress func(*lofamov1.DiagnosisProgress) error) error {
	t := r.m.cfg.Timing
	rounds := time.Duration(r.req.Rounds-1) * diagnosis.RoundEvery
	large := time.Duration(len(r.nodes)/1000) * time.Second
	start := time.Now()
	r.news = start
	least, most := start.Add(t.Least+rounds), start.Add(t.Most+rounds+large)
	again := time.NewTicker(t.Again)
	defer again.Stop()
	r.ask(ctx)
	var told *lofamov1.DiagnosisProgress
	var toldAt time.Time
	for {
		p := r.progress()
		done := int(p.GetAnswered()) == len(r.nodes)
		news := told == nil || p.GetAnswered() != told.GetAnswered() || p.GetHeard() != told.GetHeard()
		if news && (done || time.Since(toldAt) >= tellEvery) {
			if err := progress(p); err != nil {
				return err
			}
			told, toldAt = p, time.Now()
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-r.in:
			r.take(f)
			for range len(r.in) { // what has come already is taken before anything is told
				r.take(<-r.in)
			}
		case now := <-again.C:
			if !now.Before(most) || !now.Before(least) && now.Sub(r.news) >= t.Quiet {
				return nil
			}
			if r.m.term.Load() != r.number.GetTerm() {
				return ErrNotLeading
			}
			r.ask(ctx)
		}
	}
}

func (r *run) progress() *lofamov1.DiagnosisProgress {
	p := &lofamov1.DiagnosisProgress{Nodes: uint32(len(r.nodes))}
	for _, n := range r.nodes {
		if n.done() {
			p.Answered++
		}
		if n.heard() {
			p.Heard++
		}
	}
	return p
}

// ask sends the order to all that have not said everything: straight, and from the third time on also by two others, other ones each time.
func (r *run) ask(ctx context.Context) {
	for i, id := range r.order {
		n := r.nodes[id]
		if n.done() {
			continue
		}
		n.asked++
		_, straight := r.m.cfg.Straight(id)
		if straight {
			r.send(n, "")
		}
		if len(n.gateways) > 0 && !n.dnp() && (n.asked >= 3 || !straight) {
			for j := range 2 {
				r.send(n, n.gateways[(2*(n.asked-1)+j)%len(n.gateways)])
			}
		}
		if i%64 == 63 && ctx.Err() != nil {
			return
		}
	}
}

// send signs and sends the order: straight, or by another node through the torus.
func (r *run) send(n *node, via fault.NodeID) {
	to := n.id
	if via != "" {
		to = via
	}
	at, ok := r.m.cfg.Straight(to)
	if !ok {
		return
	}
	order := &lofamov1.DiagnosisOrder{
		Number: r.number, Node: string(n.id), Links: n.links, Known: n.known, Rounds: uint32(r.req.Rounds), ReplyTo: r.m.cfg.ReplyTo,
	}
	if via == "" {
		order.ReplyTo = at.ReplyTo
	}
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: order}}, r.m.cfg.Signer)
	if err == nil && via != "" {
		b, err = servicenet.SealDowncall(n.id, b, r.m.cfg.Signer)
	}
	if err == nil {
		err = at.Socket.Send(at.Addr, b)
	}
	if err != nil { // it is asked again
		r.m.cfg.Logger.Debug("send", "what", "diagnosis order", "node", to, "err", err)
	}
}

// take takes what a half said. Who it is was checked with the signature.
func (r *run) take(f *lofamov1.DiagnosisFindings) {
	n := r.nodes[fault.NodeID(f.GetNode())]
	if n == nil {
		return
	}
	before := *n
	if f.GetHalf() == lofamov1.Half_HALF_HOST {
		n.host = wordOf(f.GetDnp())
	} else {
		n.takeDNP(f)
	}
	if n.known != before.known || n.host != before.host || n.refused != before.refused {
		r.news = time.Now()
	}
}

func wordOf(dnp lofamov1.State) diagnosis.Word {
	switch dnp {
	case lofamov1.State_NORMAL, lofamov1.State_SICK:
		return diagnosis.DNPAlive
	case lofamov1.State_FAILED:
		return diagnosis.DNPDead
	default:
	}
	return diagnosis.DNPOpen
}

func (n *node) takeDNP(f *lofamov1.DiagnosisFindings) {
	l := f.GetLink()
	if l == nil {
		n.refused = f.GetError()
		return
	}
	bit := uint32(1) << (l.GetDirection() - 1)
	n.tested = f.GetLinks() & n.links
	if n.known&bit != 0 || n.tested&bit == 0 {
		return
	}
	n.known |= bit
	n.own = testOf(f.GetOwnHost())
	n.found = append(n.found, findingOf(l))
}

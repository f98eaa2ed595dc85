package orders

import (
	"context"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/diagnosis"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// diagnosisRun is one diagnosis, or the findings of one procedure. Its goroutine owns everything but the channels.
type diagnosisRun struct {
	m       *Diagnoses
	topo    *topology.Topology // when the run began: the nodes test the links of this torus
	req     DiagnosisRequest
	number  *lofamov1.OrderNumber
	in      chan *lofamov1.DiagnosisFindings
	said    chan *lofamov1.ProcedureStatus // nil: of a diagnosis
	over    <-chan struct{}                // closed when the term ends
	started time.Time
	nodes   map[fault.NodeID]*diagnosedNode
	order   []fault.NodeID // of the nodes, by rank
	at      map[grid.Coord]fault.NodeID
	news    time.Time // time of the latest news
}

// newRun returns one without nodes to test.
func (m *Diagnoses) newRun(req DiagnosisRequest) *diagnosisRun {
	r := &diagnosisRun{
		m: m, topo: m.cfg.Names.Topology(), req: req, nodes: map[fault.NodeID]*diagnosedNode{}, at: map[grid.Coord]fault.NodeID{},
	}
	for _, n := range r.topo.Placed() {
		r.at[n.Coord] = n.ID
	}
	return r
}

// diagnosedNode is a node under diagnosis.
type diagnosedNode struct {
	id       fault.NodeID
	coord    grid.Coord
	links    uint32 // ordered
	tested   uint32 // per its DNP half; 0: unknown
	known    uint32 // of these
	host     diagnosis.Word
	own      diagnosis.Test
	found    []diagnosis.Finding
	refused  string // why there was no test
	asked    int    // times
	gateways []fault.NodeID
}

// dnp reports whether the DNP half's answer is complete.
func (n *diagnosedNode) dnp() bool { return n.refused != "" || n.tested != 0 && n.known == n.tested }

// done reports whether the answer is complete. The DNP half may confirm as well that its host half lives.
func (n *diagnosedNode) done() bool {
	return n.dnp() && (n.host != diagnosis.NoWord || n.own.Answered > 0)
}

func (n *diagnosedNode) heard() bool {
	return n.known != 0 || n.refused != "" || n.host != diagnosis.NoWord
}

// plan assigns the tests: each link is tested from both its ends.
func (r *diagnosisRun) plan() error {
	dims := r.topo.Dims
	add := func(c grid.Coord, d grid.Direction) {
		id, ok := r.at[c]
		if !ok {
			return
		}
		n := r.nodes[id]
		if n == nil {
			n = &diagnosedNode{id: id, coord: c}
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
	node, ok := r.topo.Node(r.req.Node)
	switch c := node.Coord; {
	case r.req.Node == "":
		for c := range r.at {
			for _, d := range dims.Links() {
				both(c, d)
			}
		}
	case !ok || node.Spare:
		return fmt.Errorf("node %q: is not in the topology", r.req.Node)
	case r.req.Link.Valid() && !slices.Contains(dims.LinksOf(c), r.req.Link):
		return fmt.Errorf("link %s of node %s: it has none in a torus of %s", r.req.Link, r.req.Node, dims)
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
	for _, placed := range r.topo.Placed() {
		if n := r.nodes[placed.ID]; n != nil {
			r.order = append(r.order, n.id)
			n.gateways = r.gateways(n.coord)
		}
	}
	return nil
}

// collect processes answers to the order and repeats the order, until all answers are complete or the time is
// over.
func (r *diagnosisRun) collect(ctx context.Context, progress func(*lofamov1.DiagnosisProgress) error) error {
	t := r.m.cfg.Timing
	rounds := time.Duration(r.req.Rounds-1) * diagnosis.RoundEvery
	large := time.Duration(len(r.nodes)/1000) * time.Second
	start := time.Now()
	r.news = start
	least, most := start.Add(t.Least+rounds), start.Add(t.Most+rounds+large)
	again := time.NewTicker(t.Again)
	defer again.Stop()
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
		case <-r.over:
			return ErrNotLeading
		case f := <-r.in:
			r.take(f)
			for range len(r.in) { // process all waiting findings before reporting progress
				r.take(<-r.in)
			}
		case now := <-again.C:
			if !now.Before(most) || !now.Before(least) && now.Sub(r.news) >= t.Quiet {
				return nil
			}
			r.ask(ctx)
		}
	}
}

func (r *diagnosisRun) progress() *lofamov1.DiagnosisProgress {
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

// ask sends the order to all nodes with incomplete answers.
func (r *diagnosisRun) ask(ctx context.Context) {
	for i, id := range r.order {
		n := r.nodes[id]
		if n.done() {
			continue
		}
		n.asked++
		around := n.gateways
		if n.dnp() {
			around = nil // the order goes to its host half
		}
		r.m.give(id, servicenet.OrderDiagnosis, n.asked, around, func(replyTo string) *lofamov1.Message {
			return &lofamov1.Message{Body: &lofamov1.Message_DiagnosisOrder{DiagnosisOrder: &lofamov1.DiagnosisOrder{
				Number: r.number, Node: string(id), Links: n.links, Known: n.known, Rounds: uint32(r.req.Rounds), ReplyTo: replyTo,
			}}}
		})
		if i%64 == 63 && ctx.Err() != nil {
			return
		}
	}
}

// take processes a half's findings. The signature has already proven the half's identity.
func (r *diagnosisRun) take(f *lofamov1.DiagnosisFindings) {
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

func (n *diagnosedNode) takeDNP(f *lofamov1.DiagnosisFindings) {
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

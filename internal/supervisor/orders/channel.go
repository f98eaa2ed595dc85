// Package orders is the leader's end of the order channel (package order): one sender, one loop for each kind of standing
// order, and the diagnoses and procedures that people and policies request.
//
//	Lead ──► for each kind: begin ──► work: compare and send ──► Sender ──► node
//	                                    ▲                                               │
//	                                    └───────────── heard ◄── Answers ◄──────────────┘
//
// The first order follows when the engine has loaded the masks and the topology of the term. A term begins without any
// memory of the last one: a kind loads in begin what else must outlive a leader. Answers that arrive outside a term are
// dropped; the next leader's first order is answered again.
//
// The files configurationplan.go, mappingplan.go, peerepochs.go, peerplan.go, procedureplan.go, proceduremachine.go and strays.go
// are pure: they decide what to order, and sign and send nothing. Start reading at kind.
package orders

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/supervisor/ingest"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// Sender signs and sends orders. Its methods do not block.
type Sender interface {
	// Order sends an order to a node: directly if that is possible, and through each of via. body returns the order
	// for an answer to that address.
	Order(node fault.NodeID, what string, body func(replyTo string) *lofamov1.Message, via []fault.NodeID)
	// Direct reports whether a node has a direct address.
	Direct(node fault.NodeID) bool
}

// Store outlives the leader. Its methods block until the store answers or the context ends.
type Store interface {
	// Write commits, where this replica leads.
	Write(ctx context.Context, w store.Write) (uint64, error)
	// Peers returns the nodes' stored reports on the ends of their links.
	Peers(ctx context.Context) (map[fault.NodeID]*lofamov1.PeerStatus, error)
}

// Config configures a Channel.
type Config struct {
	Names   *view.Names
	Marks   *view.Marks
	Masks   *view.Masks
	Map     func() (view.Map, bool) // this replica's own copy; false: none yet
	Store   Store
	Sender  Sender
	Periods config.Periods
	Own     func() map[netip.AddrPort]string // addresses of supervisors, and what each is
	Spans   bool                             // the torus spans regions
	Plain   []order.Plain                    // kinds without messages of their own
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// Channel is this replica's end of the channel: it sends orders of all kinds while this replica leads, and receives the
// answers.
type Channel struct {
	cfg     Config
	masks   *standing[chanmask.Mask, *lofamov1.MaskStatus]
	mapping *mapping
	peers   *peers
	workers []*worker
}

// New returns a channel that sends nothing yet.
func New(cfg Config) *Channel {
	c := &Channel{cfg: cfg, masks: newMasks(&cfg), mapping: newMapping(&cfg)}
	c.add(servicenet.OrderMask, "masks", c.masks)
	peers, standing := newPeers(&cfg)
	c.peers = peers
	planner := c.add(servicenet.OrderPeers, "peers", standing)
	planner.plans, planner.cheap = true, func() time.Duration { return peers.waited + standing.sending }
	if !cfg.Spans { // the leaders of two regions would contradict each other
		c.add(servicenet.OrderConfiguration, "configurations", newConfiguration(&cfg)).plans = true
	}
	c.add(servicenet.OrderMapping, "mappings", c.mapping).plans = true
	for _, kind := range cfg.Plain {
		c.add(kind.Kind(), kind.Kind(), newPlain(&cfg, kind))
	}
	return c
}

// add adds a kind; queue is its label in metrics.
func (c *Channel) add(name, queue string, k kind) *worker {
	w := &worker{name: name, queue: queue, kind: k, cfg: &c.cfg}
	c.workers = append(c.workers, w)
	return w
}

// Answers adds the receivers of the answers to standing orders to a registry.
func (c *Channel) Answers(r *order.Registry[ingest.Answers]) {
	for _, w := range c.workers {
		// Spares have no place and have peers: that kind checks the topology itself.
		r.Register(w.name, ingest.Answers{Take: w.take, Unplaced: w.name == servicenet.OrderPeers})
	}
}

// Lead sends orders in a term of this replica, until the context ends. It returns when all work has ended. The first
// orders follow when await returns nil: masks and topology of the term are then loaded.
func (c *Channel) Lead(ctx context.Context, term uint64, await func(ctx context.Context, term uint64) error) {
	var wg sync.WaitGroup
	for _, w := range c.workers {
		wg.Go(func() { w.lead(ctx, term, await) })
	}
	wg.Wait()
}

// Masks returns the masks that nodes have reported to this replica since it leads.
func (c *Channel) Masks() []*lofamov1.MaskStatus { return c.masks.Said() }

// Ends implements topology.Ends, while this replica leads.
func (c *Channel) Ends(id fault.NodeID) (directions uint8, known bool) { return c.peers.Ends(id) }

// Follows implements topology.Ends.
func (c *Channel) Follows(id fault.NodeID) bool { return c.peers.Follows(id) }

// Moves implements topology.Ends.
func (c *Channel) Moves(id fault.NodeID) bool { return c.peers.Moves(id) }

// Heard reports whether a node's agent has reported to this leader within the last 30 s.
func (c *Channel) Heard(id fault.NodeID) bool { return c.peers.Heard(id) }

// Ask asks nodes' agents for a report, once. It does not block.
func (c *Channel) Ask(ids []fault.NodeID) {
	for _, id := range ids {
		c.peers.question(id, 1)
	}
}

// Placed reports whether a node's agent has its place by an order, as of its last report.
func (c *Channel) Placed(id fault.NodeID) bool { return c.peers.Placed(id) }

// Mapped returns the findings of mapping about a node; false: there are none, or its state is known.
func (c *Channel) Mapped(id fault.NodeID) (view.Mapped, bool) {
	m, ok := c.mapping.shown.Load().found[id]
	return m, ok
}

// MappedDead returns the links that mapping found dead and that have no other evidence.
func (c *Channel) MappedDead() []chanmask.Link { return c.mapping.shown.Load().dead }

// kind is one kind of standing order at the leader. One goroutine calls its methods, during a term.
type kind interface {
	// begin begins a term. After an error it is called again.
	begin(ctx context.Context, term uint64) error
	// heard processes a half's answer.
	heard(now time.Time, m *lofamov1.Message)
	// work sends the orders that are due. It returns when to work again; zero: after the next answer, change or check. After
	// an error it is called again at the next check.
	work(ctx context.Context) (time.Time, error)
	// changed is closed when the contents change that work used last; nil: there is no such signal.
	changed() <-chan struct{}
	// end ends the term.
	end()
}

const (
	// answerQueue bounds the waiting answers of a kind. It drops further ones, and the kind sends its order again.
	answerQueue = 1024
	// checkEvery is the interval between checks of the wanted contents.
	checkEvery = time.Second
	// pauseShare bounds the share of its time that the leader spends on plans: after the work of a kind that plans, the next
	// work waits that many times as long as the last one took. The diameter of a large torus and the plan of its peers are
	// expensive, and any node's answer may cause work. Time spent waiting for the store or sending orders is not multiplied: both have
	// their own bounds, and a joining node would wait for it. longestPause bounds the wait.
	pauseShare   = 20
	longestPause = time.Minute
)

// worker runs one kind.
type worker struct {
	name, queue string
	kind        kind
	plans       bool                 // its work is expensive
	cheap       func() time.Duration // the part of the last work that was no planning; nil: none
	cfg         *Config

	mu      sync.Mutex
	answers chan *lofamov1.Message // nil: another replica leads
}

// take takes an answer. It does not block.
func (w *worker) take(m *lofamov1.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answers == nil {
		return
	}
	select {
	case w.answers <- m:
	default:
		w.cfg.Metrics.Dropped.WithLabelValues(w.queue).Inc()
	}
}

func (w *worker) open(answers chan *lofamov1.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers = answers
}

// lead works in a term until the context ends. It keeps the answers that arrive before the term has loaded.
func (w *worker) lead(ctx context.Context, term uint64, await func(ctx context.Context, term uint64) error) {
	answers := make(chan *lofamov1.Message, answerQueue)
	w.open(answers)
	defer w.kind.end()
	defer w.open(nil)
	if await(ctx, term) != nil {
		return
	}
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for err := w.kind.begin(ctx, term); err != nil; err = w.kind.begin(ctx, term) {
		w.cfg.Logger.Info("orders wait", "kind", w.name, "err", err)
		select {
		case <-ctx.Done():
			return
		case <-check.C:
		}
	}
	for ctx.Err() == nil {
		begun := time.Now()
		wake, err := w.kind.work(ctx)
		pause := time.Duration(0)
		if w.plans {
			pause = w.pause(time.Since(begun))
		}
		if err != nil {
			w.cfg.Logger.Info("orders wait", "kind", w.name, "err", err)
			pause = checkEvery
		}
		w.await(ctx, answers, pause, wake, check.C)
	}
}

// pause returns the pause after work that took so long.
func (w *worker) pause(took time.Duration) time.Duration {
	cheap := time.Duration(0)
	if w.cheap != nil {
		cheap = min(w.cheap(), took)
	}
	return min(pauseShare*(took-cheap)+cheap, longestPause)
}

// await processes answers during a pause. After the pause it waits for the reason to work again.
func (w *worker) await(ctx context.Context, answers <-chan *lofamov1.Message, pause time.Duration, wake time.Time, check <-chan time.Time) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	heard := false
	for pausing := true; pausing; {
		select {
		case <-ctx.Done():
			return
		case m := <-answers:
			w.hear(m, answers)
			heard = true
		case <-timer.C:
			pausing = false
		}
	}
	if heard {
		return
	}
	if !wake.IsZero() {
		timer.Reset(time.Until(wake))
	}
	select {
	case <-ctx.Done():
	case m := <-answers:
		w.hear(m, answers)
	case <-w.kind.changed():
	case <-check:
	case <-timer.C:
	}
}

// hear processes an answer and all waiting ones, so that work follows them together.
func (w *worker) hear(m *lofamov1.Message, answers <-chan *lofamov1.Message) {
	now := time.Now()
	for range answerQueue {
		w.kind.heard(now, m)
		select {
		case m = <-answers:
		default:
			return
		}
	}
}

// Relays returns the neighbours that relay an order to a node: from the second try on.
func Relays(names *view.Names, id fault.NodeID, try int) []fault.NodeID {
	if try < 2 {
		return nil
	}
	return names.Topology().Neighbours(id)
}

// logged reports whether the log mentions a try: the 2nd, 4th, 8th and so on.
func logged(try int) bool { return try > 1 && try&(try-1) == 0 }

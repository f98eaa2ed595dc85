// Package engine is the core of the leader: one goroutine that owns the inbox and the awareness machine. It takes in
// evidence and commits the resulting changes before it acknowledges anything.
//
//	Submit ──► queue ──► inbox ──► awareness ──► batch ──► committer ──► store
//	                                   │                      │
//	                              challenges          COMMITTED acks, metrics
//
// While one transaction is in flight, new changes collect for the next one. A term ends with its context or with the
// first commit that the store refuses. The engine then drops all volatile state, and has acknowledged nothing
// uncommitted. It verifies no signatures and opens no sockets.
package engine

import (
	"cmp"
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
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// ErrNotLeading says that this replica is not, or is no longer, the leader.
var ErrNotLeading = errors.New("this replica does not lead")

// Store is the part of the store that the engine uses. Its methods block until the store answers.
type Store interface {
	Load(ctx context.Context) (store.Snapshot, error)
	// Confirm fails with store.ErrNotLeader when the fence is gone.
	Confirm(ctx context.Context, fence store.Fence) (store.Standing, error)
	Writer(fence store.Fence, meta store.Meta, snap store.Snapshot) (store.Committer, error)
}

// To is the destination of an ack: the report's source address (empty if it came by gossip), the number of the report
// socket that received it, and whether the sender is another node that relayed it.
type To struct {
	Addr    string
	Socket  uint8
	Relayed bool
}

// Answerer sends acks to agents. It never blocks and may drop acks: agents retry.
type Answerer interface {
	Answer(to To, ack *lofamov1.Ack)
}

// Challenger sends challenges to nodes. It never blocks.
type Challenger interface {
	// Challenge returns false if it dropped the challenge.
	Challenge(c awareness.Challenge) bool
	// Behind returns the present delay before a challenge is sent.
	Behind() time.Duration
}

// Input is verified evidence: reports with the way to answer them, restated digests with the way to request the full
// ones, an answer to a challenge, or memberlist's view. The engine accepts or drops it as a whole.
type Input struct {
	Reports  *servicenet.Reports
	To       To
	Answerer Answerer
	Arrived  time.Time // at this replica; time spent in queues adds to the age
	Held     time.Duration

	Restated  []Restated // at most MaxRestated
	Requester FullDigestRequester

	Answer *awareness.Answered
	// Refused reports a challenge that the node's kernel refused.
	Refused *awareness.Refused
	Gossip  *awareness.GossipOpinion
	// Foreign are the verdicts of other regions on their nodes at the border.
	Foreign []awareness.ForeignVerdict
	// Revoked announces that Config.Revoked returns a new list.
	Revoked bool
}

// Config of an engine.
type Config struct {
	Awareness awareness.Config
	Meta      store.Meta
	// Queue bounds the waiting inputs, and separately those that hold only digests; 0 means 4,096. When it is full,
	// new inputs are dropped and counted: senders retry reports, and the next digest replaces a lost one.
	Queue int
	// Backlog bounds the reports that wait for their commit; 0 means 8,192. Beyond it the engine lets the queue fill
	// up, which pushes back on the senders of a slow store.
	Backlog int
	// BatchOps is the number of operations at which a batch is sealed; 0 means 2,000, which take about 50 ms. A batch
	// is committed at any smaller size if the committer is idle.
	BatchOps int
	// KeepIncidents is the number of kept CLOSED incidents; 0 means 1,000.
	KeepIncidents int
	Challenger    Challenger
	Metrics       *metrics.Metrics
	Logger        *slog.Logger
	// Names gives events their coordinates, and follows the stored topology.
	Names *view.Names
	// Seed is the topology that the first leader of a cluster stores. With nil the store holds no topology, and
	// Awareness and Names define the nodes.
	Seed *topology.Topology
	// Marks follow the stored maintenance marks; nil: none.
	Marks *view.Marks
	// Masks follow the stored masks of links; nil: none.
	Masks *view.Masks
	// Revoked returns the nodes with revoked certificates; nil: none.
	Revoked func() awareness.Revoked
}

// Engine outlives terms of leadership; Lead runs one term. All other methods are safe for concurrent use at any time.
type Engine struct {
	cfg     Config
	store   Store
	in      chan Input
	digests chan Input // digests only: nodes stay live and get acks while reports wait for the store
	answers chan Input // to challenges, and refusals; neither a flood of reports nor a blocked store delays them
	// commitBegan is the start of the commit in flight, by the monotonic clock; nil: none.
	commitBegan atomic.Pointer[time.Time]
	// lost is when messages of nodes may last have been lost at a supervisor, by the monotonic clock; nil: never.
	lost atomic.Pointer[time.Time]
	// discounted is the number of silent nodes that keep their states because of that: see awareness.Machine.Discounted.
	discounted atomic.Int64
	// changing has room for one: operators' changes run one after the other.
	changing chan struct{}
	term     atomic.Pointer[term]
	led      chan struct{} // closed when term changes
	ledMu    sync.Mutex    // of led, and of changes of term
	seen     hub
}

// New returns an engine on a store.
func New(cfg Config, st Store) *Engine {
	cfg.Queue = cmp.Or(cfg.Queue, 4096)
	cfg.Backlog = cmp.Or(cfg.Backlog, 8192)
	cfg.BatchOps = cmp.Or(cfg.BatchOps, 2000)
	return &Engine{
		cfg: cfg, store: st, in: make(chan Input, cfg.Queue), digests: make(chan Input, cfg.Queue),
		answers: make(chan Input, answerQueue), changing: make(chan struct{}, 1), led: make(chan struct{}),
	}
}

// answerQueue bounds the waiting answers to challenges.
const answerQueue = 1024

// Leading reports whether a term is running.
func (e *Engine) Leading() bool { return e.term.Load() != nil }

// Term returns a unique number for the running term; 0: none.
func (e *Engine) Term() uint64 {
	if t := e.term.Load(); t != nil {
		return uint64(t.confirmer.fence.Rev)
	}
	return 0
}

// Await waits until the term with that number runs. Names, Marks and Masks then are as the store has them. It fails only
// when the context ends.
func (e *Engine) Await(ctx context.Context, term uint64) error {
	for {
		e.ledMu.Lock()
		changed := e.led
		e.ledMu.Unlock()
		if e.Term() == term {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// publish sets the running term; nil: none.
func (e *Engine) publish(t *term) {
	e.ledMu.Lock()
	defer e.ledMu.Unlock()
	e.term.Store(t)
	close(e.led)
	e.led = make(chan struct{})
}

// Committing returns how long the commit in flight has taken so far; 0: none.
func (e *Engine) Committing() time.Duration {
	if at := e.commitBegan.Load(); at != nil {
		return max(1, time.Since(*at))
	}
	return 0
}

// Submit submits evidence without blocking. It returns false if the evidence was dropped.
func (e *Engine) Submit(in Input) bool {
	queue := e.in
	switch {
	case in.Answer != nil, in.Refused != nil:
		queue = e.answers
	case in.Restated != nil, in.Reports.Digests():
		queue = e.digests
	}
	select {
	case queue <- in:
		return true
	default:
		e.cfg.Metrics.Dropped.WithLabelValues("evidence").Inc()
		if queue == e.digests {
			e.Lost()
		}
		return false
	}
}

// Lost records that messages of nodes may have just been lost at a supervisor: see awareness.Machine.Lost.
func (e *Engine) Lost() {
	now := time.Now()
	e.lost.Store(&now)
}

// Discounting reports whether the silence of nodes does not count now.
func (e *Engine) Discounting() bool {
	at := e.lost.Load()
	return at != nil && time.Since(*at) < e.cfg.Awareness.Window()
}

// Held returns why silent nodes keep their last states, and the remedy, for people; "" if none does.
func (e *Engine) Held() string {
	n := int(e.discounted.Load())
	if n == 0 || !e.Discounting() {
		return ""
	}
	keeps, its := "keeps its last state", "its"
	if n > 1 {
		keeps, its = "keep their last states", "their"
	}
	return fmt.Sprintf("%s %s, because supervisors may have lost %s messages, most recently %s ago: this is usual for some seconds after a "+
		"change of leader; if it lasts for minutes, see docs/runbooks/LofamoSilenceDiscounted.md", fault.Plural(n, "silent node"), keeps, its,
		time.Since(*e.lost.Load()).Round(100*time.Millisecond))
}

// Seen subscribes to changes before their commit. The channel is closed when the term ends or when the subscriber
// falls more than buffer changes behind. It fails with ErrNotLeading.
func (e *Engine) Seen(buffer int) (changes <-chan *lofamov1.Event, cancel func(), err error) {
	return e.seen.subscribe(buffer)
}

// Package engine is the leader's heart: one goroutine that owns the inbox and the awareness
// machine, takes evidence in, and has what changed committed before anything is acknowledged.
//
//	Submit ──► queue ──► inbox ──► awareness ──► batch ──► committer ──► store
//	                                   │                      │
//	                              challenges          COMMITTED acks, metrics
//
// While one transaction is in flight, what comes in collects for the next. A term ends with its
// context or with the first commit that the store refuses; then everything volatile is dropped and
// nothing that was not committed has been acknowledged. It verifies no signatures and knows no
// sockets.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"slices"
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

// ErrNotLeading says that this replica does not lead, or does so no longer.
var ErrNotLeading = errors.New("this replica does not lead")

// Store is what the engine needs of the store; its methods block until the store answers.
type Store interface {
	Load(ctx context.Context) (store.Snapshot, error)
	// Confirm fails with store.ErrNotLeader when the fence is gone.
	Confirm(ctx context.Context, fence store.Fence) (store.Standing, error)
	Writer(fence store.Fence, meta store.Meta, snap store.Snapshot) (store.Committer, error)
}

// To says where an ack goes: the address from which the report came (empty when it came by
// gossip), the number of our report socket at which it came, and whether the sender is another
// node, which relayed it.
type To struct {
	Addr    string
	Socket  uint8
	Relayed bool
}

// Answerer sends acks to agents. It never blocks and may drop: agents ask again.
type Answerer interface {
	Answer(to To, ack *lofamov1.Ack)
}

// Challenger sends challenges to nodes. It never blocks.
type Challenger interface {
	// Challenge says false when it was dropped.
	Challenge(c awareness.Challenge) bool
	// Behind is how long a challenge waits at present until it is sent.
	Behind() time.Duration
}

// Reports are verified reports of one origin that came together, and what the origin said with them
// of how its reports fare (nil: nothing).
type Reports struct {
	List   []fault.Report
	Path   fault.Path
	Hops   []fault.Hop
	Status *lofamov1.DeliveryStatus
	// Health is what the origin said of the halves of its node.
	Health servicenet.Health
	// Words is a number for a single whole digest by which its restatements are recognised; 0: none.
	Words uint64
}

// digests says whether there is nothing but digests.
func (r *Reports) digests() bool {
	return r != nil && !slices.ContainsFunc(r.List, func(r fault.Report) bool { return !r.Digest })
}

// Input is verified evidence: reports with the way to answer them, or digests that say nothing new with the
// way to ask for the whole, or an answer to a challenge, or what memberlist believes. It is taken whole or
// not at all.
type Input struct {
	Reports  *Reports
	To       To
	Answerer Answerer
	Arrived  time.Time // at this replica; the time in queues counts to the age
	Held     time.Duration

	Restated []Restated // at most MaxRestated
	Wanting  FullDigestRequester

	Answer *awareness.Answered
	Gossip *awareness.GossipOpinion
	// Foreign is what other regions have found of their nodes at the border.
	Foreign []awareness.ForeignVerdict
	// Revoked announces that Config.Revoked returns a new list.
	Revoked bool
}

// Config of an engine.
type Config struct {
	Awareness awareness.Config
	Meta      store.Meta
	// Queue bounds the inputs that wait, and as many with digests alone; 0 stands for 4,096. When it is
	// full new ones are dropped and counted: reports are tried again by their senders, digests are
	// replaced by the next.
	Queue int
	// Backlog bounds the reports that wait for their commit; 0 stands for 8,192. Beyond it the queue
	// is left to fill up, which is how a slow store is felt by the senders.
	Backlog int
	// BatchOps is the number of operations from which on a batch takes no more; 0 stands for 2,000, which
	// take about 50 ms. Where nothing waits a batch is as small as it comes.
	BatchOps   int
	Challenger Challenger
	Metrics    *metrics.Metrics
	Logger     *slog.Logger
	// Names gives events their coordinates, and follows the stored topology.
	Names *view.Names
	// Seed is the topology that the first leader of a cluster stores; nil: the store has none, and Awareness
	// and Names say what nodes there are.
	Seed *topology.Topology
	// Marks follow the stored maintenance marks; nil: there are none.
	Marks *view.Marks
	// Masks follow the stored masks of links; nil: there are none.
	Masks *view.Masks
	// Revoked returns the nodes with revoked certificates; nil: there are none.
	Revoked func() awareness.Revoked
}

// Engine survives the terms of leadership; Lead runs one. Its other methods may be called from any
// goroutine at any time.
type Engine struct {
	cfg     Config
	store   Store
	in      chan Input
	digests chan Input // nothing but digests: nodes live, and hear that they are heard, while reports wait for the store
	answers chan Input // to challenges: a flood of reports, or a store that does not answer, is not felt there
	details chan detail
	asks    chan ask
	writes  chan write
	whys    chan why
	// commitBegan is when the commit under way was begun, by the monotonic clock; nil: none is.
	commitBegan atomic.Pointer[time.Time]
	// changing has room for one: operators' changes come one after the other.
	changing chan struct{}
	term     atomic.Pointer[term]
	seen     hub
}

// New returns an engine on a store.
func New(cfg Config, st Store) *Engine {
	if cfg.Queue == 0 {
		cfg.Queue = 4096
	}
	if cfg.Backlog == 0 {
		cfg.Backlog = 8192
	}
	if cfg.BatchOps == 0 {
		cfg.BatchOps = 2000
	}
	return &Engine{
		cfg: cfg, store: st, in: make(chan Input, cfg.Queue), digests: make(chan Input, cfg.Queue),
		answers: make(chan Input, answerQueue), details: make(chan detail), asks: make(chan ask), writes: make(chan write), whys: make(chan why), changing: make(chan struct{}, 1),
	}
}

// answerQueue bounds the answers to challenges that wait.
const answerQueue = 1024

// Leading says whether a term is running.
func (e *Engine) Leading() bool { return e.term.Load() != nil }

// Term is a number for the term that is running, which no other has; 0: none is.
func (e *Engine) Term() uint64 {
	if t := e.term.Load(); t != nil {
		return uint64(t.confirmer.fence.Rev)
	}
	return 0
}

// Committing is how long the commit under way takes by now; 0: none is.
func (e *Engine) Committing() time.Duration {
	if at := e.commitBegan.Load(); at != nil {
		return max(1, time.Since(*at))
	}
	return 0
}

// Submit hands evidence in without blocking. False means that it was dropped.
func (e *Engine) Submit(in Input) bool {
	queue := e.in
	switch {
	case in.Answer != nil:
		queue = e.answers
	case in.Restated != nil, in.Reports.digests():
		queue = e.digests
	}
	select {
	case queue <- in:
		return true
	default:
		e.cfg.Metrics.Dropped.WithLabelValues("evidence").Inc()
		return false
	}
}

// Seen subscribes to changes before their commit. The channel is closed when the term ends or the
// subscriber is more than buffer changes behind. It fails with ErrNotLeading.
func (e *Engine) Seen(buffer int) (changes <-chan *lofamov1.Event, cancel func(), err error) {
	return e.seen.subscribe(buffer)
}

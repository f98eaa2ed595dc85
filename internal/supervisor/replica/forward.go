package replica

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// ackQueue bounds the acks that wait for a follower. Further ones are dropped and counted: agents resend reports
// that are not COMMITTED.
const ackQueue = 2048

func responseTo(r *lofamov1.ForwardResponse) engine.To {
	return engine.To{Addr: r.GetTo(), Socket: uint8(min(r.GetSocket(), math.MaxUint8)), Relayed: r.GetRelayed()}
}

// LeaderSource names the leader and signals its change.
type LeaderSource interface {
	Leader() (id string, changed <-chan struct{})
}

// ForwarderConfig of a forwarder.
type ForwarderConfig struct {
	Peers    *Peers
	Leaders  LeaderSource
	Answerer engine.Answerer
	// Confirm delays all messages until the callee has confirmed that it leads: the address is only a guess.
	Confirm bool
	// Requester asks halves for the full digests that the leader needs. May be nil.
	Requester engine.FullDigestRequester
	// Challenger asks nodes for a sign of life where the leader wants that of its followers. May be nil.
	Challenger interface {
		Challenge(c awareness.Challenge) bool
	}
	// Late is the delay of a message in this replica that counts as a loss. 0: no delay counts.
	Late    time.Duration
	Metrics *metrics.Metrics
	Logger  *slog.Logger
}

// Forwarder is a follower's way to the leader. Run is its only goroutine.
type Forwarder struct {
	cfg   ForwarderConfig
	woken chan struct{} // room for one

	mu       sync.Mutex
	backlog  *backlog
	stream   uint64 // number of the open stream; 0: none
	streams  uint64 // opened so far
	restated [][]engine.Restated
	verdicts *lofamov1.BorderVerdicts // nil: none waiting
	lost     time.Time                // when messages of nodes may last have been lost; zero: not since the last message that said so
}

// Lost records that messages of nodes may have been lost at this replica. The next message informs the leader.
func (f *Forwarder) Lost() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = time.Now()
}

// lostFor limits the age of a loss that is still reported to the leader.
const lostFor = 5 * time.Second

// takeLost returns whether the next message must have lost set. The message's digests arrived at the given time.
func (f *Forwarder) takeLost(arrived time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := time.Since(f.lost) < lostFor || f.cfg.Late > 0 && time.Since(arrived) > f.cfg.Late
	f.lost = time.Time{}
	return lost
}

// Verdicts queues verdicts on border nodes, and replaces those in the queue.
func (f *Forwarder) Verdicts(v *lofamov1.BorderVerdicts) {
	f.mu.Lock()
	f.verdicts = v
	f.mu.Unlock()
	f.wake()
}

func (f *Forwarder) nextVerdicts() *lofamov1.BorderVerdicts {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.verdicts
	f.verdicts = nil
	return v
}

// maxRestated bounds the batches of restated digests that wait for the stream. Beyond it the oldest are
// dropped and counted: each half soon restates again.
const maxRestated = 64

// Stream returns the unique number of the stream to the leader; 0: there is none.
func (f *Forwarder) Stream() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stream
}

// Restate queues unchanged digests, if the stream still exists.
func (f *Forwarder) Restate(stream uint64, list []engine.Restated) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stream != f.stream {
		return // the next leader is given them whole
	}
	if len(f.restated) == maxRestated {
		f.cfg.Metrics.Dropped.WithLabelValues("forward-digests").Add(float64(len(f.restated[0])))
		f.restated, f.lost = f.restated[1:], time.Now()
	}
	f.restated = append(f.restated, list)
	f.wake()
}

// opened records that there is a stream. closed records that there is none, and drops the messages that wait for
// it.
func (f *Forwarder) opened() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams++
	f.stream = f.streams
}

func (f *Forwarder) closed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stream, f.restated, f.lost = 0, nil, time.Now() // digests written to the stream may be lost
}

// nextRestated returns a waiting batch, or nil.
func (f *Forwarder) nextRestated() []engine.Restated {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.restated) == 0 {
		return nil
	}
	list := f.restated[0]
	f.restated = f.restated[1:]
	return list
}

// NewForwarder returns a forwarder; Run does its work.
func NewForwarder(cfg ForwarderConfig) *Forwarder {
	return &Forwarder{cfg: cfg, woken: make(chan struct{}, 1), backlog: newBacklog()}
}

// Forward queues evidence for the leader: these reports, or an answer to a challenge (nil). It does not block;
// held_ns is set on sending. False means that the message was dropped.
func (f *Forwarder) Forward(req *lofamov1.ForwardRequest, reports *servicenet.Reports, arrived time.Time) bool {
	f.mu.Lock()
	ok, pushed := f.backlog.put(req, reports, arrived)
	depth := f.backlog.len()
	if !ok || pushed > 0 {
		f.lost = time.Now()
	}
	f.mu.Unlock()
	f.cfg.Metrics.Depth.WithLabelValues("forward").Set(float64(depth))
	if pushed > 0 {
		f.cfg.Metrics.Dropped.WithLabelValues("forward-digests").Add(float64(pushed))
	}
	if !ok {
		f.cfg.Metrics.Dropped.WithLabelValues("forward").Inc()
		return false
	}
	f.wake()
	return true
}

func (f *Forwarder) wake() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

func (f *Forwarder) next() *queued {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.backlog.next()
	f.cfg.Metrics.Depth.WithLabelValues("forward").Set(float64(f.backlog.len()))
	return q
}

// maxHeld bounds the credible time in a follower's queue. Messages that waited longer are dropped.
const maxHeld = time.Minute

// retryAfter is the pause after a stream to the leader broke.
const retryAfter = 50 * time.Millisecond

// Run forwards until the context ends.
func (f *Forwarder) Run(ctx context.Context) {
	for ctx.Err() == nil {
		peers := f.cfg.Peers.Changed()
		leader, changed := f.cfg.Leaders.Leader()
		conn := f.cfg.Peers.Conn(leader)
		if conn == nil { // no leader is known, this replica leads, or the leader is not connected yet
			select {
			case <-ctx.Done():
			case <-changed:
			case <-peers:
			}
			continue
		}
		err := f.follow(ctx, conn, changed)
		f.cfg.Logger.Debug("forwarding ended", "leader", leader, "err", err)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(retryAfter):
		}
	}
}

// follow forwards to one leader until the stream breaks or leadership changes. A change ends the calls that wait for a hung
// leader too.
func (f *Forwarder) follow(ctx context.Context, conn grpc.ClientConnInterface, changed <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}()
	err := f.forward(ctx, conn)
	cancel()
	<-left
	select {
	case <-changed:
		return nil
	default:
		return err
	}
}

// forward sends by one stream until it breaks or the context ends.
func (f *Forwarder) forward(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := lofamov1.NewReplicaClient(conn).Forward(ctx)
	if err != nil {
		return err
	}
	if f.cfg.Confirm {
		if _, err := s.Header(); err != nil {
			return err
		}
	}
	var failure error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		failure = f.hear(s)
	}()
	f.opened()
	defer func() {
		f.closed()
		cancel()
		<-ended
	}()
	f.wake() // the stream before may have left something
	for {
		select {
		case <-ended:
			return failure
		case <-ctx.Done():
			return ctx.Err()
		case <-f.woken:
		}
		if err := f.sendWaiting(s); err != nil {
			return err
		}
	}
}

// hear performs the leader's responses until the stream breaks.
func (f *Forwarder) hear(s grpc.BidiStreamingClient[lofamov1.ForwardRequest, lofamov1.ForwardResponse]) error {
	for {
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		if whole := resp.GetWhole(); len(whole) > 0 {
			f.whole(whole)
			continue
		}
		if c := resp.GetChallenge(); c != nil {
			f.challenge(c, resp.GetVia())
			continue
		}
		f.cfg.Answerer.Answer(responseTo(resp), resp.GetAck())
	}
}

// sendWaiting sends the next of each kind that waits.
func (f *Forwarder) sendWaiting(s grpc.BidiStreamingClient[lofamov1.ForwardRequest, lofamov1.ForwardResponse]) error {
	if v := f.nextVerdicts(); v != nil {
		if err := s.Send(&lofamov1.ForwardRequest{Verdicts: v}); err != nil {
			return err
		}
	}
	q, restated := f.next(), f.nextRestated()
	if q == nil && restated == nil {
		return nil
	}
	f.wake() // for the next one
	if q != nil {
		if err := f.send(s, q); err != nil {
			return err
		}
	}
	if restated == nil {
		return nil
	}
	req := encodeRestated(restated, time.Now())
	req.Lost = f.takeLost(restated[0].Arrived)
	return s.Send(req)
}

// challenge sends the leader's challenge to a node, directly and through the neighbours in via.
func (f *Forwarder) challenge(c *lofamov1.Challenge, via []string) {
	if f.cfg.Challenger == nil || len(c.GetNonce()) != len(awareness.Challenge{}.Nonce) {
		return
	}
	ch := awareness.Challenge{Node: fault.NodeID(c.GetNode()), Half: fault.Half(c.GetHalf()), Nonce: [16]byte(c.GetNonce()),
		Term: c.GetTerm(), Issued: c.GetIssuedNs()}
	for _, id := range via[:min(len(via), grid.NumDirections)] {
		ch.Via = append(ch.Via, fault.NodeID(id))
	}
	f.cfg.Challenger.Challenge(ch)
}

// whole passes on whose digests the leader wants whole.
func (f *Forwarder) whole(names []*lofamov1.HalfName) {
	if f.cfg.Requester == nil {
		return
	}
	origins := make([]fault.Origin, len(names))
	for i, n := range names {
		origins[i] = fault.Origin{Node: fault.NodeID(n.GetNode()), Half: fault.Half(n.GetHalf())}
	}
	f.cfg.Requester.RequestFull(origins)
}

func (f *Forwarder) send(s grpc.BidiStreamingClient[lofamov1.ForwardRequest, lofamov1.ForwardResponse], q *queued) error {
	held := max(0, time.Since(q.arrived))
	if held > maxHeld {
		// From before this replica's own term, or a long time without any leader: its age would not be
		// believed, and its sender has long since sent it again.
		f.cfg.Metrics.Dropped.WithLabelValues("forward").Inc()
		f.Lost()
		return nil
	}
	q.req.HeldNs, q.req.Lost = uint64(held), f.takeLost(q.arrived)
	return s.Send(q.req) // a request lost with the stream is retried by its sender
}

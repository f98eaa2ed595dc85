package ingest

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet/bulk"
)

// Bounds of one transfer.
const (
	packets  = 1024 // that wait for the receiver
	pieceMax = 32   // chunks passed on at once
	fewWait  = 16   // with less than that in the queue, every change of progress is reported
)

// bulkPacket is an incoming message of a transfer.
type bulkPacket struct {
	data     []byte                 // of a chunk, or
	announce *lofamov1.BulkAnnounce // verified
	way      bulk.Way
	known    bool // its way is known
}

// bulkItem is the receiver's output for the consumer, in order.
type bulkItem struct {
	generation int // number of restarts of the transfer
	data       []byte
	progress   *lofamov1.BundleProgress
}

// bulkTaken is the number of chunks of a generation that the consumer has accepted.
type bulkTaken struct{ generation, chunks int }

// transfer is one receiver, which run's goroutine owns, and its consumer, which has another.
type transfer struct {
	m         *BulkManager
	origin    fault.Origin
	job       bulk.Job
	exchanges [2]bulk.Exchange
	in        chan bulkPacket
	queue     chan bulkItem
	taken     chan bulkTaken
	over      chan struct{} // closed when the receiver has its outcome

	receiver   *bulk.Receiver
	wake       time.Time
	generation int
	told       *lofamov1.BundleProgress
	outcome    *bulk.Outcome
	first      bulk.ReceiverOutput // of the beginning
}

func newTransfer(m *BulkManager, job bulk.Job) (*transfer, error) {
	t := &transfer{
		m: m, origin: job.Origin, job: job, exchanges: job.Exchanges, in: make(chan bulkPacket, packets),
		// Room for the chunks of two generations, which the receiver bounds, and for their progress (tell).
		queue: make(chan bulkItem, 2*m.cfg.Receiver.Buffer+2*fewWait), taken: make(chan bulkTaken), over: make(chan struct{}),
	}
	var err error
	t.receiver, t.first, err = bulk.NewReceiver(bulkNow(), m.cfg.Receiver, job)
	return t, err
}

// post passes a packet to the receiver. If there is no room, the packet is pulled again.
func (t *transfer) post(p bulkPacket) {
	select {
	case t.in <- p:
	default:
		t.m.count("dropped")
	}
}

// run runs the transfer to its end.
func (t *transfer) run(ctx context.Context, emit func(*lofamov1.GetBundleResponse) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	consumed := make(chan error, 1)
	go func() { // ends when the queue is closed, or the context ends
		err := t.consume(ctx, func(r *lofamov1.GetBundleResponse) error {
			late := time.AfterFunc(t.m.cfg.Patience, func() { stop(ErrBulkSlow) })
			defer late.Stop()
			return emit(r)
		})
		if err != nil {
			stop(err)
		}
		consumed <- err
	}()
	t.do(t.first)
	t.receive(ctx)
	close(t.over)
	close(t.queue)
	select {
	case err := <-consumed:
		if err != nil || t.outcome.Result == bulk.Complete {
			return err
		}
	case <-ctx.Done(): // emit may be blocked
		return context.Cause(ctx)
	}
	return &OutcomeError{t.outcome.Result, t.outcome.Why}
}

// receive steps the receiver until it has an outcome.
func (t *transfer) receive(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for t.outcome == nil {
		timer.Reset(max(0, time.Until(t.wake)))
		select {
		case <-ctx.Done():
			t.step(bulk.Cancel{})
		case p := <-t.in:
			t.arrived(p)
		case c := <-t.taken:
			if c.generation == t.generation {
				t.step(bulk.Consumed{Chunks: c.chunks})
			}
		case <-timer.C:
			t.step(bulk.Tick{})
		}
	}
}

func (t *transfer) arrived(p bulkPacket) {
	if !p.known {
		p.way = t.receiver.Progress().Way // most likely
	}
	if p.announce != nil {
		t.step(bulk.Announced{Message: p.announce, Way: p.way})
		return
	}
	t.m.count("chunk")
	t.step(bulk.Arrived{Packet: p.data, Way: p.way})
}

func (t *transfer) step(ev bulk.ReceiverEvent) { t.do(t.receiver.Step(bulkNow(), ev)) }

// do performs an output.
func (t *transfer) do(out bulk.ReceiverOutput) {
	if out.Restart {
		t.generation++
		t.told = nil
	}
	t.tell(false)
	for _, data := range out.Deliver {
		t.queue <- bulkItem{generation: t.generation, data: data} // the receiver's buffer guarantees room
	}
	for _, s := range out.Send {
		t.m.send(t.origin, s)
	}
	t.wake = out.Wake
	if t.outcome = out.Outcome; t.outcome != nil && t.outcome.Result == bulk.Complete {
		t.tell(true)
	}
}

// tell queues the transfer's progress if more than the number of bytes has changed. In the middle of a generation
// it does nothing while the queue is nearly full.
func (t *transfer) tell(complete bool) {
	p := t.receiver.Progress()
	msg := &lofamov1.BundleProgress{Name: p.Name, Size: p.Size, Via: p.Way.Via, Complete: complete}
	if p.Way.Via == "" {
		msg.Via = "direct"
	}
	if !complete && t.told != nil && (proto.Equal(t.told, msg) || len(t.queue) >= fewWait) {
		return
	}
	t.told = proto.CloneOf(msg)
	msg.Repeated = p.Repeated
	t.queue <- bulkItem{generation: t.generation, progress: msg} // there is room
}

// consume passes on the receiver's output until it ends.
func (t *transfer) consume(ctx context.Context, emit func(*lofamov1.GetBundleResponse) error) error {
	var received uint64
	var left *bulkItem // taken from the queue already
	for generation := 0; ; {
		it, ok := t.next(ctx, left)
		if !ok {
			return context.Cause(ctx)
		}
		left = nil
		if it.generation != generation {
			generation, received = it.generation, 0
		}
		if it.progress != nil {
			it.progress.Received = received
			if err := emit(&lofamov1.GetBundleResponse{Progress: it.progress}); err != nil {
				return err
			}
			continue
		}
		var data []byte
		var chunks int
		data, chunks, left = t.piece(it)
		if err := emit(&lofamov1.GetBundleResponse{Data: data}); err != nil {
			return err
		}
		received += uint64(len(data))
		select {
		case t.taken <- bulkTaken{generation, chunks}:
		case <-t.over:
		}
	}
}

// next waits for an item. False means that there are no more.
func (t *transfer) next(ctx context.Context, left *bulkItem) (bulkItem, bool) {
	if left != nil {
		return *left, true
	}
	select {
	case it, ok := <-t.queue:
		return it, ok
	case <-ctx.Done():
		return bulkItem{}, false
	}
}

// piece joins a chunk with the chunks that wait behind it, and returns the first item of another kind.
func (t *transfer) piece(first bulkItem) (data []byte, chunks int, left *bulkItem) {
	for data, chunks = first.data, 1; chunks < pieceMax; chunks++ {
		select {
		case it, ok := <-t.queue:
			if !ok {
				return data, chunks, nil
			}
			if it.progress != nil || it.generation != first.generation {
				return data, chunks, &it
			}
			data = append(data, it.data...)
		default:
			return data, chunks, nil
		}
	}
	return data, chunks, nil
}

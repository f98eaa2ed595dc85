package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// UplinkStore is the uplink's read access to the region's store. Identity and Whole block until the store answers.
type UplinkStore interface {
	// Identity fails with store.ErrNotLeader when the fence is gone.
	Identity(ctx context.Context, fence store.Fence) (store.Identity, error)
	Follow(ctx context.Context, after uint64, wanted func(key string) bool) <-chan store.Change
	Whole(ctx context.Context, kinds []string, fromEvent uint64) (*lofamov1.UpstreamChange, error)
}

// UplinkConfig configures an Uplink.
type UplinkConfig struct {
	Region string
	Dims   string // of the whole torus
	Store  UplinkStore
	// Parents are the ids of the parent's replicas; Conn returns the connection to a replica.
	Parents []string
	Conn    func(id string) *grpc.ClientConn
	// Beat is the interval between messages to the parent that confirm that all changes were sent.
	Beat   time.Duration
	Logger *slog.Logger
}

// Uplink passes a region's committed map on to the parent of regions, while this replica leads the region. Its
// The feed (exportfeed.go) decides when to send which changes. The uplink runs the goroutines: a stream to the
// parent's leader, and the reader of the region's own store.
type Uplink struct {
	cfg UplinkConfig
	at  int // index of the next of Parents to try
}

// NewUplink returns an uplink. It is not safe for concurrent use.
func NewUplink(cfg UplinkConfig) *Uplink { return &Uplink{cfg: cfg} }

// The pauses between two attempts.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// Run passes on until the context, which is that of the leadership, ends.
func (c *Uplink) Run(ctx context.Context, fence store.Fence) {
	pause := firstPause
	for ctx.Err() == nil {
		id := c.cfg.Parents[c.at]
		began := time.Now()
		err := c.stream(ctx, c.cfg.Conn(id), fence)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastPause {
			pause = firstPause
			c.cfg.Logger.Warn("the parent is no longer reachable", "parent", id, "err", err)
		} else {
			c.cfg.Logger.Debug("the parent is not reached", "parent", id, "err", err)
		}
		c.at = (c.at + 1) % len(c.cfg.Parents)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		if c.at == 0 {
			pause = min(2*pause, lastPause)
		}
	}
}

// stream passes on to one replica of the parent until that ends.
func (c *Uplink) stream(ctx context.Context, conn *grpc.ClientConn, fence store.Fence) error {
	if conn == nil {
		return errors.New("no connection")
	}
	ctx, cancel := context.WithCancel(ctx)
	grpcStream, err := lofamov1.NewUpstreamClient(conn).Report(ctx)
	if err != nil {
		cancel()
		return err
	}
	own, err := c.cfg.Store.Identity(ctx, fence)
	if err != nil {
		cancel()
		return err
	}
	s := &session{
		cfg: c.cfg, ctx: ctx, stream: grpcStream,
		feed:   newFeed(feedConfig{Region: c.cfg.Region, Dims: c.cfg.Dims}),
		toSend: make(chan []*lofamov1.UpstreamReportRequest), heard: make(chan *lofamov1.UpstreamReportResponse), ended: make(chan error, 2),
	}
	done := make(chan struct{}, 2)
	go func() { s.send(); done <- struct{}{} }()
	go func() { s.receive(); done <- struct{}{} }()
	err = s.run(feedBegin{Term: uint64(fence.Rev), Revision: own.Revision, NextEvent: own.Next, Store: own.ID,
		FirstEvent: own.First, From: own.From})
	cancel()
	<-done
	<-done
	return err
}

// session is one stream. Its feed and its reads belong to the goroutine of run.
type session struct {
	cfg    UplinkConfig
	ctx    context.Context // ends with the session
	stream grpc.BidiStreamingClient[lofamov1.UpstreamReportRequest, lofamov1.UpstreamReportResponse]
	feed   *feed

	waiting []*lofamov1.UpstreamReportRequest // to be sent; the feed's window bounds them
	toSend  chan []*lofamov1.UpstreamReportRequest
	heard   chan *lofamov1.UpstreamReportResponse
	ended   chan error

	stopReading context.CancelFunc // nil: no read in progress
	changes     <-chan store.Change
	whole       <-chan copied
}

// copied is the result of reading the whole store.
type copied struct {
	change *lofamov1.UpstreamChange
	err    error
}

func (s *session) run(begin feedBegin) error {
	beat := time.NewTicker(s.cfg.Beat)
	defer beat.Stop()
	defer s.read(feedOrders{Read: ReadNone})
	s.step(begin)
	for {
		toSend := s.toSend
		if len(s.waiting) == 0 {
			toSend = nil
		}
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case err := <-s.ended:
			return err
		case toSend <- s.waiting:
			s.waiting = nil
		case m := <-s.heard:
			s.answer(m)
		case ch, ok := <-s.changes:
			if err := s.changed(ch, ok); err != nil {
				return err
			}
		case all := <-s.whole:
			s.whole = nil // no reader is left to wait for
			if all.err != nil {
				return all.err
			}
			s.step(feedCopied{UpstreamChange: all.change})
		case <-beat.C:
			if len(s.waiting) == 0 { // a waiting message shows that we are alive
				s.step(feedBeat{})
			}
		}
	}
}

func (s *session) step(in feedInput) {
	o := s.feed.Step(in)
	s.waiting = append(s.waiting, o.Send...)
	s.read(o)
}

func (s *session) answer(m *lofamov1.UpstreamReportResponse) {
	switch b := m.GetBody().(type) {
	case *lofamov1.UpstreamReportResponse_Resume:
		s.cfg.Logger.Info("passing on to the parent", "after", b.Resume.GetRevision(), "event", b.Resume.GetNextEvent())
		s.step(feedResume{Revision: b.Resume.GetRevision(), NextEvent: b.Resume.GetNextEvent()})
	case *lofamov1.UpstreamReportResponse_Committed:
		s.step(feedAcked{Revision: b.Committed.GetRevision()})
	}
}

func (s *session) changed(ch store.Change, ok bool) error {
	switch {
	case !ok:
		return errors.New("the store's watch ended")
	case errors.Is(ch.Err, store.ErrCompacted):
		s.cfg.Logger.Warn("the parent was out of reach for longer than changes are kept: passing everything on", "err", ch.Err)
		s.step(feedCompacted{})
	case ch.Err != nil:
		return ch.Err
	default:
		s.step(feedUpdate{UpstreamChange: ch.UpstreamChange})
	}
	return nil
}

// kinds are the documents that are passed on.
var kinds = []string{KindNodes, KindGroups, KindWarnings, KindMaintenance, KindTopology}

// read starts, stops or replaces the reader of the store.
func (s *session) read(o feedOrders) {
	if o.Read == ReadOn {
		return
	}
	if s.stopReading != nil {
		s.stopReading()
		s.awaitReader()
		s.stopReading, s.changes, s.whole = nil, nil, nil
	}
	if o.Read == ReadNone {
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	s.stopReading = cancel
	if o.Read == ReadFollow {
		s.changes = s.cfg.Store.Follow(ctx, o.From, PassedOn)
		return
	}
	whole := make(chan copied, 1)
	s.whole = whole
	go func() {
		change, err := s.cfg.Store.Whole(ctx, kinds, o.From)
		whole <- copied{change, err}
	}()
}

// awaitReader waits until the stopped reader has ended.
func (s *session) awaitReader() {
	if s.changes != nil {
		for range s.changes { // discard its remaining changes
		}
	}
	if s.whole != nil {
		<-s.whole
	}
}

// send sends queued messages in order until the session ends.
func (s *session) send() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case list := <-s.toSend:
			for _, m := range list {
				if err := s.stream.Send(m); err != nil {
					return // receive has the cause
				}
			}
		}
	}
}

func (s *session) receive() {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.ended <- fmt.Errorf("stream to the parent: %w", err)
			return
		}
		select {
		case s.heard <- m:
		case <-s.ctx.Done():
			return
		}
	}
}

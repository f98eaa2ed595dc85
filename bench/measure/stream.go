package measure

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// StreamPlan configures a Stream.
type StreamPlan struct {
	Reports int
	Rate    float64 // reports a second; 0: as many as the log may hold unfinished
	Cut     int     // before this report, counted from 0, the primary's interface is cut; 0: never
}

// streamLog is the number of reports that a saturated stream leaves uncommitted: more than an outbox sends beyond the
// oldest of these, so that this is the bound, and well below the number that would make it coalesce.
const streamLog = 512

// Stream is the outcome of a stream of reports.
type Stream struct {
	Took                time.Duration   // from the first report to the last COMMITTED
	Added, Received     []time.Duration // since the beginning, in order
	Committed           []time.Duration
	ToReceived          Latencies // by report
	ToCommitted         Latencies
	CutAt               time.Duration // 0: nothing was cut
	Cut                 string        // the path that was the primary then
	Before, After       servicenet.OutboxStats
	DatagramsWhileCut   uint64 // passed on by the cut socket
	BlockedWhileCut     uint64 // dropped by the cut socket
	Notes               []Note
	unanswered, pending map[uint64]time.Duration
}

// Sender streams reports of a Half. Its Heard must be the HalfConfig's.
type Sender struct {
	half       *Half
	interfaces []string

	mu    sync.Mutex
	seq   uint64 // of the last report
	begun time.Time
	now   *Stream // under way
	more  chan struct{}
}

// NewSender returns one; SetHalf before the first Run.
func NewSender(interfaces []string) *Sender {
	return &Sender{interfaces: interfaces, more: make(chan struct{}, 1)}
}

// SetHalf sets the origin of the reports.
func (s *Sender) SetHalf(h *Half) { s.half = h }

// Heard is for HalfConfig.Heard.
func (s *Sender) Heard(h *Heard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return
	}
	at := h.Done.Sub(s.begun)
	for _, a := range h.Acks {
		for _, seq := range a.GetSeqs() {
			// A COMMITTED whose RECEIVED was lost is both.
			if added, ok := s.now.unanswered[seq]; ok {
				delete(s.now.unanswered, seq)
				s.now.Received = append(s.now.Received, at)
				s.now.ToReceived = append(s.now.ToReceived, at-added)
			}
			if added, ok := s.now.pending[seq]; ok && a.GetStatus() == lofamov1.Ack_COMMITTED {
				delete(s.now.pending, seq)
				s.now.Committed = append(s.now.Committed, at)
				s.now.ToCommitted = append(s.now.ToCommitted, at-added)
			}
		}
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// Run streams reports whose states make changes, and waits until all are committed.
func (s *Sender) Run(ctx context.Context, plan StreamPlan) (*Stream, error) {
	st := &Stream{Before: s.half.Stats(), unanswered: map[uint64]time.Duration{}, pending: map[uint64]time.Duration{}}
	notes := len(s.half.Notes())
	s.mu.Lock()
	s.begun, s.now = time.Now(), st
	s.mu.Unlock()
	cut := func() error { return nil }
	for i := range plan.Reports {
		if err := s.await(ctx, plan, i); err != nil {
			return nil, err
		}
		if plan.Cut > 0 && i == plan.Cut {
			var err error
			if cut, err = s.cutPrimary(st); err != nil {
				return nil, err
			}
		}
		s.add(i)
	}
	err := s.finish(ctx, st)
	st.Took = time.Since(s.begun)
	err = errors.Join(err, cut())
	st.After = s.half.Stats()
	st.Notes = s.half.Notes()[notes:]
	return st, err
}

// add sends report number i.
func (s *Sender) add(i int) {
	state := fault.Sick
	if i%2 == 1 {
		state = fault.Normal
	}
	s.mu.Lock()
	s.seq++
	at := time.Since(s.begun)
	s.now.unanswered[s.seq], s.now.pending[s.seq] = at, at
	s.now.Added = append(s.now.Added, at)
	s.mu.Unlock()
	s.half.Add(fault.Report{Uptime: time.Hour, Observations: []fault.Observation{
		{Component: fault.ComponentTemperature, State: state, Kind: fault.KindSelf, Detail: fmt.Sprintf("report %d", i)},
	}})
}

// await waits until report number i may go.
func (s *Sender) await(ctx context.Context, plan StreamPlan, i int) error {
	if plan.Rate > 0 {
		due := s.begun.Add(time.Duration(float64(i) / plan.Rate * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	return s.until(ctx, func() bool { return len(s.now.pending) < streamLog })
}

// finish waits until everything is committed.
func (s *Sender) finish(ctx context.Context, st *Stream) error {
	err := s.until(ctx, func() bool { return len(st.pending) == 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = nil
	if err != nil {
		return fmt.Errorf("%d of %d reports not committed: %w", len(st.pending), len(st.Added), err)
	}
	return nil
}

// until waits for something that acks bring about.
func (s *Sender) until(ctx context.Context, cond func() bool) error {
	for {
		s.mu.Lock()
		ok := cond()
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-s.more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// cutPrimary cuts the interface of the primary path; the returned function restores it and notes the traffic that it
// passed on meanwhile.
func (s *Sender) cutPrimary(st *Stream) (func() error, error) {
	st.Cut = s.half.Status().GetPrimary()
	for k, name := range s.interfaces {
		if len(st.Cut) <= len(name) || st.Cut[:len(name)+1] != name+">" {
			continue
		}
		sock := s.half.Socket(k)
		sock.Block(true)
		st.CutAt = time.Since(s.begun)
		before := sock.Stats()
		return func() error {
			after := sock.Stats()
			st.DatagramsWhileCut = after.Sent + after.Received - before.Sent - before.Received
			st.BlockedWhileCut = after.Blocked - before.Blocked
			sock.Block(false)
			return nil
		}, nil
	}
	return nil, fmt.Errorf("cut the primary path: given %q: want one of the interfaces %q", st.Cut, s.interfaces)
}

// Retries counts the sends that were not the first of their report.
func (st *Stream) Retries() uint64 { return st.After.Retries - st.Before.Retries }

// Migrations counts the changes of the primary path.
func (st *Stream) Migrations() uint64 { return st.After.Migrations - st.Before.Migrations }

// Rate is the reports received a second, over the time in which they were sent.
func (st *Stream) Rate() float64 {
	return float64(len(st.Received)) / max(st.Received[len(st.Received)-1], time.Nanosecond).Seconds()
}

// Once compares the sent numbers with a leader's record of received ones: each should occur once. It returns how many
// are missing and how many occur more than once.
func Once(first, last uint64, noted []uint64) (missing, twice int) {
	count := map[uint64]int{}
	for _, n := range noted {
		count[n]++
	}
	for n := range maps.Keys(count) {
		if count[n] > 1 {
			twice++
		}
	}
	for n := first; n <= last; n++ {
		if count[n] == 0 {
			missing++
		}
	}
	return missing, twice
}

// Last returns the number of the last report.
func (s *Sender) Last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seq
}

package measure

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// ReplicaName is the supervisor of a Reliable.
const ReplicaName = "sup-0"

// Reliable is reports from a Half to a Replica over the direct rail on loopback.
type Reliable struct {
	half    *Half
	replica *Replica
	report  fault.Report
	stop    func() error

	back      chan time.Time // of the answer to each report
	datagrams atomic.Uint64

	mu      sync.Mutex
	added   uint64          // parts of reports so far: the number of the last
	waiting map[uint64]*int // by part without an answer: how many parts of its report have none
	last    Sample          // Once fills in the rest
	out     time.Time       // when the last datagram was sealed
}

// NewReliable connects the two and, where the report is a digest, waits until they share a session, so
// that a MAC stands for the signature. The report has no id yet: the outbox numbers it.
func NewReliable(ids Identities, origin fault.Origin, report fault.Report) (*Reliable, error) {
	return NewKeeping(ids, origin, report, Keeping{})
}

// NewKeeping is NewReliable with a half that keeps its reports.
func NewKeeping(ids Identities, origin fault.Origin, report fault.Report, keeping Keeping) (_ *Reliable, err error) {
	kept, err := NewKept(keeping, origin)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && kept != nil {
			err = errors.Join(err, kept.Close())
		}
	}()
	r, err := newReliable(ids, origin, report, kept, nil)
	if err != nil {
		return nil, err
	}
	if kept != nil {
		stop := r.stop
		r.stop = func() error { return errors.Join(stop(), kept.Close()) }
	}
	return r, nil
}

func newReliable(ids Identities, origin fault.Origin, report fault.Report, kept *Kept, selfTest *time.Duration) (*Reliable, error) {
	r := &Reliable{report: report, back: make(chan time.Time, 1<<16), waiting: map[uint64]*int{}}
	var err error
	r.replica, err = NewReplica(ReplicaConfig{ID: ReplicaName, Signer: ids.Supervisor, Verifier: ids.Verifier, Took: r.took})
	if err != nil {
		return nil, err
	}
	cfg := servicenet.DefaultOutboxConfig(fault.PathDirect)
	half := HalfConfig{
		Origin: origin, Epoch: 1, Outbox: cfg, Listen: []string{"127.0.0.1:0"},
		Supervisors: []map[string]netip.AddrPort{{ReplicaName: r.replica.Addr()}},
		Signer:      ids.Half, Verifier: ids.Verifier, Sealed: r.sealed, Heard: r.heard, Added: r.expect, SelfTest: selfTest,
	}
	if kept != nil {
		half.Keep = kept.Keep
	}
	r.half, err = NewHalf(half)
	if err != nil {
		return nil, errors.Join(err, r.replica.sock.Close())
	}
	r.stop = start(r.replica.Run, r.half.Run)
	if err := r.settle(); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// settle sends until the paths are in their final state.
func (r *Reliable) settle() error {
	for begun := time.Now(); r.half.table.Newest(ReplicaName) == nil; {
		if _, err := r.Once(); err != nil {
			return err
		}
		if time.Since(begun) > answerWithin {
			return fmt.Errorf("no session within %s", answerWithin)
		}
	}
	for range 100 {
		if _, err := r.Once(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reliable) sealed(at time.Time, _ *servicenet.Send) {
	r.datagrams.Add(1)
	r.mu.Lock()
	r.out = at
	r.mu.Unlock()
}

func (r *Reliable) took(t *Took) {
	r.mu.Lock()
	r.last.Receiver = t.Accepted.Sub(t.Arrived)
	r.mu.Unlock()
}

func (r *Reliable) heard(h *Heard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range h.Acks {
		if a.GetStatus() != lofamov1.Ack_RECEIVED {
			continue
		}
		for _, seq := range a.GetSeqs() {
			left, ok := r.waiting[seq]
			if !ok {
				continue // a repeated answer
			}
			delete(r.waiting, seq)
			if *left--; *left == 0 {
				r.back <- h.Done
			}
		}
	}
}

// expect waits for the answers to all parts of a report.
func (r *Reliable) expect(first, last fault.Seq) {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := int(last - first + 1)
	for seq := first; seq <= last; seq++ {
		r.waiting[uint64(seq)] = &left
	}
	r.added = uint64(last)
}

// Once implements Exchange.
func (r *Reliable) Once() (Sample, error) {
	begun := time.Now()
	r.half.Add(r.report)
	at, err := await(r.back)
	r.mu.Lock()
	s := r.last
	s.Sender, s.RoundTrip = r.out.Sub(begun), at.Sub(begun)
	r.mu.Unlock()
	return s, err
}

// Saturate implements Exchange; window counts reports.
func (r *Reliable) Saturate(d time.Duration, window int) (Flow, error) {
	var f Flow
	before := r.datagrams.Load()
	begun := time.Now()
	for inFlight := 0; inFlight > 0 || time.Since(begun) < d; {
		for ; inFlight < window && time.Since(begun) < d; inFlight++ {
			r.half.Add(r.report)
			f.Reports++
		}
		if _, err := await(r.back); err != nil {
			return f, err
		}
		inFlight--
		for more := true; more && inFlight > 0; {
			select {
			case <-r.back:
				inFlight--
			default:
				more = false
			}
		}
	}
	f.Took, f.Datagrams = time.Since(begun), r.datagrams.Load()-before
	return f, nil
}

// Close implements Exchange. It fails if anything was refused or could not be sealed on the way.
func (r *Reliable) Close() error { return r.stop() }

// Size returns how long a datagram with the report is, under a MAC or a signature as it comes, and its
// answer.
func (r *Reliable) Size(ids Identities) (report, answer int, err error) {
	rep := r.report
	rep.ID = fault.ReportID{Origin: r.half.cfg.Origin, Epoch: 1, Seq: 1000}
	var how, back servicenet.SealOptions
	back.Session = r.half.table.Newest(ReplicaName)
	var status *lofamov1.DeliveryStatus
	if rep.Digest {
		how.Session, status = back.Session, r.half.Status()
	}
	b, err := servicenet.SealReports([]fault.Report{rep}, status, ids.Half, how)
	if err != nil {
		return 0, 0, err
	}
	a, err := servicenet.SealWith(&lofamov1.Message{Acks: servicenet.NewAcks(lofamov1.Ack_RECEIVED, rep.ID)}, ids.Supervisor, back)
	return len(b), len(a), err
}

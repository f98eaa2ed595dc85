package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/servicenet/direct"
)

// Batches sends datagrams of so many reports each, under one signature, to a Replica; digests go under the MAC of a
// session. It has no outbox, because an outbox makes its own batches of all waiting reports.
type Batches struct {
	ids     Identities
	session *servicenet.SessionKey // nil: sign
	opens   servicenet.Verifier    // of answers
	replica *Replica
	sock    *direct.Socket
	stop    func() error
	reports []fault.Report // renumbered in each datagram
	back    chan time.Time
	seq     fault.Seq
}

// NewBatches connects them. With size 0 a datagram has as many reports as fit.
func NewBatches(ids Identities, origin fault.Origin, report fault.Report, size int) (*Batches, error) {
	b := &Batches{ids: ids, opens: ids.Verifier, back: make(chan time.Time, 1<<16)}
	if report.Digest {
		b.session = servicenet.NewSession(1, [32]byte{1})
		table := direct.NewSessions()
		table.Put(ReplicaName, servicenet.RoleSupervisor, b.session)
		b.opens = direct.WithSessions(ids.Verifier, table)
	}
	report.ID = fault.ReportID{Origin: origin, Epoch: 1}
	for n := 1; n == 1 || n <= size || size == 0; n++ {
		b.reports = append(b.reports, report)
		if _, err := b.seal(1 << 34); servicenet.RefusalOf(err) == servicenet.RefusedTooLong || n > servicenet.MaxReports {
			b.reports = b.reports[:n-1]
			break
		} else if err != nil {
			return nil, err
		}
	}
	if n := len(b.reports); n == 0 || n < size {
		return nil, fmt.Errorf("batch of %d reports: only %d fit into a datagram", size, n)
	}
	var err error
	if b.replica, err = NewReplica(ReplicaConfig{ID: ReplicaName, Signer: ids.Supervisor, Verifier: ids.Verifier}); err != nil {
		return nil, err
	}
	if b.session != nil {
		b.replica.Know(origin, b.session)
	}
	if b.sock, err = direct.Listen("127.0.0.1:0", direct.Options{}); err != nil {
		return nil, errors.Join(err, b.replica.sock.Close())
	}
	b.stop = start(b.replica.Run, func(ctx context.Context) error { return b.sock.Run(ctx, b.heard) })
	return b, nil
}

// Size returns the number of reports in a datagram.
func (b *Batches) Size() int { return len(b.reports) }

func (b *Batches) seal(first fault.Seq) ([]byte, error) {
	for i := range b.reports {
		b.reports[i].ID.Seq = first + fault.Seq(i)
	}
	return servicenet.SealReports(b.reports, nil, b.ids.Half, servicenet.SealOptions{Session: b.session})
}

func (b *Batches) heard(_ netip.AddrPort, d []byte) {
	if _, err := servicenet.Open(d, b.opens); err == nil {
		b.back <- time.Now()
	}
}

func (b *Batches) send() (int, error) {
	d, err := b.seal(b.seq + 1)
	if err != nil {
		return 0, err
	}
	b.seq += fault.Seq(len(b.reports))
	return len(d), b.sock.Send(b.replica.Addr(), d)
}

// Once implements Exchange.
func (b *Batches) Once() (Sample, error) {
	begun := time.Now()
	if _, err := b.send(); err != nil {
		return Sample{}, err
	}
	at, err := await(b.back)
	return Sample{RoundTrip: at.Sub(begun)}, err
}

// Saturate implements Exchange; window counts datagrams.
func (b *Batches) Saturate(d time.Duration, window int) (Flow, error) {
	var f Flow
	begun := time.Now()
	for inFlight := 0; inFlight > 0 || time.Since(begun) < d; {
		for ; inFlight < window && time.Since(begun) < d; inFlight++ {
			n, err := b.send()
			if err != nil {
				return f, err
			}
			f.Datagrams, f.Reports, f.Bytes = f.Datagrams+1, f.Reports+uint64(len(b.reports)), f.Bytes+uint64(n)
		}
		if _, err := await(b.back); err != nil {
			return f, err
		}
		inFlight--
	}
	f.Took = time.Since(begun)
	return f, nil
}

// Close implements Exchange. It fails if anything was refused on the way.
func (b *Batches) Close() error { return b.stop() }

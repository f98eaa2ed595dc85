package measure

import (
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

var half = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}

func sick(digest bool) fault.Report {
	return fault.Report{Digest: digest, Observations: []fault.Observation{
		{Node: half.Node, Component: fault.ComponentTemperature, State: fault.Sick, Kind: fault.KindSelf},
	}}
}

func identities(t *testing.T) Identities {
	t.Helper()
	ids, err := NewIdentities(half, ReplicaName)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestMeasurementStoresTheSelectedState: the selected state is stored during the measurement, and no error goes unseen.
func TestMeasurementStoresTheSelectedState(t *testing.T) {
	ids := identities(t)
	for _, k := range []Keeping{{Spool: true}, {Copy: true}, {Spool: true, Copy: true}} {
		r, err := NewKeeping(ids, half, sick(false), k)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if s, err := r.Once(); err != nil || s.Sender <= 0 {
				t.Errorf("%+v, %v", s, err)
			}
		}
		if _, err := r.Saturate(10*time.Millisecond, 8); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMeasuredTrafficIsSignedAndAcceptedOnce: the measured traffic is as described: digests under a MAC, reports
// signed, each accepted once.
func TestMeasuredTrafficIsSignedAndAcceptedOnce(t *testing.T) {
	ids := identities(t)
	for name, digest := range map[string]bool{"digest": true, "report": false} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReliable(ids, half, sick(digest))
			if err != nil {
				t.Fatal(err)
			}
			if r.half.table.Newest(ReplicaName) == nil {
				t.Error("there is no session")
			}
			s, err := r.Once()
			if err != nil || s.Sender <= 0 || s.Receiver <= 0 || s.Added() > s.RoundTrip {
				t.Errorf("%+v, %v: want both parts, and no more than the round trip", s, err)
			}
			f, err := r.Saturate(10*time.Millisecond, 8)
			if err != nil || f.Reports == 0 || f.Datagrams == 0 || f.PerSecond(f.Reports) <= 0 {
				t.Errorf("%+v, %v", f, err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			if got := r.replica.Fresh(); got != r.added {
				t.Errorf("%d of %d reports were taken", got, r.added)
			}
			size, _, err := r.Size(ids)
			if signed := size > len(ids.Half.Cert()); err != nil || signed == digest {
				t.Errorf("datagrams of %d bytes, %v: signed %t, want %t", size, err, signed, !digest)
			}
		})
	}
}

func TestEcho(t *testing.T) {
	for name, rail := range map[string]bool{"plain": false, "rail": true} {
		t.Run(name, func(t *testing.T) {
			e, err := NewEcho(rail, 100, 50)
			if err != nil {
				t.Fatal(err)
			}
			if s, err := e.Once(); err != nil || s.RoundTrip <= 0 || s.Added() != 0 {
				t.Errorf("%+v, %v", s, err)
			}
			if f, err := e.Saturate(10*time.Millisecond, 8); err != nil || f.Bytes != 100*f.Datagrams || f.Datagrams == 0 {
				t.Errorf("%+v, %v", f, err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBatches(t *testing.T) {
	ids := identities(t)
	for _, size := range []int{1, 8, 0} {
		b, err := NewBatches(ids, half, sick(false), size)
		if err != nil {
			t.Fatal(err)
		}
		if n := b.Size(); n != size && size > 0 || n < 8 && size == 0 {
			t.Errorf("batches of %d: given %d", n, size)
		}
		if _, err := b.Once(); err != nil {
			t.Error(err)
		}
		f, err := b.Saturate(10*time.Millisecond, 4)
		if err != nil || f.Reports != f.Datagrams*uint64(b.Size()) {
			t.Errorf("%+v, %v", f, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if got, want := b.replica.Fresh(), f.Reports+uint64(b.Size()); got != want {
			t.Errorf("%d of %d reports were taken", got, want)
		}
	}
	if _, err := NewBatches(ids, half, sick(false), servicenet.MaxReports+1); err == nil {
		t.Error("a batch larger than a datagram was made")
	}
}

func TestReadTouchesEverything(t *testing.T) {
	b := make([]byte, 256)
	for i := range b {
		b[i] = 1
		if read(b) == 0 {
			t.Fatalf("byte %d is not read", i)
		}
		b[i] = 0
	}
}

func TestFold(t *testing.T) {
	f := Fold(lofamov1.Checksum_CHECKSUM_CRC32C, 4096, 100*time.Microsecond, 3)
	if f.Copy <= 0 || f.TwoPasses <= 0 || f.Folded <= 0 {
		t.Errorf("%+v", f)
	}
}

// TestReportOfSeveralPartsIsAnsweredOnce: the outbox splits a long report, and the exchange ends with the answer to the last of its parts.
func TestReportOfSeveralPartsIsAnsweredOnce(t *testing.T) {
	ids := identities(t)
	long := fault.Report{Uptime: time.Hour}
	for i := range 12 {
		long.Observations = append(long.Observations, fault.Observation{Node: half.Node, Component: fault.Component(1 + i), State: fault.Sick,
			Kind: fault.KindSelf, Detail: strings.Repeat("d", 40)})
	}
	r, err := NewReliable(ids, half, long)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Once(); err != nil {
		t.Error(err)
	}
	if f, err := r.Saturate(10*time.Millisecond, 8); err != nil || f.Reports == 0 {
		t.Errorf("%+v, %v", f, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if parts := r.replica.Fresh(); parts != r.added || len(r.back)+len(r.waiting) > 0 {
		t.Errorf("%d of %d parts were taken, %d without an answer, %d answers more than reports", parts, r.added, len(r.waiting), len(r.back))
	}
}

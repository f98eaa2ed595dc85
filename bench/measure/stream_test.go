package measure

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/deadline"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// sender streams to a replica of this process.
func sender(t *testing.T) *Sender {
	t.Helper()
	ids := identities(t)
	r, err := NewReplica(ReplicaConfig{ID: ReplicaName, Signer: ids.Supervisor, Verifier: ids.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	box := servicenet.DefaultOutboxConfig(fault.PathDirect)
	box.CommitTimeout = 50 * time.Millisecond // a repetition requests the last COMMITTED
	s := NewSender(box.Interfaces)
	h, err := NewHalf(HalfConfig{
		Origin: half, Epoch: 7, Outbox: box, Listen: []string{"127.0.0.1:0"}, Supervisors: []map[string]netip.AddrPort{{ReplicaName: r.Addr()}},
		Signer: ids.Half, Verifier: ids.Verifier, Heard: s.Heard,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.SetHalf(h)
	stop := start(r.Run, h.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStream(t *testing.T) {
	s := sender(t)
	for _, plan := range []StreamPlan{{Reports: 20, Rate: 1000}, {Reports: 700}} {
		first := s.Last() + 1
		st, err := s.Run(t.Context(), plan)
		if err != nil {
			t.Fatal(err)
		}
		n := plan.Reports
		if len(st.Added) != n || len(st.Received) != n || len(st.Committed) != n || len(st.ToReceived) != n || len(st.ToCommitted) != n {
			t.Errorf("%+v: %d added, %d received, %d committed: want %d", plan, len(st.Added), len(st.Received), len(st.Committed), n)
		}
		if got := s.Last() - first + 1; got != uint64(n) || st.Rate() <= 0 || st.CutAt != 0 {
			t.Errorf("%+v: %d numbers, %g/s, cut at %s", plan, got, st.Rate(), st.CutAt)
		}
	}
}

// TestStreamWithoutAWay: with its only path cut a stream does not end, and says how much is missing.
func TestStreamWithoutAWay(t *testing.T) {
	s := sender(t)
	if _, err := s.Run(t.Context(), StreamPlan{Reports: 5, Rate: 1000}); err != nil {
		t.Fatal(err)
	}
	last, before := s.Last(), s.half.Socket(0).Stats().Blocked
	ctx := deadline.When(t, func() bool { return s.Last() == last+20 && s.half.Socket(0).Stats().Blocked > before })
	st, err := s.Run(ctx, StreamPlan{Reports: 20, Rate: 1000, Cut: 10})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "of 20 reports not committed") {
		t.Fatalf("error %v", err)
	}
	if st.CutAt == 0 || st.DatagramsWhileCut != 0 || st.BlockedWhileCut == 0 || !strings.HasSuffix(st.Cut, ">"+ReplicaName) {
		t.Errorf("cut %q at %s: passed %d datagrams, dropped %d", st.Cut, st.CutAt, st.DatagramsWhileCut, st.BlockedWhileCut)
	}
}

func TestStreamCutsOnlyWhatItKnows(t *testing.T) {
	s := sender(t)
	s.interfaces = []string{"another"}
	if _, err := s.Run(t.Context(), StreamPlan{Reports: 5, Rate: 1000, Cut: 1}); err == nil ||
		!strings.Contains(err.Error(), `want one of the interfaces ["another"]`) {
		t.Errorf("error %v", err)
	}
}

func TestOnce(t *testing.T) {
	for _, tc := range []struct {
		name           string
		noted          []uint64
		missing, twice int
	}{
		{"each once", []uint64{5, 3, 4}, 0, 0},
		{"lost", []uint64{3, 5}, 1, 0},
		{"twice", []uint64{3, 4, 5, 4}, 0, 1},
		{"three times is one too", []uint64{3, 4, 5, 4, 4}, 0, 1},
		{"nothing came", nil, 3, 0},
	} {
		if missing, twice := Once(3, 5, tc.noted); missing != tc.missing || twice != tc.twice {
			t.Errorf("%s: %d missing, %d twice: want %d, %d", tc.name, missing, twice, tc.missing, tc.twice)
		}
	}
}

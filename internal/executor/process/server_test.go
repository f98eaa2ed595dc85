package process

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// stubborn simulates an act that ignores its cancellation: it reports its start and its cancellation, and ends when
// released.
type stubborn struct {
	begun, told chan int // attempts
	let         chan struct{}
}

func (x *stubborn) Do(ctx context.Context, j executor.Job) executor.Result {
	x.begun <- j.Attempt.Attempt
	<-ctx.Done()
	x.told <- j.Attempt.Attempt
	<-x.let
	return executor.NotKnown("it was ended")
}

// next waits for the next value.
func next[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(time.Minute):
		t.Fatalf("%s: nothing came", what)
		panic("not reached")
	}
}

// serverOf returns a server for commands with a new ledger.
func serverOf(t *testing.T, x executor.Executor) *server {
	t.Helper()
	dir := t.TempDir()
	if _, err := Init(dir, "c", false, time.Now()); err != nil {
		t.Fatal(err)
	}
	d, _, err := open(dir, "c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return newServer("c", map[response.Kind]executor.Executor{response.Command: x}, 4, d,
		NewMetrics(prometheus.NewRegistry(), nil, Standing{}), slog.New(slog.DiscardHandler))
}

// TestOutcomeIsOnDiskBeforeAnswer: the process does not answer that an attempt never came until its refusal is on the disk.
func TestOutcomeIsOnDiskBeforeAnswer(t *testing.T) {
	s := serverOf(t, nil)
	if err := s.durable.close(); err != nil { // from now on nothing can be written
		t.Fatal(err)
	}
	for range 2 {
		r, err := s.Settle(t.Context(), &lofamov1.ExecutorSettleRequest{Attempt: &lofamov1.ExecutorAttempt{Response: "r", Attempt: 1, Token: 5}})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%v, %v: want %s", r, err, codes.Unavailable)
		}
	}
}

// TestFullLedgerKnowsNoOutcome: a full ledger cannot record that an attempt is refused from now on, so its outcome is not known. It still
// records the token, and the outcomes of known steps.
func TestFullLedgerKnowsNoOutcome(t *testing.T) {
	s := serverOf(t, nil)
	s.durable.change(func(l *ledger) bool {
		for i := range maxEntries {
			l.admit(s.now(), effect(5, fmt.Sprint(i), 0, 1))
		}
		return true
	})
	settle := func(id string, attempt uint32, want lofamov1.ExecutorOutcome) {
		t.Helper()
		r, err := s.Settle(t.Context(), &lofamov1.ExecutorSettleRequest{
			Attempt: &lofamov1.ExecutorAttempt{Response: id, Attempt: attempt, Token: 6}})
		if err != nil || r.GetOutcome() != want {
			t.Errorf("attempt %d of %s: %v, %v: want %s", attempt, id, r, err, want)
		}
	}
	settle("new", 1, lofamov1.ExecutorOutcome_NOT_KNOWN)
	settle("7", 2, lofamov1.ExecutorOutcome_UNCHANGED)
	settle("new", 1, lofamov1.ExecutorOutcome_NOT_KNOWN)
	if n, token := s.durable.remembered(), s.durable.token(); n != maxEntries || token != 6 {
		t.Errorf("%d attempts, token %d: want %d, 6", n, token, maxEntries)
	}
}

// TestHangingAttemptBlocksItsStep: while one attempt hangs, no other at its step begins, even after those in between have given up waiting.
// Cancelling the newest one, the only one that its leader can name, ends the hanging one.
func TestHangingAttemptBlocksItsStep(t *testing.T) {
	x := &stubborn{make(chan int, 8), make(chan int, 8), make(chan struct{})}
	s := serverOf(t, x)
	attempt := func(n uint32) *lofamov1.ExecutorAttempt {
		return &lofamov1.ExecutorAttempt{Response: "r", Attempt: n, Token: 5}
	}
	do := func(n uint32, timeout time.Duration) <-chan *lofamov1.ExecutorDoResponse {
		got := make(chan *lofamov1.ExecutorDoResponse, 1)
		go func() {
			r, err := s.Do(t.Context(), &lofamov1.ExecutorDoRequest{
				Attempt: attempt(n), IdempotencyKey: "r/0", Kind: string(response.Command), Cluster: "c", TimeoutMs: uint64(timeout.Milliseconds()),
				Target: &lofamov1.ExecutorTarget{Node: "n1", Component: "host"},
			})
			if err != nil {
				t.Errorf("attempt %d: %v", n, err)
			}
			got <- r
		}()
		return got
	}
	first := do(1, time.Hour)
	if n := next(t, x.begun, "the first"); n != 1 {
		t.Fatalf("attempt %d has begun", n)
	}
	for n := uint32(2); n < 5; n++ {
		if r := next(t, do(n, 20*time.Millisecond), "one that waits"); r.GetOutcome() != lofamov1.ExecutorOutcome_UNCHANGED {
			t.Errorf("attempt %d, while the first hangs: %v", n, r)
		}
	}
	for _, begun := range []chan int{x.begun, x.told} {
		select {
		case n := <-begun:
			t.Errorf("attempt %d acts, or was told to end, while the first hangs", n)
		default:
		}
	}
	if r, err := s.Settle(t.Context(), &lofamov1.ExecutorSettleRequest{Attempt: attempt(4), Stop: true}); err != nil ||
		r.GetOutcome() != lofamov1.ExecutorOutcome_UNCHANGED {
		t.Errorf("the fourth: %v, %v", r, err)
	}
	if n := next(t, x.told, "the end of the first"); n != 1 {
		t.Errorf("attempt %d was told to end", n)
	}
	fifth := do(5, time.Hour)
	close(x.let)
	if n := next(t, x.begun, "the fifth"); n != 5 {
		t.Errorf("attempt %d has begun, want the fifth", n)
	}
	if r := next(t, first, "the first"); r.GetOutcome() != lofamov1.ExecutorOutcome_NOT_KNOWN {
		t.Errorf("the first: %v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // ends the attempts in progress
	if err := s.close(ctx); err != nil {
		t.Error(err)
	}
	next(t, fifth, "the fifth")
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.runs) != 0 {
		t.Errorf("%d attempts are held still", len(s.runs))
	}
}

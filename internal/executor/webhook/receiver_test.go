package webhook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lofamo/lofamo/examples/remediator/receiver"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// contextThat returns a context that is cancelled once so returns true.
func contextThat(t *testing.T, so func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for ctx.Err() == nil && !so() {
			time.Sleep(time.Millisecond)
		}
	}()
	return ctx, cancel
}

func clientCertificate(t *testing.T, write func(name, kind string, der []byte) string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return write("cert", "CERTIFICATE", der), write("key", "PRIVATE KEY", kder)
}

// deeds records the effects of a receiver by key.
type deeds struct {
	mu      sync.Mutex
	outcome string // outcome of the next effects
	hold    chan struct{}
	did     map[string]int // by action and key
	begun   atomic.Bool
}

func (d *deeds) remediate(_ context.Context, m receiver.Message) (string, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun.Store(true)
	if d.hold != nil {
		<-d.hold
	}
	d.did[m.Action+" "+m.IdempotencyKey]++
	return d.outcome, "by a test"
}

func (d *deeds) set(outcome string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outcome = outcome
}

func (d *deeds) count(what string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.did[what]
}

// receiving starts the example's receiver. hide, if not nil, wraps its handler.
func receiving(t *testing.T, file string, d *deeds, hide func(http.Handler) http.Handler) *httptest.Server {
	t.Helper()
	r, err := receiver.New(file, [][]byte{secretOf(t, secretText)}, d.remediate, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = r
	if hide != nil {
		h = hide(r)
	}
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.Close(); r.Wait() })
	return s
}

const (
	doKey   = "do test/r5-1/2"
	undoKey = "undo test/r5-1/2/undo"
)

// TestExampleReceiverFollowsContract: the example follows the contract, even across restarts.
func TestExampleReceiverFollowsContract(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	d := &deeds{outcome: receiver.Unchanged, did: map[string]int{}}
	var s *httptest.Server
	// Each line uses a new supervisor without memory, and every second line a new receiver.
	lines := []struct {
		outcome    string
		job        executor.Job
		want       response.Outcome
		dos, undos int
	}{
		{receiver.Unchanged, jobOf(response.WebhookRemediate, 1), response.Unchanged, 1, 0},
		{receiver.Done, jobOf(response.WebhookRemediate, 2), response.Succeeded, 2, 0},
		{receiver.Done, jobOf(response.WebhookRemediate, 2), response.Succeeded, 2, 0}, // repeated
		{receiver.Done, jobOf(response.WebhookRemediate, 3, recheck), response.Succeeded, 2, 0},
		{receiver.Done, jobOf(response.WebhookRemediate, 4), response.Succeeded, 2, 0}, // without a recheck
		{receiver.Done, jobOf(response.WebhookRemediate, 1), response.StaleToken, 2, 0},
		{receiver.Done, jobOf(response.WebhookRemediate, 5, token(4)), response.StaleToken, 2, 0},
		{receiver.Unchanged, jobOf(response.WebhookRemediate, 6, undo, token(7)), response.Unchanged, 2, 1},
		{receiver.Done, jobOf(response.WebhookRemediate, 7, undo), response.StaleToken, 2, 1}, // from an earlier leader
		{receiver.Done, jobOf(response.WebhookRemediate, 7, undo, recheck, token(7)), response.Succeeded, 2, 2},
		{receiver.Done, jobOf(response.WebhookRemediate, 8, undo, recheck, token(7)), response.Succeeded, 2, 2},
		{receiver.Done, jobOf(response.WebhookRemediate, 9, undo, token(7)), response.Succeeded, 2, 2}, // nothing is left to undo
		{receiver.Done, jobOf(response.WebhookRemediate, 5, token(7)), response.StaleToken, 2, 2},      // late
		{receiver.Partly, jobOf(response.WebhookRemediate, 10, token(7)), response.Partly, 3, 2},       // a person has restarted it
		{receiver.Unchanged, jobOf(response.WebhookRemediate, 11, recheck, token(7)), response.Partly, 4, 2},
		{receiver.Unknown, jobOf(response.WebhookRemediate, 12, recheck, token(7)), response.NotKnown, 5, 2},
		{receiver.Done, jobOf(response.WebhookRemediate, 13, recheck, token(7)), response.NotKnown, 5, 2},
		{receiver.Done, jobOf(response.WebhookRemediate, 14, undo, recheck, token(7)), response.Succeeded, 5, 3},
	}
	for i, l := range lines {
		if i%2 == 0 {
			s = receiving(t, file, d, nil)
		}
		d.set(l.outcome)
		got := newExecutor(t, targetAt(t, s.URL)).Do(t.Context(), l.job)
		if got.Outcome != l.want || d.count(doKey) != l.dos || d.count(undoKey) != l.undos {
			t.Fatalf("line %d: %+v after %v, want outcome %d, %d and %d", i, got, d.did, l.want, l.dos, l.undos)
		}
	}
}

// TestUndoWithoutActIsUnchanged: an action that never happened is not undone, and a late message does not start it afterwards.
func TestUndoWithoutActIsUnchanged(t *testing.T) {
	d := &deeds{outcome: receiver.Done, did: map[string]int{}}
	s := receiving(t, filepath.Join(t.TempDir(), "state.json"), d, nil)
	if got := newExecutor(t, targetAt(t, s.URL)).Do(t.Context(),
		jobOf(response.WebhookRemediate, 2, undo)); got.Outcome != response.Succeeded {
		t.Errorf("%+v", got)
	}
	if got := newExecutor(t, targetAt(t, s.URL)).Do(t.Context(), jobOf(response.WebhookRemediate, 1)); got.Outcome != response.StaleToken {
		t.Errorf("%+v", got)
	}
	if len(d.did) != 0 {
		t.Errorf("%v", d.did)
	}
}

// TestSlowActionIsPolledUntilDone: the executor polls a slow action until it is done. If the receiver dies meanwhile, the outcome is
// NotKnown, and the action is not repeated.
func TestSlowActionIsPolledUntilDone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	d := &deeds{outcome: receiver.Done, did: map[string]int{}, hold: make(chan struct{})}
	asked := make(chan struct{}, 1000)
	s := receiving(t, file, d, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			asked <- struct{}{}
		})
	})
	w := targetAt(t, s.URL)
	ctx, cancel := contextThat(t, d.begun.Load)
	defer cancel()
	got := newExecutor(t, w).Do(ctx, jobOf(response.WebhookRemediate, 1))
	if got.Outcome != response.NotKnown {
		t.Errorf("no time to wait for it: %+v", got)
	}
	// Simulates a restart of the receiver: a second one with the state on disk.
	other := &deeds{outcome: receiver.Done, did: map[string]int{}}
	copied := filepath.Join(t.TempDir(), "copy.json")
	copyFile(t, file, copied)
	after := receiving(t, copied, other, nil)
	if got := newExecutor(t, targetAt(t, after.URL)).Do(t.Context(),
		jobOf(response.WebhookRemediate, 2, recheck)); got.Outcome != response.NotKnown || len(other.did) != 0 {
		t.Errorf("the receiver has died: %+v, %v", got, other.did)
	}
	for len(asked) > 0 {
		<-asked
	}
	done := make(chan executor.Result, 1)
	x := newExecutor(t, w)
	go func() { done <- x.Do(t.Context(), jobOf(response.WebhookRemediate, 2, recheck)) }()
	for range 2 {
		<-asked
	}
	close(d.hold)
	if got := <-done; got.Outcome != response.Succeeded || d.count(doKey) != 1 {
		t.Errorf("%+v after %v", got, d.did)
	}
}

// TestLossyNetworkDoublesNoEffect: the network cuts every other connection, before the receiver has read the message or before its answer
// leaves. Every effect that is reported as done has happened once; none happens twice.
func TestLossyNetworkDoublesNoEffect(t *testing.T) {
	d := &deeds{outcome: receiver.Done, did: map[string]int{}}
	var mu sync.Mutex
	r := mathrand.New(mathrand.NewPCG(1, 2))
	s := receiving(t, filepath.Join(t.TempDir(), "state.json"), d, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			mu.Lock()
			fate := r.IntN(4)
			mu.Unlock()
			if fate == 0 {
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, req)
			if fate == 1 {
				panic(http.ErrAbortHandler) // the answer is still in the buffer
			}
		})
	})
	w := targetAt(t, s.URL)
	for i := range 25 {
		j := jobOf(response.WebhookRemediate, 1, token(uint64(5+i)), func(j *executor.Job) {
			j.Response = "r" + string(rune('A'+i))
			j.IdempotencyKey = j.Response + "/2"
		})
		x := newExecutor(t, w)
		x.hurry = 1000
		for got := x.Do(t.Context(), j); got.Outcome != response.Succeeded; got = x.Do(t.Context(), j) {
			if got.Outcome != response.NotKnown {
				t.Fatalf("%s: %+v", j.Response, got)
			}
			j.Attempt.Attempt, j.Recheck = j.Attempt.Attempt+1, true
		}
		if n := d.count("do test/" + j.IdempotencyKey); n != 1 {
			t.Errorf("%s was done %d times", j.Response, n)
		}
	}
}

//go:build lofamo_failpoint

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/lofamo/lofamo/examples/remediator/receiver"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/pkg/response"
)

// order is the task of a separate process.
type order struct {
	Target config.WebhookTarget
	Job    executor.Job
	Point  failpoint.Point // where the process is killed
}

const orderEnv = "LOFAMO_TEST_ORDER"

// TestMain is also the main function of the process that is killed.
func TestMain(m *testing.M) {
	text := os.Getenv(orderEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var o order
	err := json.Unmarshal([]byte(text), &o)
	x, err2 := New("test", &Config{Targets: []config.WebhookTarget{o.Target}})
	if err := errors.Join(err, err2, failpoint.Arm(failpoint.Order{Point: o.Point, Action: "crash"})); err != nil {
		panic(err)
	}
	x.hurry = 100
	x.Do(context.Background(), o.Job)
	os.Exit(0)
}

// TestKilled: a supervisor is killed at each of its steps, in the first attempt, in a recheck and in an undo. The next
// supervisor completes the action, and every effect happens once.
func TestKilled(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range failpoint.CallPoints() {
		d := &deeds{outcome: receiver.Done, did: map[string]int{}}
		s := receiving(t, filepath.Join(t.TempDir(), "state.json"), d, nil)
		w := targetAt(t, s.URL)
		attempt, tok, killed := 0, uint64(4), 0
		dies := func(change ...func(*executor.Job)) {
			t.Helper()
			attempt, tok = attempt+1, tok+1
			b, err := json.Marshal(order{w, jobOf(response.WebhookRemediate, attempt, append(change, token(tok))...), p})
			if err != nil {
				t.Fatal(err)
			}
			c := exec.CommandContext(t.Context(), self)
			c.Env = append(os.Environ(), orderEnv+"="+string(b))
			out, err := c.CombinedOutput()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
				killed++
			} else if err != nil {
				t.Fatalf("%s: %v: %s", p, err, out)
			}
		}
		ends := func(change ...func(*executor.Job)) {
			t.Helper()
			attempt, tok = attempt+1, tok+1
			if got := newExecutor(t, w).Do(t.Context(), jobOf(response.WebhookRemediate, attempt,
				append(change, token(tok))...)); got.Outcome != response.Succeeded {
				t.Errorf("%s: %+v", p, got)
			}
		}
		dies()
		dies(recheck)
		ends(recheck)
		if n := d.count(doKey); n != 1 {
			t.Errorf("killed at %s: done %d times", p, n)
		}
		dies(undo)
		dies(undo, recheck)
		ends(undo, recheck)
		if n := d.count(undoKey); n != 1 {
			t.Errorf("killed at %s: undone %d times", p, n)
		}
		// Not every attempt passes every point: a recheck that finds the effect does not act.
		if killed < 2 {
			t.Errorf("%s: killed %d times only", p, killed)
		}
	}
}

// TestPaused: a supervisor is paused at each of its steps and continues after another leader has ended the action. It
// changes nothing.
func TestPaused(t *testing.T) {
	g, err := failpoint.NewGate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	for _, p := range failpoint.CallPoints() {
		if p == failpoint.CallLooked || p == failpoint.CallEnded {
			continue // a first attempt does not recheck, and at its end there is nothing left to do
		}
		d := &deeds{outcome: receiver.Done, did: map[string]int{}}
		s := receiving(t, filepath.Join(t.TempDir(), "state.json"), d, nil)
		w := targetAt(t, s.URL)
		if err := failpoint.Arm(g.Order(p, 0)); err != nil {
			t.Fatal(err)
		}
		paused := make(chan executor.Result, 1)
		first := newExecutor(t, w)
		go func() { paused <- first.Do(t.Context(), jobOf(response.WebhookRemediate, 1)) }()
		_, goOn, err := g.Reached(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if got := newExecutor(t, w).Do(t.Context(), jobOf(response.WebhookRemediate, 2, recheck, token(6))); got.Outcome != response.Succeeded {
			t.Errorf("%s: %+v", p, got)
		}
		goOn()
		if got := <-paused; got.Outcome != response.StaleToken && got.Outcome != response.Succeeded {
			t.Errorf("paused at %s: %+v", p, got)
		}
		if n := d.count(doKey); n != 1 {
			t.Errorf("paused at %s: done %d times", p, n)
		}
	}
}

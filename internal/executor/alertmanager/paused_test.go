//go:build lofamo_failpoint

package alertmanager

import (
	"context"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/failpoint"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestPaused measures how long a stale alert fires, since Alertmanager has no tokens to refuse it by. A supervisor
// pauses right before it sends an alert, another supervisor ends that alert, and the first one continues before it
// notices its lost leadership. The alert then fires until the other repeats its end, which it does for Hold.
func TestPaused(t *testing.T) {
	m := start(t, freeport.Addr(t).String())
	const resend = 5 * time.Second // long enough to see the alert fire before its end is repeated
	cfg := Config{URLs: []string{"http://" + m.addr}, Resend: config.Duration(resend), Hold: config.Duration(time.Minute)}
	first, _ := run(t, cfg, func(context.Context, ...response.Kind) ([]executor.Job, bool, error) { return nil, false, nil })
	next, _ := run(t, cfg, nil)
	g, err := failpoint.NewGate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	if err := failpoint.Arm(g.Order(failpoint.CallSending, 0)); err != nil {
		t.Fatal(err)
	}
	ctx, lost := context.WithCancel(t.Context())
	defer lost()
	paused := make(chan executor.Result, 1)
	go func() { paused <- first.Do(ctx, jobOf("n1", 1)) }()
	_, goOn, err := g.Reached(bound)
	if err != nil {
		t.Fatal(err)
	}
	do(t, next, jobOf("n1", 2, undo, recheck, func(j *executor.Job) { j.Token = 6 }))
	goOn()
	if r := <-paused; r.Outcome != response.Succeeded {
		t.Fatalf("%+v", r)
	}
	lost()
	sent := time.Now()
	if len(m.firing()) != 1 {
		t.Fatal("it does not fire: there is nothing to measure")
	}
	m.waitFor("its end", func() bool { return len(m.firing()) == 0 })
	window := time.Since(sent)
	t.Logf("an alert of a supervisor that leads no longer fired for %s; resend is %s", window, resend)
	if window > resend+30*time.Second { // plus the delay of a busy machine
		t.Errorf("it fired for %s, want %s at most", window, resend)
	}
}

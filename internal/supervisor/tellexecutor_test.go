package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
)

// TestExecutorGetsDenyListAgain: a process that was replaced since it got the list, or that did not answer, gets the list
// within a minute.
func TestExecutorGetsDenyListAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Supervisor{site: site{logger: slog.New(slog.DiscardHandler)}}
		s.trust.registry = pki.NewRegistry()
		s.trust.list = pki.DenyList{DenyList: &lofamov1.DenyList{Version: 1}, Raw: []byte("list")}
		var told atomic.Int32
		var lost atomic.Bool
		ctx, cancel := context.WithCancel(t.Context())
		go s.tellExecutor(ctx, func(_ context.Context, signed []byte) error {
			if string(signed) != "list" {
				t.Errorf("told %q", signed)
			}
			told.Add(1)
			if lost.Load() {
				return errors.New("no answer")
			}
			return nil
		})
		synctest.Wait()
		if n := told.Load(); n != 1 {
			t.Fatalf("told %d times at first: want once", n)
		}
		time.Sleep(time.Minute) // of the test's own clock
		synctest.Wait()
		if n := told.Load(); n != 2 {
			t.Errorf("told %d times within a minute: want twice", n)
		}
		lost.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		lost.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := told.Load(); n != 4 {
			t.Errorf("told %d times when one was lost: want 4", n)
		}
		cancel()
		synctest.Wait()
	})
}

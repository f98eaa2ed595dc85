package host

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
)

// TestEndingHalfAnswersWaitingDaemon: a daemon waits for the commit of a notice while the host half ends. The half answers at once that it
// ends. If it waited for the commit, the server would use up its time for last answers, and meanwhile the half would look dead to its DNP
// half.
func TestEndingHalfAnswersWaitingDaemon(t *testing.T) {
	dir := agenttest.Dir(t)
	ctx, end := context.WithCancel(t.Context())
	asked := make(chan bool)
	handler := local.StatusHandler(nil, untilEnd(ctx, func(ctx context.Context, _ fault.RestartNotice) error {
		asked <- true
		<-ctx.Done() // never committed
		return ctx.Err()
	}), nil)
	l, err := half.ListenUnix(ctx, filepath.Join(dir, local.StatusSocket))
	if err != nil {
		t.Fatal(err)
	}
	served, answered := make(chan error, 1), make(chan error, 1)
	go func() { served <- half.Serve(ctx, l, handler) }()
	go func() {
		answered <- local.AnnounceRestart(t.Context(), dir, fault.RestartNotice{Half: fault.HalfDNP, Within: fault.MaxRestart})
	}()
	<-asked
	end()
	if err := <-answered; !errors.Is(err, local.ErrNotRunning) || !strings.Contains(err.Error(), "410") {
		t.Errorf("%v: want the answer that the half is not running", err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

package daemon

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
)

// On a loaded machine the disk may delay each of several histories that follow one another. That is one line in the log.
func TestSlowDiskIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	d := &daemon{log: slog.New(slog.NewTextHandler(&log, nil)), cfg: RunConfig{Agent: config.Agent{StateDir: t.TempDir()}}}
	c := newChild(d, fault.HalfHost)
	answer := make(chan struct{})
	c.history = durable.NewNewest(func(halfcore.RecoveryHistory) { <-answer })
	for range 3 {
		c.keepHistory(halfcore.RecoveryHistory{}, false)
	}
	close(answer)
	if n := strings.Count(log.String(), "history of restarts not kept yet"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}

package host

import (
	"log/slog"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
)

// TestRefusedSettingIsWarnedOfOnce: attempts without effect become rarer, and the log says so once.
func TestRefusedSettingIsWarnedOfOnce(t *testing.T) {
	var s settingTries
	now, differ := time.Unix(1000, 0), []half.Setting{{Addr: watchdog.AddrMaxHops, Value: 9}}
	for i, want := range []struct {
		wait  time.Duration
		level slog.Level
	}{
		{5 * time.Second, slog.LevelInfo}, {10 * time.Second, slog.LevelDebug}, {20 * time.Second, slog.LevelWarn},
		{40 * time.Second, slog.LevelDebug}, {time.Minute, slog.LevelDebug}, {time.Minute, slog.LevelDebug},
	} {
		level, _ := s.sent(now, differ)
		if got := s.next.Sub(now); got != want.wait || level != want.level {
			t.Errorf("attempt %d: the next in %s, level %s: want %s, %s", i+1, got, level, want.wait, want.level)
		}
		if refused := s.refused(); (len(refused) == 1) != (i+1 >= settingRefused) {
			t.Errorf("attempt %d: refused %v", i+1, refused)
		}
		now = s.next
	}
	level, _ := s.sent(now, []half.Setting{{Addr: watchdog.AddrMaxHops, Value: 8}})
	if level != slog.LevelInfo || s.next.Sub(now) != 5*time.Second {
		t.Errorf("another value: level %s, the next in %s", level, s.next.Sub(now))
	}
}

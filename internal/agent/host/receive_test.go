package host

import (
	"log/slog"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// TestNoticesThroughWindowAreLimited: each notice becomes a report that the supervisors commit, so a DNP half's kernel that varies its
// notices gets only a few through. A repeated notice counts once, and an ordinary restart with its end passes.
func TestNoticesThroughWindowAreLimited(t *testing.T) {
	var w windowNotices
	log, now, taken := slog.New(slog.DiscardHandler), time.Unix(1_800_000_000, 0), 0
	for i := range 100 { // 10 s
		if w.take(log, now, fault.RestartNotice{Half: fault.HalfDNP, Within: time.Duration(i+1) * time.Millisecond}) {
			taken++
		}
		now = now.Add(100 * time.Millisecond)
	}
	if most := noticeBurst + 10*noticeRate; taken < noticeBurst || taken > most {
		t.Errorf("%d of 100 taken: want %d to %d", taken, noticeBurst, most)
	}
	now = now.Add(10 * time.Second)
	for _, within := range []time.Duration{20 * time.Second, 0, 20 * time.Second, 0} {
		for again := range 3 {
			if got := w.take(log, now, fault.RestartNotice{Half: fault.HalfDNP, Within: within}); got != (again == 0) {
				t.Errorf("notice for %s, time %d: taken %t", within, again+1, got)
			}
			now = now.Add(100 * time.Millisecond)
		}
	}
}

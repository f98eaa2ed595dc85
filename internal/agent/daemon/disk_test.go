package daemon

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
)

// A disk that hangs delays the loop once. Then the newest history is written, and the loop waits again.
func TestHungDiskDelaysHistoryOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs, written := make(chan struct{}), []int{}
		w := &historyWriter{write: func(h halfcore.RecoveryHistory) {
			<-hangs
			written = append(written, h.Failures)
		}}
		began := time.Now()
		for n := range 3 {
			if w.keep(halfcore.RecoveryHistory{Failures: n}, false) {
				t.Errorf("history %d is written", n)
			}
		}
		if took := time.Since(began); took != diskWait {
			t.Errorf("waited %s, want %s", took, diskWait)
		}
		go func() {
			time.Sleep(time.Second)
			close(hangs)
		}()
		if !w.keep(halfcore.RecoveryHistory{Failures: 3}, true) || !w.keep(halfcore.RecoveryHistory{Failures: 4}, false) {
			t.Error("not written when the disk works again")
		}
		if took := time.Since(began); took != diskWait+time.Second {
			t.Errorf("waited %s in all", took)
		}
		if len(written) != 3 || written[0] != 0 || written[1] != 3 || written[2] != 4 {
			t.Errorf("wrote %d, want 0, 3 and 4", written)
		}
	})
}

package half

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
)

// TestHungDiskDelaysNewEpochByOneWritePeriod: a half that gets another epoch holds its mutex. If it waited for a disk that hangs, it would
// not write its word, and count as dead. Its reports wait longer, but not for ever.
func TestHungDiskDelaysNewEpochByOneWritePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs, stored := make(chan struct{}), fault.Epoch(0)
		c := Common{Log: slog.New(slog.DiscardHandler), Periods: config.Periods{TWrite: 25 * time.Millisecond}}
		c.epochs = durable.NewNewest(func(e fault.Epoch) {
			<-hangs
			stored = e
		})
		began := time.Now()
		c.keepEpoch(7)
		c.keepEpoch(8)
		if took := time.Since(began); took != c.Periods.TWrite {
			t.Errorf("waited %s, want %s", took, c.Periods.TWrite)
		}
		if c.MaySend() {
			t.Error("reports may be sent before the disk has their epoch")
		}
		time.Sleep(holdReports)
		if !c.MaySend() {
			t.Error("a hung disk keeps the half silent")
		}
		close(hangs)
		if synctest.Wait(); stored != 8 || !c.MaySend() {
			t.Errorf("stored epoch %d, want 8; reports may be sent: %t", stored, c.MaySend())
		}
	})
}

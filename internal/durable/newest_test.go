package durable_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
)

// TestHungDiskDelaysOnce: a disk that hangs delays the owner once. Then the newest value is written, and the owner waits again.
func TestHungDiskDelaysOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = 100 * time.Millisecond
		hangs, written := make(chan struct{}), []int(nil)
		w := durable.NewNewest(func(v int) {
			<-hangs
			written = append(written, v)
		})
		began := time.Now()
		for v := range 3 {
			if w.Write(v, wait) {
				t.Errorf("%d is written", v)
			}
		}
		if took := time.Since(began); took != wait {
			t.Errorf("waited %s, want %s", took, wait)
		}
		go func() {
			time.Sleep(time.Second)
			close(hangs)
		}()
		if w.Write(3, wait) || !w.Flush(2*time.Second) || !w.Write(4, wait) {
			t.Error("not written when the disk works again")
		}
		if took := time.Since(began); took != wait+time.Second {
			t.Errorf("waited %s in all", took)
		}
		if want := []int{0, 3, 4}; !slices.Equal(written, want) {
			t.Errorf("wrote %d, want %d", written, want)
		}
	})
}

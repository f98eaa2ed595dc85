package host

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/internal/durable"
)

// diskEvery is the interval between two looks at the free space.
const diskEvery = 10 * time.Second

// diskRoom is the free space of the state directory's disk, as it was at the last look.
type diskRoom struct {
	free atomic.Uint64 // bytes
	low  atomic.Bool
}

// watchDisk looks at the free space until ctx ends, and logs the begin and the end of a shortage. It blocks as long as
// the file system does.
func (h *hostHalf) watchDisk(ctx context.Context) {
	t := time.NewTicker(diskEvery)
	defer t.Stop()
	var low durable.Low
	for {
		h.lookAtDisk(&low)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (h *hostHalf) lookAtDisk(low *durable.Low) {
	room, err := durable.RoomOf(h.Config.StateDir)
	if err != nil {
		return // the page's own check finds a lost directory
	}
	h.disk.free.Store(room.Free)
	if low.Update(room.Free, uint64(h.Config.DiskWarnBytes)) {
		if low.On {
			h.Log.Warn("disk low: without space reports do not outlive a restart", "state_dir", h.Config.StateDir, "disk", room.Disk(),
				"free_bytes", room.Free, "diskWarnBytes", h.Config.DiskWarnBytes)
		} else {
			h.Log.Info("the disk has room again", "state_dir", h.Config.StateDir, "disk", room.Disk(), "free_bytes", room.Free)
		}
	}
	h.disk.low.Store(low.On)
}

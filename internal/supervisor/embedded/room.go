package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/durable"
)

// The least free space for a start. A new member allocates the segments of its log and space ahead of its database, and is not short
// then, nor soon. One that has its log needs some for its database.
const (
	newRoom = segments + ahead + reserve + reserve/8
	oldRoom = 4 << 20
)

// segments are the two of 64 MB for a log.
const segments = 128 << 20

// reserve is the free space below which a member is short: two further segments.
const reserve = segments

// ahead is the space that the database has for its growth, whatever else fills the disk. It lasts for all that the members commit before
// they hold writes. The log has its next segment.
const ahead = 16 << 20

// spacePeriod is the interval between looks at the disk.
const spacePeriod = 250 * time.Millisecond

// space is what a member knows about its disk. etcd ends the process at a write for which the disk has no room.
type space struct {
	short atomic.Bool
	held  atomic.Bool
}

// watchSpace follows the free space until the member stops.
func (m *Member) watchSpace() {
	var low durable.Low
	var allocated os.FileInfo
	t := time.NewTicker(spacePeriod)
	defer t.Stop()
	for {
		m.lookAtSpace(&low, &allocated)
		select {
		case <-m.stopping:
			return
		case <-t.C:
		}
	}
}

// lookAtSpace notes whether the disk is short. Otherwise it allocates space ahead of the database if that is another file or has grown
// since it was allocated.
func (m *Member) lookAtSpace(low *durable.Low, allocated *os.FileInfo) {
	free, err := durable.Free(m.dataDir)
	if err != nil {
		return // that says nothing about the space
	}
	changed := low.Update(free, reserve)
	if !low.On {
		now, err := allocateAhead(dbFile(m.dataDir), *allocated)
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			m.logger.Debug("no space allocated ahead of the database", "err", err)
		}
		*allocated = now
	}
	if !changed {
		return
	}
	m.space.short.Store(low.On)
	if low.On {
		m.logger.Error("disk full: the store takes no writes while too few replicas have room", "data_dir", m.dataDir, "free_bytes", free,
			"want_bytes", reserve)
	} else {
		m.logger.Info("the disk has room for the store again", "data_dir", m.dataDir, "free_bytes", free)
	}
}

// allocateAhead allocates blocks for a database and its growth, without a change of its size, and returns the file. last is the file of the
// last call; nil: none.
func allocateAhead(db string, last os.FileInfo) (os.FileInfo, error) {
	now, err := os.Stat(db)
	if err != nil || last != nil && os.SameFile(last, now) && last.Size() == now.Size() {
		return now, err
	}
	f, err := os.OpenFile(db, os.O_WRONLY, 0)
	if err != nil {
		return last, err
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, now.Size()+ahead)
	return now, errors.Join(err, f.Close())
}

// Short reports whether the member's disk has less than the reserve free. Each write, of any member, then brings its end nearer.
func (m *Member) Short() bool { return m.space.short.Load() }

// Hold makes Client refuse writes as a full store does, or ends that. Keys with a lease are excepted, for elections: they are few, small,
// and end by themselves.
func (m *Member) Hold(on bool) {
	if m.space.held.Swap(on) != on {
		if on {
			m.logger.Warn("writes to the store are held: the disks of too many replicas are short of space")
		} else {
			m.logger.Info("writes to the store go on: enough replicas have space")
		}
	}
}

// Held reports whether writes are held.
func (m *Member) Held() bool { return m.space.held.Load() }

// holds returns an error if the operations write while writes are held.
func (s *space) holds(ops ...*etcdserverpb.RequestOp) error {
	if !s.held.Load() {
		return nil
	}
	for _, op := range ops {
		if put := op.GetRequestPut(); put != nil && put.GetLease() == 0 {
			return rpctypes.ErrGRPCNoSpace
		}
	}
	return nil
}

// checkRoom refuses a data directory whose disk has no room: etcd would end at some later write.
func checkRoom(dir string) error {
	room, err := durable.RoomOf(dir)
	if err != nil {
		return err
	}
	need := uint64(newRoom)
	if _, err := os.Stat(filepath.Join(dir, etcdDir, "member", "wal")); err == nil {
		need = oldRoom
	}
	if room.Free < need {
		return fmt.Errorf("supervisor data directory %s: %s: want at least %d MiB for a start: free some space there, or move dataDir",
			dir, room, need>>20)
	}
	return nil
}

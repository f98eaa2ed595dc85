package selftest

import (
	"encoding/binary"
	"time"
)

const snapshotVersion = 1

// Flags of a module in a snapshot.
const (
	snapInUse = 1 << iota
	snapAnswered
)

// Snapshot appends the data for a restart: the modules in use, those whose other end has ever answered, and
// the learned values of each size. It takes some tens of bytes per module. The snapshot of a nil Machine is empty.
//
//	0    version, 1
//	1    number of modules, and of each:
//	     kind, index, flags (1 in use, 2 answered), number of sizes, and of each size:
//	     4 bytes mean and 4 deviation in µs, big endian; 0: not learned
func (m *Machine) Snapshot(dst []byte) []byte {
	if m == nil {
		return dst
	}
	dst = append(dst, snapshotVersion, byte(len(m.modules)))
	for _, u := range m.modules {
		var flags byte
		if u.inUse || u.proving {
			flags |= snapInUse
		}
		if u.answered {
			flags |= snapAnswered
		}
		dst = append(dst, byte(u.cfg.Module.Kind), u.cfg.Module.Index, flags, byte(len(u.slots)))
		for _, s := range u.slots {
			b := s.base
			if b.n < learnFirst {
				b = baseline{}
			}
			dst = binary.BigEndian.AppendUint32(dst, micros(b.mean))
			dst = binary.BigEndian.AppendUint32(dst, micros(b.dev))
		}
	}
	return dst
}

// micros is at least 1: 0 means not learned.
func micros(d time.Duration) uint32 {
	if d == 0 {
		return 0
	}
	return uint32(min(max(d.Microseconds(), 1), 1<<32-1))
}

// Restore takes over the values that an earlier life has learned. It ignores invalid data, and modules that no longer
// exist. With prove, all local modules and all that were in use are tested at once and have to pass. Call it before the
// first Step.
func (m *Machine) Restore(now time.Time, b []byte, prove bool) {
	if len(b) >= 2 && b[0] == snapshotVersion {
		b = b[2:]
		for len(b) >= 4 {
			id, flags, n := Module{Kind(b[0]), b[1]}, b[2], int(b[3])
			b = b[4:]
			if len(b) < 8*n {
				break
			}
			if u := m.find(id); u != nil {
				u.restore(now, flags, b[:8*n], prove)
			}
			b = b[8*n:]
		}
	}
	for _, u := range m.modules {
		if prove && u.cfg.Local {
			u.proving = true
		}
	}
}

func (u *module) restore(now time.Time, flags byte, sizes []byte, prove bool) {
	u.answered = u.answered || flags&snapAnswered != 0
	if flags&snapInUse != 0 {
		u.inUse, u.usedAt = true, now
		u.proving = prove && u.answered
	}
	if len(sizes) != 8*len(u.slots) {
		return // now tested in other sizes
	}
	for i := range u.slots {
		mean, dev := binary.BigEndian.Uint32(sizes[8*i:]), binary.BigEndian.Uint32(sizes[8*i+4:])
		if mean > 0 {
			u.slots[i].base = baseline{time.Duration(mean) * time.Microsecond, time.Duration(dev) * time.Microsecond, learnFirst}
		}
	}
}

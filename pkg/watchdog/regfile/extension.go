package regfile

import (
	"fmt"

	"github.com/lofamo/lofamo/pkg/fault"
)

// SetEpoch publishes a half's boot epoch to the other half, which detects a restart by it. (The authoritative epoch is
// on disk, not here.) Only the half itself may call it.
func (f *File) SetEpoch(half fault.Half, e fault.Epoch) error {
	const op = "set epoch"
	if err := f.mustBe(op, half); err != nil {
		return err
	}
	return f.access(op, func() error {
		f.wroteEpoch = true
		// One copy after the other: after any last instruction, one copy is consistent. First make the second equal to
		// the value read now, which may depend on the first alone.
		f.writeEpoch(half, 1, f.readEpoch(half))
		f.writeEpoch(half, 0, uint64(e))
		f.writeEpoch(half, 1, uint64(e))
		return nil
	})
}

// Epoch returns the boot epoch that a half published: 0, which is none, also if it is unreadable.
func (f *File) Epoch(half fault.Half) fault.Epoch {
	var e fault.Epoch
	if !half.Valid() {
		return 0
	}
	err := f.access("epoch", func() error {
		e = fault.Epoch(f.readEpoch(half))
		return nil
	})
	if err != nil {
		return 0
	}
	return e
}

func (f *File) readEpoch(half fault.Half) uint64 {
	for copyNo := range 2 {
		value, check := f.epochCopy(half, copyNo)
		if v := value.load(); check.load() == epochCheck(half, v) {
			return v
		}
	}
	return 0
}

func (f *File) writeEpoch(half fault.Half, copyNo int, v uint64) {
	value, check := f.epochCopy(half, copyNo)
	value.store(v)
	check.store(epochCheck(half, v))
}

func (f *File) epochCopy(half fault.Half, copyNo int) (value, check u64) {
	off := pageSize + offEpochs + epochStride*(int(half)-1) + 16*copyNo
	return f.u64(off), f.u64(off + 8)
}

func epochCheck(half fault.Half, v uint64) uint64 {
	return uint64(makeGuard(cell{word: int(half)}, uint32(v), uint32(v>>32)))
}

// CountDoorbell counts a doorbell from this half to the other: a lost doorbell shows in Doorbells.
func (f *File) CountDoorbell() error {
	if f.half == 0 {
		return fmt.Errorf("count doorbell: register file %s is open read-only", f.path)
	}
	return f.access("count doorbell", func() error {
		at := f.doorbell(f.half)
		at.store(at.load() + 1) // only this half writes it, under the lock
		return nil
	})
}

// Doorbells returns how often a half has rung, modulo 2^32; 0 if it is unreadable.
func (f *File) Doorbells(half fault.Half) uint32 {
	var n uint32
	if !half.Valid() {
		return 0
	}
	err := f.access("doorbells", func() error {
		n = f.doorbell(half).load()
		return nil
	})
	if err != nil {
		return 0
	}
	return n
}

func (f *File) doorbell(half fault.Half) u32 {
	return f.u32(pageSize + offDoorbells + 4*(int(half)-1))
}

// NumCounters is the number of counters that the DNP half may publish.
const NumCounters = 192

// SetCounters publishes counters of the DNP half, modulo 2^32. Their meaning is up to the DNP half, and no verdict
// depends on them. Only the DNP half may call it.
func (f *File) SetCounters(values [NumCounters]uint32) error {
	const op = "set counters"
	if err := f.mustBe(op, fault.HalfDNP); err != nil {
		return err
	}
	return f.access(op, func() error {
		for i, v := range values {
			f.u32(pageSize + offCounters + 4*i).store(v)
		}
		return nil
	})
}

// Counters returns the counters that the DNP half published last; zeros if they are unreadable or of an earlier
// version.
func (f *File) Counters() (out [NumCounters]uint32) {
	err := f.access("counters", func() error {
		for i := range out {
			out[i] = f.u32(pageSize + offCounters + 4*i).load()
		}
		return nil
	})
	if err != nil {
		return [NumCounters]uint32{}
	}
	return out
}

// Counter returns one of these counters, like Counters.
func (f *File) Counter(i int) (v uint32) {
	err := f.access("counters", func() error {
		v = f.u32(pageSize + offCounters + 4*i).load()
		return nil
	})
	if err != nil {
		return 0
	}
	return v
}

// Progress returns a number that changes only when a half stores its watchdog word. The recovery daemon uses it to
// check that the half lives, without invalidating the word for the half that watches it. A corrupt word has a number
// too.
func (f *File) Progress(half fault.Half) (seq uint32, err error) {
	c := hostCell
	switch half {
	case fault.HalfHost:
	case fault.HalfDNP:
		c = dnpCell
	default:
		return 0, fmt.Errorf("progress: register file %s: half is %d: want host or dnp", f.path, half)
	}
	err = f.access("progress", func() error {
		s := f.state(c)
		seq = max(s.a.seq(), s.b.seq())
		return nil
	})
	return seq, err
}

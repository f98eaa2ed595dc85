package udplink

import (
	"errors"
	"fmt"
	"time"
)

// MaxDelay bounds Faults.Delay and Faults.Jitter.
const MaxDelay = 10 * time.Second

// Faults configures the effect of a bad network on packets of one direction, for tests and fault injection. The zero
// Faults is none. Fractions are of packets, 0 to 1. A decision depends only on the faults, on the packet's size and on
// random numbers that the caller gives.
type Faults struct {
	Block     bool // all are lost
	Drop      float64
	Corrupt   float64 // one bit flipped
	Duplicate float64 // sent twice
	Reorder   float64 // overtaken by the next one
	Delay     time.Duration
	Jitter    time.Duration // up to so much more, each packet another: it changes their order
}

// Validate names every field that is out of range.
func (f Faults) Validate() error {
	return errors.Join(
		CheckFraction("Drop", f.Drop), CheckFraction("Corrupt", f.Corrupt),
		CheckFraction("Duplicate", f.Duplicate), CheckFraction("Reorder", f.Reorder),
		CheckDelay("Delay", f.Delay), CheckDelay("Jitter", f.Jitter),
	)
}

// CheckFraction returns an error if the fraction in a field is invalid.
func CheckFraction(field string, v float64) error {
	// Written so that NaN is refused too.
	if !(v >= 0 && v <= 1) {
		return fmt.Errorf("injected faults: %s %v: want 0 to 1", field, v)
	}
	return nil
}

// CheckDelay returns an error if the delay in a field is invalid.
func CheckDelay(field string, d time.Duration) error {
	if d < 0 || d > MaxDelay {
		return fmt.Errorf("injected faults: %s %v: want 0 to %v", field, d, MaxDelay)
	}
	return nil
}

// Source gives random numbers from 0 up to, but not, 1. math/rand/v2's Rand is one.
type Source interface{ Float64() float64 }

// Fate is the decision on one packet.
type Fate struct {
	Lost      bool // and nothing else matters
	Corrupted bool
	Bit       int // the one that is flipped, when Corrupted
	Copies    int // 1 or 2
	Overtaken bool
	Delay     time.Duration
}

// Fate decides on a packet of so many bytes. It takes the same number of random numbers for any faults, so that the
// decision depends on the packet's place in the sequence, and not on the faults of earlier packets.
func (f Faults) Fate(s Source, size int) Fate {
	drop, corrupt, bit, duplicate, reorder, jitter := s.Float64(), s.Float64(), s.Float64(), s.Float64(), s.Float64(), s.Float64()
	if f.Block || drop < f.Drop {
		return Fate{Lost: true}
	}
	out := Fate{
		Corrupted: size > 0 && corrupt < f.Corrupt,
		Copies:    1,
		Overtaken: reorder < f.Reorder,
		Delay:     f.Delay + time.Duration(jitter*float64(f.Jitter)),
	}
	if out.Corrupted {
		out.Bit = int(bit * float64(size*8))
	}
	if duplicate < f.Duplicate {
		out.Copies = 2
	}
	return out
}

// Flip changes the packet as its fate says, in place.
func (f Fate) Flip(b []byte) {
	if f.Corrupted {
		b[f.Bit/8] ^= 1 << (f.Bit % 8)
	}
}

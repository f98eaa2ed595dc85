package udplink

import (
	"context"
	"errors"
	"slices"
	"time"
)

// LinkFaults configures faults on a link's packets, for tests and fault injection. The zero LinkFaults is none. Fractions are
// of packets, 0 to 1.
type LinkFaults struct {
	DropIn, DropOut       float64
	CorruptIn, CorruptOut float64 // one bit flipped
	DupOut                float64 // sent twice
	// DelayOut holds packets back in a queue of at most maxDelayed, above which they are
	// dropped. It does not change their order. At most MaxDelay.
	DelayOut          time.Duration
	BlockIn, BlockOut bool // either blocks handshakes too, as TCP needs both ways
}

// maxDelayed bounds the queue of delayed packets. When it is full, further packets are dropped.
const maxDelayed = 256

// Validate names every field that is out of range.
func (m LinkFaults) Validate() error {
	return errors.Join(
		CheckFraction("DropIn", m.DropIn), CheckFraction("DropOut", m.DropOut),
		CheckFraction("CorruptIn", m.CorruptIn), CheckFraction("CorruptOut", m.CorruptOut),
		CheckFraction("DupOut", m.DupOut), CheckDelay("DelayOut", m.DelayOut),
	)
}

func (m *LinkFaults) in() Faults {
	return Faults{Block: m.BlockIn, Drop: m.DropIn, Corrupt: m.CorruptIn}
}

func (m *LinkFaults) out() Faults {
	return Faults{Block: m.BlockOut, Drop: m.DropOut, Corrupt: m.CorruptOut, Duplicate: m.DupOut, Delay: m.DelayOut}
}

// SetFaults sets the faults for packets from now on. m should have passed Validate.
func (l *Link) SetFaults(m LinkFaults) {
	if m == (LinkFaults{}) {
		l.faults.Store(nil)
		return
	}
	l.faults.Store(&m)
}

// Faults returns the faults in force.
func (l *Link) Faults() LinkFaults {
	if m := l.faults.Load(); m != nil {
		return *m
	}
	return LinkFaults{}
}

// blocked reports whether handshakes cannot pass.
func (l *Link) blocked() bool {
	m := l.faults.Load()
	return m != nil && (m.BlockIn || m.BlockOut)
}

// fate decides on one packet.
func (l *Link) fate(f Faults, size int) Fate {
	l.randMu.Lock()
	defer l.randMu.Unlock()
	return f.Fate(l.rand, size)
}

// faultIn changes a received packet in place and reports whether it survives.
func (l *Link) faultIn(m *LinkFaults, b []byte) bool {
	fate := l.fate(m.in(), len(b))
	if fate.Lost || fate.Corrupted {
		l.count.faultedIn.Add(1)
	}
	fate.Flip(b)
	return !fate.Lost
}

type delayedPacket struct {
	due time.Time
	b   []byte
}

func (l *Link) sendFaulty(m *LinkFaults, b []byte) error {
	fate := l.fate(m.out(), len(b))
	if fate.Lost || fate.Corrupted {
		l.count.faultedOut.Add(1)
	}
	if fate.Corrupted {
		b = slices.Clone(b)
		fate.Flip(b)
	}
	var err error
	for range fate.Copies { // none of a lost one
		if fate.Delay > 0 {
			l.delay(delayedPacket{time.Now().Add(fate.Delay), slices.Clone(b)})
		} else {
			err = errors.Join(err, l.send(b))
		}
	}
	return err
}

func (l *Link) delay(p delayedPacket) {
	select {
	case l.delayed <- p:
	default:
		l.count.faultedOut.Add(1)
	}
}

func (l *Link) sendDelayed(ctx context.Context) {
	for {
		select {
		case p := <-l.delayed:
			sleep(ctx, time.Until(p.due))
			_ = l.send(p.b) // counted there
		case <-ctx.Done():
			return
		}
	}
}

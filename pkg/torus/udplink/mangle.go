package udplink

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/mangle"
)

// Mangle configures faults on a link's packets, for tests and fault injection. The zero Mangle is none. Fractions are
// of packets, 0 to 1.
type Mangle struct {
	DropIn, DropOut       float64
	CorruptIn, CorruptOut float64 // one bit flipped
	DupOut                float64 // sent twice
	// DelayOut holds packets back in a queue of at most maxDelayed, above which they are
	// dropped. It does not change their order. At most mangle.MaxDelay.
	DelayOut          time.Duration
	BlockIn, BlockOut bool // either blocks handshakes too, as TCP needs both ways
}

// maxDelayed bounds the queue of delayed packets. When it is full, further packets are dropped.
const maxDelayed = 256

// Validate names every field that is out of range.
func (m Mangle) Validate() error {
	return errors.Join(
		mangle.CheckFraction("DropIn", m.DropIn), mangle.CheckFraction("DropOut", m.DropOut),
		mangle.CheckFraction("CorruptIn", m.CorruptIn), mangle.CheckFraction("CorruptOut", m.CorruptOut),
		mangle.CheckFraction("DupOut", m.DupOut), mangle.CheckDelay("DelayOut", m.DelayOut),
	)
}

func (m *Mangle) in() mangle.Faults {
	return mangle.Faults{Block: m.BlockIn, Drop: m.DropIn, Corrupt: m.CorruptIn}
}

func (m *Mangle) out() mangle.Faults {
	return mangle.Faults{Block: m.BlockOut, Drop: m.DropOut, Corrupt: m.CorruptOut, Duplicate: m.DupOut, Delay: m.DelayOut}
}

// Mangle sets the faults for packets from now on. m should have passed Validate.
func (l *Link) Mangle(m Mangle) {
	if m == (Mangle{}) {
		l.mangle.Store(nil)
		return
	}
	l.mangle.Store(&m)
}

// blocked reports whether handshakes cannot pass.
func (l *Link) blocked() bool {
	m := l.mangle.Load()
	return m != nil && (m.BlockIn || m.BlockOut)
}

// fate decides on one packet.
func (l *Link) fate(f mangle.Faults, size int) mangle.Fate {
	l.randMu.Lock()
	defer l.randMu.Unlock()
	return f.Fate(l.rand, size)
}

// mangleIn changes a received packet in place and reports whether it survives.
func (l *Link) mangleIn(m *Mangle, b []byte) bool {
	fate := l.fate(m.in(), len(b))
	if fate.Lost || fate.Corrupted {
		l.count.mangledIn.Add(1)
	}
	fate.Flip(b)
	return !fate.Lost
}

type delayedPacket struct {
	due time.Time
	b   []byte
}

func (l *Link) sendMangled(m *Mangle, b []byte) error {
	fate := l.fate(m.out(), len(b))
	if fate.Lost || fate.Corrupted {
		l.count.mangledOut.Add(1)
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
		l.count.mangledOut.Add(1)
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

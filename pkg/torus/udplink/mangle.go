package udplink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Mangle is what is done to a link's packets, for tests and fault injection. The zero Mangle is
// none. Fractions are of packets, 0 to 1.
type Mangle struct {
	DropIn, DropOut       float64
	CorruptIn, CorruptOut float64 // one bit flipped
	DupOut                float64 // sent twice
	// DelayOut holds packets back in a queue of at most maxDelayed, above which they are
	// dropped. It does not change their order.
	DelayOut          time.Duration
	BlockIn, BlockOut bool // either blocks handshakes too, as TCP needs both ways
}

// maxDelayed bounds the queue of delayed packets. What comes when it is full is dropped.
const maxDelayed = 256

// MaxDelay bounds Mangle.DelayOut.
const MaxDelay = 10 * time.Second

// Validate names every field that is out of range.
func (m Mangle) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    float64
	}{{"DropIn", m.DropIn}, {"DropOut", m.DropOut}, {"CorruptIn", m.CorruptIn}, {"CorruptOut", m.CorruptOut}, {"DupOut", m.DupOut}} {
		if !(f.v >= 0 && f.v <= 1) {
			errs = append(errs, fmt.Errorf("mangle: %s %v: want 0 to 1", f.name, f.v))
		}
	}
	if m.DelayOut < 0 || m.DelayOut > MaxDelay {
		errs = append(errs, fmt.Errorf("mangle: DelayOut %v: want 0 to %v", m.DelayOut, MaxDelay))
	}
	return errors.Join(errs...)
}

// Mangle sets what is done to packets from now on. It should have passed Validate.
func (l *Link) Mangle(m Mangle) {
	if m == (Mangle{}) {
		l.mangle.Store(nil)
		return
	}
	l.mangle.Store(&m)
}

// blocked says whether handshakes cannot pass.
func (l *Link) blocked() bool {
	m := l.mangle.Load()
	return m != nil && (m.BlockIn || m.BlockOut)
}

func (l *Link) chance(p float64) bool {
	if p <= 0 {
		return false
	}
	l.randMu.Lock()
	defer l.randMu.Unlock()
	return l.rand.Float64() < p
}

func (l *Link) flipBit(b []byte) {
	if len(b) == 0 {
		return
	}
	l.randMu.Lock()
	defer l.randMu.Unlock()
	bit := l.rand.IntN(len(b) * 8)
	b[bit/8] ^= 1 << (bit % 8)
}

// mangleIn changes a received packet in place and says whether it is left.
func (l *Link) mangleIn(m *Mangle, b []byte) bool {
	if m.BlockIn || l.chance(m.DropIn) {
		l.count.mangledIn.Add(1)
		return false
	}
	if l.chance(m.CorruptIn) {
		l.count.mangledIn.Add(1)
		l.flipBit(b)
	}
	return true
}

type delayedPacket struct {
	due time.Time
	b   []byte
}

func (l *Link) sendMangled(m *Mangle, b []byte) error {
	if m.BlockOut || l.chance(m.DropOut) {
		l.count.mangledOut.Add(1)
		return nil
	}
	if l.chance(m.CorruptOut) {
		l.count.mangledOut.Add(1)
		b = slices.Clone(b)
		l.flipBit(b)
	}
	times := 1
	if l.chance(m.DupOut) {
		times = 2
	}
	var err error
	for range times {
		if m.DelayOut > 0 {
			l.delay(delayedPacket{time.Now().Add(m.DelayOut), slices.Clone(b)})
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

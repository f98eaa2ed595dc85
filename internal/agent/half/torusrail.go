package half

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// This file has the torus rail of the host half: envelopes go through the mailbox to the DNP half beside it, which
// sends them over the neighbours (LO|FA|MO §III-D; dnpcore chooses the way). It also defines how the mailbox holds a
// relay message: the time of sending precedes it, CLOCK_MONOTONIC in ns, 8 bytes big endian. Halves on one kernel share that
// clock. Between two kernels, the receiving Window converts the time to its own clock.

// stampSize is that of the time of sending before the relay message.
const stampSize = 8

// AppendMail encodes a message that is put into the mailbox at a time, behind dst.
func AppendMail(dst []byte, sent int64, m halfcore.Relay) ([]byte, error) {
	return m.Append(binary.BigEndian.AppendUint64(dst, uint64(sent)))
}

// ReadMail reads a message, and how long it lay in the mailbox. That time is long if this half was stopped. Its
// Envelope is a part of b.
func ReadMail(b []byte, now int64) (halfcore.Relay, time.Duration, error) {
	if len(b) < stampSize {
		return halfcore.Relay{}, 0, halfcore.ErrRelayShort
	}
	m, err := halfcore.DecodeRelay(b[stampSize:])
	held := time.Duration(now - int64(binary.BigEndian.Uint64(b)))
	return m, min(max(held, 0), halfcore.MaxRelayHeld), err
}

// stampHere converts a message's time of sending from the other kernel's clock to this kernel's clock, in place.
func stampHere(b []byte, c *halfcore.MailClock, now int64) {
	if len(b) >= stampSize {
		delay := c.Delay(int64(binary.BigEndian.Uint64(b)), now)
		binary.BigEndian.PutUint64(b, uint64(now-int64(delay)))
	}
}

// TorusRail is the torus rail: a servicenet.Rail. The box belongs to its owner, who closes it. The box counts refused
// messages (mailbox.Stats).
type TorusRail struct {
	box   *mailbox.Box
	limit uint8
}

var _ servicenet.Rail = (*TorusRail)(nil)

// NewTorusRail returns the rail over a half's own mailbox. limit is how many hops of the torus a message may
// make.
func NewTorusRail(box *mailbox.Box, limit uint8) *TorusRail {
	return &TorusRail{box: box, limit: limit}
}

// Send implements servicenet.Rail. It goes to any supervisor that a neighbour reaches, so that the
// target is ignored. The longest envelope has relay.MaxEnvelope bytes. Without a DNP half the error
// wraps mailbox.ErrAbsent.
func (r *TorusRail) Send(_ string, b []byte) error { return r.Post(b, false) }

// Post is Send with a flag: whether a drain of the torus may hold the message (seed 003 §4.5.3).
func (r *TorusRail) Post(b []byte, mayWait bool) error {
	switch {
	case len(b) == 0:
		return fmt.Errorf("send on the torus rail: %w", servicenet.ErrEmpty)
	case len(b) > halfcore.MaxRelayEnvelope:
		return fmt.Errorf("send on the torus rail: given %d bytes: want at most %d: %w", len(b), halfcore.MaxRelayEnvelope, servicenet.ErrTooLong)
	}
	mail, err := AppendMail(nil, Monotonic(), halfcore.Relay{Kind: halfcore.RelayUp, Limit: r.limit, MayWait: mayWait, Envelope: b})
	if err == nil {
		err = r.box.Send(mailbox.Message{Type: mailbox.Envelope, Payload: mail})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, mailbox.ErrDropped):
		return fmt.Errorf("send on the torus rail: %w: %w", servicenet.ErrBusy, err)
	case errors.Is(err, mailbox.ErrClosed):
		return fmt.Errorf("send on the torus rail: %w: %w", servicenet.ErrClosed, err)
	}
	return fmt.Errorf("send on the torus rail: %w", err)
}

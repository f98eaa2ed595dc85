package dnp

import (
	"encoding/binary"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
)

// tellSpan sends the validity of the DNP half's certificate to the host half, which serves the metrics.
func (d *dnpHalf) tellSpan(now time.Time) {
	if now.Before(d.spanAt) {
		return
	}
	b := binary.BigEndian.AppendUint64(nil, uint64(d.Signer.Expires().Unix()))
	b = binary.BigEndian.AppendUint64(b, uint64(d.Signer.Begins().Unix()))
	if d.box.SendSpare(mailbox.Message{Type: mailbox.Certificate, Payload: b}) == nil { // else no host half yet
		d.spanAt = now.Add(time.Minute)
	}
}

// onHealth passes on the health of a half. If the daemon says that the host half's process has ended, and the kernel
// confirms it, it passes that on too.
func (d *dnpHalf) onHealth(m mailbox.Message) {
	if half, h := half.HeardHealth(m, fault.HalfHost); h != nil {
		d.step(dnpcore.Health{Half: half, Health: h})
	}
	if m.Type != mailbox.Recovery {
		return
	}
	if how, age, ok := d.ended.Confirm(m, d.StatePath(half.RegisterFile), fault.HalfHost); ok {
		d.step(dnpcore.Ended{How: how, Age: age})
	}
}

// onLastWords keeps the last words of the host's kernel for the reports of its death.
func (d *dnpHalf) onLastWords(words []*lofamov1.LastWords) {
	d.step(dnpcore.Health{Half: fault.HalfDNP, Health: &lofamov1.HalfHealth{LastWords: words}})
}

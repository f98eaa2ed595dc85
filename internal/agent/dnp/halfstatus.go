package dnp

import (
	"encoding/binary"
	"time"

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

func (d *dnpHalf) lookAtFares(now time.Time) {
	d.NoteWrong(d.page, d.readers.Stuck(), d.core.SelfTest().Results(now))
	d.TellManager(d.core.Verdict(), d.core.SelfTest())
	d.tellSpan(now)
	own, tell := d.fares.Look(now)
	if own == nil {
		return
	}
	if tell {
		half.TellOther(d.box, own)
	}
	d.settle(now, d.core.Step(now, dnpcore.Health{Half: fault.HalfDNP, Health: own}))
}

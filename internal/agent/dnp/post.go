package dnp

import (
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/durable"
)

// dnpPost is the DNP half's side of the courier.
type dnpPost struct {
	d      *dnpHalf
	answer half.Handover
}

func newDNPPost(d *dnpHalf) *dnpPost {
	// An answer that is already there certifies a key that the restart lost: NewHandover skips it.
	d.Reserve(d.StatePath(half.DnpRequestFile))
	return &dnpPost{d, d.NewHandover(d.StatePath(half.DnpAnswerFile), "answer for the DNP half")}
}

func (p *dnpPost) send(b []byte, _ bool) {
	if err := durable.Replace(p.d.StatePath(half.DnpRequestFile), b); err != nil {
		p.d.Log.Warn("request for a new certificate not handed to the host half", "err", err)
	}
}

// look handles a new answer.
func (p *dnpPost) look() {
	p.answer.Look(func(o servicenet.Opened) bool {
		p.d.Trust.Renewals.Answered(o.Msg.GetRenewReply())
		return o.Msg.GetRenewReply() != nil
	})
}

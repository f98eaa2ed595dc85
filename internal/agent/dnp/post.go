package dnp

import (
	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/durable"
)

// dnpPost is the DNP half's side of the courier.
type dnpPost struct {
	d      *dnpHalf
	answer half.Handover
}

func newDNPPost(d *dnpHalf) *dnpPost {
	return &dnpPost{d, half.NewHandover(d.StatePath(half.DnpAnswerFile), d.Verifier)} // an answer from before the restart is for a lost key
}

func (p *dnpPost) send(b []byte, _ bool) {
	if err := durable.Replace(p.d.StatePath(half.DnpRequestFile), b); err != nil {
		p.d.Log.Warn("request for a new certificate not handed to the host half", "err", err)
	}
}

// look handles a new answer.
func (p *dnpPost) look() {
	o, err := p.answer.Next()
	switch {
	case err != nil:
		p.d.Log.Warn("answer for the DNP half not read", "file", p.answer.Path, "err", err)
	case o.Msg == nil: // nothing new
	case o.Msg.GetRenewReply() == nil:
		p.d.Log.Warn("file is not a supervisor's answer: not used", "file", p.answer.Path)
	default:
		p.d.Trust.Renewals.Answered(o.Msg.GetRenewReply())
	}
}

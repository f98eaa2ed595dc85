package host

import (
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/durable"
)

func renewalFamilies() []metric {
	return []metric{
		{"lofamo_agent_certificate_requests_total", "Requests for new certificates sent, by half.", []string{"half"}},
		{"lofamo_agent_certificate_answers_total", "Answers of supervisors to requests for new certificates, by half: issued, or refused.",
			[]string{"half", "result"}},
	}
}

func (s sink) renewals(c *half.RenewalCounts) {
	for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		s.counter("lofamo_agent_certificate_requests_total", c.Requests[h].Load(), h.String())
		s.counter("lofamo_agent_certificate_answers_total", c.Issued[h].Load(), h.String(), "issued")
		s.counter("lofamo_agent_certificate_answers_total", c.Refused[h].Load(), h.String(), "refused")
	}
}

// courier carries requests of both halves to the supervisors, and answers to the DNP half. Only the host half's trust
// goroutine uses it, except for take.
type courier struct {
	h       *hostHalf
	counts  half.RenewalCounts
	request half.Handover // of the DNP half
	next    int           // turn of supervisors and interfaces
}

func newCourier(h *hostHalf) *courier {
	h.Reserve(h.StatePath(half.DnpAnswerFile))
	// a request from before the restart is not sent
	return &courier{h: h, request: h.NewHandover(h.StatePath(half.DnpRequestFile), "request of the DNP half")}
}

// send sends a signed request to the next supervisor in turn, or to all.
func (c *courier) send(half fault.Half, b []byte, toAll bool) {
	h := c.h
	turn := c.next
	c.next++
	k := turn / len(h.ids) % len(h.rails.direct)
	ids := h.ids[turn%len(h.ids):][:1]
	if toAll {
		ids = h.ids
	} else {
		c.counts.Requests[half].Add(1)
	}
	for _, id := range ids {
		if err := h.rails.direct[k].Send(id, b); err != nil {
			h.Log.Debug("request for a new certificate not sent", "supervisor", id, "interface", h.names[k], "err", err)
		}
	}
}

// look sends a new request of the DNP half.
func (c *courier) look() {
	c.request.Look(func(o servicenet.Opened) bool {
		m := o.Msg.GetRenewRequest()
		if m == nil || servicenet.OriginOf(m) != (fault.Origin{Node: c.h.Config.Node, Half: fault.HalfDNP}) {
			return false
		}
		c.send(fault.HalfDNP, o.Raw, m.GetTaken())
		return true
	})
}

// take accepts a supervisor's answer and the envelope that it came in. Any goroutine may call it.
func (c *courier) take(reply *lofamov1.RenewReply, envelope []byte) {
	o := servicenet.OriginOf(reply)
	if o.Node != c.h.Config.Node {
		return
	}
	if reply.GetError() == "" {
		c.counts.Issued[o.Half].Add(1)
	} else {
		c.counts.Refused[o.Half].Add(1)
	}
	c.h.Trust.Answer(half.RenewalAnswer{Reply: reply, Envelope: slices.Clone(envelope)})
}

// pass hands an answer to the half that asked.
func (c *courier) pass(a half.RenewalAnswer) {
	if fault.Half(a.Reply.GetHalf()) == fault.HalfHost {
		c.h.Trust.Renewals.Answered(a.Reply)
		return
	}
	if err := durable.Replace(c.h.StatePath(half.DnpAnswerFile), a.Envelope); err != nil {
		c.h.Log.Warn("answer for the DNP half not passed on", "err", err)
	}
}

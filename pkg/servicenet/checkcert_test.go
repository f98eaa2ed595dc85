package servicenet

import (
	"strings"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestRenewalMessagesAreBounded: requests for certificates and their answers are refused for a field out of bounds,
// which the error names.
func TestRenewalMessagesAreBounded(t *testing.T) {
	request := func(edit func(*lofamov1.RenewRequest)) error {
		m := &lofamov1.RenewRequest{Node: "n0", Half: lofamov1.Half_HALF_DNP, Key: make([]byte, 32), Proof: make([]byte, 64), MadeNs: 1}
		edit(m)
		return checkBody(&lofamov1.Message{Body: &lofamov1.Message_RenewRequest{RenewRequest: m}})
	}
	reply := func(edit func(*lofamov1.RenewReply)) error {
		m := &lofamov1.RenewReply{Node: "n0", Half: lofamov1.Half_HALF_HOST, Certificate: make([]byte, MaxRenewed)}
		edit(m)
		return checkBody(&lofamov1.Message{Body: &lofamov1.Message_RenewReply{RenewReply: m}})
	}
	for what, err := range map[string]error{
		"request": request(func(*lofamov1.RenewRequest) {}), "reply": reply(func(*lofamov1.RenewReply) {}),
		"refusal": reply(func(m *lofamov1.RenewReply) { m.Certificate, m.Error = nil, "not due" }),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for field, err := range map[string]error{
		"renew_request.key":       request(func(m *lofamov1.RenewRequest) { m.Key = m.Key[1:] }),
		"renew_request.proof":     request(func(m *lofamov1.RenewRequest) { m.Proof = nil }),
		"renew_request.made_ns":   request(func(m *lofamov1.RenewRequest) { m.MadeNs = 0 }),
		"renew_request.half":      request(func(m *lofamov1.RenewRequest) { m.Half = 0 }),
		"renew_request.node":      request(func(m *lofamov1.RenewRequest) { m.Node = "a/b" }),
		"renew_reply.certificate": reply(func(m *lofamov1.RenewReply) { m.Certificate = make([]byte, MaxRenewed+1) }),
		"renew_reply.error":       reply(func(m *lofamov1.RenewReply) { m.Certificate, m.Error = nil, strings.Repeat("x", MaxRenewProblem+1) }),
		"renew_reply:":            reply(func(m *lofamov1.RenewReply) { m.Error = "both" }),
		"renew_reply.half":        reply(func(m *lofamov1.RenewReply) { m.Half = 3 }),
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v: want an error that names it", field, err)
		}
	}
}

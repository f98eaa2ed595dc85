package servicenet

import (
	"crypto/ed25519"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Limits of DenyPart and of the messages that renew certificates, so that each fits a datagram.
const (
	MaxDenyParts    = 160     // of a compressed list
	MaxPlainParts   = 32      // of an uncompressed list, which agents of earlier versions accept
	MaxDenyData     = 800     // bytes in one part
	MaxDenySize     = 1 << 20 // bytes of a list
	MaxRenewed      = 512     // bytes of a new certificate
	MaxRenewProblem = 120     // bytes of text
)

func checkDenyPart(m *lofamov1.DenyPart) error {
	if n := len(m.GetData()); n < 1 || n > MaxDenyData {
		return refuse(RefusedField, "deny_part.data: given %d bytes: want 1 to %d", n, MaxDenyData)
	}
	most := uint32(MaxDenyParts)
	if m.GetSize() == 0 {
		most = MaxPlainParts
	}
	if m.GetSize() > MaxDenySize {
		return refuse(RefusedField, "deny_part.size: given %d: want at most %d", m.GetSize(), MaxDenySize)
	}
	return firstError(atLeastOne("deny_part.version", m.GetVersion()), checkPart("deny_part", m.GetPart(), m.GetParts(), most))
}

func checkRenewRequest(m *lofamov1.RenewRequest) error {
	if m.GetMadeNs() <= 0 {
		return refuse(RefusedField, "renew_request.made_ns: given %d: want at least 1", m.GetMadeNs())
	}
	return firstError(
		checkHalf("renew_request", m),
		checkSize("renew_request.key", m.GetKey(), ed25519.PublicKeySize),
		checkSize("renew_request.proof", m.GetProof(), ed25519.SignatureSize),
	)
}

func checkRenewReply(m *lofamov1.RenewReply) error {
	if n := len(m.GetCertificate()); n > MaxRenewed {
		return refuse(RefusedField, "renew_reply.certificate: given %d bytes: want at most %d", n, MaxRenewed)
	}
	if n := len(m.GetError()); n > MaxRenewProblem {
		return refuse(RefusedField, "renew_reply.error: given %d bytes: want at most %d", n, MaxRenewProblem)
	}
	if (len(m.GetCertificate()) == 0) == (m.GetError() == "") {
		return refuse(RefusedField, "renew_reply: given %d bytes of certificate and error %q: want one of the two",
			len(m.GetCertificate()), m.GetError())
	}
	return firstError(checkHalf("renew_reply", m), checkText("renew_reply.error", m.GetError()))
}

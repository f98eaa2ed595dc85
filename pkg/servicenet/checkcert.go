package servicenet

import lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

// Limits of DenyPart, so that each fits a datagram.
const (
	MaxDenyParts = 32
	MaxDenyData  = 800 // bytes in one part
)

func checkDenyPart(m *lofamov1.DenyPart) error {
	if n := len(m.GetData()); n < 1 || n > MaxDenyData {
		return refuse(RefusedField, "deny_part.data: given %d bytes: want 1 to %d", n, MaxDenyData)
	}
	return firstError(atLeastOne("deny_part.version", m.GetVersion()), checkPart("deny_part", m.GetPart(), m.GetParts(), MaxDenyParts))
}

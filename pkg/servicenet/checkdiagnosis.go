package servicenet

import lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

// Bounds of a diagnosis order and its findings. Findings of one link are at most MaxReportSize bytes, so that
// they fit a datagram also relayed.
const (
	maxLinkMask        = 1<<6 - 1 // directions X+ to Z-
	maxDirection       = 6
	MaxDiagnosisRounds = 10
	// maxTripUs bounds a reported round trip, in microseconds: a minute.
	maxTripUs = 60_000_000
)

// checkNumber checks the number of an order.
func checkNumber(field string, n *lofamov1.OrderNumber) error {
	return firstError(atLeastOne(field+".term", n.GetTerm()), atLeastOne(field+".count", n.GetCount()))
}

func checkDiagnosisOrder(o *lofamov1.DiagnosisOrder) error {
	if l := o.GetLinks(); l < 1 || l > maxLinkMask {
		return refuse(RefusedField, "diagnosis_order.links: given %d: want 1 to %d", l, maxLinkMask)
	}
	if k := o.GetKnown(); k > maxLinkMask {
		return refuse(RefusedField, "diagnosis_order.known: given %d: want at most %d", k, maxLinkMask)
	}
	if r := o.GetRounds(); r < 1 || r > MaxDiagnosisRounds {
		return refuse(RefusedField, "diagnosis_order.rounds: given %d: want 1 to %d", r, MaxDiagnosisRounds)
	}
	return firstError(
		checkNumber("diagnosis_order.number", o.GetNumber()),
		checkID("diagnosis_order.node", o.GetNode()),
		checkAddress("diagnosis_order.reply_to", o.GetReplyTo()),
	)
}

func checkDiagnosisFindings(f *lofamov1.DiagnosisFindings) error {
	if e := f.GetEpoch(); e == 0 || e > uint64(MaxEpoch) {
		return refuse(RefusedField, "diagnosis_findings.epoch: given %d: want 1 to %d", e, uint64(MaxEpoch))
	}
	if l := f.GetLinks(); l > maxLinkMask {
		return refuse(RefusedField, "diagnosis_findings.links: given %d: want at most %d", l, maxLinkMask)
	}
	if err := firstError(
		checkNumber("diagnosis_findings.number", f.GetNumber()),
		checkHalf("diagnosis_findings", f),
		checkText("diagnosis_findings.error", f.GetError()),
		checkTest("diagnosis_findings.own_host", f.GetOwnHost()),
	); err != nil {
		return err
	}
	if f.GetHalf() == lofamov1.Half_HALF_HOST {
		return checkState("diagnosis_findings.dnp", f.GetDnp())
	}
	l := f.GetLink()
	if l == nil {
		if f.GetError() == "" {
			return refuse(RefusedField, "diagnosis_findings.link: missing: want it, or an error")
		}
		return nil
	}
	if d := l.GetDirection(); d < 1 || d > maxDirection || f.GetLinks()>>(d-1)&1 == 0 {
		return refuse(RefusedField, "diagnosis_findings.link.direction: given %d: want 1 to %d, and one of links", d, maxDirection)
	}
	return firstError(
		checkTest("diagnosis_findings.link.dnp", l.GetDnp()),
		checkTest("diagnosis_findings.link.host", l.GetHost()),
		checkTest("diagnosis_findings.link.through", l.GetThrough()),
	)
}

// checkTest lets a test that was not made pass.
func checkTest(field string, t *lofamov1.DiagnosisTest) error {
	switch {
	case t.GetAnswered() > t.GetSent():
		return refuse(RefusedField, "%s.answered: given %d of %d: want at most as many", field, t.GetAnswered(), t.GetSent())
	case t.GetAltered() > t.GetAnswered():
		return refuse(RefusedField, "%s.altered: given %d of %d: want at most as many", field, t.GetAltered(), t.GetAnswered())
	case t.GetLate() > t.GetAnswered():
		return refuse(RefusedField, "%s.late: given %d of %d: want at most as many", field, t.GetLate(), t.GetAnswered())
	case t.GetMinUs() > t.GetMedianUs() || t.GetMedianUs() > t.GetMaxUs() || t.GetMaxUs() > maxTripUs:
		return refuse(RefusedField, "%s: given %d, %d and %d us: want them in order, and at most %d", field, t.GetMinUs(),
			t.GetMedianUs(), t.GetMaxUs(), maxTripUs)
	}
	return nil
}

package servicenet

import (
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of an order to act and of its status. A status is at most MaxReportSize bytes, so that it also fits a
// relayed datagram: FitAct ensures that.
const (
	MaxResponseID    = 48         // bytes of a response's id
	MaxActStep       = 999        // of a response
	MaxActParameters = 4          // of an act
	MaxActName       = 32         // bytes of a parameter's name
	MaxActTarget     = 96         // bytes
	MaxActTimeoutMS  = 86_400_000 // a day
	MaxActAllowed    = 8          // kinds in one status
	maxActKind       = 63         // bytes
)

func checkActOrder(o *lofamov1.ActOrder) error {
	switch {
	case o.GetAttempt() == 0:
		return refuse(RefusedField, "act_order.attempt: given 0: want at least 1")
	case o.GetTimeoutMs() == 0 || o.GetTimeoutMs() > MaxActTimeoutMS:
		return refuse(RefusedField, "act_order.timeout_ms: given %d: want 1 to %d", o.GetTimeoutMs(), MaxActTimeoutMS)
	case !o.GetAsk() && o.GetLedger() == 0:
		return refuse(RefusedField, "act_order.ledger: given 0: want at least 1, unless it only asks")
	case len(o.GetParameters()) > MaxActParameters:
		return refuse(RefusedField, "act_order.parameters: given %d: want at most %d", len(o.GetParameters()), MaxActParameters)
	case len(o.GetTarget()) > MaxActTarget || !validText(o.GetTarget()):
		return refuse(RefusedField, "act_order.target: given %.100q: want at most %d bytes of UTF-8 without control characters",
			o.GetTarget(), MaxActTarget)
	}
	last := ""
	for _, p := range o.GetParameters() {
		if n := p.GetName(); n <= last || len(n) > MaxActName || !fault.IsPlain(n) {
			return refuse(RefusedField, "act_order.parameters.name: given %.40q: want 1 to %d bytes, ascending", n, MaxActName)
		}
		if err := checkText("act_order.parameters.value", p.GetValue()); err != nil {
			return err
		}
		last = p.GetName()
	}
	return firstError(
		checkID("act_order.node", o.GetNode()),
		atLeastOne("act_order.token", o.GetToken()),
		checkAttempt("act_order", o),
		checkActKind("act_order.kind", o.GetKind()),
		checkAddress("act_order.reply_to", o.GetReplyTo()),
	)
}

// attempted is a message that names an attempt.
type attempted interface {
	GetResponse() string
	GetStep() uint32
}

func checkAttempt(name string, m attempted) error {
	if s := m.GetStep(); s > MaxActStep {
		return refuse(RefusedField, "%s.step: given %d: want at most %d", name, s, MaxActStep)
	}
	if n := len(m.GetResponse()); n > MaxResponseID {
		return refuse(RefusedField, "%s.response: given %d bytes: want at most %d", name, n, MaxResponseID)
	}
	return checkID(name+".response", m.GetResponse())
}

func checkActKind(field, k string) error {
	for i := range len(k) {
		if c := k[i]; (c < 'a' || c > 'z') && c != '.' && c != '-' {
			return refuse(RefusedField, "%s: given %.80q: want 1 to %d of a-z, '.' and '-'", field, k, maxActKind)
		}
	}
	if k == "" || len(k) > maxActKind {
		return refuse(RefusedField, "%s: given %.80q: want 1 to %d of a-z, '.' and '-'", field, k, maxActKind)
	}
	return nil
}

// checkActStatus accepts states of later versions: the waiting supervisor treats them as unknown.
func checkActStatus(s *lofamov1.ActStatus) error {
	switch e := s.GetEpoch(); {
	case e == 0 || e > uint64(MaxEpoch):
		return refuse(RefusedField, "act_status.epoch: given %d: want 1 to %d", e, uint64(MaxEpoch))
	case s.GetAttempt() == 0:
		return refuse(RefusedField, "act_status.attempt: given 0: want at least 1")
	case s.GetState() <= lofamov1.ActState_ACT_STATE_UNSPECIFIED:
		return refuse(RefusedField, "act_status.state: given %d: want at least 1", s.GetState())
	case len(s.GetAllowed()) > MaxActAllowed:
		return refuse(RefusedField, "act_status.allowed: given %d: want at most %d", len(s.GetAllowed()), MaxActAllowed)
	}
	for _, k := range s.GetAllowed() {
		if err := checkActKind("act_status.allowed", k); err != nil {
			return err
		}
	}
	return firstError(checkHalf("act_status", s), checkAttempt("act_status", s), checkText("act_status.detail", s.GetDetail()))
}

// FitAct cuts the detail of a status so that it fits a relayed message.
func FitAct(s *lofamov1.ActStatus) {
	for over := proto.Size(s) - MaxReportSize; over > 0 && s.GetDetail() != ""; over = proto.Size(s) - MaxReportSize {
		s.Detail = fault.Cut(s.Detail, max(0, len(s.Detail)-over))
	}
}

package servicenet

import (
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of an order for the fault management procedure and of nodes' reports on a procedure (seed 003 §4.5).
// FitProcedureStatus cuts a status so that it also fits a relayed datagram.
const (
	MaxAbsent        = 200       // places that need not answer
	MaxProcedureList = 64        // nodes of one kind in a status
	maxProcedureRank = 1<<16 - 1 // limit of the field in the bodies of broadcasts

	minDelayUs, maxDelayUs = 100, 10_000_000
	minDrainMs, maxDrainMs = 10, 60_000
)

func checkProcedureOrder(o *lofamov1.ProcedureOrder) error {
	if d := o.GetDelayUs(); d < minDelayUs || d > maxDelayUs {
		return refuse(RefusedField, "procedure_order.delay_us: given %d: want %d to %d", d, minDelayUs, maxDelayUs)
	}
	if h := o.GetHopUs(); h < minDelayUs || h > o.GetDelayUs() {
		return refuse(RefusedField, "procedure_order.hop_us: given %d: want %d to delay_us, %d", h, minDelayUs, o.GetDelayUs())
	}
	if d := o.GetDrainTimeoutMs(); d < minDrainMs || d > maxDrainMs {
		return refuse(RefusedField, "procedure_order.drain_timeout_ms: given %d: want %d to %d", d, minDrainMs, maxDrainMs)
	}
	return firstError(
		checkRanks("procedure_order.absent", o.GetAbsent(), MaxAbsent),
		checkNumber("procedure_order.number", o.GetNumber()),
		checkID("procedure_order.node", o.GetNode()),
		checkAddress("procedure_order.reply_to", o.GetReplyTo()),
		checkText("procedure_order.reason", o.GetReason()),
	)
}

func checkRanks(field string, ranks []uint32, most int) error {
	if len(ranks) > most {
		return refuse(RefusedField, "%s: given %d ranks: want at most %d", field, len(ranks), most)
	}
	for i, r := range ranks {
		if r > maxProcedureRank || i > 0 && r <= ranks[i-1] {
			return refuse(RefusedField, "%s: given %d: want ranks of at most %d, ascending", field, r, maxProcedureRank)
		}
	}
	return nil
}

func checkProcedureStatus(s *lofamov1.ProcedureStatus) error {
	if e := s.GetEpoch(); e == 0 || e > uint64(MaxEpoch) {
		return refuse(RefusedField, "procedure_status.epoch: given %d: want 1 to %d", e, uint64(MaxEpoch))
	}
	if s.GetNumber() != nil {
		if err := checkNumber("procedure_status.number", s.GetNumber()); err != nil {
			return err
		}
	}
	if s.GetHalf() == lofamov1.Half_HALF_DNP && s.GetError() == "" { // others give no state
		if err := firstError(checkProcedureState("procedure_status.state", s.GetState()),
			atLeastOne("procedure_status.wave", s.GetWave())); err != nil {
			return err
		}
	}
	if r := s.GetStarter(); r > maxProcedureRank {
		return refuse(RefusedField, "procedure_status.starter: given %d: want at most %d", r, maxProcedureRank)
	}
	if n := len(s.GetSteps()); n > len(lofamov1.ProcedureState_name) {
		return refuse(RefusedField, "procedure_status.steps: given %d: want at most %d", n, len(lofamov1.ProcedureState_name))
	}
	for _, step := range s.GetSteps() {
		if err := checkProcedureState("procedure_status.steps.state", step.GetState()); err != nil {
			return err
		}
	}
	return firstError(
		checkHalf("procedure_status", s),
		checkRanks("procedure_status.silent", s.GetSilent(), MaxProcedureList),
		checkRanks("procedure_status.holding", s.GetHolding(), MaxProcedureList),
		checkText("procedure_status.error", s.GetError()),
		checkText("procedure_status.cause", s.GetCause()),
	)
}

func checkProcedureState(field string, s lofamov1.ProcedureState) error {
	if s < lofamov1.ProcedureState_PROCEDURE_NORMAL || s > lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS {
		return refuse(RefusedField, "%s: given %d: want 1 to %d", field, s, lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS)
	}
	return nil
}

// MayWait reports whether a drain of the torus may hold a supervisor's envelope on its way to a node (seed 003
// §4.5.3; ADR 23): one that requests a large object, or a part of one, since the supervisor repeats it. The envelope
// is not verified. One that does not decode may not wait: its receiver refuses it.
func MayWait(envelope []byte) bool {
	p, err := parsePacket(envelope)
	if err != nil {
		return false
	}
	msg := new(lofamov1.Message)
	if err := proto.Unmarshal(p.payload, msg); err != nil {
		return false
	}
	switch msg.GetBody().(type) {
	case *lofamov1.Message_BulkRequest, *lofamov1.Message_BulkPull:
		return true
	}
	return false
}

// FitProcedureStatus shortens a status so that it can be relayed. It drops first the listed nodes with the highest
// ranks, then the end of the cause, then the steps.
func FitProcedureStatus(s *lofamov1.ProcedureStatus) {
	s.Silent, s.Holding = s.Silent[:min(len(s.Silent), MaxProcedureList)], s.Holding[:min(len(s.Holding), MaxProcedureList)]
	s.Error, s.Cause = fault.Clean(s.Error, fault.MaxDetail), fault.Clean(s.Cause, fault.MaxDetail)
	for over := proto.Size(s) - MaxReportSize; over > 0; over = proto.Size(s) - MaxReportSize {
		switch silent, holding := len(s.Silent), len(s.Holding); {
		case silent > 0 && silent >= holding:
			s.Silent = s.Silent[:silent-1]
		case holding > 0:
			s.Holding = s.Holding[:holding-1]
		case s.Cause != "":
			s.Cause = fault.Clean(s.Cause, max(0, len(s.Cause)-over))
		case len(s.Steps) > 0:
			s.Steps = s.Steps[:len(s.Steps)-1]
		default:
			return // unreachable: the remaining fields are short
		}
	}
}

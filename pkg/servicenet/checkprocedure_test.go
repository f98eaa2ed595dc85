package servicenet

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

func procedureOrder() *lofamov1.ProcedureOrder {
	return &lofamov1.ProcedureOrder{
		Number: &lofamov1.OrderNumber{Term: 7, Count: 1}, Node: "n0-0-0", Diagnose: true, Absent: []uint32{3, 5}, DelayUs: 450_000, HopUs: 75_000,
		DrainTimeoutMs: 1000, ReplyTo: "10.0.0.1:7700", Reason: "a person asks",
	}
}

func procedureStatus() *lofamov1.ProcedureStatus {
	return &lofamov1.ProcedureStatus{
		Number: &lofamov1.OrderNumber{Term: 7, Count: 1}, Node: "n0-0-0", Half: lofamov1.Half_HALF_DNP, Epoch: 4, Wave: 2, Starter: 63,
		State: lofamov1.ProcedureState_PROCEDURE_NORMAL, Round: 2, Silent: []uint32{1}, Holding: []uint32{2, 9}, Held: 1, Diagnosed: true,
		Steps: []*lofamov1.ProcedureStep{{State: lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN, TookUs: 20_000, Held: 1}},
	}
}

func ranksTo(n int) (out []uint32) {
	for i := range n {
		out = append(out, uint32(8000+i))
	}
	return out
}

func TestProcedureMessagesAreBounded(t *testing.T) {
	order := func(edit func(*lofamov1.ProcedureOrder)) error {
		o := procedureOrder()
		edit(o)
		_, err := checkMessage(&lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: o}})
		return err
	}
	status := func(edit func(*lofamov1.ProcedureStatus)) error {
		s := procedureStatus()
		edit(s)
		_, err := checkMessage(&lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: s}})
		return err
	}
	long := strings.Repeat("x", fault.MaxDetail+1)
	for _, tt := range []struct {
		want string // in the error; "" passes
		err  error
	}{
		{"", order(func(*lofamov1.ProcedureOrder) {})},
		{"procedure_order.number", order(func(o *lofamov1.ProcedureOrder) { o.Number = nil })},
		{"procedure_order.node", order(func(o *lofamov1.ProcedureOrder) { o.Node = "" })},
		{"procedure_order.delay_us", order(func(o *lofamov1.ProcedureOrder) { o.DelayUs = 10_000_001 })},
		{"procedure_order.hop_us", order(func(o *lofamov1.ProcedureOrder) { o.HopUs = o.DelayUs + 1 })},
		{"procedure_order.hop_us", order(func(o *lofamov1.ProcedureOrder) { o.HopUs = 99 })},
		{"procedure_order.drain_timeout_ms", order(func(o *lofamov1.ProcedureOrder) { o.DrainTimeoutMs = 9 })},
		{"procedure_order.absent", order(func(o *lofamov1.ProcedureOrder) { o.Absent = []uint32{5, 5} })},
		{"procedure_order.absent", order(func(o *lofamov1.ProcedureOrder) { o.Absent = ranksTo(MaxAbsent + 1) })},
		{"procedure_order.absent", order(func(o *lofamov1.ProcedureOrder) { o.Absent = []uint32{1 << 16} })},
		{"procedure_order.reply_to", order(func(o *lofamov1.ProcedureOrder) { o.ReplyTo = "here" })},
		{"procedure_order.reason", order(func(o *lofamov1.ProcedureOrder) { o.Reason = long })},
		{"", status(func(*lofamov1.ProcedureStatus) {})},
		{"", status(func(s *lofamov1.ProcedureStatus) { s.Number = nil })},
		{"", status(func(s *lofamov1.ProcedureStatus) { s.Half, s.State, s.Wave = lofamov1.Half_HALF_HOST, 0, 0 })},
		{"", status(func(s *lofamov1.ProcedureStatus) { s.Error, s.State, s.Wave = "no", 0, 0 })},
		{"procedure_status.number.term", status(func(s *lofamov1.ProcedureStatus) { s.Number.Term = 0 })},
		{"procedure_status.node", status(func(s *lofamov1.ProcedureStatus) { s.Node = "a/b" })},
		{"procedure_status.half", status(func(s *lofamov1.ProcedureStatus) { s.Half = 0 })},
		{"procedure_status.epoch", status(func(s *lofamov1.ProcedureStatus) { s.Epoch = 0 })},
		{"procedure_status.wave", status(func(s *lofamov1.ProcedureStatus) { s.Wave = 0 })},
		{"procedure_status.state", status(func(s *lofamov1.ProcedureStatus) { s.State = 8 })},
		{"procedure_status.starter", status(func(s *lofamov1.ProcedureStatus) { s.Starter = 1 << 16 })},
		{"procedure_status.silent", status(func(s *lofamov1.ProcedureStatus) { s.Silent = ranksTo(MaxProcedureList + 1) })},
		{"procedure_status.holding", status(func(s *lofamov1.ProcedureStatus) { s.Holding = []uint32{2, 1} })},
		{"procedure_status.steps.state", status(func(s *lofamov1.ProcedureStatus) { s.Steps[0].State = 0 })},
		{"procedure_status.steps", status(func(s *lofamov1.ProcedureStatus) { s.Steps = make([]*lofamov1.ProcedureStep, 9) })},
		{"procedure_status.error", status(func(s *lofamov1.ProcedureStatus) { s.Error = long })},
		{"procedure_status.cause", status(func(s *lofamov1.ProcedureStatus) { s.Cause = "a\nb" })},
	} {
		if (tt.err == nil) != (tt.want == "") || tt.err != nil && !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%v, want %q", tt.err, tt.want)
		}
	}
}

// Any status, once cut for sending, fits a relayed message, and a receiver accepts it.
func TestProcedureStatusFitsRelayed(t *testing.T) {
	for _, edit := range []func(*lofamov1.ProcedureStatus){
		func(*lofamov1.ProcedureStatus) {},
		func(s *lofamov1.ProcedureStatus) { s.Silent, s.Holding = ranksTo(200), ranksTo(90) },
		func(s *lofamov1.ProcedureStatus) { s.Cause = strings.Repeat("ä", 200) },
		func(s *lofamov1.ProcedureStatus) { s.Error, s.Silent = strings.Repeat("ä\n", 200), ranksTo(64) },
	} {
		s := procedureStatus()
		s.Node, s.Epoch, s.Number, s.Wave = strings.Repeat("n", MaxNodeID), uint64(MaxEpoch), &lofamov1.OrderNumber{Term: 1 << 62,
			Count: 1 << 40}, 1<<32
		s.Steps = nil
		for state := lofamov1.ProcedureState_PROCEDURE_NORMAL; state <= lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS; state++ {
			s.Steps = append(s.Steps, &lofamov1.ProcedureStep{State: state, TookUs: 60_000_000, Held: 64})
		}
		edit(s)
		silent := slices.Clone(s.Silent)
		FitProcedureStatus(s)
		if _, err := checkMessage(&lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: s}}); err != nil {
			t.Error(err)
		}
		if n := proto.Size(s); n > MaxReportSize || !slices.Equal(s.Silent, silent[:len(s.Silent)]) {
			t.Errorf("%d bytes, silent %v", n, s.Silent)
		}
	}
	s := procedureStatus()
	FitProcedureStatus(s)
	if !proto.Equal(s, procedureStatus()) {
		t.Errorf("what fits is changed: %v", s)
	}
}

// A drain may hold requests for large objects, and nothing else.
func TestDrainHoldsBulkRequestsOnly(t *testing.T) {
	sup := newSigner(RoleSupervisor, "sup-0")
	for _, tt := range []struct {
		msg  *lofamov1.Message
		want bool
	}{
		{bulkRequest(), true}, {bulkPull(), true}, {diagnosisOrder(), false}, {challengeMessage(), false},
		{&lofamov1.Message{Body: &lofamov1.Message_ProcedureOrder{ProcedureOrder: procedureOrder()}}, false},
	} {
		b, err := Seal(tt.msg, sup)
		if err != nil {
			t.Fatal(err)
		}
		if MayWait(b) != tt.want || MayWait(b[:len(b)/2]) {
			t.Errorf("%T may wait: %t", tt.msg.GetBody(), !tt.want)
		}
	}
	if MayWait(nil) {
		t.Error("nothing may wait")
	}
}

package servicenet

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

func actOrder() *lofamov1.ActOrder {
	return &lofamov1.ActOrder{
		Node: "n0", Token: 7, Response: "r7-1", Step: 2, Attempt: 1, Kind: "node.restart-half", TimeoutMs: 30_000, ReplyTo: "10.0.0.1:7",
		Ledger: 9, Target: "n0/host",
		Parameters: []*lofamov1.ActParameter{{Name: "half", Value: "host"}},
	}
}

func actStatus() *lofamov1.ActStatus {
	return &lofamov1.ActStatus{
		Node: "n0", Half: lofamov1.Half_HALF_HOST, Epoch: 3, Response: "r7-1", Step: 2, Attempt: 1, State: lofamov1.ActState_ACT_DONE,
		Detail: "restarted", Ledger: 9, Token: 7,
	}
}

// Orders and statuses of acts stay in their bounds and come from the allowed role, and a status may be relayed.
func TestActMessagesAreBounded(t *testing.T) {
	order := func(edit func(*lofamov1.ActOrder)) error {
		o := actOrder()
		edit(o)
		return checkActOrder(o)
	}
	status := func(edit func(*lofamov1.ActStatus)) error {
		s := actStatus()
		edit(s)
		return checkActStatus(s)
	}
	for _, good := range []error{
		order(func(*lofamov1.ActOrder) {}),
		order(func(o *lofamov1.ActOrder) { o.Ask, o.Ledger = true, 0 }),
		status(func(*lofamov1.ActStatus) {}),
		status(func(s *lofamov1.ActStatus) { s.State = 99 }), // of a later version
	} {
		if good != nil {
			t.Error(good)
		}
	}
	long := strings.Repeat("x", 200)
	for want, err := range map[string]error{
		"act_order.node":                 order(func(o *lofamov1.ActOrder) { o.Node = "" }),
		"act_order.token":                order(func(o *lofamov1.ActOrder) { o.Token = 0 }),
		"act_order.response":             order(func(o *lofamov1.ActOrder) { o.Response = "a/b" }),
		"act_order.response: given 60":   order(func(o *lofamov1.ActOrder) { o.Response = long[:60] }),
		"act_order.step":                 order(func(o *lofamov1.ActOrder) { o.Step = 1000 }),
		"act_order.attempt":              order(func(o *lofamov1.ActOrder) { o.Attempt = 0 }),
		"act_order.kind":                 order(func(o *lofamov1.ActOrder) { o.Kind = "Node" }),
		`act_order.kind: given ""`:       order(func(o *lofamov1.ActOrder) { o.Kind = "" }),
		"act_order.timeout_ms":           order(func(o *lofamov1.ActOrder) { o.TimeoutMs = 0 }),
		"act_order.ledger":               order(func(o *lofamov1.ActOrder) { o.Ledger = 0 }),
		"act_order.reply_to":             order(func(o *lofamov1.ActOrder) { o.ReplyTo = "here" }),
		"act_order.target":               order(func(o *lofamov1.ActOrder) { o.Target = long }),
		"act_order.parameters: given 5":  order(func(o *lofamov1.ActOrder) { o.Parameters = make([]*lofamov1.ActParameter, 5) }),
		"act_order.parameters.name":      order(func(o *lofamov1.ActOrder) { o.Parameters = append(o.Parameters, o.Parameters[0]) }),
		"act_order.parameters.value":     order(func(o *lofamov1.ActOrder) { o.Parameters[0].Value = "a\nb" }),
		"act_status.epoch":               status(func(s *lofamov1.ActStatus) { s.Epoch = 0 }),
		"act_status.half":                status(func(s *lofamov1.ActStatus) { s.Half = 0 }),
		"act_status.state":               status(func(s *lofamov1.ActStatus) { s.State = 0 }),
		"act_status.attempt":             status(func(s *lofamov1.ActStatus) { s.Attempt = 0 }),
		"act_status.detail":              status(func(s *lofamov1.ActStatus) { s.Detail = long }),
		"act_status.allowed: given 9":    status(func(s *lofamov1.ActStatus) { s.Allowed = make([]string, 9) }),
		`act_status.allowed: given "No"`: status(func(s *lofamov1.ActStatus) { s.Allowed = []string{"No"} }),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	said, role := bySpeaker(&lofamov1.Message{Body: &lofamov1.Message_ActStatus{ActStatus: actStatus()}})
	if role != RoleNode || said != (fault.Origin{Node: "n0", Half: fault.HalfHost}) {
		t.Errorf("a status is said by %s %v", role, said)
	}
	if _, role := bySpeaker(&lofamov1.Message{Body: &lofamov1.Message_ActOrder{ActOrder: actOrder()}}); role != RoleSupervisor {
		t.Errorf("an order is said by a %s", role)
	}
}

// Every status fits a relayed message: its detail is cut, at a letter.
func TestActStatusFitsRelayed(t *testing.T) {
	s := actStatus()
	s.Node, s.Response, s.Epoch, s.Step, s.Attempt = strings.Repeat("n", MaxNodeID), strings.Repeat("r",
		MaxResponseID), uint64(MaxEpoch), MaxActStep, 1<<31
	s.Ledger, s.Token, s.Detail = 1<<63, 1<<63, strings.Repeat("ä", fault.MaxDetail/2)
	FitAct(s)
	if err := checkActStatus(s); err != nil {
		t.Error(err)
	}
	if n := proto.Size(s); n > MaxReportSize || len(s.Detail) < 40 {
		t.Errorf("%d bytes, detail of %d", n, len(s.Detail))
	}
	short := actStatus()
	FitAct(short)
	if short.Detail != "restarted" {
		t.Errorf("cut to %q", short.Detail)
	}
}

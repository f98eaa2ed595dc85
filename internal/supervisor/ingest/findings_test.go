package ingest

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// diagnosed remembers findings and statuses.
type diagnosed struct {
	got  []*lofamov1.DiagnosisFindings
	said []*lofamov1.ProcedureStatus
}

// register makes d the receiver of answers to diagnoses and procedures.
func (d *diagnosed) register(c *IntakeConfig) {
	c.Orders.Register(servicenet.OrderDiagnosis, Answers{Take: func(m *lofamov1.Message) { d.got = append(d.got, m.GetDiagnosisFindings()) }})
	c.Orders.Register(servicenet.OrderProcedure, Answers{Take: func(m *lofamov1.Message) { d.said = append(d.said, m.GetProcedureStatus()) }})
}

func findings(t testing.TB, h *half) []byte {
	t.Helper()
	return h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_DiagnosisFindings{DiagnosisFindings: &lofamov1.DiagnosisFindings{
		Number: &lofamov1.OrderNumber{Term: 7, Count: 1}, Node: string(h.origin.Node), Half: lofamov1.Half(h.origin.Half), Epoch: 5, Links: 1,
		Link: &lofamov1.LinkFinding{Direction: 1},
	}}})
}

// A half's procedure statuses take the same paths.
func TestStatusesGoToLeader(t *testing.T) {
	a := newAuthority(t)
	h, relay := a.half(t, dnp0), a.half(t, host1)
	status := func(h *half) []byte {
		return h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_ProcedureStatus{ProcedureStatus: &lofamov1.ProcedureStatus{
			Number: &lofamov1.OrderNumber{Term: 7, Count: 1}, Node: string(h.origin.Node), Half: lofamov1.Half(h.origin.Half), Epoch: 5, Wave: 1,
			State: lofamov1.ProcedureState_PROCEDURE_NORMAL,
		}}})
	}
	relayed, err := servicenet.SealRelayed(status(h), []fault.Hop{{Node: "n0", Half: fault.HalfDNP}, {Node: "n1", Half: fault.HalfHost}},
		relay.signer)
	if err != nil {
		t.Fatal(err)
	}
	leads, follows := &diagnosed{}, &diagnosed{}
	leader := a.replica(t, "s1", func(c *IntakeConfig) { leads.register(c) })
	follower := a.replica(t, "s2", func(c *IntakeConfig) { follows.register(c) })
	follower.leader.leading = false
	for _, b := range [][]byte{status(h), relayed} {
		leader.get(n1, 0, b)
		follower.get(n1, 0, b)
	}
	for _, req := range follower.forward.got {
		if in := leader.intake.Forwarded(req); in != nil {
			t.Errorf("%+v for the engine", in)
		}
	}
	if len(follows.said) != 0 || len(leads.said) != 4 || leads.said[1].GetNode() != "n0" || len(leader.leader.inputs()) != 0 {
		t.Errorf("the leader has %v, the follower %v", leads.said, follows.said)
	}
	before := leader.refused("unknown-node")
	leader.get(n1, 0, status(a.half(t, fault.Origin{Node: "n7", Half: fault.HalfDNP})))
	if leader.refused("unknown-node") != before+1 || len(leads.said) != 4 {
		t.Error("a status of nobody's node is taken, or not counted")
	}
}

// Findings go to the diagnosis if this replica leads, directly or relayed, and otherwise to the leader; never to
// the engine.
func TestFindingsGoToLeader(t *testing.T) {
	a := newAuthority(t)
	h, relay := a.half(t, dnp0), a.half(t, host1)
	relayed, err := servicenet.SealRelayed(findings(t, h), []fault.Hop{{Node: "n0", Half: fault.HalfDNP}, {Node: "n1", Half: fault.HalfHost}},
		relay.signer)
	if err != nil {
		t.Fatal(err)
	}
	leads, follows := &diagnosed{}, &diagnosed{}
	leader := a.replica(t, "s1", func(c *IntakeConfig) { leads.register(c) })
	follower := a.replica(t, "s2", func(c *IntakeConfig) { follows.register(c) })
	follower.leader.leading = false
	for _, b := range [][]byte{findings(t, h), relayed} {
		leader.get(n1, 0, b)
		follower.get(n1, 0, b)
	}
	if len(leads.got) != 2 || leads.got[1].GetNode() != "n0" || len(leader.leader.inputs()) != 0 {
		t.Errorf("the leader has %v, its engine %v", leads.got, leader.leader.inputs())
	}
	if len(follows.got) != 0 || len(follower.forward.got) != 2 {
		t.Fatalf("the follower keeps %v and forwards %v", follows.got, follower.forward.got)
	}
	for _, req := range follower.forward.got {
		if in := leader.intake.Forwarded(req); in != nil {
			t.Errorf("%+v for the engine", in)
		}
	}
	if len(leads.got) != 4 {
		t.Errorf("%d findings at the leader", len(leads.got))
	}
	stranger := a.half(t, fault.Origin{Node: "n7", Half: fault.HalfDNP})
	before := leader.refused("unknown-node")
	leader.get(n1, 0, findings(t, stranger))
	if leader.refused("unknown-node") != before+1 || len(leads.got) != 4 {
		t.Error("findings of nobody's node are taken, or not counted")
	}
}

// acted records the statuses of acts.
type acted struct{ said []*lofamov1.ActStatus }

func (a *acted) register(c *IntakeConfig) {
	c.Orders.Register(servicenet.OrderAct, Answers{Take: func(m *lofamov1.Message) { a.said = append(a.said, m.GetActStatus()) }})
}

// Act statuses go to the leader, directly or through the torus. A replica that orders no acts drops them.
func TestActStatusesGoToLeader(t *testing.T) {
	a := newAuthority(t)
	h, relay := a.half(t, dnp0), a.half(t, host1)
	status := h.seal(t, &lofamov1.Message{Body: &lofamov1.Message_ActStatus{ActStatus: &lofamov1.ActStatus{
		Node: "n0", Half: lofamov1.Half_HALF_DNP, Epoch: 5, Response: "r7-1", Attempt: 1, State: lofamov1.ActState_ACT_DONE,
	}}})
	relayed, err := servicenet.SealRelayed(status, []fault.Hop{{Node: "n0", Half: fault.HalfDNP}, {Node: "n1", Half: fault.HalfHost}},
		relay.signer)
	if err != nil {
		t.Fatal(err)
	}
	leads, follows := &acted{}, &acted{}
	leader := a.replica(t, "s1", func(c *IntakeConfig) { leads.register(c) })
	follower := a.replica(t, "s2", func(c *IntakeConfig) { follows.register(c) })
	none := a.replica(t, "s3", func(*IntakeConfig) {})
	follower.leader.leading = false
	for _, b := range [][]byte{status, relayed} {
		leader.get(n1, 0, b)
		follower.get(n1, 0, b)
		none.get(n1, 0, b)
	}
	for _, req := range follower.forward.got {
		if in := leader.intake.Forwarded(req); in != nil {
			t.Errorf("%+v for the engine", in)
		}
	}
	if len(follows.said) != 0 || len(leads.said) != 4 || leads.said[3].GetResponse() != "r7-1" || len(leader.leader.inputs()) != 0 {
		t.Errorf("the leader has %v, the follower %v", leads.said, follows.said)
	}
}

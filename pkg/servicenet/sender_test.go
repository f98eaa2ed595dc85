package servicenet

import (
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

var (
	senderStart = time.Unix(1000, 0)
	senderHost  = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}
	senderDNP   = fault.Origin{Node: "n0-0-0", Half: fault.HalfDNP}
	senderOther = fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}
)

func newSender(t *testing.T) *Sender {
	t.Helper()
	cfg := DefaultOutboxConfig(fault.PathDirect, fault.PathTorus)
	cfg.Interfaces = []string{"eth0", "eth1"}
	s, err := NewSender(senderHost, 3, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Step(senderStart, Supervisors{Targets: []string{"sup-0"}})
	return s
}

func senderReport() fault.Report {
	return fault.Report{Observations: []fault.Observation{{Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf}}}
}

func senderAcks(status lofamov1.Ack_Status, who fault.Origin, seq fault.Seq) *lofamov1.Message {
	return &lofamov1.Message{Acks: NewAcks(status, fault.ReportID{Origin: who, Epoch: 3, Seq: seq})}
}

// Acknowledgements of this half's reports go to the outbox; those of the other half are reported as such.
func TestHeardAcks(t *testing.T) {
	for _, tc := range []struct {
		name     string
		msg      *lofamov1.Message
		forOther bool
		pending  int
	}{
		{"own, committed", senderAcks(lofamov1.Ack_COMMITTED, senderHost, 1), false, 0},
		{"own, received", senderAcks(lofamov1.Ack_RECEIVED, senderHost, 1), false, 1},
		{"of the other half", senderAcks(lofamov1.Ack_COMMITTED, senderDNP, 1), true, 1},
		{"of another node", senderAcks(lofamov1.Ack_COMMITTED, senderOther, 1), false, 1},
		{"both halves'", &lofamov1.Message{Acks: slices.Concat(
			senderAcks(lofamov1.Ack_RECEIVED, senderDNP, 1).GetAcks(), senderAcks(lofamov1.Ack_COMMITTED, senderHost, 1).GetAcks())}, true, 0},
		{"on a challenge", &lofamov1.Message{
			Acks: senderAcks(lofamov1.Ack_COMMITTED, senderHost, 1).GetAcks(),
			Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{}},
		}, false, 0},
	} {
		s := newSender(t)
		s.Add(senderStart, senderReport())
		got := s.Heard(senderStart.Add(time.Millisecond), Opened{Msg: tc.msg, Name: "sup-0"}, fault.PathDirect, 0)
		if got != tc.forOther || s.Stats().Pending != tc.pending {
			t.Errorf("%s: for the other half %t, %d pending: want %t, %d", tc.name, got, s.Stats().Pending, tc.forOther, tc.pending)
		}
	}
}

// Take returns the messages of several steps, once.
func TestSenderTake(t *testing.T) {
	s := newSender(t)
	s.Take()
	s.Add(senderStart, senderReport())
	s.Add(senderStart, senderReport())
	n := 0
	for _, d := range s.Take().Send {
		n += len(d.Reports)
	}
	if n != 2 {
		t.Errorf("%d reports sent, want 2", n)
	}
	if out := s.Take(); len(out.Send) != 0 || len(out.SenderNotes) != 0 {
		t.Errorf("taken again: %+v", out)
	}
	if s.Wake().IsZero() {
		t.Error("reports wait for answers, and nothing wakes")
	}
}

// A reply to somebody else, or to an earlier life, is not the outbox's.
func TestRepliesToOthers(t *testing.T) {
	s := newSender(t)
	for _, tc := range []struct {
		reply *lofamov1.PathReply
		want  bool
	}{
		{&lofamov1.PathReply{Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: 3}, true},
		{&lofamov1.PathReply{Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: 2}, false},
		{&lofamov1.PathReply{Node: "n0-0-0", Half: lofamov1.Half_HALF_DNP, Epoch: 3}, false},
		{&lofamov1.PathReply{Node: "n1-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: 3}, false},
	} {
		if got := s.repliesToThis(tc.reply); got != tc.want {
			t.Errorf("%v: %t, want %t", tc.reply, got, tc.want)
		}
	}
}

// The log lines for people, and their levels.
func TestNotes(t *testing.T) {
	zero, one := PathID{Supervisor: "sup-0"}, PathID{Interface: 1, Supervisor: "sup-1"}
	for _, tc := range []struct {
		out  Output
		warn bool
		text string // empty: none
	}{
		{Output{NewEpoch: 9}, true, "the supervisors do not take this boot epoch: going on from 9"},
		{Output{Dropped: 2}, true, "the log of reports is full: 2 were coalesced into newer ones"},
		{Output{Dropped: 2, DroppedWhat: "link/X+"}, true,
			"the log of reports is full, most of it about link/X+: 2 were coalesced into newer ones"},
		{Output{TooLong: 2}, true, "the names of the cluster and its nodes are too long for reports by way of the torus: 2 were left out"},
		{Output{Isolated: true, IsolatedChanged: true}, true, "no supervisor can be reached by any rail: no report waits"},
		{Output{Isolated: true}, false, ""},
		{Output{IsolatedChanged: true}, false, "a supervisor is reached again: no report waits"},
		{Output{Migrations: []Migration{{From: zero, To: one, State: PathMigrated, Why: "no answer"}}},
			false, "reports go by eth1>sup-1 instead of eth0>sup-0: no answer"},
		{Output{Migrations: []Migration{{From: zero, To: zero, State: PathArmed}}}, false, ""},
		{Output{Migrations: []Migration{{State: PathMigrated}}}, false, ""},
		{Output{Migrations: []Migration{{From: one, State: PathReestablishing, Why: "no answer"}}},
			true, "no path to a supervisor works: asking for new ones, eth1>sup-1 was the last: no answer"},
		{Output{Migrations: []Migration{{To: one, State: PathMigrated, Why: "re-established"}}},
			false, "reports go by eth1>sup-1"},
	} {
		s := newSender(t)
		s.Take()
		s.gather(senderStart, nil, tc.out)
		var want []SenderNote
		if tc.text != "" {
			want = []SenderNote{{tc.warn, tc.text}}
		}
		if got := s.Take().SenderNotes; !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
	}
}

// Restored reports cause a note.
func TestSenderRestores(t *testing.T) {
	s := newSender(t)
	s.Restore(senderStart, nil)
	if told := s.Take().SenderNotes; len(told) != 0 {
		t.Errorf("told %v of nothing", told)
	}
	r := senderReport()
	r.ID = fault.ReportID{Origin: senderHost, Epoch: 2, Seq: 5}
	s.Restore(senderStart, []Kept{{Report: r, Age: time.Minute}})
	if told := s.Take().SenderNotes; len(told) != 1 || told[0].Text != "1 undelivered report of an earlier life goes on" {
		t.Errorf("told %v", told)
	}
}

// After no path worked, a note names the working path even if it is the previous one.
func TestNoteOfSamePathAgain(t *testing.T) {
	zero := PathID{Supervisor: "sup-0"}
	s := newSender(t)
	s.Take()
	s.gather(senderStart, nil, Output{Migrations: []Migration{
		{From: zero, To: zero, State: PathReestablishing, Why: "no answer"},
		{From: zero, To: zero, State: PathMigrated, Why: "re-established"},
		{From: zero, To: zero, State: PathRearm, Why: "an alternate is chosen"},
	}})
	told := s.Take().SenderNotes
	if len(told) != 2 || told[1] != (SenderNote{false, "reports go by eth0>sup-0 again: re-established"}) {
		t.Errorf("told %v", told)
	}
	if len(s.Migrations()) != 0 {
		t.Errorf("%v counted: the primary never changed", s.Migrations())
	}
}

// Migrations are counted by their reason.
func TestReasons(t *testing.T) {
	for _, tc := range []struct {
		ev     Event
		why    string
		asking bool
		want   MigrationReason
	}{
		{Tick{}, "no answer", false, ReasonUnanswered},
		{nil, "no answer", false, ReasonUnanswered},
		{PathFailed{}, "connection refused", false, ReasonPathError},
		{RailDown{}, "no carrier", false, ReasonInterfaceDown},
		{Acked{}, whyLeader, false, ReasonLeader},
		{Replied{}, "re-established", true, ReasonReestablished},
		{Acked{}, "a report was answered", true, ReasonReestablished},
	} {
		s := newSender(t)
		s.asking = tc.asking
		s.gather(senderStart, tc.ev, Output{Migrations: []Migration{{
			From: PathID{Supervisor: "sup-0"}, To: PathID{Supervisor: "sup-1"}, State: PathMigrated, Why: tc.why,
		}}})
		if got := s.Migrations(); len(got) != 1 || got[tc.want] != 1 {
			t.Errorf("%T, %s: %v, want one %s", tc.ev, tc.why, got, tc.want)
		}
	}
	for _, r := range MigrationReasons() {
		if strings.HasPrefix(r.String(), "MigrationReason(") {
			t.Errorf("reason %d has no name", r)
		}
	}
	if got := MigrationReason(0).String(); got != "MigrationReason(0)" {
		t.Errorf("no reason is called %s", got)
	}
}

// A reply to a path request of this half is acknowledged, and only where it can have come from.
func TestHeardReply(t *testing.T) {
	for _, tc := range []struct {
		name string
		path fault.Path
		id   uint64 // added to that of the request
		want int    // acknowledgements
	}{
		{"the reply", fault.PathDirect, 0, 1},
		{"by the torus", fault.PathTorus, 0, 0},
		{"of another request", fault.PathDirect, 7, 0},
	} {
		s := newSender(t)
		s.Add(senderStart, senderReport())
		s.Tick(senderStart)
		var q *PathMessage
		for _, p := range s.Take().Paths {
			if p.Request != nil {
				q = &p
			}
		}
		if q == nil {
			t.Fatal("no path is asked for")
		}
		reply := &lofamov1.PathReply{
			Node: q.Request.GetNode(), Half: q.Request.GetHalf(), Epoch: q.Request.GetEpoch(), Id: q.Request.GetId() + tc.id,
			Checksum: lofamov1.Checksum_CHECKSUM_CRC32C, Session: 5,
		}
		s.Heard(senderStart.Add(time.Millisecond), Opened{
			Msg: &lofamov1.Message{Body: &lofamov1.Message_PathReply{PathReply: reply}}, Name: q.Path.Supervisor,
		}, tc.path, q.Path.Interface)
		acks := 0
		for _, p := range s.Take().Paths {
			if p.Ack != nil && p.Ack.GetId() == q.Request.GetId() && p.Path == q.Path {
				acks++
			}
		}
		if acks != tc.want {
			t.Errorf("%s: %d acknowledgements, want %d", tc.name, acks, tc.want)
		}
	}
}

// A request to send everything again causes an immediate retransmission of unanswered reports.
func TestHeardAgain(t *testing.T) {
	s := newSender(t)
	s.Add(senderStart, senderReport())
	sent := s.Take().Send
	if len(sent) != 1 {
		t.Fatalf("%d datagrams, want 1", len(sent))
	}
	s.Heard(senderStart.Add(12*time.Millisecond), Opened{
		Msg: &lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}, Name: sent[0].Target,
	}, fault.PathDirect, sent[0].Interface)
	again := s.Take().Send
	if len(again) != 1 || again[0].Reports[0].ID != sent[0].Reports[0].ID || again[0].Attempt != 2 {
		t.Errorf("sent %+v: want the report for the second time", again)
	}
}

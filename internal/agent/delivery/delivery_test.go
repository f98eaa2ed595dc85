package delivery

import (
	"slices"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/config"
)

var (
	start = time.Unix(1000, 0)
	host  = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}
	dnp   = fault.Origin{Node: "n0-0-0", Half: fault.HalfDNP}
	other = fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}
)

func newSender(t *testing.T) *Sender {
	t.Helper()
	p, err := config.Preset(config.PresetDefault)
	if err != nil {
		t.Fatal(err)
	}
	cfg := OutboxConfig(p, fault.PathDirect, fault.PathTorus)
	cfg.Interfaces = []string{"eth0", "eth1"}
	s, err := New(host, 3, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Step(start, servicenet.Supervisors{Targets: []string{"sup-0"}})
	return s
}

func report() fault.Report {
	return fault.Report{Observations: []fault.Observation{{Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf}}}
}

func acks(status lofamov1.Ack_Status, who fault.Origin, seq fault.Seq) *lofamov1.Message {
	return &lofamov1.Message{Acks: servicenet.NewAcks(status, fault.ReportID{Origin: who, Epoch: 3, Seq: seq})}
}

// Presets give outboxes that are allowed.
func TestOutboxConfigOfEveryPreset(t *testing.T) {
	for _, name := range config.PresetNames() {
		p, err := config.Preset(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, rails := range [][]fault.Path{{fault.PathTorus}, {fault.PathDirect, fault.PathGossip, fault.PathTorus}} {
			if err := OutboxConfig(p, rails...).Validate(); err != nil {
				t.Errorf("preset %s, rails %v: %v", name, rails, err)
			}
		}
	}
}

// Acknowledgements of this half's reports go to the outbox; those of the other half are reported as such.
func TestHeardAcks(t *testing.T) {
	for _, tc := range []struct {
		name     string
		msg      *lofamov1.Message
		forOther bool
		pending  int
	}{
		{"own, committed", acks(lofamov1.Ack_COMMITTED, host, 1), false, 0},
		{"own, received", acks(lofamov1.Ack_RECEIVED, host, 1), false, 1},
		{"of the other half", acks(lofamov1.Ack_COMMITTED, dnp, 1), true, 1},
		{"of another node", acks(lofamov1.Ack_COMMITTED, other, 1), false, 1},
		{"both halves'", &lofamov1.Message{Acks: slices.Concat(
			acks(lofamov1.Ack_RECEIVED, dnp, 1).GetAcks(), acks(lofamov1.Ack_COMMITTED, host, 1).GetAcks())}, true, 0},
		{"on a challenge", &lofamov1.Message{
			Acks: acks(lofamov1.Ack_COMMITTED, host, 1).GetAcks(),
			Body: &lofamov1.Message_Challenge{Challenge: &lofamov1.Challenge{}},
		}, false, 0},
	} {
		s := newSender(t)
		s.Add(start, report())
		got := s.Heard(start.Add(time.Millisecond), servicenet.Opened{Msg: tc.msg, Name: "sup-0"}, fault.PathDirect, 0)
		if got != tc.forOther || s.Stats().Pending != tc.pending {
			t.Errorf("%s: for the other half %t, %d pending: want %t, %d", tc.name, got, s.Stats().Pending, tc.forOther, tc.pending)
		}
	}
}

// Take returns the messages of several steps, once.
func TestTake(t *testing.T) {
	s := newSender(t)
	s.Take()
	s.Add(start, report())
	s.Add(start, report())
	n := 0
	for _, d := range s.Take().Send {
		n += len(d.Reports)
	}
	if n != 2 {
		t.Errorf("%d reports sent, want 2", n)
	}
	if out := s.Take(); len(out.Send) != 0 || len(out.Told) != 0 {
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
	zero, one := servicenet.PathID{Supervisor: "sup-0"}, servicenet.PathID{Interface: 1, Supervisor: "sup-1"}
	for _, tc := range []struct {
		out  servicenet.Output
		warn bool
		text string // empty: none
	}{
		{servicenet.Output{NewEpoch: 9}, true, "the supervisors do not take this boot epoch: going on from 9"},
		{servicenet.Output{Dropped: 2}, true, "the log of reports is full: 2 were coalesced into newer ones"},
		{servicenet.Output{Dropped: 2, DroppedWhat: "link/X+"}, true,
			"the log of reports is full, most of it about link/X+: 2 were coalesced into newer ones"},
		{servicenet.Output{Isolated: true, IsolatedChanged: true}, true, "no supervisor can be reached by any rail: no report waits"},
		{servicenet.Output{Isolated: true}, false, ""},
		{servicenet.Output{IsolatedChanged: true}, false, "a supervisor is reached again: no report waits"},
		{servicenet.Output{Migrations: []servicenet.Migration{{From: zero, To: one, State: servicenet.PathMigrated, Why: "no answer"}}},
			false, "reports go by eth1>sup-1 instead of eth0>sup-0: no answer"},
		{servicenet.Output{Migrations: []servicenet.Migration{{From: zero, To: zero, State: servicenet.PathArmed}}}, false, ""},
		{servicenet.Output{Migrations: []servicenet.Migration{{State: servicenet.PathMigrated}}}, false, ""},
		{servicenet.Output{Migrations: []servicenet.Migration{{From: one, State: servicenet.PathReestablishing, Why: "no answer"}}},
			true, "no path to a supervisor works: asking for new ones, eth1>sup-1 was the last: no answer"},
		{servicenet.Output{Migrations: []servicenet.Migration{{To: one, State: servicenet.PathMigrated, Why: "re-established"}}},
			false, "reports go by eth1>sup-1"},
	} {
		s := newSender(t)
		s.Take()
		s.gather(start, nil, tc.out)
		var want []Note
		if tc.text != "" {
			want = []Note{{tc.warn, tc.text}}
		}
		if got := s.Take().Told; !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
	}
}

// Restored reports cause a note.
func TestRestore(t *testing.T) {
	s := newSender(t)
	s.Restore(start, nil)
	if told := s.Take().Told; len(told) != 0 {
		t.Errorf("told %v of nothing", told)
	}
	r := report()
	r.ID = fault.ReportID{Origin: host, Epoch: 2, Seq: 5}
	s.Restore(start, []servicenet.Kept{{Report: r, Age: time.Minute}})
	if told := s.Take().Told; len(told) != 1 || told[0].Text != "1 undelivered report of an earlier life goes on" {
		t.Errorf("told %v", told)
	}
}

// After no path worked, a note names the working path even if it is the previous one.
func TestNoteOfTheSamePathAgain(t *testing.T) {
	zero := servicenet.PathID{Supervisor: "sup-0"}
	s := newSender(t)
	s.Take()
	s.gather(start, nil, servicenet.Output{Migrations: []servicenet.Migration{
		{From: zero, To: zero, State: servicenet.PathReestablishing, Why: "no answer"},
		{From: zero, To: zero, State: servicenet.PathMigrated, Why: "re-established"},
		{From: zero, To: zero, State: servicenet.PathRearm, Why: "an alternate is chosen"},
	}})
	told := s.Take().Told
	if len(told) != 2 || told[1] != (Note{false, "reports go by eth0>sup-0 again: re-established"}) {
		t.Errorf("told %v", told)
	}
	if len(s.Migrations()) != 0 {
		t.Errorf("%v counted: the primary never changed", s.Migrations())
	}
}

// Migrations are counted by their reason.
func TestReasons(t *testing.T) {
	for _, tc := range []struct {
		ev     servicenet.Event
		why    string
		asking bool
		want   Reason
	}{
		{servicenet.Tick{}, "no answer", false, Unanswered},
		{nil, "no answer", false, Unanswered},
		{servicenet.PathFailed{}, "connection refused", false, PathError},
		{servicenet.RailDown{}, "no carrier", false, InterfaceDown},
		{servicenet.Acked{}, "the leader is there", false, Leader},
		{servicenet.Replied{}, "re-established", true, Reestablished},
		{servicenet.Acked{}, "a report was answered", true, Reestablished},
	} {
		s := newSender(t)
		s.asking = tc.asking
		s.gather(start, tc.ev, servicenet.Output{Migrations: []servicenet.Migration{{
			From: servicenet.PathID{Supervisor: "sup-0"}, To: servicenet.PathID{Supervisor: "sup-1"}, State: servicenet.PathMigrated, Why: tc.why,
		}}})
		if got := s.Migrations(); len(got) != 1 || got[tc.want] != 1 {
			t.Errorf("%T, %s: %v, want one %s", tc.ev, tc.why, got, tc.want)
		}
	}
	for _, r := range Reasons() {
		if strings.HasPrefix(r.String(), "Reason(") {
			t.Errorf("reason %d has no name", r)
		}
	}
	if got := Reason(0).String(); got != "Reason(0)" {
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
		s.Add(start, report())
		s.Tick(start)
		var q *servicenet.PathMessage
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
		s.Heard(start.Add(time.Millisecond), servicenet.Opened{
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
	s.Add(start, report())
	sent := s.Take().Send
	if len(sent) != 1 {
		t.Fatalf("%d datagrams, want 1", len(sent))
	}
	s.Heard(start.Add(12*time.Millisecond), servicenet.Opened{
		Msg: &lofamov1.Message{Body: &lofamov1.Message_Again{Again: &lofamov1.Again{}}}, Name: sent[0].Target,
	}, fault.PathDirect, sent[0].Interface)
	again := s.Take().Send
	if len(again) != 1 || again[0].Reports[0].ID != sent[0].Reports[0].ID || again[0].Attempt != 2 {
		t.Errorf("sent %+v: want the report for the second time", again)
	}
}

package command

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/pkg/response"
)

func TestRecoveryEvents(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	event := func(s lofamov1.RecoveryState, words string) *lofamov1.Event {
		return &lofamov1.Event{
			Kind: lofamov1.EventKind_RECOVERY_CHANGED, Revision: 7, Node: "n0-0-0", Component: "dnp", From: lofamov1.State_NORMAL,
			To:     lofamov1.State_NORMAL,
			Reason: words, Recovery: &lofamov1.RecoveryStatus{State: s}, Time: timestamppb.New(ctltest.Now),
		}
	}
	rows := EventRows(a, []*lofamov1.Event{
		event(lofamov1.RecoveryState_RUNNING, "restarted (ended by signal 9): serving again after 43ms"),
		event(lofamov1.RecoveryState_GIVEN_UP, "given up: 5 restarts within 1m0s"),
	}, false)
	for i, want := range [][]string{
		{"n0-0-0", "dnp", "-", "recovered", "restarted (ended by signal 9): serving again after 43ms"},
		{"n0-0-0", "dnp", "-", "given up", "given up: 5 restarts within 1m0s"},
	} {
		r := rows[i+1]
		if got := []string{r[2], r[3], r[4], r[5], r[9]}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestWarningSaysNothingTwice: and each value with its unit.
func TestWarningSaysNothingTwice(t *testing.T) {
	for _, tc := range []struct {
		w    *lofamov1.Warning
		want string
	}{
		{&lofamov1.Warning{Component: "temperature", Quantity: "temperature", Reason: "temperature is 71.5°C and rises"},
			"temperature is 71.5°C and rises"},
		{&lofamov1.Warning{Component: "link/X+", Quantity: "crc-ratio", Reason: "crc-ratio is 0.01 and rises"},
			"link/X+: crc-ratio is 0.01 and rises"},
		{&lofamov1.Warning{Component: "temperature", Quantity: "temperature", Value: 71.52, Threshold: 85,
			TimeToThreshold: durationpb.New(time.Minute)}, "temperature is 71.5°C and reaches 85°C in 1m"},
		{&lofamov1.Warning{Component: "fan", Quantity: "hum", Value: 3, Threshold: 9, TimeToThreshold: durationpb.New(time.Minute),
			Reason: "of a version to come"}, "fan: hum is 3 and reaches 9 in 1m (of a version to come)"},
	} {
		if got := Warning(tc.w); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.w, got, tc.want)
		}
	}
}

// TestLostServicePathInTables: a node with one of two service paths left is remarked, and the lost one named, while its report is not old.
func TestLostServicePathInTables(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	n := &lofamov1.Node{Id: "n0-0-0", State: lofamov1.State_NORMAL, Delivery: &lofamov1.DeliveryStatus{
		Rails: []*lofamov1.RailStatus{{Name: "direct/eth0", Down: true}, {Name: "direct/eth1"}, {Name: "gossip"}}}}
	const want = "1 of 2 service paths left: eth0 is down"
	if got := NodeRows(a, []*lofamov1.Node{n}, false)[1][6]; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	if rows := nodeNotes(a, n); len(rows) != 1 || rows[0][0] != "Service" || rows[0][1] != want {
		t.Errorf("%q: want %q", rows, want)
	}
	n.DeliveryOld = true
	if notes, more := notes(n, torusWords), nodeNotes(a, n); len(notes)+len(more) > 0 {
		t.Errorf("of an old report: %q, %q", notes, more)
	}
}

// TestHalfOverBudgetInTables: the level is a remark about the node while its report is not old.
func TestHalfOverBudgetInTables(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	n := &lofamov1.Node{Id: "n0-0-0", State: lofamov1.State_NORMAL, DnpHealth: &lofamov1.HalfHealth{
		Processor: &lofamov1.ProcessorTime{BudgetLevel: 3, UsedPermille: 417}}}
	if got, want := NodeRows(a, []*lofamov1.Node{n}, false)[1][6], "dnp over budget, level 3"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	const want = "its dnp half is over its processor budget and sends or makes fewer digests, probes and sensor readings (level 3): it uses " +
		"41.7 % of a core"
	if rows := nodeNotes(a, n); len(rows) != 1 || rows[0][0] != "Processor" || rows[0][1] != want {
		t.Errorf("%q: want %q", rows, want)
	}
	n.DnpHealth.Old = true
	if got := NodeRows(a, []*lofamov1.Node{n}, false)[1][6]; got != "-" {
		t.Errorf("notes %q of an old report, want none", got)
	}
}

// TestHalfWithoutRealtimeInTables: the remark names preset relaxed as a remedy, and ends with the report that it is from.
func TestHalfWithoutRealtimeInTables(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	ordinary := func() *lofamov1.HalfHealth {
		return &lofamov1.HalfHealth{Processor: &lofamov1.ProcessorTime{NotRealtime: true}}
	}
	n := &lofamov1.Node{Id: "n0-0-0", State: lofamov1.State_NORMAL, HostHealth: ordinary()}
	if got, want := NodeRows(a, []*lofamov1.Node{n}, false)[1][6], "host not real-time"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	n.DnpHealth = ordinary()
	if got, want := NodeRows(a, []*lofamov1.Node{n}, false)[1][6], "not real-time"; got != want {
		t.Errorf("notes %q of both halves, want %q", got, want)
	}
	rows := nodeNotes(a, n)
	if len(rows) != 2 || rows[0][0] != "Scheduling" || !strings.Contains(rows[0][1], "its host half runs without real-time scheduling") ||
		!strings.Contains(rows[0][1], "LimitRTPRIO=1") || !strings.Contains(rows[0][1], "preset relaxed on all nodes and supervisors") {
		t.Errorf("%q: want one row for each half, with the remedies", rows)
	}
	n.HostHealth.Old, n.DnpHealth.Old = true, true
	if got := NodeRows(a, []*lofamov1.Node{n}, false)[1][6]; got != "-" {
		t.Errorf("notes %q of old reports, want none", got)
	}
}

// TestObserveOnlyResponseDoesNotWait: its state is WAITING, but nobody and nothing has to act.
func TestObserveOnlyResponseDoesNotWait(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	r := &lofamov1.Response{Id: "r1-1", Policy: "drain", State: lofamov1.ResponseState_RESPONSE_WAITING, Reason: "observe-only",
		Mode: lofamov1.PolicyMode_OBSERVE_ONLY}
	row := ResponseRows(a, []*lofamov1.Response{r}, false)[1]
	if got, want := row[3]+", "+row[6], "observe-only, nothing is done"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if r.Reason = "cool-down"; ResponseState(r) != "observe-only" || ResponseWhy(a, r) != "cool-down" {
		t.Errorf("%q, %q: want observe-only, and the gate that is closed", ResponseState(r), ResponseWhy(a, r))
	}
}

// TestWaitSaysHowLong: a wait with a fixed end prints that end in the reader's time zone, and how far away it is.
func TestWaitSaysHowLong(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	end := ctltest.Now.Add(3*time.Minute + 400*time.Millisecond)
	for _, tc := range []struct{ detail, want string }{
		{"1 of 2, until " + end.UTC().Format(response.UntilLayout), "approval: 1 of 2, until 12:03:00.000, in 3m"},
		{"1 of 2, until " + end.Add(-time.Hour).UTC().Format(response.UntilLayout), "approval: 1 of 2, until 11:03:00.000"},
		{"1 of 2, until 2024-99-99 99:99:99 UTC", "approval: 1 of 2, until 2024-99-99 99:99:99 UTC"},
		{"1 of 2", "approval: 1 of 2"},
	} {
		if got := ResponseWhy(a, &lofamov1.Response{Reason: "approval", Detail: tc.detail}); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	r := &lofamov1.Node{Id: "n0-0-0", Restarting: &lofamov1.Restarting{Half: "dnp", Until: timestamppb.New(ctltest.Now.Add(4 * time.Second))}}
	if rows := nodeNotes(a, r); len(rows) != 1 || !strings.Contains(rows[0][1], "until 12:00:04.000, in 4s at most") {
		t.Errorf("%q: want the end of the restart's wait", rows)
	}
}

func TestStarvedNodeInTablesAndEvents(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	starved := &lofamov1.Starved{Half: "dnp", LongestMs: 119, SharePermille: 240}
	n := &lofamov1.Node{Id: "n0-0-0", State: lofamov1.State_NORMAL, Starved: starved}
	if got, want := NodeRows(a, []*lofamov1.Node{n}, false)[1][6], "starved dnp 119 ms, 24 % of the time"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
	ev := &lofamov1.Event{Kind: lofamov1.EventKind_STARVATION_CHANGED, Node: "n0-0-0", Component: "dnp", Reason: "starved of processor time"}
	for ended, want := range map[bool][2]string{false: {"-", "starved"}, true: {"starved", "ended"}} {
		ev.Ended = ended
		if from, to := Change(ev); [2]string{from, to} != want {
			t.Errorf("ended %t: %s to %s, want %v", ended, from, to, want)
		}
	}
}

// TestStoppedNodeHasEndOfItsGrace: the line names the time until which silence is no fault.
func TestStoppedNodeHasEndOfItsGrace(t *testing.T) {
	a := &App{Env: Env{Now: func() time.Time { return ctltest.Now }, Location: time.UTC}}
	notes := nodeNotes(a, &lofamov1.Node{Stopped: &lofamov1.Stopped{
		Reason: "reboot", Since: timestamppb.New(ctltest.Now), Until: timestamppb.New(ctltest.Now.Add(10 * time.Minute)),
	}})
	at := slices.IndexFunc(notes, func(n []string) bool { return n[0] == "Stopped" })
	if want := "its silence is no fault " + a.Until(timestamppb.New(ctltest.Now.Add(10*time.Minute))) + " at the latest"; at < 0 ||
		!strings.HasSuffix(notes[at][1], want) {
		t.Errorf("%q: want a line Stopped that ends with %q", notes, want)
	}
}

// TestTableCellsStayInTheirCells: texts of other machines neither break columns and lines, nor reach the terminal as commands.
func TestTableCellsStayInTheirCells(t *testing.T) {
	var out strings.Builder
	if err := Table(&out, [][]string{{"NAME", "WHY", "BY"}, {"a", "x\ty\nz\x1b[2J", "°…"}}); err != nil {
		t.Fatal(err)
	}
	if want := "NAME  WHY        BY\na     x·y·z·[2J  °…\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

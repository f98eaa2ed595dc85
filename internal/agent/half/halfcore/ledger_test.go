package halfcore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

func TestChangesAndDigest(t *testing.T) {
	t0 := time.Unix(100, 0)
	l := NewLedger()
	if l.State("a", fault.ComponentHost) != 0 {
		t.Error("a state before the first statement")
	}
	host := fault.Observation{Node: "a", Component: fault.ComponentHost, State: fault.Normal, Kind: fault.KindSelf}
	dnp := fault.Observation{Node: "a", Component: fault.ComponentDNP, State: fault.Failed, Kind: fault.KindWatchdog,
		Age: 50 * time.Millisecond}
	l.Set(t0, host)
	l.Set(t0, dnp)
	if got := l.Changes(t0); len(got) != 2 {
		t.Fatalf("changes %v", got)
	}
	if got := l.Changes(t0); got != nil {
		t.Fatalf("changes come twice: %v", got)
	}

	t1 := t0.Add(time.Second)
	dnp.Detail, dnp.Age = "other words", time.Minute
	l.Set(t1, dnp)
	if got := l.Changes(t1); got != nil {
		t.Errorf("a new detail is a change: %v", got)
	}
	want := fault.Observation{Node: "a", Component: fault.ComponentDNP, State: fault.Failed, Kind: fault.KindWatchdog,
		Age: 1050 * time.Millisecond, Detail: "other words"}
	all := l.Digest(t1)
	if d := cmp.Diff(want, all[1]); d != "" {
		t.Error(d)
	}

	dnp.Kind, dnp.Age = fault.KindSelf, 0
	l.Set(t1, dnp)
	if got := l.Changes(t1); len(got) != 1 || got[0].Kind != fault.KindSelf || got[0].Age != 0 {
		t.Errorf("another kind is no change: %v", got)
	}

	host.State = fault.Sick
	l.Set(t1, host)
	host.State = fault.Failed
	l.Set(t1, host)
	if got := l.Changes(t1); len(got) != 1 || got[0].State != fault.Failed {
		t.Errorf("two changes of one component: %v", got)
	}
	host.State, host.Detail = fault.Normal, strings.Repeat("x", 500)
	l.Set(t1, host)
	if got := l.Digest(t1); len(got[0].Detail) != fault.MaxDetail {
		t.Errorf("detail of %d bytes", len(got[0].Detail))
	}
	if got := l.Changes(t1); len(got) != 1 {
		t.Errorf("a digest takes changes away: %v", got)
	}
	host.State = fault.Unknown
	l.Set(t1, host)
	if got := l.Digest(t1); len(got) != 1 || got[0].Component != fault.ComponentDNP {
		t.Errorf("a digest of what is unknown: %v", got)
	}
	if got := l.Changes(t1); len(got) != 1 || got[0].State != fault.Unknown {
		t.Errorf("becoming unknown is no change: %v", got)
	}
}

// A different reason is a change that does not restart the age; a different measured value is no change.
func TestChangedReasonKeepsAge(t *testing.T) {
	t0 := time.Unix(100, 0)
	l := NewLedger()
	o := fault.Observation{Node: "a", Component: fault.ComponentDNPCore, State: fault.Sick, Kind: fault.KindSelf, Detail: "late"}
	l.Set(t0, o)
	l.Changes(t0)
	for i, tt := range []struct {
		detail, why string
		news        bool
	}{
		{"mailbox lost: 3 of 9", "mailbox lost", true}, {"mailbox lost: 4 of 9", "mailbox lost", false}, {"mailbox altered: 1 of 9",
			"mailbox altered", true}, {"late", "", true},
	} {
		now := t0.Add(time.Duration(i+1) * WhyEvery)
		o.Detail = tt.detail
		l.Because(now, o, tt.why)
		want := o
		want.Age = now.Sub(t0)
		switch got := l.Changes(now); {
		case tt.news != (len(got) == 1):
			t.Errorf("%s: changes %v", tt.detail, got)
		case tt.news:
			if d := cmp.Diff(want, got[0]); d != "" {
				t.Error(d)
			}
		}
	}
	o.State = fault.Normal
	l.Because(t0.Add(time.Minute), o, "")
	if got := l.Changes(t0.Add(time.Minute)); len(got) != 1 || got[0].Age != 0 {
		t.Errorf("a new state: %v", got)
	}
}

// A fault may differ at each look. The ledger reports it at intervals, including the last one, and at once if the
// state changes.
func TestChangedReasonIsHeldBack(t *testing.T) {
	t0 := time.Unix(100, 0)
	l := NewLedger()
	o := fault.Observation{Node: "a", Component: fault.ComponentHost, State: fault.Sick, Kind: fault.KindSelf}
	var told []string
	at := func(ms int, s fault.State, why string) {
		t.Helper()
		now := t0.Add(time.Duration(ms) * time.Millisecond)
		if why != "" {
			o.State, o.Detail = s, why
			l.Because(now, o, why)
		}
		for _, c := range l.Changes(now) {
			told = append(told, fmt.Sprintf("%d %s %s", ms, c.State, c.Detail))
		}
	}
	at(0, fault.Sick, "lost")
	at(20, fault.Sick, "altered") // the first is not held: the name of the module comes by mail
	for ms := 500; ms < 5000; ms += 500 {
		at(ms, fault.Sick, []string{"lost", "altered"}[ms/500%2])
	}
	at(7000, fault.Sick, "")
	at(9000, fault.Sick, "late")
	at(9100, fault.Sick, "lost")
	at(9200, fault.Sick, "late") // as already reported: no change
	at(12000, fault.Sick, "")
	at(12100, fault.Sick, "lost")
	at(12200, fault.Sick, "late")
	at(12300, fault.Normal, "well")
	at(12400, fault.Sick, "altered")
	at(20000, fault.Sick, "")
	want := []string{
		"0 SICK lost", "20 SICK altered", "3000 SICK lost", "7000 SICK altered", "9000 SICK late", "12100 SICK lost", "12300 NORMAL well",
		"12400 SICK altered",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %q\nwant %q", told, want)
	}
}

// Forget drops the changes from before a time. The time of the statement decides, not the age of its evidence.
func TestForgetDropsEarlierChangesOnly(t *testing.T) {
	t0 := time.Unix(100, 0)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	o := func(c fault.Component, age time.Duration) fault.Observation {
		return fault.Observation{Node: "a", Component: c, State: fault.Sick, Kind: fault.KindSelf, Age: age}
	}
	l := NewLedger()
	l.Set(at(0), o(fault.ComponentPower, 0))
	l.Because(at(0), o(fault.ComponentHost, 0), "lost")
	l.Changes(at(0))
	l.Because(at(1), o(fault.ComponentHost, 0), "altered")
	l.Set(at(10), o(fault.ComponentVoltage, 0))
	l.Set(at(20), o(fault.ComponentMemory, time.Second))
	l.Forget(at(30), at(20))
	if got := l.Changes(at(30)); len(got) != 1 || got[0].Component != fault.ComponentMemory {
		t.Errorf("changes %v, want that of the memory only", got)
	}
	l.Because(at(40), o(fault.ComponentHost, 0), "altered") // as the dropped change said
	if got := l.Changes(at(10_000)); got != nil {
		t.Errorf("changes %v, want none", got)
	}
}

// A detail that is cut short stays text that can be sent.
func TestDetailIsCutBetweenLetters(t *testing.T) {
	l := NewLedger()
	detail := "x" + strings.Repeat("°", fault.MaxDetail)
	l.Set(time.Unix(0, 0), fault.Observation{Node: "a", Component: fault.ComponentTemperature, State: fault.Sick, Kind: fault.KindSelf,
		Detail: detail})
	got := l.Changes(time.Unix(0, 0))[0].Detail
	if !utf8.ValidString(got) || len(got) != fault.MaxDetail-1 || !strings.HasPrefix(detail, got) {
		t.Errorf("detail %q of %d bytes", got, len(got))
	}
}

func TestStatesAndFields(t *testing.T) {
	for s, h := range map[fault.State]watchdog.Health{
		fault.Normal: watchdog.HealthNormal, fault.Sick: watchdog.HealthSick, fault.Failed: watchdog.HealthBroken,
	} {
		if HealthOf(s) != h || StateOf(h) != s {
			t.Errorf("%s is field %s, and %s is state %s", s, HealthOf(s), h, StateOf(h))
		}
	}
	if HealthOf(fault.Unknown) != watchdog.HealthNormal {
		t.Error("an unknown state accuses")
	}
}

// TestDigestNamesAbsentComponents: without them, each digest would withdraw the statement that the node lacks a part.
func TestDigestNamesAbsentComponents(t *testing.T) {
	l := NewLedger()
	now := time.Unix(1000, 0)
	for c, kind := range map[fault.Component]fault.Kind{
		fault.ComponentPeripheral0: fault.KindAbsent, fault.ComponentPower: fault.KindSelf,
	} {
		l.Set(now, fault.Observation{Node: "n0-0-0", Component: c, State: fault.Unknown, Kind: kind, Detail: "no peripheral configured"})
	}
	if !l.Absent("n0-0-0", fault.ComponentPeripheral0) || l.Absent("n0-0-0", fault.ComponentPower) || l.Absent("n0-0-0", fault.ComponentHost) {
		t.Error("want peripheral/0 alone as absent")
	}
	d := l.Digest(now)
	if len(d) != 1 || d[0].Component != fault.ComponentPeripheral0 || d[0].Kind != fault.KindAbsent || d[0].Detail != "" {
		t.Errorf("digest %+v: want peripheral/0 as ABSENT alone, without detail", d)
	}
}

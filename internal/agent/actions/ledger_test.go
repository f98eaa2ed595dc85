package actions

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

var begin = Now{Wall: time.Unix(1_800_000_000, 0), Fresh: 1<<64 - 3} // its clock wraps around

// after returns the time that much after begin.
func after(d time.Duration) Now {
	return Now{Wall: begin.Wall.Add(d), Fresh: begin.Fresh + uint64(d.Milliseconds())}
}

func order(token uint64, response string, step, attempt int) *Order {
	return &Order{
		Attempt: Attempt{response, step, attempt}, Token: token, Kind: KindCheck, Parameters: map[string]string{"script": "x"},
		TimeoutMS: 1000, Ledger: 9,
	}
}

// Late orders are refused, and no attempt is made twice.
func TestLateOrderIsRefusedAndNoAttemptRepeated(t *testing.T) {
	l := &Ledger{Life: 9}
	for i, s := range []struct {
		token         uint64
		response      string
		step, attempt int
		end           State // of the attempt, if it is begun
		want          State
		begun         bool
	}{
		{5, "r5-1", 0, 1, 0, UnderWay, true},
		{5, "r5-1", 0, 1, 0, UnderWay, false},     // repeated: it is running
		{5, "r5-1", 0, 2, 0, Unchanged, false},    // another attempt while that one runs
		{5, "r5-1", 1, 1, Done, UnderWay, true},   // another step
		{5, "r5-1", 1, 1, 0, Done, false},         // its outcome
		{4, "r4-1", 0, 1, 0, Stale, false},        // an earlier leader
		{4, "r5-1", 1, 1, 0, Done, false},         // the outcome of an attempt is known to any leader
		{6, "r5-1", 1, 4, Partly, UnderWay, true}, // a later attempt continues
		{6, "r5-1", 1, 3, 0, NotKnown, false},
		{5, "r5-2", 0, 1, 0, Stale, false},
		{6, "r5-2", 0, 1, NotKnown, UnderWay, true},
		{7, "r5-2", 0, 2, Unchanged, UnderWay, true},
	} {
		o := order(s.token, s.response, s.step, s.attempt)
		got, begun := l.Admit(begin, o)
		if got.State != s.want || begun != s.begun || got.Ledger != 9 || !begun && s.want != Done && s.want != UnderWay && got.Detail == "" {
			t.Errorf("%d: %+v: %+v, begun %t", i, s, got, begun)
		}
		if s.end != 0 {
			l.End(o.Attempt, Result{s.end, "x"})
		}
	}
	if s, keep := l.Look(begin, order(7, "r5-2", 0, 2)); s.State != Unchanged || s.Token != 7 || keep {
		t.Errorf("%+v, keep %t", s, keep)
	}
	if s, keep := l.Look(begin, order(8, "r9-1", 0, 1)); s.State != None || s.Token != 8 || !keep {
		t.Errorf("%+v, keep %t", s, keep)
	}
	if s, begun := l.Admit(begin, order(7, "r9-1", 0, 1)); begun || s.State != Stale {
		t.Errorf("a question of a higher token is forgotten: %+v", s)
	}
}

// TestStepOfWallClockEndsNoAttempt: an attempt that runs is not taken for ended, and no second one begins beside it.
func TestStepOfWallClockEndsNoAttempt(t *testing.T) {
	l := &Ledger{Life: 9}
	first, second := order(5, "r5-1", 0, 1), order(5, "r5-1", 0, 2)
	if _, begun := l.Admit(begin, first); !begun {
		t.Fatal("refused")
	}
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		now := after(time.Second)
		now.Wall = now.Wall.Add(step)
		if s, _ := l.Look(now, first); s.State != UnderWay {
			t.Errorf("a step of %s: %+v", step, s)
		}
		if s, begun := l.Admit(now, second); begun || s.State != Unchanged {
			t.Errorf("a step of %s: another attempt beside it: %+v", step, s)
		}
	}
	now := after(time.Second + graceAfter + time.Millisecond)
	now.Wall = begin.Wall.Add(-time.Hour)
	if s, _ := l.Look(now, first); s.State != NotKnown {
		t.Errorf("long after its time: %+v", s)
	}
	l.Entries[0].Ends = 0 // an earlier version wrote it
	for d, want := range map[time.Duration]State{time.Second: UnderWay, time.Minute: NotKnown} {
		if s, _ := l.Look(after(d), first); s.State != want {
			t.Errorf("an entry of an earlier version after %s: %+v", d, s)
		}
	}
}

// A copy of an order to another ledger of this node begins no act, whatever its token.
func TestOrderToAnotherLedgerBeginsNoAct(t *testing.T) {
	l := &Ledger{Life: 10}
	if s, begun := l.Admit(begin, order(5, "r5-1", 0, 1)); begun || s.State != Unchanged || l.Token != 0 || len(l.Entries) != 0 {
		t.Errorf("%+v, %+v", s, l)
	}
}

// When a daemon ends, the outcome of its running attempts is not known, and another attempt may follow. The same holds
// for an act whose end a half should have reported but did not.
func TestInterruptedAttemptHasUnknownOutcome(t *testing.T) {
	l := &Ledger{Life: 9}
	host, dnp := order(5, "r5-1", 0, 1), order(5, "r5-2", 0, 1)
	dnp.Kind, dnp.Parameters = KindRestartHalf, map[string]string{"half": "dnp"}
	for _, o := range []*Order{host, dnp} {
		if _, begun := l.Admit(begin, o); !begun {
			t.Fatal(o)
		}
	}
	l.Note(host.Attempt, "seen")
	if !l.Interrupt(fault.HalfHost) || l.Interrupt(fault.HalfHost) {
		t.Error("interrupted twice, or never")
	}
	if s, _ := l.Look(begin, host); s.State != NotKnown || !strings.Contains(s.Detail, "daemon ended") {
		t.Errorf("%+v", s)
	}
	if s, _ := l.Look(begin, dnp); s.State != UnderWay {
		t.Errorf("of another daemon: %+v", s)
	}
	if s, _ := l.Look(after(time.Second+graceAfter+time.Millisecond), dnp); s.State != NotKnown {
		t.Errorf("long after its time: %+v", s)
	}
	l.End(host.Attempt, Result{Done, "late"}) // its outcome stays not known
	again := order(6, "r5-1", 0, 2)
	if s, begun := l.Admit(begin, again); !begun {
		t.Errorf("%+v", s)
	}
	if e := l.Earlier(again); len(e) != 1 || e[0].Note != "seen" || e[0].State != NotKnown {
		t.Errorf("%+v", e)
	}
	undo := order(6, "r5-1", 0, 3)
	undo.Undo = true
	if e := l.Earlier(undo); len(e) != 0 {
		t.Errorf("an attempt to act is an earlier one to put back: %+v", e)
	}
}

// The ledger is bounded: entries with older tokens are dropped first, and never an attempt that could be made again.
func TestFullLedgerDropsOldTokensFirst(t *testing.T) {
	l := &Ledger{Life: 9}
	admit := func(token uint64, i int) (Status, bool) {
		o := order(token, fmt.Sprintf("r%d-%d", token, i), 0, 1)
		s, begun := l.Admit(begin, o)
		l.End(o.Attempt, Result{Done, ""})
		return s, begun
	}
	for i := range maxEntries {
		if s, begun := admit(5, i); !begun {
			t.Fatalf("%d: %+v", i, s)
		}
	}
	if s, begun := admit(5, maxEntries); begun || s.State != Unchanged || !strings.Contains(s.Detail, "full") {
		t.Errorf("%+v", s)
	}
	for i := range maxEntries {
		if s, begun := admit(6, i); !begun {
			t.Fatalf("under a higher token, %d: %+v", i, s)
		}
	}
	if s, begun := admit(5, 0); begun || s.State != Stale || len(l.Entries) != maxEntries {
		t.Errorf("dropped, and then: %+v", s)
	}
}

func TestLedgerRoundTripAndRefusals(t *testing.T) {
	l := &Ledger{Life: 9, Boot: "b", Limits: []Limit{{Policy: "policy0", Former: 3, Ours: 2, Was: 3, Owners: map[string]uint64{"r5-1/0": 2}}}}
	if _, begun := l.Admit(begin, order(5, "r5-1", 0, 1)); !begun {
		t.Fatal("not begun")
	}
	b, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(b)
	if err != nil || !reflect.DeepEqual(got, l) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{
		"", "{}", `{"life":0}`, `{"life":1,"token":4,"entries":[{"response":"r","attempt":1,"token":5,"by":1,"state":2}]}`,
		`{"life":1,"token":4,"entries":[{"response":"r","attempt":0,"token":4,"by":1,"state":2}]}`,
		`{"life":1,"token":4,"entries":[{"response":"r","attempt":1,"token":4,"by":3,"state":2}]}`,
		`{"life":1,"token":4,"entries":[{"response":"r","attempt":1,"token":4,"by":1,"state":0}]}`,
		`{"life":1,"limits":[{"policy":"policy0"}]}`, `{"life":1,"entries":1}`,
	} {
		if l, err := Decode([]byte(bad)); !errors.Is(err, ErrLedger) {
			t.Errorf("%s: %+v, %v", bad, l, err)
		}
	}
}

// FuzzDecode checks that a decoded ledger can be encoded and decoded again, and admits nothing under a token that it
// has passed.
func FuzzDecode(f *testing.F) {
	l := &Ledger{Life: 9}
	l.Admit(begin, order(5, "r5-1", 0, 1))
	b, _ := l.Encode()
	f.Add(b)
	f.Add([]byte(`{"life":1,"limits":[{"policy":"policy0","owners":{"a":1}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Decode(b)
		if err != nil {
			return
		}
		c, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(c)
		if err != nil {
			t.Fatalf("%s: %v", c, err)
		}
		if d, err := again.Encode(); err != nil || string(d) != string(c) {
			t.Fatalf("%s\n%s: %v", c, d, err)
		}
		if l.Token > 1 {
			o := order(l.Token-1, "r0-0", 0, 1)
			o.Ledger = l.Life
			if s, begun := l.Admit(begin, o); begun {
				t.Fatalf("admitted under token %d: %+v", o.Token, s)
			}
		}
	})
}

// TestBootEndsAttempts: no attempt runs after a boot, whatever its time, and another one may follow.
func TestBootEndsAttempts(t *testing.T) {
	l := &Ledger{Life: 9, Boot: "a"}
	first, second := order(5, "r5-1", 0, 1), order(5, "r5-1", 0, 2)
	if _, begun := l.Admit(begin, first); !begun {
		t.Fatal("refused")
	}
	if l.Rebooted("a"); l.Entries[0].State != UnderWay {
		t.Error("ended within the same boot")
	}
	l.Rebooted("b")
	if s, _ := l.Look(begin, first); s.State != NotKnown || !strings.Contains(s.Detail, "booted") {
		t.Errorf("%+v", s)
	}
	if s, begun := l.Admit(begin, second); !begun {
		t.Errorf("%+v", s)
	}
}

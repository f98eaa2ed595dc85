package jobs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var t0 = time.Unix(1_700_000_000, 0)

func TestCheckName(t *testing.T) {
	for _, good := range []string{"a", "7", "train-4711", strings.Repeat("x", 63)} {
		if err := CheckName("job", good, 63); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "-a", "a-", "A", "a.b", "a b", "ä", "a\x00", strings.Repeat("x", 64)} {
		if err := CheckName("job", bad, 63); err == nil || !strings.Contains(err.Error(), "job: given") ||
			!strings.Contains(err.Error(), "want 1 to 63") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestLimitRefusesBeyondRate(t *testing.T) {
	l := Limit{Rate: 10, Burst: 3}
	take := func(at time.Duration, uid uint32) bool { return l.Take(t0.Add(at), uid) }
	for i := range 3 {
		if !take(0, 7) {
			t.Errorf("number %d of a burst of 3 is refused", i)
		}
	}
	for _, tc := range []struct {
		at   time.Duration
		uid  uint32
		want bool
	}{
		{0, 7, false}, {0, 8, true}, {99 * time.Millisecond, 7, false}, {100 * time.Millisecond, 7, true},
		{101 * time.Millisecond, 7, false}, {time.Hour, 7, true}, {time.Minute, 7, true}, {time.Minute, 7, true}, {time.Minute, 7, false},
	} {
		if got := take(tc.at, tc.uid); got != tc.want {
			t.Errorf("uid %d at %s: %t", tc.uid, tc.at, got)
		}
	}
	var none Limit
	if none.Take(t0, 1) {
		t.Error("the zero limit lets something pass")
	}
}

// With more users than are kept at their limits at a time, the next waits until one of them has rested.
func TestLimitIsBounded(t *testing.T) {
	l := Limit{Rate: 1, Burst: 1}
	for uid := range uint32(limitUsers) {
		if !l.Take(t0, uid) {
			t.Fatalf("uid %d", uid)
		}
	}
	if l.Take(t0, limitUsers) {
		t.Error("one user more than are kept")
	}
	if !l.Take(t0.Add(time.Second), limitUsers) || len(l.users) != 1 {
		t.Errorf("after a second %d are kept", len(l.users))
	}
}

func TestWindowAcceptsEachNumberOnce(t *testing.T) {
	var w Window
	for i, tc := range []struct {
		node   string
		epoch  uint64
		number uint64
		want   bool
	}{
		{"a", 2, 10, true}, {"a", 2, 10, false}, {"a", 2, 9, true}, {"a", 2, 9, false}, {"a", 2, 11, true}, {"b", 1, 10, true},
		{"a", 1, 12, false}, {"a", 3, 1, true}, {"a", 2, 13, false}, {"a", 3, 1, false},
	} {
		if got := w.Take(fid(tc.node), epoch(tc.epoch), tc.number); got != tc.want {
			t.Errorf("%d: %s %d/%d: %t", i, tc.node, tc.epoch, tc.number, got)
		}
	}
	for n := range uint64(windowSize) {
		w.Take("a", 3, 1000+n)
	}
	if w.Take("a", 3, 999) {
		t.Error("one that is older than all that are kept may be a replay, and passes")
	}
	if len(w.origins["a"].numbers) != windowSize {
		t.Errorf("%d are kept", len(w.origins["a"].numbers))
	}
}

// In any order and with any repetition, each of the newest eurekas passes exactly once.
func TestWindowTakesEachOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var w Window
	taken := map[uint64]int{}
	for range 20000 {
		n := 1 + r.Uint64N(windowSize)
		if w.Take("a", 1, n) {
			taken[n]++
		}
	}
	for n := range uint64(windowSize) {
		if taken[n+1] != 1 {
			t.Errorf("number %d passed %d times", n+1, taken[n+1])
		}
	}
}

func TestRoomIsSharedBetweenUsers(t *testing.T) {
	for _, tc := range []struct {
		all, mine int
		uid       uint32
		want      bool
	}{
		{0, 0, 7, true}, {50, 49, 7, true}, {50, 50, 7, false}, {88, 0, 7, false}, {87, 0, 7, true}, {99, 99, 0, true}, {100, 0, 0, false},
	} {
		if got := Room(100, tc.all, tc.uid, tc.mine); got != tc.want {
			t.Errorf("%+v: %t", tc, got)
		}
	}
}

func mails() []Mail {
	k := Key{Hash: [32]byte{1, 31: 2}, Generation: 7}
	return []Mail{
		{Kind: Raise, Request: 9, Priority: 3, Envelope: []byte("envelope")},
		{Kind: Arrive, Key: k, Members: 3, Rank: 2},
		{Kind: Arrive, Key: k, Flag: true, Members: 1024, Rank: 0, Gone: []int{1, 7, 1023}},
		{Kind: Leave, Key: k},
		{Kind: Taken, Request: 9, Result: NoLinks, Links: 6},
		{Kind: Delivered, Envelope: bytes.Repeat([]byte{1}, MaxEnvelope)},
		{Kind: Status, Key: k, Result: OK, Links: 6, Arrived: []bool{true, false, true, false, false, false, false, false, true}},
		{Kind: Status, Key: k, Result: Busy, Flag: true, Gone: []int{0}},
	}
}

func TestMailRoundTrip(t *testing.T) {
	for _, m := range mails() {
		got, err := DecodeMail(m.Append(nil))
		if diff := cmp.Diff(m, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
}

func TestDamagedMailIsRefused(t *testing.T) {
	cut := func(i int, by int) []byte { b := mails()[i].Append(nil); return b[:len(b)-by] }
	for name, b := range map[string][]byte{
		"empty":               {},
		"no kind":             {0},
		"later kind":          {9, 1, 2},
		"no envelope":         cut(0, 8),
		"short":               cut(4, 1),
		"too long":            append(mails()[3].Append(nil), 0),
		"long envelope":       append(mails()[5].Append(nil), 0),
		"rank of no member":   Mail{Kind: Arrive, Members: 2, Rank: 2}.Append(nil),
		"gone of no member":   Mail{Kind: Arrive, Members: 2, Gone: []int{2}}.Append(nil),
		"gone twice":          Mail{Kind: Arrive, Members: 9, Gone: []int{2, 2}}.Append(nil),
		"too many members":    Mail{Kind: Arrive, Members: MaxMembers + 1}.Append(nil),
		"no result":           Mail{Kind: Taken}.Append(nil),
		"bits beyond members": func() []byte { b := cut(6, 0); b[len(b)-1] |= 0x80; return b }(),
		"flag of 2":           func() []byte { b := cut(1, 0); b[41] = 2; return b }(),
	} {
		m, err := DecodeMail(b)
		if later := name == "later kind"; err == nil || errors.Is(err, ErrLater) != later || errors.Is(err, ErrMail) == later {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

func FuzzMail(f *testing.F) {
	for _, m := range mails() {
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := DecodeMail(b); err == nil && !bytes.Equal(m.Append(nil), b) {
			t.Errorf("%+v is encoded otherwise", m)
		}
	})
}

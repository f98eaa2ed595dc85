package netfaults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/pkg/torus/udplink"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }

var epoch = time.Unix(1000, 0)

func ms(n int) time.Time { return epoch.Add(time.Duration(n) * time.Millisecond) }

// TestLaneOrder adds packets a, b, c … at their times, and lists each output with its time.
func TestLaneOrder(t *testing.T) {
	pass := udplink.Fate{Copies: 1}
	twice := udplink.Fate{Copies: 2}
	late := udplink.Fate{Copies: 1, Overtaken: true}
	slow := func(n int) udplink.Fate {
		return udplink.Fate{Copies: 1, Delay: time.Duration(n) * time.Millisecond}
	}
	type step struct {
		at     int // ms
		fate   udplink.Fate
		jitter bool
	}
	for _, tc := range []struct {
		name  string
		steps []step
		want  string // packet@ms
	}{
		{"none", nil, ""},
		{"at once", []step{{0, pass, false}, {5, pass, false}}, "a@0 b@5"},
		{"doubled", []step{{0, twice, false}, {1, pass, false}}, "a@0 a@0 b@1"},
		{"delayed", []step{{0, slow(10), false}, {5, slow(10), false}}, "a@10 b@15"},
		{"what is not delayed does not overtake", []step{{0, slow(10), false}, {5, pass, false}, {20, pass, false}}, "a@10 b@10 c@20"},
		{"jitter overtakes", []step{{0, slow(10), true}, {1, slow(2), true}}, "b@3 a@10"},
		{"overtaken by the next", []step{{0, late, false}, {7, pass, false}, {8, pass, false}}, "b@7 a@7 c@8"},
		{"two overtaken by the third", []step{{0, late, false}, {1, late, false}, {2, pass, false}}, "c@2 a@2 b@2"},
		{"nobody overtakes", []step{{0, late, false}}, "a@50"},
		{"too late to be overtaken", []step{{0, late, false}, {60, pass, false}}, "a@50 b@60"},
		{"overtaken on a slow way", []step{{0, udplink.Fate{Copies: 1, Overtaken: true, Delay: 10 * time.Millisecond}, false},
			{5, slow(10), false}}, "b@15 a@15"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l lane
			var out []string
			for at := range 100 {
				for i, s := range tc.steps {
					if s.at == at {
						if over := l.add(ms(at), s.fate, s.jitter, []byte{byte('a' + i)}); over != 0 {
							t.Errorf("no room for %d", over)
						}
					}
				}
				if due, ok := l.wake(); ok && due.Before(ms(at)) {
					t.Errorf("at %d: was due at %v", at, due.Sub(epoch))
				}
				for _, b := range l.take(ms(at)) {
					out = append(out, fmt.Sprintf("%s@%d", b, at))
				}
			}
			if got := strings.Join(out, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// TestLaneLosesNothing: under any faults, every copy comes out once, none too early, or is counted.
func TestLaneLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := udplink.Faults{
			Duplicate: rapid.Float64Range(0, 1).Draw(t, "duplicate"), Reorder: rapid.Float64Range(0, 1).Draw(t, "reorder"),
			Delay:  time.Duration(rapid.IntRange(0, 20).Draw(t, "delay")) * time.Millisecond,
			Jitter: time.Duration(rapid.IntRange(0, 20).Draw(t, "jitter")) * time.Millisecond,
		}
		dice := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		var l lane
		var want, got []byte
		earliest := map[byte]time.Time{}
		take := func(now time.Time) {
			for _, b := range l.take(now) {
				got = append(got, b[0])
				if now.Before(earliest[b[0]]) {
					t.Fatalf("%d came at %v, before %v", b[0], now.Sub(epoch), earliest[b[0]].Sub(epoch))
				}
			}
		}
		now := epoch
		for i := range rapid.IntRange(0, 100).Draw(t, "packets") {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "gap")) * time.Millisecond)
			fate := f.Fate(dice, 1)
			earliest[byte(i)] = now.Add(fate.Delay)
			want = append(want, slices.Repeat([]byte{byte(i)}, fate.Copies)...)
			if l.add(now, fate, f.Jitter > 0, []byte{byte(i)}) != 0 {
				t.Fatal("no room")
			}
			take(now)
		}
		if f.Reorder == 0 && f.Jitter == 0 && !slices.IsSorted(got) {
			t.Errorf("out of order: %v", got)
		}
		take(now.Add(time.Second))
		slices.Sort(got)
		if _, more := l.wake(); more || !slices.Equal(got, want) {
			t.Errorf("%v came out of %v", got, want)
		}
	})
}

func TestLaneIsBounded(t *testing.T) {
	var l lane
	slow := udplink.Fate{Copies: 2, Delay: time.Second}
	over := 0
	for range maxQueued/2 + 3 {
		over += l.add(epoch, slow, false, nil)
	}
	if n := len(l.take(ms(1000))); over != 6 || n != maxQueued {
		t.Errorf("%d on their way, %d without room; want %d, 6", n, over, maxQueued)
	}
}

package executor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/lofamo/lofamo/pkg/response"
)

func TestGuardRefusesStaleAndRepeatedAttempts(t *testing.T) {
	var g Guard
	steps := []struct {
		token    uint64
		response string
		step     int
		attempt  int
		want     response.Outcome // 0: admitted
	}{
		{5, "r5-1", 0, 1, 0},
		{5, "r5-1", 0, 1, response.NotKnown},
		{5, "r5-1", 1, 1, 0}, // another step
		{5, "r5-2", 0, 1, 0}, // another response
		{5, "r5-1", 0, 3, 0},
		{5, "r5-1", 0, 2, response.NotKnown},
		{4, "r4-1", 0, 1, response.StaleToken},
		{6, "r5-1", 0, 4, 0},
		{5, "r5-1", 0, 5, response.StaleToken},
		{5, "r5-3", 0, 1, response.StaleToken},
		{6, "r5-1", 0, 4, response.NotKnown},
	}
	for i, s := range steps {
		r, ok := g.Admit(response.Effect{Attempt: response.Attempt{Response: s.response, Step: s.step, Attempt: s.attempt}, Token: s.token})
		if ok != (s.want == 0) || r.Outcome != s.want {
			t.Errorf("%d: %+v: admitted %t, %+v", i, s, ok, r)
		}
		if !ok && r.Detail == "" {
			t.Errorf("%d: refused without a reason", i)
		}
	}
}

// TestGuardForgetsOldAttempts: the memory of a guard is bounded in a long term. An attempt is refused as long as it may still arrive,
// also if a later attempt at its step had less time.
func TestGuardForgetsOldAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Guard
		admit := func(id string, attempt int, timeout time.Duration) bool {
			_, ok := g.Admit(response.Effect{Attempt: response.Attempt{Response: id, Attempt: attempt}, Token: 5, Timeout: timeout})
			return ok
		}
		const long = 7 * 24 * time.Hour
		admit("long", 1, long)
		admit("long", 2, time.Minute)
		most := 0
		for i := range 10_000 {
			if id := fmt.Sprint(i); !admit(id, 1, time.Minute) || admit(id, 1, time.Minute) {
				t.Fatalf("response %s: want its first attempt only", id)
			}
			time.Sleep(time.Minute)
			most = max(most, len(g.seen))
		}
		if most > 200 {
			t.Errorf("%d attempts are remembered: want those of about the last two hours", most)
		}
		if admit("long", 1, long) {
			t.Errorf("an attempt is made twice within its timeout of %s", long)
		}
		if !admit("0", 2, time.Minute) {
			t.Error("a later attempt is refused")
		}
	})
}

func TestLongDetailIsCutAndCleaned(t *testing.T) {
	for _, given := range []string{strings.Repeat("ä", MaxDetail), strings.Repeat("a", MaxDetail+1),
		"a\xff" + strings.Repeat("語", MaxDetail)} {
		if d := Done("%s", given).Detail; len(d) > MaxDetail || len(d) < MaxDetail-4 || !utf8.ValidString(d) || !strings.HasSuffix(d, "…") {
			t.Errorf("%d bytes: %q", len(d), d)
		}
	}
	if d := Unchanged("%s", "a\x1b[2J\nb\u0085c").Detail; d != "a [2J b c" {
		t.Errorf("control characters: %q", d)
	}
	if d := Partly("%s", strings.Repeat("a", MaxDetail)); len(d.Detail) != MaxDetail || strings.HasSuffix(d.Detail, "…") ||
		d.Outcome != response.Partly {
		t.Errorf("%+v", d)
	}
}

// TestBriefErrorsEndWithACharacter: part of a character is invalid UTF-8, which no message may contain.
func TestBriefErrorsEndWithACharacter(t *testing.T) {
	for n := range 4 {
		long := errors.New(strings.Repeat("x", maxName-n) + "€€€€")
		if got := briefly(long); !utf8.ValidString(got.Error()) || len(got.Error()) > maxName+len("…") || !errors.Is(got, long) {
			t.Errorf("%d bytes before the first €: %q", maxName-n, got)
		}
	}
	if short := errors.New("short"); briefly(short).Error() != "short" || !errors.Is(briefly(short), short) {
		t.Error("a short error was changed")
	}
}

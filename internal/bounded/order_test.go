package bounded

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// order returns the sources of all turns, one a second.
func order(t *testing.T, turns *turns) (out []string) {
	t.Helper()
	for now := time.Unix(1, 0); ; now = now.Add(time.Second) {
		c, due := turns.next(now)
		if c == nil {
			if len(turns.waiting) > 0 {
				t.Fatalf("%d connections wait until %s at %s", len(turns.waiting), due, now)
			}
			return out
		}
		out = append(out, c.source)
		if c, due := turns.next(now); c != nil || len(turns.waiting) > 0 && !due.Equal(now.Add(time.Second)) {
			t.Fatalf("a second turn in one second: %v, %s", c, due)
		}
	}
}

func queue(turns *turns, sources ...string) {
	for _, s := range sources {
		turns.waiting = append(turns.waiting, &Conn{source: s})
	}
}

// A source with many connections delays those of another source by one turn.
func TestSourcesTakeTurns(t *testing.T) {
	turns := newTurns(1)
	queue(turns, "busy", "busy", "busy", "busy", "other", "busy", "other")
	if got, want := order(t, turns), []string{"busy", "other", "busy", "other", "busy", "busy", "busy"}; !slices.Equal(got, want) {
		t.Errorf("turns of %v: want %v", got, want)
	}
}

// Many strangers' addresses do not delay a source that has proved its identity before.
func TestProvedSourceHasTurnsOfItsOwn(t *testing.T) {
	turns := newTurns(1)
	for i := range 100 {
		queue(turns, fmt.Sprint("stranger ", i))
	}
	queue(turns, "known", "known")
	turns.prove("known")
	got := order(t, turns)
	if len(got) != 102 || slices.Index(got, "known") > 1 || got[2] != "known" && got[3] != "known" {
		t.Errorf("turns of %v: want the known source's among the first four", got)
	}
}

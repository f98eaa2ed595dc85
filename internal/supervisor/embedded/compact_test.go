package embedded

import "testing"

// TestEarlyCompactionWaitsForCalm: many changes make a compaction due, once, of the revisions before the last look.
func TestEarlyCompactionWaitsForCalm(t *testing.T) {
	c := compaction{many: manyPuts}
	for i, step := range []struct{ puts, revision, want int64 }{
		{manyPuts / 2, 10, 0},
		{manyPuts, 20, 0},     // many, and all within this minute
		{calmPuts + 1, 30, 0}, // the store is still busy
		{calmPuts, 40, 30},    // calm: the newest revisions stay
		{0, 50, 0},            // done, and too few since
		{manyPuts, 60, 0},     // many again
		{calmPuts, 70, 60},    //
		{calmPuts, 80, 0},     //
		{manyPuts - 1, 90, 0}, //
		{0, 100, 90},          // those after the last compaction count too
		{calmPuts, 110, 0},    //
	} {
		c.puts.Add(step.puts)
		revision, puts := c.look(step.revision)
		if revision != step.want {
			t.Errorf("look %d: compact revision %d, want %d", i, revision, step.want)
		}
		if revision != 0 {
			c.done = puts
		}
	}
}

package bulk

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestObjectArrivesOverAnyWorkingWay moves objects over ways that lose, double, reorder and are cut for seconds, with
// restarts of the half and slow consumers. As long as one way works most of the time the object
// arrives whole; newWorld's checks hold all the way.
func TestObjectArrivesOverAnyWorkingWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ways := []Way{{}, {"a"}, {"b"}}[:rapid.IntRange(1, 3).Draw(t, "ways")]
		size := rapid.SampledFrom([]int{0, 1, ChunkSize, ChunkSize + 1, 100 << 10, 400 << 10}).Draw(t, "size")
		w := newWorld(t, rapid.Uint64().Draw(t, "seed"), size, ways...)
		for _, way := range ways {
			l := w.links[way]
			l.loss = rapid.Float64Range(0, 0.4).Draw(t, "loss")
			l.dup = rapid.Float64Range(0, 0.5).Draw(t, "dup")
			l.jitter = time.Duration(rapid.IntRange(0, 30).Draw(t, "jitter")) * time.Millisecond
			for range rapid.IntRange(0, 3).Draw(t, "cuts") {
				from := time.Duration(rapid.IntRange(0, 5000).Draw(t, "cut at")) * time.Millisecond
				w.at(from, func() { l.cut = true })
				w.at(from+time.Duration(rapid.IntRange(1, 4000).Draw(t, "cut for"))*time.Millisecond, func() { l.cut = false })
			}
		}
		if rapid.Bool().Draw(t, "slow") {
			w.interval = time.Millisecond
		}
		if rapid.Bool().Draw(t, "restart") {
			w.at(time.Duration(rapid.IntRange(1, 3000).Draw(t, "restart at"))*time.Millisecond, w.restartSender)
		}
		finish(t, w, 10*time.Minute)
	})
}

// finish runs a transfer to its end and expects the object, and the half to forget it.
func finish(t fataler, w *world, within time.Duration) {
	t.Helper()
	w.begin()
	w.run(within, true)
	if w.outcome == nil || w.outcome.Result != Complete {
		t.Fatalf("at %v: %v after %+v", w.now, w.outcome, w.r.Progress())
	}
	end := w.now
	w.run(end+w.scfg.Life+time.Minute, false)
	if n := w.s.Stats().Transfers; n != 0 || len(w.held) != 0 {
		t.Fatalf("%d transfers and %d objects are left", n, len(w.held))
	}
	w.now = end
}

// TestLargestObjectArrives moves 64 MiB directly, over a way that loses and is cut in the middle, and 16 MiB at the
// pace of the torus.
func TestLargestObjectArrives(t *testing.T) {
	for _, tc := range []struct {
		name    string
		size    int
		torus   bool // only
		changes uint64
		most    time.Duration
	}{
		{"direct", MaxSize, false, 2, 40 * time.Second},   // 13.1 s at 5,000 chunks/s, and 10 s by the torus
		{"torus", MaxSize / 4, true, 1, 70 * time.Second}, // 65.5 s at 250 chunks/s
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 1, tc.size, Way{}, Way{"a"})
			direct := w.links[Way{}]
			direct.loss, direct.jitter, direct.cut = 0.01, time.Millisecond, tc.torus
			if !tc.torus {
				w.at(5*time.Second, func() { direct.cut = true })
				w.at(8*time.Second, func() { direct.cut = false })
			}
			finish(t, w, 10*time.Minute)
			if p := w.r.Progress(); w.now > tc.most || p.Changes != tc.changes {
				t.Errorf("took %v, at most %v is expected: %+v", w.now, tc.most, p)
			}
		})
	}
}

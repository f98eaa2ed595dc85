package servicenet

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	modelReports = flag.Int("model.reports", 1_000_000, "reports of TestMillionReports")
	modelSeed    = flag.Uint64("model.seed", 1, "seed of TestMillionReports")
)

// TestMillionReports plays one half against three supervisors with a store, over two service interfaces, gossip and
// torus. It adds 20 % loss, reordering, duplicates, 1 % corruption, restarts of the supervisors, alone and all
// together, changes of leader, a store that stops, interfaces that come and go, and a half that dies at any step and
// resumes from its spool. Every report that was kept must be committed, once, unaltered. With -short a tenth of the
// reports are sent.
func TestMillionReports(t *testing.T) {
	n := *modelReports
	if testing.Short() {
		n /= 10
	}
	w := newWorld(t, *modelSeed)
	w.loss, w.dup, w.corrupt, w.delay, w.commit = 0.2, 0.05, 0.01, 5, 20
	w.trouble = trouble{leader: 5 * time.Second, supervisor: 7 * time.Second, blackout: 30 * time.Second, store: 20 * time.Second,
		agent: 11 * time.Second, iface: 3 * time.Second}
	w.generate(n)
	w.finish(n)
	t.Logf("%d reports in %v of the model's time, %d epochs, %d terms: %+v", n, w.now.Round(time.Second), w.epoch, w.term, w.count)
	for what, n := range map[string]int{"lost": w.count.lost, "damaged": w.count.damaged, "duplicates": w.count.duplicates,
		"epochs": int(w.epoch), "terms": w.term, "migrations": w.count.migrations, "re-establishments": w.count.reestablished,
		"dead networks": w.count.dead, "isolation": w.count.isolated, "replies": w.count.replies} {
		if n == 0 {
			t.Errorf("the model has seen no %s", what)
		}
	}
}

// TestEveryReportIsCommittedOnce draws random faults. With a lazy spool a crash loses the newest records; only these
// reports may be lost. Without checksum damaged messages are refused silently.
func TestEveryReportIsCommittedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Uint64().Draw(t, "seed"))
		w.loss = rapid.Float64Range(0, 0.7).Draw(t, "loss")
		w.dup = rapid.Float64Range(0, 0.5).Draw(t, "dup")
		w.corrupt = rapid.Float64Range(0, 0.1).Draw(t, "corrupt")
		w.silent = rapid.Bool().Draw(t, "no checksum")
		w.delay = rapid.IntRange(1, 200).Draw(t, "delay ms")
		w.commit = rapid.IntRange(1, 1000).Draw(t, "commit ms")
		w.lazy = rapid.Bool().Draw(t, "lazy spool")
		w.warm = rapid.Bool().Draw(t, "goes on in its epoch")
		every := func(what string) time.Duration {
			if rapid.Bool().Draw(t, what) {
				return time.Duration(rapid.IntRange(1000, 20000).Draw(t, "ms")) * time.Millisecond
			}
			return 0
		}
		w.trouble = trouble{leader: every("leader changes"), supervisor: every("supervisor restarts"), store: every("store stops"),
			blackout: every("all supervisors go"), agent: every("agent restarts"), iface: every("interfaces come and go")}
		n := rapid.IntRange(1, 600).Draw(t, "reports")
		w.generate(n)
		w.finish(n)
	})
}

// TestGoesOnInItsEpoch plays a half that dies often, at any step, and resumes from its copy: every report is
// committed once, no number is used twice, and the supervisors never see another epoch.
func TestGoesOnInItsEpoch(t *testing.T) {
	w := newWorld(t, 3)
	w.warm, w.loss, w.dup, w.delay, w.commit = true, 0.2, 0.05, 5, 20
	w.trouble = trouble{leader: 5 * time.Second, blackout: 30 * time.Second, agent: 150 * time.Millisecond}
	w.generate(20_000)
	w.finish(20_000)
	if w.epoch != 1 || w.life < 50 {
		t.Errorf("epoch %d after %d lives", w.epoch, w.life)
	}
	t.Logf("%d lives: %+v", w.life, w.count)
}

// TestModelReplays: the same seed gives the same run, so that failures can be examined.
func TestModelReplays(t *testing.T) {
	run := func() string {
		w := newWorld(t, 7)
		w.loss, w.dup, w.corrupt, w.delay, w.commit = 0.2, 0.05, 0.01, 5, 20
		w.trouble = trouble{leader: 500 * time.Millisecond, agent: time.Second, iface: 300 * time.Millisecond}
		w.generate(2000)
		w.finish(2000)
		return fmt.Sprintf("%v %+v", w.now, w.count)
	}
	if a, b := run(), run(); a != b {
		t.Errorf("%s\n%s", a, b)
	}
}

func BenchmarkModel(b *testing.B) {
	w := newWorld(b, 1)
	w.delay, w.commit = 5, 20
	w.generate(b.N)
	w.finish(b.N)
}

package servicenet

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

func TestSilentWaitDoublesWithJitterToItsBound(t *testing.T) {
	const least = time.Second
	for _, tc := range []struct {
		round int
		mean  time.Duration
	}{{0, least}, {1, 2 * least}, {2, 4 * least}, {3, 8 * least}, {4, 8 * least}, {1000, 8 * least}} {
		lo, hi := time.Hour, time.Duration(0)
		for i := range 500 {
			origin := fault.Origin{Node: fault.NodeID("n" + time.Duration(i).String()), Half: fault.HalfHost}
			w := silentWait(origin, tc.round, least)
			if again := silentWait(origin, tc.round, least); again != w {
				t.Fatalf("round %d: %v, then %v: want the same", tc.round, w, again)
			}
			lo, hi = min(lo, w), max(hi, w)
		}
		if lo < tc.mean*3/4 || hi > tc.mean*5/4 || hi-lo < tc.mean*2/5 {
			t.Errorf("round %d: %v to %v: want all of %v to %v", tc.round, lo, hi, tc.mean*3/4, tc.mean*5/4)
		}
	}
}

// silentWorld is an outbox with a digest each half second, and supervisors that answer or do not.
type silentWorld struct {
	t      *testing.T
	o      *Outbox
	now    time.Time
	wake   time.Time
	digest time.Time
	answer bool
	sent   [numPaths]int
	asked  int
	askAt  time.Time     // of the newest path request
	askGap time.Duration // shortest one between two path requests
}

func newSilentWorld(t *testing.T, answer bool) *silentWorld {
	t.Helper()
	return newSilentWorldWith(t, answer, time.Second)
}

func newSilentWorldWith(t *testing.T, answer bool, silentBackoff time.Duration) *silentWorld {
	t.Helper()
	cfg := DefaultOutboxConfig(fault.PathDirect, fault.PathGossip, fault.PathTorus)
	cfg.SilentBackoff = silentBackoff
	o, err := NewOutbox(fault.Origin{Node: "n0", Half: fault.HalfHost}, 1, cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &silentWorld{t: t, o: o, now: time.Unix(1000, 0), answer: answer}
	w.digest = w.now
	w.take(o.Step(w.now, Supervisors{Targets: []string{"s0", "s1", "s2"}}))
	return w
}

func (w *silentWorld) take(out Output) {
	w.wake = out.Wake
	w.asked += len(out.Paths)
	if len(out.Paths) > 0 {
		w.askGap, w.askAt = min(w.askGap, w.now.Sub(w.askAt)), w.now
	}
	for _, s := range out.Send {
		w.sent[s.Path]++
		if w.answer && s.Path == fault.PathDirect {
			ack := &lofamov1.Ack{Node: "n0", Half: lofamov1.Half_HALF_HOST, Epoch: 1, Status: lofamov1.Ack_COMMITTED}
			for _, r := range s.Reports {
				ack.Seqs = append(ack.Seqs, uint64(r.ID.Seq))
			}
			w.take(w.o.Step(w.now, Acked{Ack: ack, Supervisor: s.Target, Path: s.Path, Interface: s.Interface}))
		}
	}
}

func (w *silentWorld) report(digest bool) {
	_, out := w.o.Add(w.now, fault.Report{Digest: digest,
		Observations: []fault.Observation{{Component: fault.ComponentMemory, State: fault.Normal, Kind: fault.KindSelf}}})
	w.take(out)
}

func (w *silentWorld) run(d time.Duration) {
	for end := w.now.Add(d); ; {
		next := fault.Earliest(w.digest, w.wake)
		if next.After(end) {
			w.now = end
			return
		}
		w.now = maxTime(w.now, next)
		if !w.now.Before(w.digest) {
			w.digest = w.now.Add(500 * time.Millisecond)
			w.report(true)
			continue
		}
		w.take(w.o.Step(w.now, Tick{}))
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestSilentSupervisorsCostNoMoreThanAnsweringOnes counts the datagrams of one half in a minute.
func TestSilentSupervisorsCostNoMoreThanAnsweringOnes(t *testing.T) {
	total := func(w *silentWorld) int {
		for range 5 {
			w.report(false)
		}
		w.run(10 * time.Second)
		w.sent, w.asked = [numPaths]int{}, 0
		w.run(time.Minute)
		t.Logf("direct %d, gossip %d, torus %d datagrams and %d path requests a minute", w.sent[fault.PathDirect],
			w.sent[fault.PathGossip], w.sent[fault.PathTorus], w.asked)
		return w.sent[fault.PathDirect] + w.sent[fault.PathGossip] + w.sent[fault.PathTorus]
	}
	answering, silent := total(newSilentWorld(t, true)), total(newSilentWorld(t, false))
	if silent*10 > answering*12 {
		t.Errorf("%d datagrams a minute without answers, %d with them: want at most 1.2 times as many", silent, answering)
	}
}

// TestPathRequestsWaitForRoundsOfSilence: with slow digests, path requests are as rare as all else, 25 % more or less.
func TestPathRequestsWaitForRoundsOfSilence(t *testing.T) {
	const silentBackoff = 4 * time.Second
	w := newSilentWorldWith(t, false, silentBackoff)
	w.run(10 * time.Second)
	w.asked, w.askGap = 0, time.Hour
	w.run(5 * time.Minute)
	if w.asked == 0 || w.askGap < silentBackoff*3/4 {
		t.Errorf("%d path requests in a silence, the closest ones %v apart: want some, at least %v apart", w.asked, w.askGap, silentBackoff*3/4)
	}
}

// TestFirstAnswerEndsSilence checks that waiting reports go at once, and that later rounds start from the shortest
// wait.
func TestFirstAnswerEndsSilence(t *testing.T) {
	w := newSilentWorld(t, false)
	for range 5 {
		w.report(false)
	}
	w.run(time.Minute)
	if !w.o.Silent() || w.o.Stats().Pending < 5 {
		t.Fatalf("silent %v, %d pending", w.o.Silent(), w.o.Stats().Pending)
	}
	w.answer = true
	w.run(600 * time.Millisecond)
	if w.o.Silent() {
		t.Fatal("still silent after an answer")
	}
	w.run(500 * time.Millisecond)
	if n := w.o.Stats().Pending; n > 1 {
		t.Errorf("%d reports wait a second after the first answer", n)
	}
}

// TestNewReportInSilenceIsTriedAtOnce keeps the first attempt where it was.
func TestNewReportInSilenceIsTriedAtOnce(t *testing.T) {
	w := newSilentWorld(t, false)
	w.run(time.Minute)
	before := w.sent
	w.report(false)
	if w.sent == before {
		t.Error("a new report waits for a round")
	}
}

// TestRecoveredRailEndsWait starts a round at once.
func TestRecoveredRailEndsWait(t *testing.T) {
	w := newSilentWorld(t, false)
	w.take(w.o.Step(w.now, RailDown{Path: fault.PathTorus}))
	w.report(false)
	w.run(time.Minute)
	before := w.sent[fault.PathTorus]
	w.take(w.o.Step(w.now, RailUp{Path: fault.PathTorus}))
	if w.sent[fault.PathTorus] == before {
		t.Error("the report was not sent by the torus when that came up")
	}
}

package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestAnswersAreTakenWhileReportsWait: a store that does not answer stops the reports, not the answers to
// challenges.
func TestAnswersAreTakenWhileReportsWait(t *testing.T) {
	h := start(t, memstore.New(100), func(c *Config) { c.Backlog, c.Queue = 2, 2 })
	unblock := h.store.Block()
	defer unblock()
	h.fill(t)
	for range 10 * answerQueue {
		if !h.Submit(Input{Answer: &awareness.Answered{Nonce: [16]byte{1}, Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 1},
			Arrived: time.Now()}) {
			h.node(t, "n1-0-0") // the engine has finished the report in hand
		}
	}
	for deadline := time.Now().Add(wait); len(h.answers) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("answers wait behind reports")
		}
	}
	if len(h.in) == 0 {
		t.Error("the reports do not wait")
	}
}

// TestAnswerInQueueIsHeardFirst: an engine that wakes a little late finds a report in the queue and, behind it,
// the answer to its challenge. Neither the report nor the timer may cause a verdict.
func TestAnswerInQueueIsHeardFirst(t *testing.T) {
	st, ch := memstore.New(100), &asked{}
	cfg := testConfig(ch)
	cfg.Awareness.ChallengeHalf = 400 * time.Millisecond // being half of that late is no reason for doubt
	e := New(cfg, st)
	term, err := e.newTerm(t.Context(), st.Campaign())
	if err != nil {
		t.Fatal(err)
	}
	say := func(node fault.NodeID, half fault.Half, seq fault.Seq, st fault.State, kind fault.Kind) Input {
		id := fault.ReportID{Origin: fault.Origin{Node: node, Half: half}, Epoch: 2, Seq: seq}
		return Input{Arrived: time.Now(), Reports: &servicenet.Reports{Path: fault.PathDirect, List: []fault.Report{{ID: id, Digest: true,
			Observations: []fault.Observation{{Node: node, Component: fault.ComponentHost, State: st, Kind: kind}}}}}}
	}
	term.take(time.Now(), say("n1-0-0", fault.HalfHost, 1, fault.Normal, fault.KindSelf))
	now := time.Now() // the time of the challenge: a later one would also count the work of the verdict
	term.take(now, say("n1-0-0", fault.HalfDNP, 1, fault.Failed, fault.KindWatchdog))
	if ch.last.Node != "n1-0-0" {
		t.Fatalf("challenged %q, want n1-0-0", ch.last.Node)
	}
	due := now.Add(cfg.Awareness.ChallengeHalf)
	for due.Sub(term.wake) > 5*time.Millisecond { // work that precedes the verdict
		term.step(term.wake, awareness.Tick{})
	}
	e.Submit(say("n0-0-0", fault.HalfHost, 1, fault.Normal, fault.KindSelf))
	e.Submit(Input{Arrived: time.Now(), Answer: &awareness.Answered{
		Nonce: ch.last.Nonce, Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfHost}, Epoch: 2, Path: fault.PathDirect,
	}})
	time.Sleep(time.Until(due) + 20*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- term.run(ctx) }()
	var events []*lofamov1.Event
	begun := time.Now() // a verdict would be committed a little later than the first events
	for len(events) == 0 || len(e.in)+len(e.answers)+len(e.digests) > 0 || time.Since(begun) < 200*time.Millisecond {
		if time.Since(begun) > wait {
			t.Fatal("no event is committed")
		}
		time.Sleep(time.Millisecond)
		if events, _, err = st.Events(t.Context(), 0, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for _, ev := range events {
		if ev.GetTo() == lofamov1.State_FAILED {
			t.Errorf("%s of %s FAILED (%s), though it had answered", ev.GetComponent(), ev.GetNode(), ev.GetReason())
		}
	}
}

package hostcore

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestReplayIsNoAnswer replays a supervisor's datagrams. Only an answer that the half waits for shows that a supervisor
// answers, and that it has a quorum.
func TestReplayIsNoAnswer(t *testing.T) {
	w := newTested(t, testing2s)
	from := func(msg *lofamov1.Message) Received {
		return Received{Path: fault.PathDirect, Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0", Msg: msg}}
	}
	update := from(&lofamov1.Message{Body: &lofamov1.Message_FaultUpdate{FaultUpdate: &lofamov1.FaultUpdate{
		Node: "n0-0-0", Revision: 9, Parts: 1, Nodes: []*lofamov1.NodeView{{Id: "n0-0-0", State: lofamov1.State_NORMAL}},
	}}})
	digest := func() (out []fault.ReportID) {
		t.Helper()
		for range 1000 {
			w.now = w.now.Add(10 * time.Millisecond)
			for _, s := range w.m.Step(w.now, Tick{}).Send {
				for _, r := range s.Reports {
					if r.Digest && s.Path == fault.PathDirect {
						out = append(out, r.ID)
					}
				}
			}
			if out != nil {
				return out
			}
		}
		t.Fatal("no digest")
		return nil
	}
	ack := from(&lofamov1.Message{Acks: servicenet.NewAcks(lofamov1.Ack_RECEIVED, digest()...)})
	w.m.Step(w.now, ack)
	w.m.Step(w.now, update)
	heard := w.now
	if k := w.m.Known(nil); !k.Heard.Equal(heard) || !k.Confirmed.Equal(heard) || k.Revision != 9 {
		t.Fatalf("%+v after an answer at %s", k, heard)
	}
	for range 10 {
		digest()
		w.m.Step(w.now, ack)
		w.m.Step(w.now, update)
	}
	if k := w.m.Known(nil); !k.Heard.Equal(heard) || !k.Confirmed.Equal(heard) {
		t.Errorf("replayed datagrams count as answers: heard %s, quorum %s after the last answer", k.Heard.Sub(heard), k.Confirmed.Sub(heard))
	}
	if w.m.answeredLately(w.now) {
		t.Error("a replayed answer makes the supervisor a way for others' digests")
	}
	for range 10 {
		digest() // the last quorum is longer ago than the bound
	}
	without := from(&lofamov1.Message{Acks: servicenet.NewAcks(lofamov1.Ack_RECEIVED, digest()...), NoQuorumMs: time.Hour.Milliseconds()})
	w.m.Step(w.now, without)
	w.m.Step(w.now, ack)
	if k := w.m.Known(nil); !k.Heard.Equal(w.now) || !k.Stale {
		t.Errorf("an answer without a quorum, and a replay with one: %+v at %s", k, w.now)
	}
}

// TestReplayedPutBackIsRefused replays the update that put a node's view back after a restore of the store. A half that
// has no supervisor refuses it, and any half takes it once from the same revision.
func TestReplayedPutBackIsRefused(t *testing.T) {
	w := newTested(t, testing2s)
	update := func(revision uint64, back bool) uint64 {
		w.m.Step(w.now, Received{Path: fault.PathDirect, Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0",
			Msg: &lofamov1.Message{Body: &lofamov1.Message_FaultUpdate{FaultUpdate: &lofamov1.FaultUpdate{
				Node: "n0-0-0", Revision: revision, Parts: 1, PutBack: back,
			}}}}})
		return w.m.Known(nil).Revision
	}
	at := func(want, got uint64) {
		t.Helper()
		if got != want {
			t.Fatalf("the view is at revision %d, want %d", got, want)
		}
	}
	w.m.answered = w.now
	at(90, update(90, false))
	at(9, update(9, true)) // the restore
	at(90, update(90, false))
	at(90, update(9, true))
	at(91, update(91, false))
	at(9, update(9, true)) // another restore of the same state
	at(92, update(92, false))
	w.now = w.now.Add(time.Minute)
	at(92, update(9, true))
	w.m.answered = w.now
	at(9, update(9, true))
}

// TestPutBackWithoutQuorumIsRefused answers a half's digests from a supervisor that is cut off from the store. Its earlier copy
// of the map is no restored store.
func TestPutBackWithoutQuorumIsRefused(t *testing.T) {
	w := newTested(t, testing2s)
	w.m.answered = w.now
	update := func(revision uint64, back bool, without time.Duration) uint64 {
		w.m.Step(w.now, Received{Path: fault.PathDirect, Opened: servicenet.Opened{Role: servicenet.RoleSupervisor, Name: "sup-0",
			Msg: &lofamov1.Message{NoQuorumMs: without.Milliseconds(), Body: &lofamov1.Message_FaultUpdate{FaultUpdate: &lofamov1.FaultUpdate{
				Node: "n0-0-0", Revision: revision, Parts: 1, PutBack: back,
			}}}}})
		return w.m.Known(nil).Revision
	}
	for _, c := range []struct {
		revision uint64
		back     bool
		without  time.Duration
		want     uint64
	}{
		{100, false, 0, 100},
		{90, true, 15 * time.Second, 100},
		{90, true, -time.Millisecond, 100}, // no quorum since its start
		{101, false, 15 * time.Second, 101},
		{90, true, 0, 90},
	} {
		if got := update(c.revision, c.back, c.without); got != c.want {
			t.Errorf("after revision %d (put back: %t, %s without a quorum) the view is at %d, want %d", c.revision, c.back, c.without, got,
				c.want)
		}
	}
}

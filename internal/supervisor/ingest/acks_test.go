package ingest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

func committed(seqs ...uint64) *lofamov1.Ack {
	return &lofamov1.Ack{Status: lofamov1.Ack_COMMITTED, Node: "n0", Half: lofamov1.Half_HALF_HOST, Epoch: 5, Seqs: seqs}
}

// TestCommittedIsCarried on the next RECEIVED to the half, at whichever of its addresses.
func TestCommittedIsCarried(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.sender.Answer(engine.To{Addr: eth0.String()}, committed(1))
	r.sender.Answer(engine.To{Addr: eth0.String()}, committed(2, 3))
	r.sender.Answer(engine.To{Addr: n1.String(), Relayed: true}, committed(9)) // behind a relay: another way
	r.get(eth1, 1, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	sent := r.wire.sent()
	if len(sent) != 1 || sent[0].addr != eth1 {
		t.Fatalf("sent %v", sent)
	}
	acks := h.open(t, sent[0]).Msg.GetAcks()
	if len(acks) != 2 || acks[0].GetStatus() != lofamov1.Ack_RECEIVED || !slices.Equal(acks[1].GetSeqs(), []uint64{1, 2, 3}) ||
		acks[1].GetLeader() != "s9" {
		t.Errorf("acks %v", acks)
	}
	// Acks without a carrier get a message of their own.
	r.run(t, false)
	r.wire.await(t, 2)
	for range 100 {
		r.sender.Answer(engine.To{}, committed(7))
	}
	sent = r.wire.await(t, 3)
	if acks := h.open(t, sent[2]).Msg.GetAcks(); sent[2].addr != eth0 || len(acks) == 0 || acks[0].GetSeqs()[0] != 7 {
		t.Errorf("acks %v to %s", acks, sent[2].addr)
	}
}

// TestAcksReportMissingQuorum checks that the acks and the map's updates both report a missing quorum: otherwise stale data
// looks fresh.
func TestAcksReportMissingQuorum(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	for i, c := range []struct {
		without time.Duration
		want    int64
	}{{0, 0}, {time.Nanosecond, 1}, {5 * time.Second, 5000}, {-1, -1}} {
		r.noQuorum = c.without
		r.get(eth0, 0, h.reports(t, 5, 1+i, false, servicenet.SealOptions{}))
		r.sender.Notify("n0", &lofamov1.FaultUpdate{Node: "n0", Revision: 7, Parts: 1})
		for _, d := range r.wire.sent()[2*i:] {
			if got := h.open(t, d).Msg.GetNoQuorumMs(); got != c.want {
				t.Errorf("without a quorum for %s: said %d ms, want %d", c.without, got, c.want)
			}
		}
	}
	if n := len(r.wire.sent()); n != 8 {
		t.Errorf("%d messages: want 8", n)
	}
}

// TestAcksFitTheirMessages: for any set of acks, every message stays within its bounds and every sequence number
// is acknowledged once.
func TestAcksFitTheirMessages(t *testing.T) {
	a := newAuthority(t)
	h, relay := a.half(t, host0), a.half(t, host1)
	rapid.Check(t, func(rt *rapid.T) {
		r := a.replica(t, "s1", nil)
		r.noQuorum = rapid.SampledFrom([]time.Duration{0, servicenet.MaxAge}).Draw(rt, "without a quorum")
		to := engine.To{Addr: eth0.String()}
		if rapid.Bool().Draw(rt, "relayed") {
			to = engine.To{Addr: n1.String(), Relayed: true}
		}
		want := make(map[string]bool)
		var acks []*lofamov1.Ack
		for i := range rapid.IntRange(1, 20).Draw(rt, "acks") {
			ack := committed()
			ack.Epoch = uint64(i) + 1<<rapid.IntRange(5, 40).Draw(rt, "epoch") // each another
			base := uint64(1) << rapid.IntRange(0, 62).Draw(rt, "seq")
			for n := range rapid.IntRange(1, servicenet.MaxAckSeqs).Draw(rt, "n") {
				ack.Seqs = append(ack.Seqs, base+uint64(n))
				want[fmt.Sprint(ack.GetEpoch(), " ", base+uint64(n))] = true
			}
			acks = append(acks, ack)
		}
		r.sender.say("ack", host0, to, servicenet.SealOptions{}, nil, acks)
		if n := value(r.metrics.SendFails); n != 0 {
			rt.Fatalf("%v messages could not be sent", n)
		}
		for _, d := range r.wire.sent() {
			if to.Relayed {
				_, inner, err := servicenet.InnerOf(relay.open(t, d))
				if err != nil {
					rt.Fatal(err)
				}
				d.data = inner
			}
			for _, ack := range h.open(t, d).Msg.GetAcks() {
				for _, seq := range ack.GetSeqs() {
					key := fmt.Sprint(ack.GetEpoch(), " ", seq)
					if !want[key] {
						rt.Fatalf("%s was said twice, or never asked for", key)
					}
					delete(want, key)
				}
			}
		}
		if len(want) > 0 {
			rt.Fatalf("%d numbers were not said", len(want))
		}
	})
}

func TestAckTableIsBounded(t *testing.T) {
	tab, now := newAckTable(), time.Unix(0, 0)
	origin := func(i int) fault.Origin {
		return fault.Origin{Node: fault.NodeID(fmt.Sprint("n", i)), Half: fault.HalfHost}
	}
	for i := range maxHeld {
		if !tab.hold(now, dest{origin: origin(i)}, engine.To{}, committed(1)) {
			t.Fatalf("no room for half %d", i)
		}
	}
	if tab.hold(now, dest{origin: origin(maxHeld)}, engine.To{}, committed(1)) {
		t.Error("room for one half more than there may be")
	}
	held := 1
	for i := range 1000 { // each of an epoch of its own
		ack := committed(1)
		ack.Epoch = uint64(i + 10)
		if tab.hold(now, dest{origin: origin(0)}, engine.To{}, ack) {
			held++
		}
	}
	if got := tab.take(dest{origin: origin(0)}); held != maxHeldAcks || len(got) != maxHeldAcks {
		t.Errorf("%d acks were held for one half, %d taken", held, len(got))
	}
	if h, _ := tab.due(now.Add(holdTime - 1)); h != nil {
		t.Error("due too early")
	}
	n := 0
	for h, _ := tab.due(now.Add(holdTime)); h != nil; h, _ = tab.due(now.Add(holdTime)) {
		n++
	}
	if n != maxHeld-1 || len(tab.halves) != 0 || !tab.wake().IsZero() {
		t.Errorf("%d due, %d left", n, len(tab.halves))
	}
	// Unsent acks wait longer, get no message of their own, and are finally dropped.
	relay := engine.To{Relayed: true}
	if !tab.keep(now, dest{origin: origin(1)}, engine.To{}, []*lofamov1.Ack{committed(1)}) ||
		tab.keep(now, dest{origin(2), relay}, relay, nil) {
		t.Error("kept what is behind a relay, or not what is not")
	}
	if h, lost := tab.due(now.Add(failedTime - 1)); h != nil || lost != 0 {
		t.Error("failed acks are due")
	}
	if h, lost := tab.due(tab.wake()); h != nil || lost != 1 || len(tab.halves) != 0 {
		t.Errorf("%d acks given up", lost)
	}
}

// TestReplaysGetNothingOfHalf: an attacker that replays a recorded report, or a whole exchange, receives only
// the answer to that message at its own address, and never the messages that wait for the half.
func TestReplaysGetNothingOfHalf(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	thief := netip.MustParseAddrPort("10.9.9.9:9")
	report, req := h.reports(t, 5, 1, false, servicenet.SealOptions{}), h.request(t, 5, 1)
	r.get(eth0, 0, report)
	r.get(eth0, 0, req)
	h.agree(t, h.open(t, r.wire.sent()[1]).Msg.GetPathReply())
	r.get(eth0, 0, h.ack(t, 5, 1))
	r.sender.Answer(engine.To{Addr: eth0.String()}, committed(7))

	r.get(thief, 0, report)
	r.get(thief, 0, req)
	r.get(thief, 0, h.ack(t, 5, 1)) // the thief's place is established now
	r.get(thief, 0, report)
	r.sender.Answer(engine.To{Addr: thief.String()}, committed(1)) // the engine's, to the copy
	r.get(thief, 0, report)
	before := r.wire.sent()
	r.run(t, false)
	list := r.wire.await(t, len(before)+1)
	for _, d := range list {
		for _, ack := range h.open(t, d).Msg.GetAcks() {
			if seven := slices.Contains(ack.GetSeqs(), 7); seven != (d.addr == eth0 && ack.GetStatus() == lofamov1.Ack_COMMITTED) {
				t.Errorf("%v to %s", ack, d.addr)
			}
		}
	}
	if last := list[len(list)-1]; last.addr != eth0 || !slices.Equal(h.open(t, last).Msg.GetAcks()[0].GetSeqs(), []uint64{7}) {
		t.Errorf("what waited for the half went to %s", last.addr)
	}
	if to, _, ok := r.sender.DirectAddr("n0"); !ok || to != eth0 {
		t.Errorf("n0 has the direct address %s", to)
	}
}

// TestFailedAcksDelayNoOther: while unsendable acks of one half wait for a second, the delay of the others' acks is
// unchanged.
func TestFailedAcksDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		r := a.replica(t, "s1", nil)
		r.run(t, false)
		r.wire.fail(errors.New("no route"))
		r.sender.Answer(engine.To{Addr: eth0.String()}, committed(1))
		time.Sleep(2 * holdTime) // virtual
		synctest.Wait()
		r.wire.fail(nil)
		ack := committed(1)
		ack.Node = "n1"
		r.sender.Answer(engine.To{Addr: n1.String()}, ack)
		time.Sleep(holdTime)
		synctest.Wait()
		if sent := r.wire.sent(); len(sent) != 1 || sent[0].addr != n1 {
			t.Errorf("after %v: %d datagrams", holdTime, len(sent))
		}
	})
}

// TestAckAfterFailedOneIsTried: a failure says nothing about the next ack to the half. Both go when the half is reached again.
func TestAckAfterFailedOneIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		r, h := a.replica(t, "s1", nil), a.half(t, host0)
		r.run(t, false)
		r.wire.fail(errors.New("no room"))
		r.sender.Answer(engine.To{Addr: eth0.String()}, committed(1))
		time.Sleep(2 * holdTime) // virtual
		synctest.Wait()
		r.sender.Answer(engine.To{Addr: eth0.String()}, committed(2)) // fails as well
		time.Sleep(2 * holdTime)
		synctest.Wait()
		r.wire.fail(nil)
		r.sender.Answer(engine.To{Addr: eth0.String()}, committed(3))
		time.Sleep(holdTime)
		synctest.Wait()
		sent := r.wire.sent()
		if len(sent) != 1 {
			t.Fatalf("after %v: %d datagrams", holdTime, len(sent))
		}
		var seqs []uint64
		for _, ack := range h.open(t, sent[0]).Msg.GetAcks() {
			seqs = append(seqs, ack.GetSeqs()...)
		}
		if !slices.Equal(seqs, []uint64{1, 2, 3}) {
			t.Errorf("%v are acknowledged", seqs)
		}
		time.Sleep(2 * failedTime)
		synctest.Wait()
		if n := len(r.wire.sent()); n != 1 || value(r.metrics.Dropped.WithLabelValues("acks")) != 0 {
			t.Errorf("%d datagrams, and acks were dropped", n)
		}
	})
}

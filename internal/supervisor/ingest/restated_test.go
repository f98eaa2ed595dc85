package ingest

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// digest returns a digest as the intake decodes it.
func digest(seq fault.Seq, st fault.State, status *lofamov1.DeliveryStatus) *servicenet.Reports {
	r := fault.Report{ID: fault.ReportID{Origin: host0, Epoch: 5, Seq: seq}, Digest: true, Uptime: time.Duration(seq),
		Observations: []fault.Observation{
			{Node: "n0", Component: fault.ComponentMemory, State: st, Kind: fault.KindSelf, Age: time.Duration(seq)},
		}}
	return &servicenet.Reports{List: []fault.Report{r}, Path: fault.PathTorus, Hops: []fault.Hop{{Held: time.Second}, {Held: time.Second}},
		Words: engine.Words(r, status, servicenet.Health{})}
}

func TestRestaterMakesDigestsFromChanges(t *testing.T) {
	ours, theirs, nobody := listener{term: 1}, listener{stream: 1}, listener{}
	armed := &lofamov1.DeliveryStatus{State: lofamov1.PathState_ARMED, Rails: []*lofamov1.RailStatus{{Name: "gossip", Sent: 1}}}
	later := &lofamov1.DeliveryStatus{State: lofamov1.PathState_ARMED, Rails: []*lofamov1.RailStatus{{Name: "gossip", Sent: 2, RttNs: 3}}}
	down := &lofamov1.DeliveryStatus{State: lofamov1.PathState_ARMED, Rails: []*lofamov1.RailStatus{{Name: "gossip", Down: true}}}
	partial := digest(3, fault.Normal, nil)
	partial.List[0].Partial = true
	partial.Words = engine.Words(partial.List[0], nil, servicenet.Health{})
	two := digest(3, fault.Normal, nil)
	two.List = append(two.List, two.List[0])
	epoch := digest(3, fault.Normal, nil)
	epoch.List[0].ID.Epoch++
	for _, tc := range []struct {
		what          string
		first, second *servicenet.Reports
		to, then      listener
		forget, want  bool
	}{
		{"the same words", digest(1, fault.Normal, armed), digest(2, fault.Normal, later), ours, ours, false, true},
		{"at the leader", digest(1, fault.Normal, nil), digest(2, fault.Normal, nil), theirs, theirs, false, true},
		{"other words", digest(1, fault.Normal, nil), digest(2, fault.Sick, nil), ours, ours, false, false},
		{"of its reports", digest(1, fault.Normal, armed), digest(2, fault.Normal, down), ours, ours, false, false},
		{"of another epoch", digest(1, fault.Normal, nil), epoch, ours, ours, false, false},
		{"a new leader", digest(1, fault.Normal, nil), digest(2, fault.Normal, nil), theirs, listener{stream: 2}, false, false},
		{"we lead now", digest(1, fault.Normal, nil), digest(2, fault.Normal, nil), theirs, ours, false, false},
		{"nobody leads", digest(1, fault.Normal, nil), digest(2, fault.Normal, nil), ours, nobody, false, false},
		{"asked for", digest(1, fault.Normal, nil), digest(2, fault.Normal, nil), ours, ours, true, false},
		{"a part", partial, partial, ours, ours, false, false},
		{"with more", two, two, ours, ours, false, false},
		{"an answer", digest(1, fault.Normal, nil), nil, ours, ours, false, false},
	} {
		r := newRestater(nil)
		if r.restates(tc.to, tc.first, time.Now()) {
			t.Errorf("%s: the first is taken for a restatement", tc.what)
		}
		if tc.forget {
			r.RequestFull([]fault.Origin{host0})
		}
		if got := r.restates(tc.then, tc.second, time.Now()); got != tc.want {
			t.Errorf("%s: restates: %t", tc.what, got)
		}
	}
}

// TestDigestsGoWholeAtTimes: a digest goes whole from time to time, so that its sender's counters arrive.
func TestDigestsGoWholeAtTimes(t *testing.T) {
	r := newRestater(nil)
	var whole []fault.Seq
	for seq := range fault.Seq(3*wholeEvery + 3) {
		if !r.restates(listener{term: 1}, digest(seq+1, fault.Normal, nil), time.Now()) {
			whole = append(whole, seq+1)
		}
	}
	if len(whole) != 3 || whole[0] != 1 || whole[1] != wholeEvery+2 {
		t.Errorf("whole are %v", whole)
	}
	if _, list, _ := r.take(true); len(list) != 3*wholeEvery {
		t.Errorf("%d are gathered, want %d", len(list), 3*wholeEvery)
	}
}

// TestRestatedAreGathered: unchanged digests are forwarded in batches, but each is RECEIVED at once.
func TestRestatedAreGathered(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	r.leader.leading, r.forward.stream, r.forward.restated = false, 3, make(chan []engine.Restated, 10)
	r.run(t, true)
	for range 4 {
		r.get(eth0, 0, h.reports(t, 5, 1, true, servicenet.SealOptions{}))
	}
	var got []engine.Restated
	for timeout := time.After(wait); len(got) < 3; {
		select {
		case list := <-r.forward.restated:
			got = append(got, list...)
		case <-timeout:
			t.Fatalf("%d are passed on, want 3", len(got))
		}
	}
	if len(r.forward.got) != 1 || got[0].ID.Origin != host0 || got[0].ID.Seq != 2 || got[2].ID.Seq != 4 || got[0].Path != fault.PathDirect {
		t.Errorf("whole %d, restated %+v", len(r.forward.got), got)
	}
	if n := len(r.wire.await(t, 4)); n != 4 {
		t.Errorf("%d are RECEIVED, want 4", n)
	}
}

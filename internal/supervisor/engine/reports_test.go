package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// batch submits reports of the host half of a node as one datagram.
func (h *harness) batch(node fault.NodeID, epoch fault.Epoch, status *lofamov1.DeliveryStatus, list ...fault.Report) {
	for i := range list {
		list[i].ID.Origin, list[i].ID.Epoch = fault.Origin{Node: node, Half: fault.HalfHost}, epoch
	}
	h.Submit(Input{
		Reports: &servicenet.Reports{Path: fault.PathTorus, Hops: []fault.Hop{{Node: "n0-0-0", Half: fault.HalfHost, Held: time.Millisecond}},
			List:   list,
			Status: status},
		To: To{Addr: "127.0.0.1:1", Socket: 1, Relayed: true}, Answerer: h.box, Arrived: time.Now(),
	})
}

func numbered(digest bool, seqs ...fault.Seq) []fault.Report {
	out := make([]fault.Report, len(seqs))
	for i, s := range seqs {
		out[i] = fault.Report{ID: fault.ReportID{Seq: s}, Digest: digest, Observations: []fault.Observation{
			{Node: "n1-0-0", Component: fault.ComponentMemory, State: fault.Normal, Kind: fault.KindSelf},
			{Node: "n1-0-0", Component: fault.ComponentPower, State: fault.Sick, Kind: fault.KindSelf, Age: 9 * time.Millisecond},
		}}
	}
	return out
}

func (h *harness) received(t *testing.T, q ReportQuery) ReportView {
	t.Helper()
	v, err := h.Reports(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestBatchesAreAnsweredTogether(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	h.batch("n1-0-0", 5, nil, numbered(false, 1, 2, 3)...)
	acks := h.box.await(t, 1)
	if acks[0].GetStatus() != lofamov1.Ack_COMMITTED || !slices.Equal(acks[0].GetSeqs(), []uint64{1, 2, 3}) ||
		h.box.to[0] != (To{"127.0.0.1:1", 1, true}) {
		t.Errorf("ack %v to %v", acks[0], h.box.to[0])
	}
	// One ack answers all copies of committed reports. The new report gets its own after its commit.
	h.batch("n1-0-0", 5, nil, numbered(false, 2, 3, 4)...)
	acks = h.box.await(t, 3)
	if !slices.Equal(acks[1].GetSeqs(), []uint64{2, 3}) || !slices.Equal(acks[2].GetSeqs(), []uint64{4}) {
		t.Errorf("acks %v", acks[1:])
	}
}

// TestReportsOfEarlierEpochs: a report that a half kept on disk is accepted once under its old ID. A report too old
// to distinguish from a replay is answered with the epoch to continue from.
func TestReportsOfEarlierEpochs(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	h.batch("n1-0-0", 9, nil, numbered(true, 1)...)
	h.batch("n1-0-0", 8, nil, numbered(false, 7)...)
	h.batch("n1-0-0", 8, nil, numbered(false, 7)...)
	h.batch("n1-0-0", 9-servicenet.EarlierEpochs-1, nil, numbered(false, 1, 2)...)
	var committed, stale int
	for deadline := time.Now().Add(wait); committed == 0 || stale == 0; {
		committed, stale = 0, 0
		for _, ack := range h.box.list() {
			switch {
			case ack.GetStatus() == lofamov1.Ack_COMMITTED && ack.GetEpoch() == 8:
				committed++
			case ack.GetStatus() == lofamov1.Ack_STALE_EPOCH && ack.GetHighestEpoch() == 9 && len(ack.GetSeqs()) == 2:
				stale++
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("acks %v", h.box.list())
		}
		h.taken(t)
	}
	if e := h.node(t, "n1-0-0"); e.Status.HostEpoch != 9 {
		t.Errorf("the node's epoch went to %d", e.Status.HostEpoch)
	}
	v := h.received(t, ReportQuery{Limit: 10})
	if len(v.Reports) != 1 || v.Reports[0].ID.Epoch != 8 || v.Reports[0].Copies != 2 {
		t.Errorf("received %+v", v.Reports)
	}
}

func TestReceivedReportsAreListed(t *testing.T) {
	h := start(t, memstore.New(100), nil)
	unblock := h.store.Block()
	defer unblock()
	status := &lofamov1.DeliveryStatus{State: lofamov1.PathState_ARMED}
	h.batch("n1-0-0", 5, nil, numbered(false, 1)...)
	h.batch("n1-0-0", 5, status, numbered(true, 1)...)
	h.batch("n1-0-0", 5, nil, numbered(false, 1)...)
	h.batch("n0-1-0", 5, nil, numbered(false, 1)...)
	h.taken(t)
	v := h.received(t, ReportQuery{Limit: 10})
	if len(v.Reports) != 2 || v.Reports[0].ID.Origin.Node != "n0-1-0" {
		t.Fatalf("received %+v", v.Reports)
	}
	r := v.Reports[1]
	if r.Copies != 2 || r.Committed || r.Path != fault.PathTorus || len(r.Hops) != 1 || r.From != "127.0.0.1:1" ||
		r.Latency != 10*time.Millisecond ||
		len(r.Said) != 2 || r.Arrived.IsZero() {
		t.Errorf("received %+v", r)
	}
	if v.Senders["n1-0-0"].Status != status || v.Senders["n1-0-0"].At.IsZero() || len(v.Senders) != 1 {
		t.Errorf("senders %v", v.Senders)
	}
	e := h.node(t, "n1-0-0")
	if e.Delivery != status || e.DeliveryAt.IsZero() || e.DeliveryOldAt.Sub(e.DeliveryAt) != 3*h.cfg.Awareness.DigestPeriod {
		t.Errorf("the map says %v of its delivery, at %s, old at %s", e.Delivery, e.DeliveryAt, e.DeliveryOldAt)
	}
	// A digest that was delayed longer than a later one says nothing about the present.
	later := &lofamov1.DeliveryStatus{State: lofamov1.PathState_MIGRATED}
	h.batch("n1-0-0", 5, later, numbered(true, 4)...)
	h.batch("n1-0-0", 5, status, numbered(true, 3)...)
	h.taken(t)
	if e := h.node(t, "n1-0-0"); e.Delivery != later {
		t.Errorf("an older digest came in the place of a newer one: %v", e.Delivery)
	}
	v = h.received(t, ReportQuery{Node: "n1-0-0", Limit: 1, Digests: true})
	if len(v.Reports) != 1 || !v.Reports[0].Digest || len(v.Reports[0].Said) != 1 {
		t.Errorf("newest of n1-0-0: %+v", v.Reports)
	}
	if v = h.received(t, ReportQuery{Node: "n0-1-0", Limit: 9, Digests: true}); len(v.Reports) != 1 || len(v.Senders) != 0 {
		t.Errorf("of n0-1-0: %+v", v)
	}
	unblock()
	h.box.await(t, 2)
	v = h.received(t, ReportQuery{Node: "n1-0-0", Limit: 10})
	if r := v.Reports[0]; !r.Committed || r.Commit <= 0 {
		t.Errorf("after the commit: %+v", r)
	}
	ended := h.term.Load().done
	h.stop()
	<-ended
	if _, err := h.Reports(t.Context(), ReportQuery{}); !errors.Is(err, ErrNotLeading) {
		t.Errorf("after the term: %v", err)
	}
}

// TestReportLogIsBounded: the oldest report goes, digests never push reports out, and the index follows.
func TestReportLogIsBounded(t *testing.T) {
	l := newReportLog(3)
	at := time.Unix(0, 0)
	add := func(seq fault.Seq, digest bool) {
		at = at.Add(time.Second)
		l.add(Received{ID: fault.ReportID{Origin: fault.Origin{Node: "a", Half: fault.HalfHost}, Epoch: 1, Seq: seq}, Digest: digest,
			Arrived: at, Copies: 1})
	}
	for seq := range fault.Seq(5) {
		add(seq+1, false)
		add(seq+1, true)
		add(seq+100, true)
	}
	id := fault.ReportID{Origin: fault.Origin{Node: "a", Half: fault.HalfHost}, Epoch: 1, Seq: 4}
	l.copied(id)
	l.committed(id, at)
	id.Seq = 1 // forgotten
	l.copied(id)
	l.committed(id, at)
	var got []fault.Seq
	for _, r := range l.newest(ReportQuery{Limit: 10}) {
		got = append(got, r.ID.Seq)
		if (r.Copies == 2) != (r.ID.Seq == 4) || r.Committed != (r.ID.Seq == 4) {
			t.Errorf("%+v", r)
		}
	}
	if !slices.Equal(got, []fault.Seq{5, 4, 3}) || len(l.index) != 3 {
		t.Errorf("reports %v, %d in the index", got, len(l.index))
	}
	got = nil
	for _, r := range l.newest(ReportQuery{Limit: 4, Digests: true}) {
		got = append(got, r.ID.Seq)
	}
	if !slices.Equal(got, []fault.Seq{104, 5, 5, 103}) {
		t.Errorf("with digests %v", got)
	}
	if got := l.newest(ReportQuery{Limit: 10, Node: "b", Digests: true}); len(got) != 0 {
		t.Errorf("of another node %v", got)
	}
}

// TestSmallTorusKeepsFewerReports: what a term remembers fills soon after its begin, and a large torus keeps most.
func TestSmallTorusKeepsFewerReports(t *testing.T) {
	for nodes, want := range map[int]int{0: 1024, 8: 1024, 32: 1024, 64: 2048, 128: 4096, 100_000: 4096} {
		if got := reportsKept(nodes); got != want {
			t.Errorf("%d nodes: %d reports, want %d", nodes, got, want)
		}
	}
}

// BenchmarkListReports measures the cost of a reader to the engine's goroutine with 10,000 nodes.
func BenchmarkListReports(b *testing.B) {
	term := &term{log: newReportLog(reportsKept(10_000)), senders: make(map[fault.NodeID]Sender)}
	for i := range 10_000 {
		node := fault.NodeID(fmt.Sprint("n", i))
		term.senders[node] = Sender{}
		for _, digest := range []bool{false, true} {
			id := fault.ReportID{Origin: fault.Origin{Node: node, Half: fault.HalfHost}, Epoch: 1, Seq: 1}
			term.log.add(Received{ID: id, Digest: digest})
		}
	}
	for name, q := range map[string]ReportQuery{
		"all": {Limit: 100}, "most": {Limit: reportsKept(10_000), Digests: true}, "node": {Node: "n1", Limit: 100, Digests: true},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				term.reports(q)
			}
		})
	}
}

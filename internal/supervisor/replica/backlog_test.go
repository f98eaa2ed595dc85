package replica

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// datagram returns n reports of one half, from a number on.
func datagram(first fault.Seq, n int, digest bool) *servicenet.Reports {
	in := &servicenet.Reports{}
	for i := range n {
		id := fault.ReportID{Origin: fault.Origin{Node: "n0", Half: fault.HalfHost}, Epoch: 5, Seq: first + fault.Seq(i)}
		in.List = append(in.List, fault.Report{ID: id, Digest: digest})
	}
	return in
}

// TestBacklogWithoutLeaderIsBounded: without a leader for a long time, digests are accepted as usual. So are reports,
// which are resent again and again, up to the bound; beyond it, only reports are refused.
func TestBacklogWithoutLeaderIsBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := metrics.New(reg)
	f := NewForwarder(ForwarderConfig{Answerer: nobody{}, Metrics: m, Logger: slog.New(slog.DiscardHandler)})
	now := time.Now()
	forward := func(in *servicenet.Reports) bool { return f.Forward(&lofamov1.ForwardRequest{}, in, now) }
	for i := range 10 * maxDigests {
		if !forward(datagram(fault.Seq(i+1), 1, true)) {
			t.Fatalf("digest %d is not taken", i)
		}
	}
	for range 3 { // tries of every report
		for i := range maxReports {
			if !forward(datagram(fault.Seq(2*i+1), 2, false)) || !forward(datagram(fault.Seq(2*i+2), 1, false)) {
				t.Fatalf("report %d is not taken", i)
			}
		}
	}
	if forward(datagram(1<<20, 1, false)) {
		t.Error("more is taken than there is room for")
	}
	if !forward(nil) {
		t.Error("an answer to a challenge is not taken")
	}
	if n := value(t, reg, "lofamo_dropped_total", "forward-digests"); n != 9*maxDigests {
		t.Errorf("%v digests were pushed out", n)
	}
	if n := value(t, reg, "lofamo_queue_depth", "forward"); n != 1+maxReports+maxDigests {
		t.Errorf("%v datagrams wait", n)
	}
	if q := f.next(); len(q.reports) != 0 {
		t.Error("the answer does not go first")
	}
}

// value reads a metric of one queue.
func value(t *testing.T, reg *prometheus.Registry, name, queue string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == queue {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("no %s of %s", name, queue)
	return 0
}

// TestBacklogHoldsWhatItTook: every accepted report comes out, in order of arrival and before digests, and is then
// forgotten.
func TestBacklogHoldsWhatItTook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBacklog()
		waits := make(map[fault.ReportID]bool)
		take := func(q *queued) {
			for _, id := range q.reports {
				delete(waits, id)
			}
		}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "next") {
				if q := b.next(); q != nil {
					take(q)
				} else if len(waits) > 0 {
					t.Fatalf("%d reports are lost", len(waits))
				}
				continue
			}
			in := datagram(fault.Seq(rapid.IntRange(1, 20).Draw(t, "first")), rapid.IntRange(1, 4).Draw(t, "n"), false)
			if ok, _ := b.put(&lofamov1.ForwardRequest{}, in, time.Unix(0, 0)); !ok {
				t.Fatal("not taken")
			}
			for _, r := range in.List {
				waits[r.ID] = true
			}
		}
		for q := b.next(); q != nil; q = b.next() {
			take(q)
		}
		if len(waits)+len(b.held)+b.len() > 0 {
			t.Fatalf("%d reports are lost, %d are remembered", len(waits), len(b.held))
		}
	})
}

// TestNewerCopyRefreshesWaitingReport: a newer copy's ages and return path replace those of a waiting report.
func TestNewerCopyRefreshesWaitingReport(t *testing.T) {
	b := newBacklog()
	for i, from := range []string{"old", "new"} {
		b.put(&lofamov1.ForwardRequest{From: from}, datagram(1, 2, false), time.Unix(int64(i), 0))
	}
	if q := b.next(); q.req.GetFrom() != "new" || q.arrived != time.Unix(1, 0) || b.next() != nil {
		t.Errorf("%v of %v", q.req, q.arrived)
	}
}

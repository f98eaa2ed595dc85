package ingest

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/replica"
	"github.com/lofamo/lofamo/internal/supervisor/store/memstore"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// outbox is a half with the real outbox, whose only supervisor is a replica.
type outbox struct {
	*half
	t       *testing.T
	r       *supervisor
	o       *servicenet.Outbox
	in      chan []byte // from the supervisor
	wake    *time.Timer
	added   map[fault.ReportID]bool // no digests
	sent    map[fault.ReportID]bool // of these, the ones the outbox has sent
	got     map[fault.ReportID]bool // of these, the RECEIVED ones
	trouble []string                // effects that a slow store must not have
}

// Send implements Socket for the supervisor.
func (h *outbox) Send(_ netip.AddrPort, b []byte) error {
	h.in <- slices.Clone(b)
	return nil
}

func newOutbox(t *testing.T, a *authority, r *supervisor) *outbox {
	t.Helper()
	h := &outbox{half: a.half(t, host0), t: t, r: r, in: make(chan []byte, 1<<16), wake: time.NewTimer(time.Hour),
		added: make(map[fault.ReportID]bool),
		sent:  make(map[fault.ReportID]bool), got: make(map[fault.ReportID]bool),
	}
	for i := range r.sender.cfg.Ports {
		r.sender.cfg.Ports[i].Socket = h
	}
	var err error
	cfg := servicenet.DefaultOutboxConfig(fault.PathDirect, fault.PathGossip, fault.PathTorus)
	if h.o, err = servicenet.NewOutbox(host0, 5, cfg); err != nil {
		t.Fatal(err)
	}
	h.do(h.o.Step(time.Now(), servicenet.Supervisors{Targets: []string{"s1"}, Leader: "s1"}))
	return h
}

// do performs the outbox's output and records any trouble.
func (h *outbox) do(out servicenet.Output) {
	deliver := h.r.intake.Datagrams(0)
	for _, s := range out.Send {
		if s.Path != fault.PathDirect {
			h.trouble = append(h.trouble, fmt.Sprintf("%v: %d reports by %s, attempt %d", time.Now(), len(s.Reports), s.Path, s.Attempt))
			continue
		}
		for _, rep := range s.Reports {
			if !rep.Digest {
				h.sent[rep.ID] = true
			}
		}
		b, err := servicenet.SealReports(s.Reports, s.Status, h.signer, servicenet.SealOptions{})
		if err != nil {
			h.t.Fatal(err)
		}
		deliver(eth0, b)
	}
	for _, p := range out.Paths {
		if p.Request != nil {
			deliver(eth0, h.request(h.t, p.Request.GetEpoch(), p.Request.GetId(), p.Request.GetChecksums()...))
		} else {
			deliver(eth0, h.ack(h.t, p.Ack.GetEpoch(), p.Ack.GetId()))
		}
	}
	if out.Changed && out.ServiceNetwork != fault.Normal || out.Dropped > 0 || out.IsolatedChanged && out.Isolated {
		h.trouble = append(h.trouble, fmt.Sprintf("%v: service network %s, %d dropped, isolated %t", time.Now(), out.ServiceNetwork, out.Dropped,
			out.Isolated))
	}
	if out.Wake.IsZero() {
		h.wake.Stop()
	} else {
		h.wake.Reset(max(0, time.Until(out.Wake)))
	}
}

// take passes an answer of the supervisor to the outbox.
func (h *outbox) take(b []byte) {
	o := h.open(h.t, sentTo{data: b})
	if reply := o.Msg.GetPathReply(); reply != nil {
		h.agree(h.t, reply)
		h.do(h.o.Step(time.Now(), servicenet.Replied{Supervisor: "s1", Reply: reply}))
	}
	for _, ack := range o.Msg.GetAcks() {
		for _, id := range servicenet.AckedIDs(ack) {
			if h.added[id] {
				h.got[id] = true
			}
		}
		h.do(h.o.Step(time.Now(), servicenet.Acked{Ack: ack, Supervisor: "s1", Path: fault.PathDirect}))
	}
}

// run runs the half for a time in which it sends n reports, and a digest every 50 ms.
func (h *outbox) run(d time.Duration, n int) {
	report, digest, end := time.NewTicker(d/time.Duration(n+1)), time.NewTicker(50*time.Millisecond), time.After(d)
	defer report.Stop()
	defer digest.Stop()
	for {
		select {
		case <-end:
			return
		case b := <-h.in:
			h.take(b)
		case <-h.wake.C:
			h.do(h.o.Step(time.Now(), servicenet.Tick{}))
		case <-report.C:
			if n--; n < 0 {
				continue
			}
			id, out := h.o.Add(time.Now(),
				fault.Report{Observations: []fault.Observation{{Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf}}})
			h.added[id] = true
			h.do(out)
		case <-digest.C:
			_, out := h.o.Add(time.Now(), fault.Report{Digest: true})
			h.do(out)
		}
	}
}

// calm fails the test for everything that a half with a good service network must not do.
func (h *outbox) calm() {
	h.t.Helper()
	if len(h.trouble) > 0 {
		h.t.Errorf("%d times in trouble, first: %s", len(h.trouble), h.trouble[0])
	}
}

// TestStalledStoreKeepsReportsReceived (row 12 of the fault catalogue) stalls the store for 5 s: every report is
// RECEIVED, so the half stays on its path. No report is COMMITTED before the store has it, and all are soon afterwards.
func TestStalledStoreKeepsReportsReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		r := a.replica(t, "s1", nil)
		st := memstore.New(1 << 20)
		e := newEngine(t, st, r.sender, r.metrics, 0, 0)
		r.intake.cfg.Leader = e
		fence := st.Campaign()
		var wg sync.WaitGroup
		wg.Go(func() { _ = e.Lead(t.Context(), fence) })
		t.Cleanup(wg.Wait)
		synctest.Wait()
		h := newOutbox(t, a, r)
		r.run(t, true)

		h.run(time.Second, 10)
		if s := h.o.Stats(); s.Committed != 10 {
			t.Fatalf("before: %+v", s)
		}
		unblock := st.Block()
		h.run(5*time.Second, 100)
		if s := h.o.Stats(); len(h.got) != 110 || s.Committed != 10 {
			t.Errorf("while nothing can be committed: %d RECEIVED, %+v", len(h.got), s)
		}
		unblock()
		h.run(2*time.Second, 1)
		if s := h.o.Stats(); s.Committed != 111 {
			t.Errorf("afterwards: %+v", s)
		}
		h.calm()
		snap, err := st.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		box := servicenet.NewInbox(snap.Inbox)
		for id := range h.added {
			if v := box.Accept(id, false); v != servicenet.Duplicate {
				t.Errorf("%s was COMMITTED, and the store says it is %s", id, v)
			}
		}
	})
}

// TestMissingLeaderKeepsReportsReceived does the same for two minutes without a quorum, at a replica that has no leader to forward
// to.
func TestMissingLeaderKeepsReportsReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		r := a.replica(t, "s1", nil)
		r.leader.leading = false
		m := metrics.New(prometheus.NewRegistry())
		r.intake.cfg.Forwarder = replica.NewForwarder(replica.ForwarderConfig{Metrics: m, Logger: slog.New(slog.DiscardHandler)})
		h := newOutbox(t, a, r)
		r.run(t, true)
		// The log keeps reports that are beyond the inbox's window.
		h.run(5*time.Second, 100)
		h.run(2*time.Minute, 100)
		if s := h.o.Stats(); len(h.sent) < 100 || len(h.got) != len(h.sent) || s.Committed != 0 {
			t.Errorf("%d of %d RECEIVED, %+v", len(h.got), len(h.sent), s)
		}
		h.calm()
		if n := value(m.Dropped.WithLabelValues("forward")); n != 0 {
			t.Errorf("%v reports were dropped", n)
		}
	})
}

package ingest

import (
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// TestCopiesInCrowd: a resent report is dropped before its signature is verified if its first copy was accepted a
// moment ago, but only while datagrams wait.
func TestCopiesInCrowd(t *testing.T) {
	a := newAuthority(t)
	h, other := a.half(t, host0), a.half(t, host1)
	report, digest := h.reports(t, 5, 2, false, servicenet.SealOptions{}), h.reports(t, 5, 1, true, servicenet.SealOptions{})
	forged := newAuthority(t).half(t, host0).reports(t, 5, 4, false, servicenet.SealOptions{})
	for _, tc := range []struct {
		what          string
		first, second []byte
		waited        time.Duration // of the second
		taken         int
		dropped       float64
	}{
		{"a copy in a crowd", report, report, 2 * crowded, 1, 1},
		{"a copy at leisure", report, report, 0, 2, 0},
		{"what nobody could verify", forged, forged, 2 * crowded, 0, 0},
		{"a digest, which goes on as one that says nothing new", digest, digest, 2 * crowded, 1, 0},
		{"other reports", report, h.reports(t, 5, 2, false, servicenet.SealOptions{}), 2 * crowded, 2, 0},
		{"another half's", report, other.reports(t, 5, 2, false, servicenet.SealOptions{}), 2 * crowded, 2, 0},
	} {
		r := a.replica(t, "s1", nil)
		r.intake.handle(packet{from: eth0, data: tc.first, arrived: time.Now()})
		r.intake.handle(packet{from: eth0, data: tc.second, arrived: time.Now().Add(-tc.waited)})
		if got := len(r.leader.inputs()); got != tc.taken {
			t.Errorf("%s: %d are taken, want %d", tc.what, got, tc.taken)
		}
		if got := value(r.metrics.Duplicates.WithLabelValues(fault.PathDirect.String())); got != tc.dropped {
			t.Errorf("%s: %v are counted, want %v", tc.what, got, tc.dropped)
		}
	}
}

// TestForwardedCopiesInCrowd: a sender that is not answered in time asks another replica, which passes the same on.
func TestForwardedCopiesInCrowd(t *testing.T) {
	a := newAuthority(t)
	h := a.half(t, host0)
	for _, held := range []time.Duration{0, 2 * crowded} {
		r := a.replica(t, "s1", nil)
		report := h.reports(t, 5, 2, false, servicenet.SealOptions{})
		r.get(eth0, 0, report)
		req := &lofamov1.ForwardRequest{Envelope: report, Path: uint32(fault.PathDirect), HeldNs: uint64(held)}
		if in := r.intake.Forwarded(req); (in == nil) != (held > 0) {
			t.Errorf("held for %s: %+v", held, in)
		}
		req.Envelope = h.reports(t, 5, 2, false, servicenet.SealOptions{})
		if in := r.intake.Forwarded(req); in == nil {
			t.Errorf("held for %s: other reports are dropped", held)
		}
	}
}

// TestCopiesAreForgotten: a later resend gets an answer again.
func TestCopiesAreForgotten(t *testing.T) {
	var c copies
	report := newAuthority(t).half(t, host0).reports(t, 5, 1, false, servicenet.SealOptions{})
	now := time.Unix(0, 0)
	for range 3 {
		c.take(copyKey(report), now)
		for _, tc := range []struct {
			after time.Duration
			want  bool
		}{{0, true}, {copyTime - 1, true}, {copyTime, true}, {2*copyTime - 1, true}, {2 * copyTime, false}} {
			if got := c.has(report, now.Add(tc.after), 2*crowded); got != tc.want {
				t.Errorf("after %s: %t", tc.after, got)
			}
		}
		now = now.Add(10 * copyTime)
	}
	for i := range copiesMost + 1 {
		c.take(string(rune(i+1)), now)
	}
	if len(c.latest) != copiesMost {
		t.Errorf("%d are remembered, want at most %d", len(c.latest), copiesMost)
	}
	if c.take("", now); c.has(nil, now, 2*crowded) {
		t.Error("what has no key is a copy")
	}
}

// TestCopyKeyEqualsReportKey: the key of verified reports equals the key that a copy claims.
func TestCopyKeyEqualsReportKey(t *testing.T) {
	a := newAuthority(t)
	h := a.half(t, host0)
	for _, n := range []int{1, 2, 20} {
		b := h.reports(t, 5, n, false, servicenet.SealOptions{})
		got, err := servicenet.Unwrap(b, fault.PathDirect, a.verify)
		if err != nil {
			t.Fatal(err)
		}
		if key := takenKey(got.List); key == "" || copyKey(b) != key {
			t.Errorf("%d reports: taken as %q, claimed as %q", n, key, copyKey(b))
		}
	}
	if key := takenKey([]fault.Report{{ID: fault.ReportID{Origin: host0, Epoch: 1, Seq: 1}, Digest: true}}); key != "" {
		t.Errorf("a digest is remembered as %q", key)
	}
}

func FuzzCopyKey(f *testing.F) {
	f.Add([]byte{0x0a, 2, 0x12, 0})
	f.Add([]byte{0x0a, 0xff})
	f.Fuzz(func(_ *testing.T, b []byte) { copyKey(b) })
}

package servicenet

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// asManyAs returns as many copies of r as limit allows, and their size.
func asManyAs(r fault.Report, limit int) ([]fault.Report, int) {
	var out []fault.Report
	size := 0
	for len(out) < MaxReports && size+reportSize(r) <= limit {
		size += reportSize(r)
		r.ID.Seq++
		out = append(out, r)
	}
	return out, size
}

// Reports whose reportSize and statusSize are within the limit fit, signed or under a MAC, and through the torus with
// a relay's wrapper around them.
func TestBatchFits(t *testing.T) {
	small := fault.Report{ID: fault.ReportID{Origin: origin("n10-10-10/host"), Epoch: 1 << 33, Seq: 1 << 33}, Digest: true}
	part := splitReport(nil, healthyDigest("n10-10-10"), MaxReportSize)[0]
	full := small
	for _, c := range fault.Components()[:7] {
		full.Observations = append(full.Observations, fault.Observation{Node: "n10-10-10", Component: c, State: fault.Failed,
			Kind: fault.KindSelf, Detail: "some detail"})
	}
	for _, path := range []fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus} {
		for name, r := range map[string]fault.Report{"small": small, "healthy": part, "full": full} {
			var status = sampleStatus()
			limit := usualRoom.by(path)
			if path != fault.PathDirect {
				status = nil // no room beside the largest report
			}
			rs, size := asManyAs(r, limit-statusSize(status))
			if len(rs) == 0 {
				t.Errorf("%s %s: not one report of %d bytes fits %d", path, name, reportSize(r), limit)
				continue
			}
			if got := proto.Size(EncodeReports(rs, status)); got > size+statusSize(status) {
				t.Errorf("%s %s: %d bytes are promised, %d encoded", path, name, size+statusSize(status), got)
			}
			signer := newSignerSize(RoleNode, r.ID.Origin.String(), usualCertificate)
			sum := lofamov1.Checksum_CHECKSUM_XXHASH64
			mac, err := SealReports(rs, status, signer, SealOptions{Session: testKey(1), Checksum: &sum})
			mustSeal(t, mac, err)
			b, err := SealReports(rs, status, signer, SealOptions{Checksum: &sum})
			mustSeal(t, b, err)
			if path == fault.PathTorus {
				b, err = SealRelayed(b, relayHops, newSignerSize(RoleNode, "n1-0-1/host", usualCertificate))
				mustSeal(t, b, err)
			}
			if a, err := Unwrap(b, path, fakeVerifier{}); err != nil || len(a.List) != len(rs) {
				t.Errorf("%s %s: %d of %d reports, %v", path, name, len(a.List), len(rs), err)
			}
			if around := len(b) - proto.Size(EncodeReports(rs, status)); path != fault.PathTorus && around > MaxDatagram-limit {
				t.Errorf("%s %s: %d bytes around the reports, want at most %d", path, name, around, MaxDatagram-limit)
			}
			t.Logf("%s %s: %d reports of %d bytes: %d signed, %d with a MAC", path, name, len(rs), reportSize(r), len(b), len(mac))
		}
	}
}

// The sizes equal those of the encoder, except for ages, which count as 36 minutes at least.
func TestReportSizeEqualsEncoders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := rapid.SampledFrom([]fault.NodeID{"n0", "n10-10-10", fault.NodeID(strings.Repeat("n", MaxNodeID))})
		word := rapid.SampledFrom([]uint32{0, 1, 1 << 31})
		r := fault.Report{
			ID: fault.ReportID{Origin: fault.Origin{Node: node.Draw(t, "origin"), Half: fault.HalfDNP},
				Epoch: fault.Epoch(rapid.Uint64().Draw(t, "epoch")), Seq: fault.Seq(rapid.Uint64().Draw(t, "seq"))},
			Digest: rapid.Bool().Draw(t, "digest"), Partial: rapid.Bool().Draw(t, "partial"),
			Registers: fault.Registers{DNPWatchdog: word.Draw(t, "dnp"), HostWatchdog: word.Draw(t, "host"),
				RemoteFaultDescriptor: word.Draw(t, "rfd")},
			Uptime:   time.Duration(rapid.Int64().Draw(t, "uptime")),
			Platform: fault.Platform(rapid.IntRange(0, 2).Draw(t, "platform")),
			Restart:  restartNotice(t),
			Stop:     fault.Stop(rapid.IntRange(0, int(fault.StopOver)).Draw(t, "stop")),
		}
		for range rapid.IntRange(0, 5).Draw(t, "observations") {
			r.Observations = append(r.Observations, fault.Observation{
				Node: node.Draw(t, "node"), Component: fault.Component(rapid.IntRange(1, fault.NumComponents-1).Draw(t, "component")),
				State: fault.State(rapid.IntRange(1, 4).Draw(t, "state")), Kind: fault.Kind(rapid.IntRange(1, 3).Draw(t, "kind")),
				Age:    time.Duration(rapid.Int64Range(1<<41, 1<<60).Draw(t, "age")),
				Detail: rapid.String().Draw(t, "detail"), Ended: rapid.Bool().Draw(t, "ended"),
			})
		}
		if got, want := reportSize(r), statusSize(nil)+proto.Size(EncodeReports([]fault.Report{r}, nil)); got != want {
			t.Fatalf("%d bytes, the encoder takes %d: %+v", got, want, r)
		}
	})
}

// A report that is as large as splitReport makes them is within every limit.
func TestLargestReportIsWithinLimits(t *testing.T) {
	sick := healthyDigest(fault.NodeID(strings.Repeat("n", MaxNodeID)))
	for i := range sick.Observations {
		sick.Observations[i].State, sick.Observations[i].Detail = fault.Failed, strings.Repeat("d", fault.MaxDetail/(i%5+1))
	}
	for _, p := range splitReport(nil, sick, MaxReportSize) {
		for _, path := range []fault.Path{fault.PathDirect, fault.PathGossip, fault.PathTorus} {
			if reportSize(p) > usualRoom.by(path) {
				t.Errorf("%s: a part of %d observations takes %d bytes, want at most %d", path, len(p.Observations), reportSize(p), usualRoom.by(path))
			}
		}
	}
	if statusSize(nil) != 0 {
		t.Error("no status takes room")
	}
}

// The promise of MaxReportSize: every part of the largest reports fits a datagram after another
// node has wrapped it.
func TestReportFitsRelayed(t *testing.T) {
	healthy := healthyDigest("n10-10-10")
	sick := healthyDigest("n10-10-10")
	for i := range sick.Observations {
		sick.Observations[i].State = fault.Failed
		sick.Observations[i].Detail = strings.Repeat("d", fault.MaxDetail)
	}
	long := healthyDigest(fault.NodeID(strings.Repeat("n", MaxNodeID)))
	long.Digest = false
	for name, r := range map[string]fault.Report{"healthy": healthy, "sick": sick, "long": long} {
		parts := splitReport(nil, r, MaxReportSize)
		if want := map[string]int{"healthy": 1, "sick": 5}[name]; want != 0 && len(parts) != want {
			t.Errorf("%s: %d parts, want %d", name, len(parts), want)
		}
		var obs int
		for i, p := range parts {
			if p.Partial != (r.Digest && len(parts) > 1) {
				t.Errorf("%s: part %d of %d of a digest (%t) is marked partial: %t", name, i, len(parts), r.Digest, p.Partial)
			}
			p.ID.Epoch, p.ID.Seq = 1<<20, 1<<28
			for j := range p.Observations {
				p.Observations[j].Age += 10 * time.Minute
			}
			size := proto.Size(EncodeReport(p))
			if size > MaxReportSize {
				t.Errorf("%s: part %d has %d bytes, want at most %d", name, i, size, MaxReportSize)
			}
			signer := newSignerSize(RoleNode, p.ID.Origin.String(), usualCertificate)
			b, err := SealReports([]fault.Report{p}, nil, signer, SealOptions{})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			hops := []fault.Hop{{Node: "n10-10-10", Half: fault.HalfDNP, Held: time.Second},
				{Node: "n11-10-10", Half: fault.HalfDNP, Held: time.Second}, {Node: "n11-10-10", Half: fault.HalfHost, Held: time.Second}}
			wrapped, err := SealRelayed(b, hops, newSignerSize(RoleNode, "n11-10-10/host", usualCertificate))
			if err != nil {
				t.Fatalf("%s: part %d: %v", name, i, err)
			}
			a, err := Unwrap(wrapped, fault.PathDirect, fakeVerifier{})
			if err != nil || len(a.Hops) != 3 {
				t.Fatalf("%s: %v, %d hops", name, err, len(a.Hops))
			}
			obs += len(a.List[0].Observations)
			t.Logf("%s: part %d: %d observations, report %d, envelope %d, relayed %d bytes", name, i, len(p.Observations), size, len(b),
				len(wrapped))
		}
		want := len(r.Observations)
		if name == "healthy" {
			want = fault.NumComponents - 1
		}
		if obs != want {
			t.Errorf("%s: %d observations arrived, want %d", name, obs, want)
		}
	}
}

// The same promise for a half with the longest names, for certificates of every size, of relays with the longest names. The supervisor
// learns the names of the hops that were left out.
func TestReportOfLongestNamesFitsRelayed(t *testing.T) {
	node := func(c string) fault.NodeID { return fault.NodeID(strings.Repeat(c, MaxNodeID)) }
	from, relay := fault.Origin{Node: node("n"), Half: fault.HalfDNP}, fault.Origin{Node: node("r"), Half: fault.HalfHost}
	for size := 300; size <= 500; size += 10 {
		cfg := DefaultOutboxConfig(fault.PathTorus)
		cfg.Certificate = size - renewedSize
		o, err := NewOutbox(from, 1, cfg)
		if err != nil {
			t.Fatal(err)
		}
		sick := healthyDigest(from.Node)
		for i := range sick.Observations {
			sick.Observations[i].State, sick.Observations[i].Detail = fault.Failed, strings.Repeat("d", fault.MaxDetail)
			sick.Observations[i].Node = node(string(rune('a' + i%3)))
		}
		arrived := 0
		for _, digest := range []bool{true, false} {
			sick.Digest = digest
			_, out := o.Add(epochStart, sick)
			for _, s := range out.Send {
				for i := range s.Reports {
					for j := range s.Reports[i].Observations {
						s.Reports[i].Observations[j].Age += time.Hour
					}
				}
				b, err := SealReports(s.Reports, s.Status, newSignerSize(RoleNode, from.String(), size), SealOptions{})
				mustSeal(t, b, err)
				hops := []fault.Hop{{Node: from.Node, Half: fault.HalfDNP, Held: MaxAge}, {Node: node("m"), Half: fault.HalfDNP, Held: time.Second},
					{Node: relay.Node, Half: relay.Half, Held: MaxAge}}
				b, err = SealRelayed(b, hops, newSignerSize(RoleNode, relay.String(), size))
				if err != nil {
					t.Fatalf("certificates of %d bytes: %d reports: %v", size, len(s.Reports), err)
				}
				a, err := Unwrap(b, fault.PathDirect, fakeVerifier{})
				if err != nil {
					t.Fatal(err)
				}
				if first, last := a.Hops[0], a.Hops[len(a.Hops)-1]; first.Node != from.Node || last.Node != relay.Node {
					t.Errorf("hops from %s to %s: want from %s to %s", first.Node, last.Node, from.Node, relay.Node)
				}
				for _, r := range a.List {
					arrived += len(r.Observations)
				}
			}
		}
		if want := 2 * len(sick.Observations); arrived > want || arrived < len(sick.Observations) {
			t.Errorf("certificate of %d bytes: %d observations arrived, want at most %d", size, arrived, want)
		}
	}
}

// A digest without room for all details keeps the details of faults.
func TestCrowdedDigestKeepsDetailsOfFaults(t *testing.T) {
	const why = "given up, next start after 1m0s: 5 restarts within 1m0s, the last ended with code 1"
	r := fault.Report{ID: fault.ReportID{Origin: fault.Origin{Node: "n1-0-0", Half: fault.HalfDNP}, Epoch: 1 << 16, Seq: 9}, Digest: true}
	for i, c := range []fault.Component{fault.ComponentDNP, fault.ComponentDNPCore, fault.ComponentTemperature, fault.ComponentPower,
		fault.ComponentVoltage, fault.ComponentHost} {
		o := fault.Observation{Node: "n1-0-0", Component: c, State: fault.Normal, Kind: fault.KindSelf, Age: time.Second,
			Detail: strings.Repeat("v", 30)}
		if i == 5 {
			o.State, o.Kind, o.Detail = fault.Failed, fault.KindWatchdog, why
		}
		r.Observations = append(r.Observations, o)
	}
	parts := splitReport(nil, r, MaxReportSize)
	if len(parts) != 1 {
		t.Fatalf("%d parts: want 1", len(parts))
	}
	for _, o := range parts[0].Observations {
		if want := map[bool]string{true: why}[o.State == fault.Failed]; o.Detail != want {
			t.Errorf("%s: detail %q: want %q", o.Component, o.Detail, want)
		}
	}
}

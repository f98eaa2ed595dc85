package servicenet

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

func TestOutboxRefusals(t *testing.T) {
	host := origin("n0/host")
	good := DefaultOutboxConfig(fault.PathDirect)
	for want, f := range map[string]func(*OutboxConfig){
		"AckTimeout: given 0s":             func(c *OutboxConfig) { c.AckTimeout = 0 },
		"MaxAckTimeout: given 1ms":         func(c *OutboxConfig) { c.MaxAckTimeout = time.Millisecond },
		"CommitTimeout: given -1s":         func(c *OutboxConfig) { c.CommitTimeout = -time.Second },
		"MaxBackoff: given 1ms":            func(c *OutboxConfig) { c.MaxBackoff = time.Millisecond },
		"NetworkDeadAfter: given 0s":       func(c *OutboxConfig) { c.NetworkDeadAfter = 0 },
		"MaxReports: given 0":              func(c *OutboxConfig) { c.MaxReports = 0 },
		"Rails: given none":                func(c *OutboxConfig) { c.Rails = nil },
		"Rails: given Path(0)":             func(c *OutboxConfig) { c.Rails = []fault.Path{0} },
		"Rails: given DIRECT: want each o": func(c *OutboxConfig) { c.Rails = []fault.Path{fault.PathDirect, fault.PathDirect} },
		"Interfaces: given 0":              func(c *OutboxConfig) { c.Interfaces = nil },
		"Interfaces: given 1: want non":    func(c *OutboxConfig) { c.Rails = []fault.Path{fault.PathTorus} },
		`Interfaces: given "a"`:            func(c *OutboxConfig) { c.Interfaces = []string{"a", "a"} },
		`Interfaces: given ""`:             func(c *OutboxConfig) { c.Interfaces = []string{""} },
		"AggregateDelay: given 1s":         func(c *OutboxConfig) { c.AggregateDelay = time.Second },
		"Checksums: given 99":              func(c *OutboxConfig) { c.Checksums = []lofamov1.Checksum{99} },
		"Checksums: given CHECKSUM_NON":    func(c *OutboxConfig) { c.Checksums = []lofamov1.Checksum{0, 0} },
	} {
		c := good
		f(&c)
		if _, err := NewOutbox(host, 1, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	bad := OutboxConfig{}
	if err := bad.Validate(); err == nil || strings.Count(err.Error(), "given") < 4 {
		t.Errorf("not every bad field is named: %v", err)
	}
	for want, err := range map[string]error{
		"epoch":       second(NewOutbox(host, 0, good)),
		"given 4611":  second(NewOutbox(host, MaxEpoch+1, good)),
		"origin.node": second(NewOutbox(fault.Origin{Node: "n/", Half: fault.HalfDNP}, 1, good)),
		"origin.half": second(NewOutbox(fault.Origin{Node: "n"}, 1, good)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func second(_ *Outbox, err error) error { return err }

func newTestOutboxOf(t testing.TB, cfg OutboxConfig) *Outbox {
	t.Helper()
	o, err := NewOutbox(origin("n0-0-0/host"), 1, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func newTestOutbox(t testing.TB) *Outbox {
	t.Helper()
	o := newTestOutboxOf(t, DefaultOutboxConfig(fault.PathDirect, fault.PathGossip, fault.PathTorus))
	o.Step(epochStart, Supervisors{Targets: []string{"s0", "s1"}, Leader: "s0"})
	return o
}

// reportsOf collects the sent reports, once for each rail.
func reportsOf(out Output) []fault.Report {
	var rs []fault.Report
	for _, s := range out.Send {
		rs = append(rs, s.Reports...)
	}
	return rs
}

func TestAddSplitsAndDoesNotShare(t *testing.T) {
	o := newTestOutbox(t)
	r := healthyDigest("n0-0-0")
	r.ID, r.Digest = fault.ReportID{}, false
	r.Observations[0].Node = "" // the own one
	id, out := o.Add(epochStart, r)
	sent := reportsOf(out)
	if len(sent) < 2 || id.Seq != 1 || id != sent[0].ID || sent[1].ID.Seq != 2 {
		t.Fatalf("id %s, %d reports", id, len(sent))
	}
	var n int
	for _, s := range append(sent, out.Keep...) {
		n += len(s.Observations)
		for i := range s.Observations {
			if s.Observations[i].Node == "" {
				t.Error("an observation without a node")
			}
		}
	}
	if n != 2*len(r.Observations) {
		t.Errorf("%d observations sent and kept, want %d", n, 2*len(r.Observations))
	}
	r.Observations[1].Component = fault.ComponentVoltage
	first := sent[0].Observations[0]
	again := reportsOf(o.Step(epochStart.Add(30*time.Millisecond), Tick{}))
	if len(again) == 0 || again[0].Observations[1].Component != fault.ComponentHost {
		t.Error("the log shares memory with who adds to it")
	}
	if again[0].Observations[0].Age != first.Age+30*time.Millisecond || sent[0].Observations[0] != first {
		t.Errorf("sent again: %+v, before: %+v, which was %+v", again[0].Observations[0], sent[0].Observations[0], first)
	}
}

// A digest of several parts is replaced as a whole by the next one.
func TestDigestReplacesAllParts(t *testing.T) {
	o := newTestOutbox(t)
	r := healthyDigest("n0-0-0")
	for i := range r.Observations {
		r.Observations[i].State = fault.Failed
	}
	_, out := o.Add(epochStart, r)
	parts := len(reportsOf(out))
	if parts < 2 || o.Stats().Pending != parts {
		t.Fatalf("%d parts, %d pending", parts, o.Stats().Pending)
	}
	o.Add(epochStart.Add(time.Millisecond), r)
	if got := o.Stats().Pending; got != parts {
		t.Errorf("%d pending, want %d", got, parts)
	}
}

// Without any answers, the number of reports in flight and so the traffic stay bounded.
func TestSilenceIsNotAnsweredByFlood(t *testing.T) {
	o := newTestOutbox(t)
	now := epochStart
	sends := 0
	for range 500 {
		_, out := o.Add(now, sick(fault.ComponentMemory))
		sends += len(out.Send)
	}
	if sends != busyDatagrams {
		t.Errorf("%d datagrams at once, want %d", sends, busyDatagrams)
	}
	now = now.Add(2 * time.Millisecond)
	out := o.Step(now, Tick{})
	if n := len(reportsOf(out)); n != maxInFlight-busyDatagrams {
		t.Errorf("%d reports after the delay, want %d", n, maxInFlight-busyDatagrams)
	}
	if n := len(out.Send); n > 6 {
		t.Errorf("in %d datagrams", n)
	}
	end := epochStart.Add(60 * time.Second)
	sends = 0
	for wake := out.Wake; wake.Before(end); wake = out.Wake {
		now = wake
		out = o.Step(now, Tick{})
		sends += len(out.Send) + len(out.Paths)
	}
	if limit := 60 * maxInFlight * 3; sends > limit {
		t.Errorf("%d sends in a minute, want at most %d", sends, limit)
	}
}

func sick(c fault.Component) fault.Report {
	return fault.Report{Observations: []fault.Observation{{Component: c, State: fault.Sick, Kind: fault.KindSelf}}}
}

func TestStrangersAcksAreIgnored(t *testing.T) {
	o := newTestOutbox(t)
	id, _ := o.Add(epochStart, sick(fault.ComponentMemory))
	for _, id := range []fault.ReportID{
		{Origin: origin("n0-0-0/dnp"), Epoch: 1, Seq: 1},
		{Origin: origin("n1-0-0/host"), Epoch: 1, Seq: 1},
		{Origin: id.Origin, Epoch: 2, Seq: 1},
		{Origin: id.Origin, Epoch: 1, Seq: 2},
		{Origin: id.Origin, Epoch: 1},
	} {
		for st := lofamov1.Ack_RECEIVED; st <= lofamov1.Ack_STALE_EPOCH; st++ {
			// A highest epoch below ours, so that even a STALE_EPOCH with a true id changes nothing.
			out := o.Step(epochStart, Acked{Ack: NewAcks(st, id)[0], Supervisor: "s0", Path: fault.PathDirect})
			if out.NewEpoch != 0 || len(out.Send) != 0 {
				t.Errorf("%s of %s: %+v", st, id, out)
			}
		}
	}
	if s := o.Stats(); s.Pending != 1 || s.Received != 0 || s.Committed != 0 {
		t.Errorf("stats %+v", s)
	}
	o.Step(epochStart, Acked{}) // no ack at all
	o.Step(epochStart, RailDown{})
	o.Step(epochStart, RailUp{})
}

// Two machines with the same key (one is a copy of the other's disk) each find the other's epoch above
// their own. They must not outbid each other as fast as the network carries it.
func TestCopiesDoNotOutbidEachOtherWithoutEnd(t *testing.T) {
	o := newTestOutbox(t)
	o.Add(epochStart, sick(fault.ComponentMemory))
	raised := 0
	for now := epochStart; now.Before(epochStart.Add(10 * time.Second)); now = now.Add(time.Millisecond) {
		id := fault.ReportID{Origin: origin("n0-0-0/host"), Epoch: o.Epoch(), Seq: 1}
		ack := NewAcks(lofamov1.Ack_STALE_EPOCH, id)[0]
		ack.HighestEpoch = uint64(o.Epoch()) + 1
		out := o.Step(now, Acked{Path: fault.PathDirect, Supervisor: "s0", Ack: ack})
		if out.NewEpoch != 0 {
			raised++
		}
	}
	if raised != 10 {
		t.Errorf("%d new epochs in 10 s, want 10", raised)
	}
}

// A store that stands still while everything is RECEIVED moves no report to other rails, and repeats stay bounded.
func TestSlowStoreNeverEscalates(t *testing.T) {
	o := newTestOutbox(t)
	now, sends := epochStart, 0
	var acks []Acked
	take := func(out Output) time.Time {
		for _, s := range out.Send {
			sends++
			if s.Path != fault.PathDirect {
				t.Fatalf("at %v by %s", now.Sub(epochStart), s.Path)
			}
			for _, r := range s.Reports {
				acks = append(acks, Acked{Ack: NewAcks(lofamov1.Ack_RECEIVED, r.ID)[0], Supervisor: s.Target, Path: s.Path, Interface: s.Interface})
			}
		}
		for _, p := range out.Paths {
			if p.Request != nil {
				o.Step(now, Replied{Interface: p.Path.Interface, Supervisor: p.Path.Supervisor, Reply: &lofamov1.PathReply{
					Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: 1, Id: p.Request.GetId()}})
			}
		}
		return out.Wake
	}
	for range 300 {
		_, out := o.Add(now, sick(fault.ComponentMemory))
		take(out)
	}
	for now.Before(epochStart.Add(time.Minute)) {
		wake := take(o.Step(now, Tick{}))
		for len(acks) > 0 {
			a := acks[0]
			acks = acks[1:]
			wake = take(o.Step(now.Add(time.Millisecond), a))
		}
		now = wake
	}
	if s := o.Stats(); s.Pending != 300 || s.Shortened != 0 {
		t.Errorf("%+v", s)
	}
	if limit := 300 + 60*maxCommitRetries*2; sends > limit {
		t.Errorf("%d datagrams in a minute, want at most %d", sends, limit)
	}
}

func TestRTTEstimator(t *testing.T) {
	var r rttEstimator
	const floor, ceiling = 30 * time.Millisecond, 500 * time.Millisecond
	if got := r.timeout(floor, ceiling); got != floor {
		t.Errorf("no sample: %v", got)
	}
	r.sample(-time.Second)
	for range 50 {
		r.sample(100 * time.Millisecond)
	}
	if got := r.timeout(floor, ceiling); got < 100*time.Millisecond || got > 105*time.Millisecond {
		t.Errorf("steady 100 ms: %v", got)
	}
	r.sample(2 * time.Second)
	if got := r.timeout(floor, ceiling); got != ceiling {
		t.Errorf("after a spike: %v", got)
	}
}

func BenchmarkOutboxAddAck(b *testing.B) {
	o := newTestOutbox(b)
	for id, s := range []string{"s0", "s1"} { // a session, and an armed alternate
		o.Step(epochStart, Replied{Supervisor: s, Reply: &lofamov1.PathReply{
			Node: "n0-0-0", Half: lofamov1.Half_HALF_HOST, Epoch: 1, Id: uint64(id + 1), Checksum: lofamov1.Checksum_CHECKSUM_CRC32C}})
	}
	if o.paths.state != PathArmed {
		b.Fatal(o.paths.state)
	}
	r := fault.Report{Observations: []fault.Observation{{Node: "n0-0-0", Component: fault.ComponentMemory, State: fault.Sick,
		Kind: fault.KindSelf}}}
	now := epochStart
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Millisecond)
		id, _ := o.Add(now, r)
		ack := NewAcks(lofamov1.Ack_RECEIVED, id)[0]
		ack.Leader = "s0"
		o.Step(now, Acked{Ack: ack, Supervisor: "s0", Path: fault.PathDirect})
		ack.Status = lofamov1.Ack_COMMITTED
		o.Step(now, Acked{Ack: ack, Supervisor: "s0", Path: fault.PathDirect})
	}
}

// A digest carries as much of the status as there is room for: all on the direct rail; by the torus less and less as
// the digest grows, until the digest loses its details.
func TestStatusBesideDigests(t *testing.T) {
	o := newTestOutbox(t)
	at := epochStart
	statusOf := func(detail int, path fault.Path) *lofamov1.DeliveryStatus {
		t.Helper()
		r := healthyDigest("n0-0-0")
		r.ID = fault.ReportID{}
		if detail > 0 {
			r.Observations[1].State, r.Observations[1].Detail = fault.Failed, strings.Repeat("d", detail)
		}
		at = at.Add(time.Second)
		_, out := o.Add(at, r)
		for _, s := range out.Send {
			if s.Path == path && s.Reports[0].Digest {
				if n := proto.Size(EncodeReports(s.Reports, s.Status)); n > usualRoom.by(path) {
					t.Errorf("%s: %d bytes, want at most %d", path, n, usualRoom.by(path))
				}
				return s.Status
			}
		}
		t.Fatalf("no digest by %s", path)
		return nil
	}
	if st := statusOf(100, fault.PathDirect); len(st.GetRails()) == 0 || st.GetPrimary() == "" {
		t.Errorf("by the direct way: %v", st)
	}
	o.spool = "no space"
	o.Step(at, RailDown{Path: fault.PathDirect, Why: "cut"})
	var steps []string
	for detail := range 70 {
		st, is := statusOf(detail, fault.PathTorus), "all"
		switch {
		case st == nil:
			is = "nothing"
		case st.GetState() == 0:
			t.Errorf("no state: %v", st)
		case st.GetSpool() == "":
			is = "numbers"
		case len(st.GetRails()) == 0:
			is = "no rails"
		}
		if len(steps) == 0 || steps[len(steps)-1] != is {
			steps = append(steps, is)
		}
	}
	if got := strings.Join(steps, ", "); got != "all, no rails, numbers, nothing, all" {
		t.Errorf("by the torus: %s", got)
	}
}

// A half without a service interface reports no delivery status.
func TestNoStatusOfDNPHalf(t *testing.T) {
	o, err := NewOutbox(origin("n0-0-0/dnp"), 1, DefaultOutboxConfig(fault.PathTorus))
	if err != nil {
		t.Fatal(err)
	}
	_, out := o.Add(epochStart, fault.Report{Digest: true})
	if len(out.Send) != 1 || out.Send[0].Status != nil {
		t.Errorf("sends %+v", out.Send)
	}
}

// Even with the largest numbers, a status has room beside a healthy digest, whose own service network has failed, on
// the torus.
func TestNumbersFitBesideDigest(t *testing.T) {
	r := healthyDigest("n10-10-10")
	for i, o := range r.Observations {
		if o.Component == fault.ComponentServiceNetwork && o.Node == "n10-10-10" {
			r.Observations[i].State, r.Observations[i].Detail = fault.Failed, "no supervisor answers"
		}
	}
	parts := splitReport(nil, r, MaxReportSize)
	parts[0].ID.Epoch, parts[0].ID.Seq = 1<<34, 1<<34
	numbers := &lofamov1.DeliveryStatus{
		State: lofamov1.PathState_REESTABLISHING, Logged: 1 << 16, Unanswered: 1 << 16, OldestNs: uint64(30 * time.Minute),
		Migrations: 1 << 20, Retries: 1 << 27, IsolatedNs: uint64(30 * time.Minute),
	}
	if n := reportSize(parts[0]) + statusSize(numbers); len(parts) != 1 || n > usualRoom.by(fault.PathTorus) {
		t.Errorf("%d parts; %d bytes and %d of the status, there is room for %d", len(parts), reportSize(parts[0]), statusSize(numbers),
			usualRoom.by(fault.PathTorus))
	}
}

// TestStatusLeavesRoomForWhatHalfAdds: on the direct rail a half adds two fields to a status: view_revision and denied.
func TestStatusLeavesRoomForWhatHalfAdds(t *testing.T) {
	o, given := newTestOutbox(t), 0
	o.spool = "no space"
	o.Add(epochStart, healthyDigest("n0-0-0"))
	limit := usualRoom.by(fault.PathDirect)
	for size := 1; size <= limit; size++ {
		st := o.statusFor(epochStart, &batch{rail: fault.PathDirect, size: size, limit: limit})
		if st == nil {
			continue
		}
		given++
		st.ViewRevision, st.Interest, st.Denied = math.MaxUint64, math.MaxUint32, math.MaxUint64
		if n := size + statusSize(st); n > limit {
			t.Fatalf("beside %d bytes of reports: %d bytes in all, want at most %d", size, n, limit)
		}
	}
	if given < limit/2 || given == limit {
		t.Errorf("%d of %d sizes leave room for a status", given, limit)
	}
}

// TestReportTooLongForTorusIsLeftOut: beside the largest certificate, an observation about a neighbour with a long name does not fit a
// datagram that another half relays. A half that has only the torus must not send it again without end, and not restore it either.
func TestReportTooLongForTorusIsLeftOut(t *testing.T) {
	node, peer := strings.Repeat("n", MaxNodeID-1), fault.NodeID(strings.Repeat("m", MaxNodeID-1))
	about := func(node fault.NodeID) fault.Report {
		return fault.Report{Uptime: time.Hour, Observations: []fault.Observation{{Node: node, Component: fault.ComponentDNPCore,
			State: fault.Failed, Kind: fault.KindSilence, Age: time.Second, Detail: "nothing heard"}}}
	}
	for _, c := range []struct {
		certificate int
		rail        fault.Path
		fits        bool
	}{
		{usualCertificate, fault.PathTorus, true},
		{505, fault.PathTorus, true}, // of an authority that is valid for days
		{MaxCertificate, fault.PathTorus, false},
		{MaxCertificate, fault.PathDirect, true},
	} {
		cfg := DefaultOutboxConfig(c.rail)
		cfg.Certificate = c.certificate
		o, err := NewOutbox(origin(node+"/dnp"), 5, cfg)
		if err != nil {
			t.Fatal(err)
		}
		id, out := o.Add(epochStart, about(peer))
		if fits := o.Stats().Pending == 1; fits != c.fits || fits != (out.TooLong == 0) || fits != (len(out.Keep) == 1) {
			t.Errorf("certificate of %d bytes, %s: logged %v, kept %d, left out %d: want logged %v", c.certificate, c.rail, fits, len(out.Keep),
				out.TooLong, c.fits)
		}
		own, out := o.Add(epochStart, about(""))
		if out.TooLong != 0 || len(out.Keep) != 1 || own.Seq != id.Seq+1 {
			t.Errorf("certificate of %d bytes, %s: a report on the node itself: id %s after %s, left out %d", c.certificate, c.rail, own, id,
				out.TooLong)
		}
		r := about(peer)
		r.ID = fault.ReportID{Origin: origin(node + "/dnp"), Epoch: 4, Seq: 1}
		r.Observations[0].Detail = ""
		if out := o.Restore(epochStart, []Kept{{Report: r}}); (len(out.Forget) == 0) != c.fits {
			t.Errorf("certificate of %d bytes, %s: restored: forgets %d: want restored %v", c.certificate, c.rail, len(out.Forget), c.fits)
		}
	}
}

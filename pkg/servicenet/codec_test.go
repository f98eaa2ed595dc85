package servicenet

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

func sampleReport() fault.Report {
	return fault.Report{
		ID: fault.ReportID{Origin: origin("n0-0-1/host"), Epoch: 3, Seq: 7},
		Observations: []fault.Observation{
			{Node: "n0-0-1", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf, Age: time.Second, Detail: "5 corrected errors"},
			{Node: "n1-0-1", Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindDescriptor, Age: 40 * time.Millisecond},
			{Node: "n0-0-1", Component: fault.ComponentTemperature, State: fault.Normal, Kind: fault.KindSelf, Age: 7},
		},
		Registers: fault.Registers{DNPWatchdog: 0x80000001, HostWatchdog: 5, RemoteFaultDescriptor: 6},
		Uptime:    time.Hour,
	}
}

func TestReportRoundTrip(t *testing.T) {
	r := sampleReport()
	got, err := DecodeReport(EncodeReport(r))
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Fatalf("got %+v, %v\nwant %+v", got, err, r)
	}
	if m := EncodeReport(r); m.Observations[0].Node != "" || m.Observations[1].Node != "n1-0-1" {
		t.Error("the own node is written, or another one is not")
	}
	r.Digest = true
	got, err = DecodeReport(EncodeReport(r))
	if err != nil || got.Observations[2].Age != 0 || got.Observations[0].Age != time.Second {
		t.Errorf("digest ages: %+v, %v: want none for NORMAL only", got.Observations, err)
	}
}

func TestEncodeClampsAndCuts(t *testing.T) {
	r := sampleReport()
	r.Uptime = -1
	r.Observations = r.Observations[:2]
	r.Observations[0].Age = -time.Second
	r.Observations[0].Detail = "a\x1b[31m\n" + strings.Repeat("é", 100)
	r.Observations[1].Age = MaxAge + 1
	r.Observations[1].Detail = "\xff\xfe" + strings.Repeat("x", 1000)
	got, err := DecodeReport(EncodeReport(r))
	if err != nil {
		t.Fatal(err)
	}
	o := got.Observations
	if got.Uptime != 0 || o[0].Age != 0 || o[1].Age != MaxAge {
		t.Errorf("not clamped: %+v", got)
	}
	for _, ob := range o {
		if len(ob.Detail) > fault.MaxDetail || !utf8.ValidString(ob.Detail) || strings.ContainsAny(ob.Detail, "\x1b\n") {
			t.Errorf("detail %q", ob.Detail)
		}
	}
	if !strings.HasPrefix(o[0].Detail, "a [31m é") || len(o[0].Detail) < fault.MaxDetail-1 {
		t.Errorf("detail %q", o[0].Detail)
	}
}

// Every bound of a message has a refusal, and the message without the change passes.
func TestMessageRefusals(t *testing.T) {
	nonce := make([]byte, NonceSize)
	report := func(f func(*lofamov1.Report)) *lofamov1.Message {
		m := EncodeReport(sampleReport())
		f(m)
		return reportsMessage(m)
	}
	obs := func(f func(*lofamov1.Observation)) *lofamov1.Message {
		return report(func(r *lofamov1.Report) { f(r.Observations[0]) })
	}
	ack := func(f func(*lofamov1.Ack)) *lofamov1.Message {
		m := NewAcks(lofamov1.Ack_STALE_EPOCH, sampleReport().ID)[0]
		m.Leader, m.HighestEpoch = "s1", 9
		f(m)
		return &lofamov1.Message{Acks: []*lofamov1.Ack{m}}
	}
	challenge := func(f func(*lofamov1.Challenge)) *lofamov1.Message {
		m := &lofamov1.Challenge{Nonce: nonce, Node: "n0", Half: 0, ReplyTo: "127.0.0.1:7"}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Challenge{Challenge: m}}
	}
	answer := func(f func(*lofamov1.Answer)) *lofamov1.Message {
		m := &lofamov1.Answer{Nonce: nonce, Node: "n0", Half: 1, Epoch: 1}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Answer{Answer: m}}
	}
	relayed := func(f func(*lofamov1.Relayed)) *lofamov1.Message {
		m := &lofamov1.Relayed{Inner: &lofamov1.Envelope{}, Hops: EncodeHops([]fault.Hop{{Node: "n0", Half: fault.HalfHost, Held: 1}})}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Relayed{Relayed: m}}
	}
	downcall := func(f func(*lofamov1.Downcall)) *lofamov1.Message {
		m := &lofamov1.Downcall{Inner: &lofamov1.Envelope{}, Node: "n0"}
		f(m)
		return &lofamov1.Message{Body: &lofamov1.Message_Downcall{Downcall: m}}
	}
	tests := []struct {
		want string // in the error; "" passes
		msg  *lofamov1.Message
	}{
		{"", report(func(*lofamov1.Report) {})},
		{"id.node", report(func(r *lofamov1.Report) { r.Id = nil })},
		{"id.node", report(func(r *lofamov1.Report) { r.Id.Node = "N0" })},
		{"id.node", report(func(r *lofamov1.Report) { r.Id.Node = strings.Repeat("n", MaxNodeID+1) })},
		{"id.half", report(func(r *lofamov1.Report) { r.Id.Half = 0 })},
		{"id.half", report(func(r *lofamov1.Report) { r.Id.Half = 257 })},
		{"id.epoch", report(func(r *lofamov1.Report) { r.Id.Epoch = 0 })},
		{"id.seq", report(func(r *lofamov1.Report) { r.Id.Seq = 0 })},
		{"report.uptime_ns", report(func(r *lofamov1.Report) { r.UptimeNs = uint64(MaxAge) + 1 })},
		{"report.observations", report(func(r *lofamov1.Report) {
			for len(r.Observations) <= MaxObservations {
				r.Observations = append(r.Observations, r.Observations[0])
			}
		})},
		{"observation.node", obs(func(o *lofamov1.Observation) { o.Node = "a b" })},
		{"observation.component", obs(func(o *lofamov1.Observation) { o.Component = 0 })},
		{"observation.component", obs(func(o *lofamov1.Observation) { o.Component = uint32(fault.NumComponents) })},
		{"observation.component", obs(func(o *lofamov1.Observation) { o.Component = 256 + 1 })},
		{"observation.state", obs(func(o *lofamov1.Observation) { o.State = 0 })},
		{"observation.state", obs(func(o *lofamov1.Observation) { o.State = 256 + 1 })},
		{"observation.state", obs(func(o *lofamov1.Observation) { o.State = -1 })},
		{"observation.kind", obs(func(o *lofamov1.Observation) { o.Kind = 0 })},
		{"observation.kind", obs(func(o *lofamov1.Observation) { o.Kind = uint32(fault.KindDigest) + 1 })},
		{"observation.age_ns", obs(func(o *lofamov1.Observation) { o.AgeNs = 1 << 63 })},
		{"observation.detail", obs(func(o *lofamov1.Observation) { o.Detail = strings.Repeat("x", fault.MaxDetail+1) })},
		{"observation.detail", obs(func(o *lofamov1.Observation) { o.Detail = "\x1b[2J" })},
		{"", ack(func(*lofamov1.Ack) {})},
		{"ack.status", ack(func(a *lofamov1.Ack) { a.Status = 0 })},
		{"ack.status", ack(func(a *lofamov1.Ack) { a.Status = 4 })},
		{"ack.seqs", ack(func(a *lofamov1.Ack) { a.Seqs = nil })},
		{"ack.seqs", ack(func(a *lofamov1.Ack) {
			for len(a.Seqs) <= MaxAckSeqs {
				a.Seqs = append(a.Seqs, 1)
			}
		})},
		{"ack.seqs", ack(func(a *lofamov1.Ack) { a.Seqs[0] = 0 })},
		{"ack.node", ack(func(a *lofamov1.Ack) { a.Node = "" })},
		{"ack.half", ack(func(a *lofamov1.Ack) { a.Half = 0 })},
		{"ack.epoch", ack(func(a *lofamov1.Ack) { a.Epoch = 0 })},
		{"message.acks", &lofamov1.Message{Acks: make([]*lofamov1.Ack, MaxAcks+1)}},
		{"reports.reports", reportsMessage()},
		{"reports[1].id", reportsMessage(EncodeReport(sampleReport()), EncodeReport(sampleReport()))},
		{"ack.leader", ack(func(a *lofamov1.Ack) { a.Leader = "S/1" })},
		{"ack.highest_epoch", ack(func(a *lofamov1.Ack) { a.HighestEpoch = 0 })},
		{"ack.highest_epoch", ack(func(a *lofamov1.Ack) { a.HighestEpoch = 1 << 63 })},
		{"", challenge(func(*lofamov1.Challenge) {})},
		{"challenge.nonce", challenge(func(c *lofamov1.Challenge) { c.Nonce = nonce[1:] })},
		{"challenge.node", challenge(func(c *lofamov1.Challenge) { c.Node = "" })},
		{"challenge.half", challenge(func(c *lofamov1.Challenge) { c.Half = 3 })},
		{"challenge.reply_to", challenge(func(c *lofamov1.Challenge) { c.ReplyTo = "localhost:7" })},
		{"", answer(func(*lofamov1.Answer) {})},
		{"answer.nonce", answer(func(a *lofamov1.Answer) { a.Nonce = nil })},
		{"answer.node", answer(func(a *lofamov1.Answer) { a.Node = "" })},
		{"answer.half", answer(func(a *lofamov1.Answer) { a.Half = 0 })},
		{"answer.epoch", answer(func(a *lofamov1.Answer) { a.Epoch = 0 })},
		{"", relayed(func(*lofamov1.Relayed) {})},
		{"relayed.inner", relayed(func(r *lofamov1.Relayed) { r.Inner = nil })},
		{"relayed.hops", relayed(func(r *lofamov1.Relayed) { r.Hops = nil })},
		{"relayed.hops", relayed(func(r *lofamov1.Relayed) {
			for len(r.Hops) <= MaxHops {
				r.Hops = append(r.Hops, r.Hops[0])
			}
		})},
		{"hop.node", relayed(func(r *lofamov1.Relayed) { r.Hops[0].Node = "" })},
		{"hop.half", relayed(func(r *lofamov1.Relayed) { r.Hops[0].Half = 9 })},
		{"hop.held_ns", relayed(func(r *lofamov1.Relayed) { r.Hops[0].HeldNs = 1 << 62 })},
		{"", downcall(func(*lofamov1.Downcall) {})},
		{"downcall.inner", downcall(func(d *lofamov1.Downcall) { d.Inner = nil })},
		{"downcall.node", downcall(func(d *lofamov1.Downcall) { d.Node = "" })},
		{"message.body", &lofamov1.Message{}},
	}
	for _, tt := range tests {
		_, err := checkMessage(tt.msg)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%v: %v", tt.msg, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || RefusalOf(err) == 0):
			t.Errorf("want a refusal naming %s, got %v", tt.want, err)
		}
		if _, sealErr := Seal(tt.msg, newSigner(RoleNode, "x/host")); (sealErr == nil) != (tt.want == "") {
			t.Errorf("seal: %v, want refusal of %q", sealErr, tt.want)
		}
	}
}

func TestUnknownFieldsAndMessages(t *testing.T) {
	later := protowire.AppendTag(nil, 99, protowire.BytesType)
	later = protowire.AppendBytes(later, []byte("from a later version"))

	m := EncodeReport(sampleReport())
	m.ProtoReflect().SetUnknown(later)
	if _, err := DecodeReport(m); err != nil {
		t.Errorf("unknown field: %v", err)
	}
	msg := new(lofamov1.Message)
	if err := proto.Unmarshal(later, msg); err != nil {
		t.Fatal(err)
	}
	_, err := checkMessage(msg)
	if !errors.Is(err, ErrUnknownMessage) || RefusalOf(err) != RefusedUnknownMessage {
		t.Errorf("unknown body: %v", err)
	}
}

func TestParseOrigin(t *testing.T) {
	for _, o := range []fault.Origin{origin("n0-0-0/host"), origin("rack1.a/dnp")} {
		if got, err := ParseOrigin(o.String()); err != nil || got != o {
			t.Errorf("%s: %v, %v", o, got, err)
		}
	}
	for _, bad := range []string{"", "n0", "n0/", "n0/gpu", "/host", "N/host", "a/host/dnp"} {
		if _, err := ParseOrigin(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestRefusalStrings(t *testing.T) {
	for r := Refusal(1); int(r) < NumRefusals; r++ {
		if s := r.String(); s == "" || strings.Contains(s, "(") {
			t.Errorf("refusal %d prints as %q", r, s)
		}
	}
	if RefusalOf(nil) != 0 || RefusalOf(errors.New("x")) != 0 || Refusal(0).String() != "Refusal(0)" {
		t.Error("no refusal is taken for one")
	}
	for v := Fresh; v <= EpochJump; v++ {
		if strings.Contains(v.String(), "(") {
			t.Errorf("verdict %d prints as %q", v, v)
		}
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
		parts := SplitReport(r)
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
			signer := newSignerSize(RoleNode, p.ID.Origin.String(), MaxCertificate)
			b, err := SealReports([]fault.Report{p}, nil, signer, SealOptions{})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			hops := []fault.Hop{{Node: "n10-10-10", Half: fault.HalfDNP, Held: time.Second},
				{Node: "n11-10-10", Half: fault.HalfDNP, Held: time.Second}, {Node: "n11-10-10", Half: fault.HalfHost, Held: time.Second}}
			wrapped, err := SealRelayed(b, hops, newSignerSize(RoleNode, "n11-10-10/host", MaxCertificate))
			if err != nil {
				t.Fatalf("%s: part %d: %v", name, i, err)
			}
			a, err := Unwrap(wrapped, fault.PathDirect, fakeVerifier{})
			if err != nil || len(a.Hops) != 3 {
				t.Fatalf("%s: %v, %d hops", name, err, len(a.Hops))
			}
			obs += len(a.Reports[0].Observations)
			t.Logf("%s: part %d: %d observations, report %d, envelope %d, relayed %d bytes", name, i, len(p.Observations), size, len(b), len(wrapped))
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

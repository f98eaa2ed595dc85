package servicenet

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

var (
	nodeSigner  = newSigner(RoleNode, "n0-0-1/host")
	relaySigner = newSigner(RoleNode, "n1-0-1/host")
	supSigner   = newSigner(RoleSupervisor, "s0")
	relayHops   = []fault.Hop{
		{Node: "n0-0-1", Half: fault.HalfDNP, Held: time.Millisecond},
		{Node: "n1-0-1", Half: fault.HalfDNP, Held: 2 * time.Millisecond},
		{Node: "n1-0-1", Half: fault.HalfHost, Held: 3 * time.Millisecond},
	}
)

func mustSeal(t testing.TB, b []byte, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func seal(t testing.TB, m *lofamov1.Message, s Signer) []byte {
	t.Helper()
	b, err := Seal(m, s)
	return mustSeal(t, b, err)
}

func sealedReport(t testing.TB) []byte {
	t.Helper()
	b, err := SealReports([]fault.Report{sampleReport()}, nil, nodeSigner, SealOptions{})
	return mustSeal(t, b, err)
}

func TestSealedMessageOpens(t *testing.T) {
	b := sealedReport(t)
	o, err := Open(b, fakeVerifier{})
	if err != nil || o.Role != RoleNode || o.Name != "n0-0-1/host" || !bytes.Equal(o.Raw, b) {
		t.Fatalf("%+v, %v", o, err)
	}
	for _, m := range []*lofamov1.Message{ackMessage(), challengeMessage()} {
		if o, err := Open(seal(t, m, supSigner), fakeVerifier{}); err != nil || !proto.Equal(o.Msg, m) {
			t.Errorf("%v, %v", o.Msg, err)
		}
	}
}

// renewing is renewed between certificate and signature, once.
type renewing struct {
	now  fakeSigner
	next *fakeSigner
}

func (r *renewing) Cert() []byte { return r.now.Cert() }

func (r *renewing) Sign(payload []byte) []byte {
	if r.next != nil {
		r.now, r.next = *r.next, nil
	}
	return r.now.Sign(payload)
}

// A message that is sealed while the certificate is renewed has the certificate that its signature is of.
func TestSealedInRenewal(t *testing.T) {
	now, next := newSignerSize(RoleSupervisor, "s0", 300), newSignerSize(RoleSupervisor, "s0", 200)
	env := seal(t, ackMessage(), &renewing{now, &next})
	if _, err := Open(env, fakeVerifier{}); err != nil {
		t.Error(err)
	}
}

func TestUnwrapReturnsDeliveries(t *testing.T) {
	for _, p := range []fault.Path{fault.PathDirect, fault.PathGossip} {
		a, err := Unwrap(sealedReport(t), p, fakeVerifier{})
		want := fault.Delivery{Report: sampleReport(), Path: p}
		if err != nil || len(a.List) != 1 || !reflect.DeepEqual(a.Delivery(0), want) {
			t.Errorf("%+v, %v", a, err)
		}
	}
	relayed, err := SealRelayed(sealedReport(t), relayHops, relaySigner)
	a, err2 := Unwrap(mustSeal(t, relayed, err), fault.PathDirect, fakeVerifier{})
	want := fault.Delivery{Report: sampleReport(), Path: fault.PathTorus, Hops: relayHops}
	if err2 != nil || len(a.List) != 1 || !reflect.DeepEqual(a.Delivery(0), want) {
		t.Fatalf("%+v, %v", a, err2)
	}
	d := a.Delivery(0)
	if got := d.Age(d.Report.Observations[1]); got != 46*time.Millisecond {
		t.Errorf("age %v, want 46ms", got)
	}
	relayed, err = SealRelayed(seal(t, answerMessage(), nodeSigner), relayHops, relaySigner)
	a, err2 = Unwrap(mustSeal(t, relayed, err), fault.PathGossip, fakeVerifier{})
	if err2 != nil || a.Msg.GetAnswer() == nil || a.Path != fault.PathTorus || len(a.Hops) != 3 {
		t.Errorf("relayed answer: %+v, %v", a, err2)
	}
	if _, err := Unwrap(sealedReport(t), 0, fakeVerifier{}); err == nil || !strings.Contains(err.Error(), "Path(0)") {
		t.Errorf("no path: %v", err)
	}
}

func TestDowncallCarriesSealedMessage(t *testing.T) {
	inner := seal(t, challengeMessage(), supSigner)
	b, err := SealDowncall("n0-0-1", inner, supSigner)
	o, err2 := Open(mustSeal(t, b, err), fakeVerifier{})
	if err2 != nil {
		t.Fatal(err2)
	}
	node, got, err := InnerOf(o)
	if err != nil || node != "n0-0-1" || !bytes.Equal(got, inner) {
		t.Errorf("%s, %v", node, err)
	}
	o, err = Open(inner, fakeVerifier{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := InnerOf(o); RefusalOf(err) != RefusedNested {
		t.Errorf("inner of a challenge: %v", err)
	}
}

// corrupt returns the envelope with one field changed on the way.
func corrupt(t testing.TB, b []byte, f func(*lofamov1.Envelope)) []byte {
	t.Helper()
	env := new(lofamov1.Envelope)
	if err := proto.Unmarshal(b, env); err != nil {
		t.Fatal(err)
	}
	f(env)
	out, err := proto.Marshal(env)
	return mustSeal(t, out, err)
}

// forge returns the envelope with one field changed by an attacker who recomputes the checksum.
func forge(t testing.TB, b []byte, f func(*lofamov1.Envelope)) []byte {
	t.Helper()
	env := new(lofamov1.Envelope)
	if err := proto.Unmarshal(b, env); err != nil {
		t.Fatal(err)
	}
	f(env)
	p := packetOf(env)
	return p.encode()
}

// rawSeal signs without the checks of Seal, as a malicious holder of a key would.
func rawSeal(payload []byte, s Signer) []byte {
	p := packet{payload: payload, certificate: s.Cert(), signature: s.Sign(payload), algorithm: lofamov1.Checksum_CHECKSUM_CRC32C}
	return p.encode()
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	return mustSeal(t, b, err)
}

func envelopeOf(t testing.TB, b []byte) *lofamov1.Envelope {
	t.Helper()
	env, err := parseInner(b)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestEachBadEnvelopeIsRefused(t *testing.T) {
	report := sealedReport(t)
	forged := forge(t, report, func(e *lofamov1.Envelope) { e.Payload[3] ^= 1 })
	badReport := EncodeReport(sampleReport())
	badReport.Observations[0].Component = 0
	tests := []struct {
		name string
		b    []byte
		want Refusal
	}{
		{"damaged", corrupt(t, report, func(e *lofamov1.Envelope) { e.Payload[3] ^= 1 }), RefusedChecksum},
		{"empty", nil, RefusedMalformed},
		{"noise", []byte("hello, is anybody there?"), RefusedMalformed},
		{"too long", append(bytes.Clone(report), make([]byte, MaxDatagram)...), RefusedTooLong},
		{"no payload", forge(t, report, func(e *lofamov1.Envelope) { e.Payload = nil }), RefusedMalformed},
		{"no certificate", forge(t, report, func(e *lofamov1.Envelope) { e.Certificate = nil }), RefusedMalformed},
		{"payload changed", forged, RefusedSignature},
		{"certificate changed", forge(t, report, func(e *lofamov1.Envelope) { e.Certificate = relaySigner.Cert() }), RefusedSignature},
		{"signature short", forge(t, report, func(e *lofamov1.Envelope) { e.Signature = e.Signature[1:] }), RefusedSignature},
		{"signed noise", rawSeal([]byte("\xff\xff\xff"), nodeSigner), RefusedMalformed},
		{"signed nothing", rawSeal([]byte{0x78, 0}, nodeSigner), RefusedUnknownMessage},
		{"bad field", rawSeal(marshal(t, reportsMessage(badReport)), nodeSigner), RefusedField},
		{"report by another node", rawSeal(marshal(t, reportsMessage(EncodeReport(sampleReport()))), relaySigner), RefusedOrigin},
		{"report by the other half", rawSeal(marshal(t, reportsMessage(EncodeReport(sampleReport()))), newSigner(RoleNode, "n0-0-1/dnp")),
			RefusedOrigin},
		{"report by a supervisor", rawSeal(marshal(t, reportsMessage(EncodeReport(sampleReport()))),
			newSigner(RoleSupervisor, "n0-0-1/host")), RefusedRole},
		{"ack by a node", seal(t, ackMessage(), newSigner(RoleNode, "s0")), RefusedRole},
		{"acks on a node's message", seal(t, &lofamov1.Message{Body: answerMessage().Body, Acks: ackMessage().Acks}, nodeSigner), RefusedRole},
		{"challenge by a node", seal(t, challengeMessage(), nodeSigner), RefusedRole},
		{"challenge by an operator", seal(t, challengeMessage(), newSigner("operator", "s0")), RefusedRole},
		{"answer by another node", seal(t, answerMessage(), relaySigner), RefusedOrigin},
		{"downcall by a node", seal(t, &lofamov1.Message{Body: &lofamov1.Message_Downcall{Downcall: &lofamov1.Downcall{
			Node: "n0", Inner: envelopeOf(t, report)}}}, nodeSigner), RefusedRole},
		{"relayed by a supervisor", seal(t, relayedMessage(envelopeOf(t, report), relayHops), supSigner), RefusedRole},
		{"relayed, last hop another", seal(t, relayedMessage(envelopeOf(t, report), relayHops), nodeSigner), RefusedOrigin},
		{"relayed by a dnp half", seal(t, relayedMessage(envelopeOf(t, report), relayHops), newSigner(RoleNode, "n1-0-1/dnp")), RefusedOrigin},
		{"relayed forgery", seal(t, relayedMessage(envelopeOf(t, forged), relayHops), relaySigner), RefusedSignature},
		{"relayed ack", seal(t, relayedMessage(envelopeOf(t, seal(t, ackMessage(), supSigner)), relayHops), relaySigner), RefusedNested},
		{"relayed relayed", seal(t, relayedMessage(envelopeOf(t,
			rawSeal(marshal(t, relayedMessage(envelopeOf(t, seal(t, ackMessage(), newSignerSize(RoleSupervisor, "s0", 20))),
				relayHops)), newSignerSize(RoleNode, "n1-0-1/host", 30))), relayHops), relaySigner), RefusedNested},
	}
	for _, tt := range tests {
		_, err := Unwrap(tt.b, fault.PathDirect, fakeVerifier{})
		if got := RefusalOf(err); got != tt.want {
			t.Errorf("%s: %s (%v), want %s", tt.name, got, err, tt.want)
		}
	}
}

func TestSealRefusesTooLongMessages(t *testing.T) {
	big := sampleReport()
	big.Observations[0].Detail = strings.Repeat("x", fault.MaxDetail)
	for len(big.Observations) < MaxObservations {
		big.Observations = append(big.Observations, big.Observations[0])
	}
	if _, err := SealReports([]fault.Report{big}, nil, nodeSigner, SealOptions{}); RefusalOf(err) != RefusedTooLong {
		t.Errorf("too long: %v", err)
	}
	if _, err := SealRelayed([]byte("noise"), relayHops, relaySigner); RefusalOf(err) != RefusedMalformed {
		t.Errorf("relayed noise: %v", err)
	}
	if _, err := SealRelayed(sealedReport(t), nil, relaySigner); RefusalOf(err) != RefusedField {
		t.Errorf("no hops: %v", err)
	}
	if _, err := SealDowncall("n0", nil, supSigner); RefusalOf(err) != RefusedMalformed {
		t.Errorf("empty downcall: %v", err)
	}
	if _, err := SealDowncall("n/", seal(t, ackMessage(), supSigner), supSigner); RefusalOf(err) != RefusedField {
		t.Errorf("downcall to nobody: %v", err)
	}
}

// However many hops there are, the envelope fits and the time held is whole.
func TestHopsAreMergedToFit(t *testing.T) {
	r := sampleReport()
	r.Observations = r.Observations[:1]
	inner, err := SealReports([]fault.Report{r}, nil, newSignerSize(RoleNode, "n0-0-1/host", usualCertificate), SealOptions{})
	mustSeal(t, inner, err)
	for _, n := range []int{1, 2, 3, 12, 40} {
		var hops []fault.Hop
		for i := range n {
			hops = append(hops, fault.Hop{Node: fault.NodeID(fmt.Sprintf("a-rather-long-name-%d", i)), Half: fault.HalfDNP, Held: time.Second})
		}
		hops[n-1] = fault.Hop{Node: "n1-0-1", Half: fault.HalfHost, Held: time.Second}
		before := fmt.Sprint(hops)
		b, err := SealRelayed(inner, hops, newSignerSize(RoleNode, "n1-0-1/host", usualCertificate))
		if err != nil {
			t.Fatalf("%d hops: %v", n, err)
		}
		a, err := Unwrap(b, fault.PathDirect, fakeVerifier{})
		if err != nil {
			t.Fatalf("%d hops: %v", n, err)
		}
		d := a.Delivery(0)
		if got := d.Age(fault.Observation{}); got != time.Duration(n)*time.Second {
			t.Errorf("%d hops: held %v, want %ds", n, got, n)
		}
		if first, last := d.Hops[0].Node, d.Hops[len(d.Hops)-1].Node; first != hops[0].Node || last != "n1-0-1" {
			t.Errorf("%d hops: first %s, last %s", n, first, last)
		}
		if fmt.Sprint(hops) != before {
			t.Error("the caller's hops were changed")
		}
	}
}

// TestOfLaterVersion: an observation with an unknown number is dropped, and the half's other observations count.
func TestOfLaterVersion(t *testing.T) {
	for _, change := range []func(*lofamov1.Observation){
		func(o *lofamov1.Observation) { o.Component = uint32(fault.NumComponents) },
		func(o *lofamov1.Observation) { o.Component = 256 + 1 },
		func(o *lofamov1.Observation) { o.State = lofamov1.State(fault.Failed) + 1 },
		func(o *lofamov1.Observation) { o.Kind = uint32(fault.KindAbsent) + 1 },
	} {
		want := sampleReport()
		m := EncodeReport(want)
		later := proto.CloneOf(m.GetObservations()[0])
		change(later)
		m.Observations = append([]*lofamov1.Observation{later}, m.GetObservations()...)
		a, err := Unwrap(rawSeal(marshal(t, reportsMessage(m)), nodeSigner), fault.PathDirect, fakeVerifier{})
		if err != nil || !reflect.DeepEqual(a.List, []fault.Report{want}) {
			t.Errorf("%v: %+v, %v; want %+v", later, a.List, err, want)
		}
	}
}

// TestReadingOfLaterVersion: a reading of an unknown component or quantity is dropped, and the rest of the digest counts.
func TestReadingOfLaterVersion(t *testing.T) {
	known := EncodeReport(fullReport()).GetReadings()[0]
	reading := func(c, q uint32) *lofamov1.Reading {
		return &lofamov1.Reading{Component: c, Quantity: q, Value: 1, Threshold: 2}
	}
	all := []*lofamov1.Reading{known} // of a later version, which has more components
	for c := range fault.MaxReadings {
		all = append(all, reading(uint32(fault.NumComponents+c), 1))
	}
	for _, readings := range [][]*lofamov1.Reading{
		{reading(uint32(fault.NumComponents), uint32(fault.QuantityTemperature)), known},
		{reading(256+uint32(fault.ComponentPower), uint32(fault.QuantityPower)), known},
		{known, reading(uint32(fault.ComponentPower), uint32(fault.QuantityCRCRatio)+1)},
		{known, reading(uint32(fault.ComponentPower), 256+uint32(fault.QuantityPower))},
		{known, reading(uint32(fault.ComponentMemory), uint32(fault.QuantityTemperature))},
		all,
	} {
		want := fullReport()
		m := EncodeReport(want)
		m.Readings = readings
		a, err := Unwrap(rawSeal(marshal(t, reportsMessage(m)), nodeSigner), fault.PathDirect, fakeVerifier{})
		if err != nil || !reflect.DeepEqual(a.List, []fault.Report{want}) {
			t.Errorf("%v: %+v, %v; want %+v", readings, a.List, err, want)
		}
	}
	for _, v := range []*lofamov1.Reading{reading(0, 1), reading(uint32(fault.ComponentPower), 0)} {
		m := EncodeReport(fullReport())
		m.Readings = []*lofamov1.Reading{v}
		if _, err := Unwrap(rawSeal(marshal(t, reportsMessage(m)), nodeSigner), fault.PathDirect, fakeVerifier{}); err == nil {
			t.Errorf("%v: accepted", v)
		}
	}
}

// TestPathStateOfLaterVersion: an unknown state counts as not stated, and the digest with it counts.
func TestPathStateOfLaterVersion(t *testing.T) {
	m := reportsMessage(EncodeReport(sampleDigest()))
	m.GetReports().Status = &lofamov1.DeliveryStatus{State: lofamov1.PathState_REESTABLISHING + 1, Logged: 3}
	a, err := Unwrap(rawSeal(marshal(t, m), nodeSigner), fault.PathDirect, fakeVerifier{})
	if want := (&lofamov1.DeliveryStatus{Logged: 3}); err != nil || !proto.Equal(a.Status, want) {
		t.Errorf("%v, %v; want %v", a.Status, err, want)
	}
}

// TestFaultUpdateOfLaterVersion: a component with an unknown number or state is dropped, and the update's other components count.
func TestFaultUpdateOfLaterVersion(t *testing.T) {
	component := func(c int, s lofamov1.State) *lofamov1.ComponentFault {
		return &lofamov1.ComponentFault{Component: uint32(c), State: s}
	}
	known := component(int(fault.ComponentMemory), lofamov1.State_SICK)
	update := func(faults ...*lofamov1.ComponentFault) *lofamov1.Message {
		return &lofamov1.Message{Body: &lofamov1.Message_FaultUpdate{FaultUpdate: &lofamov1.FaultUpdate{
			Node: "n0-0-1", Revision: 7, Parts: 1, Nodes: []*lofamov1.NodeView{{Id: "n1-0-1", State: lofamov1.State_SICK, Faults: faults}}}}}
	}
	all := []*lofamov1.ComponentFault{known} // of a later version, which has more components
	for c := range MaxUpdateFaults {
		all = append(all, component(fault.NumComponents+c, lofamov1.State_SICK))
	}
	for _, faults := range [][]*lofamov1.ComponentFault{
		{component(fault.NumComponents, lofamov1.State_FAILED), known},
		{component(256+1, lofamov1.State_FAILED), known},
		{known, component(int(fault.ComponentPower), lofamov1.State_FAILED+1)},
		all,
	} {
		o, err := Open(rawSeal(marshal(t, update(faults...)), supSigner), fakeVerifier{})
		if err != nil || !proto.Equal(o.Msg, update(known)) {
			t.Errorf("%v: %v, %v; want %v alone", faults, o.Msg, err, known)
		}
	}
	for _, f := range []*lofamov1.ComponentFault{component(0, lofamov1.State_SICK), component(1, lofamov1.State_STATE_UNSPECIFIED)} {
		if _, err := Open(rawSeal(marshal(t, update(f)), supSigner), fakeVerifier{}); err == nil {
			t.Errorf("%v: accepted", f)
		}
	}
}

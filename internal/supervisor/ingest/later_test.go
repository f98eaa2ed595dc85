package ingest

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// later is a field that no message has yet.
func later() []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1500, protowire.BytesType), []byte("from a later version"))
}

// laterReports returns reports from a half of a later version, with an unknown field in every message.
func laterReports(t *testing.T, h *half) []byte {
	t.Helper()
	r := servicenet.EncodeReport(fault.Report{
		ID:           fault.ReportID{Origin: h.origin, Epoch: 5, Seq: 1},
		Observations: []fault.Observation{{Node: h.origin.Node, Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf}},
	})
	reports := &lofamov1.Reports{Reports: []*lofamov1.Report{r}, Status: &lofamov1.DeliveryStatus{ViewRevision: 17}}
	msg := &lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: reports}}
	for _, m := range []proto.Message{msg, reports, reports.GetStatus(), r, r.GetId(), r.GetObservations()[0]} {
		m.ProtoReflect().SetUnknown(later())
	}
	return append(h.seal(t, msg), later()...) // in the envelope too: no signature covers that
}

// TestLaterReportsPassThrough: row 19. Reports from a half of a later version pass through a replica and a relay
// of this version exactly as signed, so that a leader of the later version receives every field.
func TestLaterReportsPassThrough(t *testing.T) {
	a := newAuthority(t)
	follower, leader, h, relay := a.replica(t, "s1", nil), a.replica(t, "s2", nil), a.half(t, host0), a.half(t, host1)
	follower.leader.leading = false
	said := laterReports(t, h)
	relayed, err := servicenet.SealRelayed(said, []fault.Hop{
		{Node: h.origin.Node, Half: fault.HalfDNP}, {Node: relay.origin.Node, Half: fault.HalfHost},
	}, relay.signer)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		sent []byte
	}{{"direct", said}, {"through the torus", relayed}} {
		follower.forward.got = nil
		follower.get(eth0, 0, tc.sent)
		if len(follower.forward.got) != 1 || !bytes.Equal(follower.forward.got[0].GetEnvelope(), tc.sent) {
			t.Fatalf("%s: the leader is given %v", tc.name, follower.forward.got)
		}
		in := leader.intake.Forwarded(follower.forward.got[0])
		if in == nil || in.Reports == nil || len(in.Reports.List) != 1 || in.Reports.List[0].Observations[0].State != fault.Sick {
			t.Errorf("%s: the leader takes %+v", tc.name, in)
		}
	}
	o, err := servicenet.Open(relayed, a.verify)
	if err != nil {
		t.Fatal(err)
	}
	inner, err := proto.Marshal(o.Msg.GetRelayed().GetInner())
	if err != nil || !bytes.Equal(inner, said) {
		t.Errorf("the relay passes on %x, %v; it was given %x", inner, err, said)
	}
}

// TestLaterAcksPassThrough: the same for acks from a leader of a later version, even when an ack is split.
func TestLaterAcksPassThrough(t *testing.T) {
	a := newAuthority(t)
	r, h := a.replica(t, "s1", nil), a.half(t, host0)
	ack := committed(2, 3)
	ack.ProtoReflect().SetUnknown(later())
	for _, ack := range []*lofamov1.Ack{committed(1), ack, committed(4)} {
		r.sender.Answer(engine.To{Addr: eth0.String()}, ack)
	}
	r.get(eth0, 0, h.reports(t, 5, 1, false, servicenet.SealOptions{}))
	acks := h.open(t, r.wire.sent()[0]).Msg.GetAcks()
	if len(acks) != 4 { // RECEIVED is one
		t.Fatalf("acks %v", acks)
	}
	for i, want := range [][]byte{nil, nil, later(), nil} {
		if got := acks[i].ProtoReflect().GetUnknown(); !bytes.Equal(got, want) {
			t.Errorf("ack %d, %v: has %q of a later version, want %q", i, acks[i], got, want)
		}
	}
	now, rest := pack([]*lofamov1.Ack{ack}, ackSize(ack)-1)
	if len(now) != 1 || len(rest) != 1 || !bytes.Equal(now[0].ProtoReflect().GetUnknown(), later()) ||
		!bytes.Equal(rest[0].ProtoReflect().GetUnknown(), later()) {
		t.Errorf("divided into %v and %v", now, rest)
	}
}

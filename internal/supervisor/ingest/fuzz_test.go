package ingest

import (
	"slices"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// heardSink accepts all messages of a half other than evidence.
type heardSink struct{ n int }

// FuzzForwarded: the fuzzer controls a forwarded message, apart from other parties' signatures. The leader either
// refuses it, or takes evidence of a known node in that node's name, by an existing rail.
func FuzzForwarded(f *testing.F) {
	a := newAuthority(f)
	follower, h, relay := a.replica(f, "s1", nil), a.half(f, host0), a.half(f, host1)
	follower.leader.leading = false
	s := &heardSink{}
	leader := a.replica(f, "s2", func(c *IntakeConfig) {
		for _, kind := range []string{
			servicenet.OrderMask, servicenet.OrderPeers, servicenet.OrderConfiguration, servicenet.OrderMapping, servicenet.OrderDiagnosis,
			servicenet.OrderProcedure, servicenet.OrderAct,
		} {
			c.Orders.Register(kind, Answers{Take: func(*lofamov1.Message) { s.n++ }})
		}
	})
	signed := h.reports(f, 5, 2, true, servicenet.SealOptions{})
	relayed, err := servicenet.SealRelayed(signed, []fault.Hop{{Node: "n0", Half: fault.HalfHost}, {Node: "n1", Half: fault.HalfHost}},
		relay.signer)
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range [][]byte{signed, relayed, answer(f, h), underMAC(f, signed), h.request(f, 5, 9), {0x0a, 0xff}} {
		f.Add(b, uint32(1), "", "10.0.0.1:7000", uint32(0), uint64(0))
		f.Add(b, uint32(2), "n0/host", "", uint32(257), uint64(1<<63))
		f.Add(b, uint32(2), "n1/host", "x", uint32(1), uint64(1))
	}
	f.Fuzz(func(t *testing.T, envelope []byte, path uint32, name, from string, socket uint32, held uint64) {
		if path != uint32(fault.PathDirect) && path != uint32(fault.PathGossip) {
			return // refused before
		}
		req := &lofamov1.ForwardRequest{Envelope: envelope, Path: path, Name: name, From: from, Socket: socket, HeldNs: held}
		in := leader.intake.Forwarded(req)
		if in == nil {
			return
		}
		var who fault.Origin
		var rail fault.Path
		switch {
		case in.Answer != nil && in.Reports == nil:
			who, rail = in.Answer.Origin, in.Answer.Path
		case in.Reports != nil && in.Answer == nil && len(in.Reports.List) > 0:
			who, rail = in.Reports.List[0].ID.Origin, in.Reports.Path
			for _, r := range in.Reports.List {
				check(t, in, r, who)
			}
		default:
			t.Fatalf("taken as %+v", in)
		}
		if !slices.Contains([]fault.NodeID{"n0", "n1"}, who.Node) || !who.Half.Valid() || !rail.Valid() {
			t.Fatalf("taken of %s by %s", who, rail)
		}
		if name != "" && who.String() != name && who != host0 {
			t.Fatalf("vouched for %q, and taken of %s", name, who)
		}
	})
}

// check compares one report with the guarantees of the decoder.
func check(t *testing.T, in *engine.Input, r fault.Report, who fault.Origin) {
	t.Helper()
	if r.ID.Origin != who || r.ID.Epoch == 0 || r.ID.Seq == 0 {
		t.Fatalf("report %s among those of %s", r.ID, who)
	}
	for _, o := range r.Observations {
		if !o.Component.Valid() || !o.State.Valid() || !o.Kind.Valid() || o.Age < 0 {
			t.Fatalf("%+v is taken in %+v", o, in)
		}
	}
}

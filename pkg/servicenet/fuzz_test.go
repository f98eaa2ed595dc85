package servicenet

import (
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// addEverything adds every kind of message, signed and, where that is enough, under a MAC.
func addEverything(f *testing.F) {
	f.Helper()
	for _, s := range everything(f) {
		f.Add(seal(f, s.msg, s.signer))
		if s.mac {
			role, _, _ := fakeVerifier{}.VerifyName(s.signer.cert, nil, s.signer.Sign(nil))
			f.Add(macSeal(f, s.msg, map[string]uint64{RoleNode: 1, RoleSupervisor: 2}[role]))
		}
	}
	f.Add(rawSeal([]byte{0x78, 0}, nodeSigner))
}

func FuzzOpen(f *testing.F) {
	addEverything(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parsePacket(b); err == nil && p.summed != nil && KnownChecksum(p.algorithm) {
			if got, want := p.computeSum(), p.computeSumOfParts(NewChecksummer(p.algorithm)); got != want {
				t.Errorf("a sum of %#x, of the parts %#x", got, want)
			}
		}
		o, err := Open(b, newSessions())
		if err != nil {
			if RefusalOf(err) == 0 || RefusalOf(err) == RefusedChecksum && !IsDamaged(err) {
				t.Errorf("not a refusal, or damage that is not: %v", err)
			}
			return
		}
		if len(o.reports) > 0 {
			return // FuzzCanonical
		}
		if _, err := checkMessage(o.Msg); err != nil {
			t.Errorf("opened what is not valid: %v", err)
		}
		if o.Session != 0 && checkUnderMAC(o.Msg) != nil {
			t.Errorf("opened under a MAC what is to be signed: %v", o.Msg)
		}
	})
}

func FuzzUnwrap(f *testing.F) {
	addEverything(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := Unwrap(b, fault.PathGossip, newSessions())
		if err != nil {
			return
		}
		if (a.Msg.GetReports() != nil) != (len(a.List) > 0) {
			t.Errorf("%d reports of %v", len(a.List), a.Msg)
		}
		for i := range a.List {
			d := a.Delivery(i)
			for _, o := range d.Report.Observations {
				if d.Age(o) < 0 {
					t.Errorf("age %v", d.Age(o))
				}
			}
		}
	})
}

// Checksum and signature keep a fuzzer out of the decoder, so it gets the payload as well.
func FuzzMessage(f *testing.F) {
	for _, s := range everything(f) {
		f.Add(marshal(f, s.msg))
	}
	f.Add(marshal(f, reportsMessage(EncodeReport(healthyDigest("n0-0-0")))))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > MaxDatagram {
			return
		}
		if hops := leaveOutNames([]*lofamov1.Hop{{Node: "n0"}, {Node: "n1"}}, &lofamov1.Envelope{Payload: b}); hops[1].GetNode() != "" {
			t.Errorf("the last hop has the name %s: want none", hops[1].GetNode())
		}
		msg := new(lofamov1.Message)
		if proto.Unmarshal(b, msg) != nil {
			return
		}
		rs, err := checkMessage(msg)
		if err != nil {
			if RefusalOf(err) == 0 {
				t.Errorf("not a refusal: %v", err)
			}
			return
		}
		if _, err := Seal(msg, nodeSigner); err != nil && RefusalOf(err) != RefusedTooLong {
			t.Errorf("valid, and not sealed: %v", err)
		}
		_, role := bySpeaker(msg)
		if err := checkSigner(msg, role, "x/host"); err != nil && RefusalOf(err) == 0 {
			t.Errorf("not a refusal: %v", err)
		}
		if msg.GetReports() == nil {
			return
		}
		again, err := decodeReports(EncodeReports(rs, nil))
		if err != nil || len(again) != len(rs) {
			t.Fatalf("%d reports became %d: %v", len(rs), len(again), err)
		}
		for i, r := range rs {
			if len(again[i].Observations) != len(r.Observations) || again[i].ID != r.ID {
				t.Errorf("%+v became %+v", r, again[i])
			}
		}
	})
}

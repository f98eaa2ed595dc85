package servicenet

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// drawText draws text that is allowed in a detail, and text that is not.
func drawText(t *rapid.T) string {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"", "5 corrected errors", "é\x1b[31m", "\xff\xfe", "\u0085", strings.Repeat("é", 70)}),
		rapid.StringN(0, 130, 300),
	).Draw(t, "text")
}

// drawReports draws reports, most of which can be sealed.
func drawReports(t *rapid.T) []fault.Report {
	number := rapid.SampledFrom([]uint64{1, 2, 127, 128, 300, 16383, 16384, 1 << 20, 1 << 34})
	node := rapid.SampledFrom([]fault.NodeID{"n0-0-1", "n1-0-1", "n2", ""})
	rs := make([]fault.Report, rapid.IntRange(1, 4).Draw(t, "reports"))
	id := fault.ReportID{
		Origin: fault.Origin{Node: "n0-0-1", Half: fault.Half(rapid.IntRange(1, 2).Draw(t, "half"))},
		Epoch:  fault.Epoch(number.Draw(t, "epoch")), Seq: fault.Seq(number.Draw(t, "seq")),
	}
	for i := range rs {
		rs[i] = fault.Report{
			ID: id, Digest: rapid.Bool().Draw(t, "digest"), Partial: rapid.Bool().Draw(t, "partial"),
			Registers: fault.Registers{DNPWatchdog: rapid.Uint32().Draw(t, "dnp"), HostWatchdog: rapid.Uint32().Draw(t, "host"),
				RemoteFaultDescriptor: rapid.Uint32().Draw(t, "rfd")},
			Uptime:   time.Duration(rapid.Int64().Draw(t, "uptime")),
			Platform: fault.Platform(rapid.IntRange(0, 2).Draw(t, "platform")),
			Restart:  restartNotice(t),
			Stop:     fault.Stop(rapid.IntRange(0, int(fault.StopOver)).Draw(t, "stop")),
		}
		id.Seq += fault.Seq(number.Draw(t, "step"))
		if rapid.Bool().Draw(t, "next epoch") {
			id.Epoch++
		}
		for range rapid.IntRange(0, 20).Draw(t, "observations") {
			rs[i].Observations = append(rs[i].Observations, fault.Observation{
				Node: node.Draw(t, "node"), Component: fault.Component(rapid.IntRange(1, fault.NumComponents-1).Draw(t, "component")),
				State: fault.State(rapid.IntRange(1, 4).Draw(t, "state")), Kind: fault.Kind(rapid.IntRange(1, int(fault.KindAbsent)).Draw(t, "kind")),
				Age: time.Duration(rapid.Int64().Draw(t, "age")), Detail: drawText(t), Ended: rapid.Bool().Draw(t, "ended"),
			})
		}
	}
	r := &rs[rapid.IntRange(0, len(rs)-1).Draw(t, "which")]
	for range rapid.IntRange(0, 3).Draw(t, "readings") {
		q := fault.Quantity(rapid.IntRange(1, 5).Draw(t, "quantity"))
		of := [...]fault.Component{0, fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage, fault.ComponentMemory,
			fault.Link(grid.YMinus)}
		r.Readings = append(r.Readings, fault.Reading{
			Component: of[q], Quantity: q, Value: rapid.Float32().Draw(t, "value"), Threshold: rapid.Float32().Draw(t,
				"threshold"), Age: time.Duration(rapid.Int64().Draw(t, "age of it")),
		})
	}
	one := fault.Observation{Node: "n1", Component: 1, State: 1, Kind: 1}
	switch rapid.IntRange(0, 20).Draw(t, "what is wrong") {
	case 3:
		r.ID.Origin.Node = "n9"
	case 4:
		r.ID.Origin.Node = "n/"
	case 5:
		r.ID.Origin.Half = 3 - r.ID.Origin.Half
	case 6:
		r.ID.Origin.Half = 3
	case 7:
		r.ID.Epoch = 0
	case 8:
		r.ID.Seq = 0
	case 9:
		one.Node = "n/"
	case 10:
		one.Component = 0
	case 11:
		one.Component = fault.Component(fault.NumComponents)
	case 12:
		one.State = 5
	case 13:
		one.Kind = fault.KindAbsent + 1
	case 14:
		r.Observations = make([]fault.Observation, MaxObservations)
	case 15:
		return nil
	case 16:
		r.Readings = append(r.Readings, fault.Reading{Component: fault.ComponentMemory, Quantity: fault.QuantityVoltage})
	case 17:
		r.Readings = make([]fault.Reading, fault.MaxReadings+1)
	case 18:
		r.Readings = append(r.Readings, fault.Reading{Component: fault.ComponentMemory, Quantity: fault.QuantityCorrectedErrors,
			Value: float32(math.Inf(1))})
	}
	r.Observations = append(r.Observations, one)
	return rs
}

func drawStatus(t *rapid.T) *lofamov1.DeliveryStatus {
	if rapid.Bool().Draw(t, "no status") {
		return nil
	}
	n, age := rapid.Uint64(), rapid.Uint64Range(0, uint64(MaxAge))
	s := &lofamov1.DeliveryStatus{
		State: lofamov1.PathState(rapid.IntRange(0, 4).Draw(t,
			"state")), Primary: "eth0>s0", Alternate: "eth0>s1", Logged: rapid.Uint32().Draw(t, "logged"),
		Unanswered: rapid.Uint32().Draw(t, "unanswered"), OldestNs: age.Draw(t, "oldest"), Migrations: n.Draw(t, "migrations"),
		Retries: n.Draw(t, "retries"), Shortened: n.Draw(t, "shortened"), IsolatedNs: age.Draw(t, "isolated"), Spool: drawText(t),
		ViewRevision: n.Draw(t, "view revision"), Interest: rapid.Uint32().Draw(t, "interest"),
	}
	for range rapid.IntRange(0, MaxRails).Draw(t, "rails") {
		s.Rails = append(s.Rails, &lofamov1.RailStatus{
			Name: rapid.SampledFrom([]string{"direct/eth0", "gossip", ""}).Draw(t, "name"), Down: rapid.Bool().Draw(t, "down"),
			InFlight: rapid.Uint32().Draw(t, "in flight"), Sent: n.Draw(t, "sent"), Answered: n.Draw(t, "answered"), RttNs: age.Draw(t, "rtt"),
		})
	}
	return s
}

// The codec writes the bytes that the protobuf runtime writes, and refuses to write the reports that a receiver refuses.
// Its direct reading of a message agrees with its reading of the same message as parsed by the runtime.
func TestReportsAreProtobuf(t *testing.T) {
	sealed := 0
	rapid.Check(t, func(t *rapid.T) {
		rs, status, health := drawReports(t), drawStatus(t), drawHealth(t)
		msg := &lofamov1.Message{Body: &lofamov1.Message_Reports{Reports: EncodeReports(rs, status)}}
		msg.GetReports().Host, msg.GetReports().Dnp = health.Host, health.DNP
		got, err := appendReports(nil, rs, status, health)
		if i := epochMissing(rs); i >= 0 {
			if RefusalOf(err) != RefusedField {
				t.Fatalf("reports[%d] of no epoch: %v", i, err)
			}
			return
		}
		read, wantErr := checkMessage(msg)
		want, marshalErr := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		if (err != nil) != (wantErr != nil || marshalErr != nil) || err != nil && RefusalOf(err) != RefusedField {
			t.Fatalf("refused by hand: %v; otherwise: %v, %v", err, wantErr, marshalErr)
		}
		if err != nil {
			return
		}
		sealed++
		if !bytes.Equal(got, want) {
			t.Fatalf("%x\nwant %x", got, want)
		}
		o := Opened{Role: RoleNode, Name: rs[0].ID.Origin.String()}
		if !o.readReports(got) || !reflect.DeepEqual(o.reports, read) || !proto.Equal(o.Msg.GetReports().GetStatus(), status) {
			t.Fatalf("%+v, status %v\nwant %+v, status %v", o.reports, o.Msg.GetReports().GetStatus(), read, status)
		}
		if in := o.Msg.GetReports(); !proto.Equal(in.GetHost(), health.Host) || !proto.Equal(in.GetDnp(), health.DNP) {
			t.Fatalf("health %v, %v\nwant %v", in.GetHost(), in.GetDnp(), health)
		}
		if n, want := healthSize(health), proto.Size(&lofamov1.Reports{Host: health.Host, Dnp: health.DNP}); n != want {
			t.Errorf("a health of %d bytes: want %d", n, want)
		}
		if statusSize(status) != proto.Size(&lofamov1.Reports{Status: status}) {
			t.Errorf("a status of %d bytes: want %d", statusSize(status), proto.Size(&lofamov1.Reports{Status: status}))
		}
	})
	if sealed == 0 {
		t.Error("nothing was sealed")
	}
}

// epochMissing finds a report of epoch 0, which EncodeReports could omit like one that equals the previous epoch.
func epochMissing(rs []fault.Report) int {
	for i := range rs {
		if rs[i].ID.Epoch == 0 {
			return i
		}
	}
	return -1
}

func TestAcksAreProtobuf(t *testing.T) {
	id := sampleReport().ID
	for n := 1; n <= MaxAcks+1; n++ {
		msg := &lofamov1.Message{}
		for i := range n {
			ids := make([]fault.ReportID, 1+i*60/MaxAcks)
			for j := range ids {
				ids[j] = id
				ids[j].Seq += fault.Seq(j << (4 * i))
			}
			a := NewAcks(lofamov1.Ack_Status(1+i%3), ids...)[0]
			a.Leader, a.HighestEpoch = []string{"", "s1"}[i%2], uint64(200*i)
			msg.Acks = append(msg.Acks, a)
		}
		got := appendAcks(nil, msg.GetAcks())
		if want := marshal(t, msg); !bytes.Equal(got, want) {
			t.Fatalf("%x\nwant %x", got, want)
		}
		o := Opened{Role: RoleSupervisor, Name: "s0"}
		if _, err := checkMessage(msg); o.readAcks(got) != (err == nil) || err == nil && !proto.Equal(o.Msg, msg) {
			t.Errorf("%d acks: %v\nwant %v, %v", n, o.Msg, msg, err)
		}
	}
}

// A message that protobuf allows but no half of this version sends is still read.
func TestNonCanonicalMessageIsRead(t *testing.T) {
	id := protowire.AppendBytes([]byte{0x0a}, marshal(t, EncodeReport(sampleReport()).GetId()))
	report := func(fields ...byte) []byte {
		return protowire.AppendBytes([]byte{0x0a}, protowire.AppendBytes([]byte{0x0a}, append(bytes.Clone(id), fields...)))
	}
	for name, b := range map[string][]byte{
		"a field twice":            report(0x38, 1, 0x38, 2),
		"fields in another order":  report(0x38, 1, 0x10, 1),
		"an unknown field":         report(0x78, 1),
		"another wire type":        report(0x15, 0, 0, 0, 0),
		"a flag of 2":              report(0x10, 2),
		"a tag of two bytes":       report(0xb8, 0x00, 1),
		"a message in two pieces":  append(report(), 0x0a, 2, 0x12, 0),
		"an unknown field behind":  append(report(), 0x78, 1),
		"an empty body before":     append([]byte{0x0a, 0}, report()...),
		"a status before a report": protowire.AppendBytes([]byte{0x0a}, append([]byte{0x12, 0}, protowire.AppendBytes([]byte{0x0a}, id)...)),
		"a health before a status": protowire.AppendBytes([]byte{0x0a},
			append(protowire.AppendBytes([]byte{0x0a}, id), 0x22, 2, 0x18, 1, 0x12, 2, 0x28, 1)),
		"two healths, to be merged": protowire.AppendBytes([]byte{0x0a},
			append(protowire.AppendBytes([]byte{0x0a}, id), 0x22, 2, 0x18, 1, 0x22, 2, 0x20, 1)),
		"two statuses, to be merged": protowire.AppendBytes([]byte{0x0a},
			append(protowire.AppendBytes([]byte{0x0a}, id), 0x12, 2, 0x20, 1, 0x12, 2, 0x28, 1)),
	} {
		msg := new(lofamov1.Message)
		if err := proto.Unmarshal(b, msg); err != nil {
			t.Fatal(name, err)
		}
		want, err := checkMessage(msg)
		a, err2 := Unwrap(rawSeal(b, nodeSigner), fault.PathDirect, fakeVerifier{})
		if err != nil || err2 != nil || !reflect.DeepEqual(a.List, want) || !proto.Equal(a.Status, msg.GetReports().GetStatus()) ||
			!proto.Equal(a.Health.DNP, msg.GetReports().GetDnp()) {
			t.Errorf("%s: %+v, %v, %v", name, a.List, err, err2)
		}
	}
}

// FuzzCanonical: the hand-written decoder agrees with protobuf and the checks on everything that it reads.
func FuzzCanonical(f *testing.F) {
	for _, s := range everything(f) {
		f.Add(marshal(f, s.msg))
	}
	f.Add(marshal(f, reportsMessage(EncodeReport(healthyDigest("n0-0-0")))))
	report := fullReport()
	f.Add(AppendReport(nil, &report))
	f.Add(protowire.AppendFixed32(protowire.AppendTag(AppendReport(nil, &report), 2, protowire.Fixed32Type), 0)) // a field of another type
	f.Add(appendAcks(nil, append(NewAcks(lofamov1.Ack_RECEIVED, sampleReport().ID),
		NewAcks(lofamov1.Ack_COMMITTED, sampleReport().ID, sampleDigest().ID)...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > MaxDatagram {
			return
		}
		if r, err := ParseReport(b); err == nil {
			checkNaive(t, b, r)
			once := AppendReport(nil, &r)
			if r, err = ParseReport(once); err != nil || !bytes.Equal(AppendReport(nil, &r), once) {
				t.Fatalf("%x is not read as it was written: %+v, %v", once, r, err)
			}
		}
		msg := new(lofamov1.Message)
		err := proto.Unmarshal(b, msg)
		var rs []fault.Report
		if err == nil {
			rs, err = checkMessage(msg)
		}
		names := []string{"n0-0-1/host", "s0", ""}
		if err == nil {
			said, _ := bySpeaker(msg)
			names = append(names, said.String())
		}
		for _, role := range []string{RoleNode, RoleSupervisor} {
			for _, name := range names {
				for session := range uint64(2) {
					checkCanonical(t, b, Opened{Role: role, Name: name, Session: session}, msg, rs, err)
				}
			}
		}
	})
}

func checkCanonical(t *testing.T, b []byte, o Opened, msg *lofamov1.Message, rs []fault.Report, err error) {
	t.Helper()
	if !o.readReports(b) && !o.readAcks(b) {
		return
	}
	if err == nil {
		err = checkSigner(msg, o.Role, o.Name)
	}
	if err == nil && o.Session != 0 {
		err = checkUnderMAC(msg)
	}
	switch {
	case err != nil:
		t.Fatalf("%+v read from %x, which is refused: %v", o, b, err)
	case !reflect.DeepEqual(o.reports, rs):
		t.Fatalf("%+v\nwant %+v", o.reports, rs)
	case len(rs) > 0 && !proto.Equal(beside(o.Msg), beside(msg)), len(rs) == 0 && !proto.Equal(o.Msg, msg):
		t.Fatalf("%v\nwant %v", o.Msg, msg)
	}
}

// beside returns the fields of a message of reports other than the reports.
func beside(m *lofamov1.Message) *lofamov1.Reports {
	r := m.GetReports()
	return &lofamov1.Reports{Status: r.GetStatus(), Host: r.GetHost(), Dnp: r.GetDnp()}
}

func drawHealth(t *rapid.T) Health {
	var h Health
	for _, half := range [...]**lofamov1.HalfHealth{&h.Host, &h.DNP} {
		if rapid.Bool().Draw(t, "said") {
			*half = drawHalf(t)
		}
	}
	return h
}

// drawHalf draws the health of a half, now and then one that is refused.
func drawHalf(t *rapid.T) *lofamov1.HalfHealth {
	n, big, age := rapid.Uint32(), rapid.Uint64(), rapid.Uint64Range(0, uint64(MaxAge)+1)
	h := &lofamov1.HalfHealth{Cut: rapid.Bool().Draw(t, "cut"), AgeNs: age.Draw(t, "age"), Old: rapid.Bool().Draw(t, "old")}
	if rapid.Bool().Draw(t, "processor") {
		h.Processor = &lofamov1.ProcessorTime{
			Starved: rapid.Bool().Draw(t, "starved"), LongestMs: n.Draw(t, "longest"), SharePermille: n.Draw(t, "share"),
			BudgetLevel: n.Draw(t, "level"), UsedPermille: n.Draw(t, "used"), NotRealtime: rapid.Bool().Draw(t, "realtime"),
		}
	}
	if rapid.Bool().Draw(t, "recovery") {
		h.Recovery = &lofamov1.RecoveryStatus{
			State: lofamov1.RecoveryState(rapid.IntRange(0, 6).Draw(t, "state")), Restarts: n.Draw(t, "restarts"), InWindow: n.Draw(t, "in window"),
			Budget: n.Draw(t, "budget"), WindowMs: n.Draw(t, "window"), Cause: drawText(t), AgeNs: age.Draw(t,
				"age of it"), GoneUs: n.Draw(t, "gone"),
			StartedUs: n.Draw(t, "started"), ServingUs: n.Draw(t, "serving"), ProvenUs: n.Draw(t,
				"proven"), Reason: drawText(t), Resumption: lofamov1.Resumption(rapid.IntRange(0, 3).Draw(t, "how")),
			Cold: drawText(t), UntilMs: n.Draw(t, "until"),
		}
	}
	for range rapid.SampledFrom([]int{0, 1, 3, MaxSelfTests, MaxSelfTests + 1}).Draw(t, "tests") {
		h.Tests = append(h.Tests, &lofamov1.SelfTest{
			Number: n.Draw(t, "number"), State: lofamov1.TestState(rapid.IntRange(0, 5).Draw(t, "test state")), AgeMs: n.Draw(t, "age of test"),
			LatencyUs: n.Draw(t, "latency"), LearnedUs: n.Draw(t, "learned"), Tests: big.Draw(t, "count"), Lost: big.Draw(t, "lost"),
			Altered: big.Draw(t, "altered"), Doubled: big.Draw(t, "doubled"), Late: big.Draw(t,
				"late"), Module: rapid.SampledFrom([]string{"", "link/X+"}).Draw(t, "module"),
			Why: rapid.SampledFrom([]string{"", "late: 4 tests over 20ms", "\n"}).Draw(t, "why"), Proving: rapid.Bool().Draw(t, "proving"),
		})
	}
	return h
}

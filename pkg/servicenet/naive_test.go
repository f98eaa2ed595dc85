package servicenet

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// naiveMessage holds the fields of a protobuf message as they arrived, by field number: varints, words of 32 bits and bytes. A field of
// another type than its message has is an unknown one.
type naiveMessage struct {
	numbers map[protowire.Number]uint64
	words   map[protowire.Number]uint32
	bytes   map[protowire.Number][][]byte
}

func naiveFields(t *testing.T, b []byte) naiveMessage {
	m := naiveMessage{map[protowire.Number]uint64{}, map[protowire.Number]uint32{}, map[protowire.Number][][]byte{}}
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatalf("tag: %v", protowire.ParseError(n))
		}
		b = b[n:]
		switch kind {
		case protowire.VarintType:
			m.numbers[field], n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			m.words[field], n = protowire.ConsumeFixed32(b)
		case protowire.BytesType:
			var v []byte
			v, n = protowire.ConsumeBytes(b)
			m.bytes[field] = append(m.bytes[field], v)
		default:
			n = protowire.ConsumeFieldValue(field, kind, b)
		}
		if n < 0 {
			t.Fatalf("field %d: %v", field, protowire.ParseError(n))
		}
		b = b[n:]
	}
	return m
}

// one returns an embedded message; a repeated one is merged, which is the same as its bytes in a row.
func (m naiveMessage) one(t *testing.T, field protowire.Number) naiveMessage {
	var all []byte
	for _, b := range m.bytes[field] {
		all = append(all, b...)
	}
	return naiveFields(t, all)
}

func (m naiveMessage) text(field protowire.Number) string {
	if n := len(m.bytes[field]); n > 0 {
		return string(m.bytes[field][n-1])
	}
	return ""
}

func (m naiveMessage) float(field protowire.Number) float32 {
	return math.Float32frombits(m.words[field])
}

func (m naiveMessage) age(field protowire.Number) time.Duration {
	return time.Duration(m.numbers[field])
}

// naiveReport decodes a valid report by the description in wire.proto, without the codec's list of fields.
func naiveReport(t *testing.T, b []byte) fault.Report {
	m := naiveFields(t, b)
	id := m.one(t, 1)
	r := fault.Report{
		ID: fault.ReportID{Origin: fault.Origin{Node: fault.NodeID(id.text(1)), Half: fault.Half(id.numbers[2])},
			Epoch: fault.Epoch(id.numbers[3]), Seq: fault.Seq(id.numbers[4])},
		Digest:    m.numbers[2] != 0,
		Registers: fault.Registers{DNPWatchdog: m.words[4], HostWatchdog: m.words[5], RemoteFaultDescriptor: m.words[6]},
		Uptime:    m.age(7),
		Partial:   m.numbers[8] != 0,
	}
	for _, b := range m.bytes[3] {
		o := naiveFields(t, b)
		node := fault.NodeID(o.text(1))
		if node == "" {
			node = r.ID.Origin.Node
		}
		r.Observations = append(r.Observations, fault.Observation{Node: node, Component: fault.Component(o.numbers[2]),
			State: fault.State(o.numbers[3]), Kind: fault.Kind(o.numbers[4]), Age: o.age(5), Detail: o.text(6),
			Ended: o.numbers[7] != 0})
	}
	for _, b := range m.bytes[9] {
		v := naiveFields(t, b)
		r.Readings = append(r.Readings, fault.Reading{Component: fault.Component(v.numbers[1]), Quantity: fault.Quantity(v.numbers[2]),
			Value: v.float(3), Threshold: v.float(4), Age: v.age(5)})
	}
	if p := int32(m.numbers[10]); p == 1 || p == 2 { // others belong to later versions
		r.Platform = fault.Platform(p)
	}
	restart := m.one(t, 11)
	if h := int32(restart.numbers[1]); h == 1 || h == 2 {
		ms := min(uint32(restart.numbers[2]), 30_000)
		r.Restart = fault.RestartNotice{Half: fault.Half(h), Within: time.Duration(ms) * time.Millisecond}
	}
	if s := m.numbers[12]; s <= uint64(fault.StopOver) {
		r.Stop = fault.Stop(s)
	}
	return r
}

func checkNaive(t *testing.T, b []byte, r fault.Report) {
	t.Helper()
	if want := naiveReport(t, b); !reflect.DeepEqual(r, want) {
		t.Fatalf("%x\ngot  %+v\nwant %+v", b, r, want)
	}
}

// TestReportIsReadAsDescribed compares the codec with the naive decoder, also for bytes in another order.
func TestReportIsReadAsDescribed(t *testing.T) {
	for _, r := range []fault.Report{sampleReport(), fullReport(), healthyDigest("n0-0-0")} {
		b := AppendReport(nil, &r)
		id := len(protowire.AppendTag(nil, 1, protowire.BytesType)) + 1 + int(b[1])
		for _, b := range [][]byte{b, append(append([]byte(nil), b[id:]...), b[:id]...)} {
			got, err := ParseReport(b)
			if err != nil {
				t.Fatal(err)
			}
			checkNaive(t, b, got)
		}
	}
}

// TestRefusalNamesNumberThatArrived: a number that does not fit a byte is named as it arrived.
func TestRefusalNamesNumberThatArrived(t *testing.T) {
	for name, set := range map[string]struct {
		change func(*lofamov1.Report)
		want   string
	}{
		"state":     {func(r *lofamov1.Report) { r.Observations[0].State = 300 }, "observation.state: given 300: "},
		"negative":  {func(r *lofamov1.Report) { r.Observations[0].State = -1 }, "observation.state: given -1: "},
		"component": {func(r *lofamov1.Report) { r.Observations[0].Component = 70_000 }, "observation.component: given 70000: "},
		"kind":      {func(r *lofamov1.Report) { r.Observations[0].Kind = math.MaxUint32 }, "observation.kind: given 4294967295: "},
		"quantity":  {func(r *lofamov1.Report) { r.Readings[0].Quantity = 256 }, "reading.quantity: given 256: "},
		"half":      {func(r *lofamov1.Report) { r.Id.Half = 1000 }, "id.half: given 1000: "},
	} {
		m := EncodeReport(fullReport())
		set.change(m)
		if _, err := ParseReport(marshal(t, m)); err == nil || !strings.Contains(err.Error(), set.want) {
			t.Errorf("%s: %v: want %q", name, err, set.want)
		}
	}
	m := EncodeReport(fullReport())
	m.Platform, m.Restart.Half, m.Stop = 300, 300, 300 // of a later version
	if r, err := ParseReport(marshal(t, m)); err != nil || r.Platform != 0 || r.Stop != 0 || r.Restart != (fault.RestartNotice{}) {
		t.Errorf("%+v, %v", r, err)
	}
}

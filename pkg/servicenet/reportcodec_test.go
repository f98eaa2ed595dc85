package servicenet

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// fullReport has every field, none of them zero.
func fullReport() fault.Report {
	r := sampleReport()
	r.Digest, r.Partial, r.Stop = true, true, fault.StopReboot
	r.Readings = []fault.Reading{{Component: fault.ComponentTemperature, Quantity: fault.QuantityTemperature,
		Value: 71.5, Threshold: 80, Age: time.Second}}
	r.Observations = []fault.Observation{{Node: "n1-0-1", Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindDescriptor,
		Age: 40 * time.Millisecond, Detail: "no word for 150ms", Ended: true}}
	return r
}

// TestReportBytesAreFixed holds the bytes that earlier versions write and store, and therefore read.
func TestReportBytesAreFixed(t *testing.T) {
	first, second := fullReport(), sampleReport()
	first.Observations[0].Ended, first.Stop = false, 0 // earlier versions do not know them
	for _, tc := range []struct {
		report fault.Report
		want   string
	}{
		{sampleReport(), "0a0e0a066e302d302d311001180320071a20100618032001288094ebdc0332123520636f72726563746564206572726f72731a130a066e" +
			"312d302d311002180420032880b489131a08100918022001280725010000802d0500000035060000003880c0e285e36850015a06080210" +
			"a09c01"},
		{first, "0a0e0a066e302d302d3110011803200710011a260a066e312d302d311002180420032880b4891332116e6f20776f726420666f72203135" +
			"306d7325010000802d0500000035060000003880c0e285e36840014a14080910011d00008f42250000a042288094ebdc0350015a060802" +
			"10a09c01"},
	} {
		b := AppendReport(nil, &tc.report)
		if got := hex.EncodeToString(b); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
		if got, err := ParseReport(b); err != nil || !reflect.DeepEqual(got, tc.report) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, tc.report)
		}
	}
	second.ID.Seq = 300
	got, err := appendReports(nil, []fault.Report{first, second}, sampleStatus(), Health{})
	const want = "0aa6020a720a0e0a066e302d302d3110011803200710011a260a066e312d302d311002180420032880b4891332116e6f20776f72642066" +
		"6f72203135306d7325010000802d0500000035060000003880c0e285e36840014a14080910011d00008f42250000a042288094ebdc0350" +
		"015a06080210a09c010a660a0320ac021a20100618032001288094ebdc0332123520636f72726563746564206572726f72731a130a066e" +
		"312d302d311002180420032880b489131a08100918022001280725010000802d0500000035060000003880c0e285e36850015a06080210" +
		"a09c01124808031207657468303e73301a07657468313e733120032801308094ebdc0338024005480152150a0b6469726563742f657468" +
		"302009280830c0843d580162096469736b2066756c6c"
	if hex.EncodeToString(got) != want || err != nil {
		t.Errorf("got  %x, %v\nwant %s", got, err, want)
	}
}

// TestEveryFieldOfReportTravels fails for a field that fullReport does not set, and for one that the codec forgets.
func TestEveryFieldOfReportTravels(t *testing.T) {
	r := fullReport()
	unset(t, "Report", reflect.ValueOf(r))
	if got, err := ParseReport(AppendReport(nil, &r)); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, r)
	}
}

func unset(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch {
	case v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0:
		t.Errorf("fullReport does not set %s", name)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			unset(t, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case v.Kind() == reflect.Slice:
		unset(t, name+"[0]", v.Index(0))
	}
}

// TestAppendReportIsProtobuf: earlier versions read stored reports with the protobuf runtime.
func TestAppendReportIsProtobuf(t *testing.T) {
	long := fullReport()
	long.Observations[0].Detail = "a\x1b[31m\n" + strings.Repeat("é", 200)
	for _, r := range []fault.Report{sampleReport(), fullReport(), long} {
		b, m := AppendReport([]byte{}, &r), new(lofamov1.Report)
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatal(err)
		}
		if want := marshal(t, m); !bytes.Equal(b, want) || len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("got  %x\nwant %x", b, want)
		}
	}
}

// TestParseReportSkipsFieldsOfLaterVersion: a half that was downgraded finds reports of a later version.
func TestParseReportSkipsFieldsOfLaterVersion(t *testing.T) {
	r := fullReport()
	b := AppendReport(nil, &r)
	added := protowire.AppendBytes(protowire.AppendTag(bytes.Clone(b), 40, protowire.BytesType), []byte("later"))
	reordered := append(protowire.AppendVarint(protowire.AppendTag(nil, 41, protowire.VarintType), 7), b...)
	for name, b := range map[string][]byte{"at the end": added, "in front": reordered} {
		if got, err := ParseReport(b); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: got  %+v, %v\nwant %+v", name, got, err, r)
		}
	}
	for name, b := range map[string][]byte{"half a field": b[:len(b)-1], "half a later field": added[:len(added)-1], "nothing": nil} {
		if got, err := ParseReport(b); err == nil {
			t.Errorf("%s: got %+v: want an error", name, got)
		}
	}
}

// TestReadingsCountInReportSize: a batch with readings must not exceed its datagram.
func TestReadingsCountInReportSize(t *testing.T) {
	r := fullReport()
	for len(r.Readings) < fault.MaxReadings {
		r.Readings = append(r.Readings, r.Readings[0])
	}
	if got, atLeast := reportSize(r), proto.Size(EncodeReports([]fault.Report{r}, nil)); got < atLeast {
		t.Errorf("reportSize gives %d bytes, and the encoder writes %d", got, atLeast)
	}
}

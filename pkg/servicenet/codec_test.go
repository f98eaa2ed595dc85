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
			{Node: "n0-0-1", Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf, Age: time.Second,
				Detail: "5 corrected errors"},
			{Node: "n1-0-1", Component: fault.ComponentHost, State: fault.Failed, Kind: fault.KindDescriptor, Age: 40 * time.Millisecond},
			{Node: "n0-0-1", Component: fault.ComponentTemperature, State: fault.Normal, Kind: fault.KindSelf, Age: 7},
		},
		Registers: fault.Registers{DNPWatchdog: 0x80000001, HostWatchdog: 5, RemoteFaultDescriptor: 6},
		Uptime:    time.Hour,
		Platform:  fault.PlatformSharedKernel,
		Restart:   fault.RestartNotice{Half: fault.HalfDNP, Within: 20 * time.Second},
	}
}

func TestReportRoundTrip(t *testing.T) {
	r := sampleReport()
	got, err := parsed(EncodeReport(r))
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Fatalf("got %+v, %v\nwant %+v", got, err, r)
	}
	if m := EncodeReport(r); m.Observations[0].Node != "" || m.Observations[1].Node != "n1-0-1" {
		t.Error("the own node is written, or another one is not")
	}
	r.Digest = true
	got, err = parsed(EncodeReport(r))
	if err != nil || got.Observations[2].Age != 0 || got.Observations[0].Age != time.Second {
		t.Errorf("digest ages: %+v, %v: want none for NORMAL only", got.Observations, err)
	}
}

// TestPlatformOfLaterVersionCountsAsNotStated: an agent may be newer than its supervisors.
func TestPlatformOfLaterVersionCountsAsNotStated(t *testing.T) {
	for _, p := range []lofamov1.Platform{-1, 3, 257, 1 << 30} {
		m := EncodeReport(sampleReport())
		m.Platform = p
		if r, err := parsed(m); err != nil || r.Platform != 0 {
			t.Errorf("platform %d: decoded %s, %v: want none", p, r.Platform, err)
		}
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
	got, err := parsed(EncodeReport(r))
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

func TestUnknownFieldsAndMessages(t *testing.T) {
	later := protowire.AppendTag(nil, 99, protowire.BytesType)
	later = protowire.AppendBytes(later, []byte("from a later version"))

	m := EncodeReport(sampleReport())
	m.ProtoReflect().SetUnknown(later)
	if _, err := parsed(m); err != nil {
		t.Errorf("unknown field: %v", err)
	}
	msg := new(lofamov1.Message)
	if err := proto.Unmarshal(later, msg); err != nil {
		t.Fatal(err)
	}
	_, err := checkMessage(msg)
	if !errors.Is(err, errUnknownMessage) || RefusalOf(err) != RefusedUnknownMessage {
		t.Errorf("unknown body: %v", err)
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

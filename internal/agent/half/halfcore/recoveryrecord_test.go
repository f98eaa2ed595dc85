package halfcore

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

func TestRecoveryRecordRoundTrip(t *testing.T) {
	for _, r := range []RecoveryRecord{
		{Half: fault.HalfHost, State: Stopped},
		{Half: fault.HalfHost, State: Stopped, Ended: &EndedProcess{PID: 7, Start: 8, Space: 9}},
		{
			Half: fault.HalfDNP, State: GivenUp, PID: 12, Restarts: 5, Budget: 5, Window: time.Minute, Total: 1 << 40,
			Causes: [FailedTest]uint64{1, 2, 3, 4, 5, 6}, Until: 7, GaveUp: true, Reason: "not started again",
			Last: &Recovery{Cause: Cause{Kind: Killed, Code: 9}, At: 1, Attempt: 2, Gone: 3, Started: 4, Serving: 5, Proven: 6},
		},
	} {
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > MaxRecoveryRecord {
			t.Errorf("%d bytes", len(b))
		}
		got, err := DecodeRecovery(b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %+v, %v: want %+v", b, got, err, r)
		}
	}
}

func TestLongCauseDetailsAreCut(t *testing.T) {
	for _, long := range []string{
		strings.Repeat("é\n", 2000), strings.Repeat("\x1b", 2000), strings.Repeat("x\xff", 2000), "x" + strings.Repeat("é", 2000),
	} {
		r := RecoveryRecord{Half: fault.HalfHost, State: GivenUp, Reason: long, Last: &Recovery{Cause: Cause{Kind: NotStarted, Detail: long}}}
		b, err := r.Encode()
		if err != nil || len(b) > MaxRecoveryRecord {
			t.Fatalf("%q: %d bytes, %v", long[:8], len(b), err)
		}
		got, err := DecodeRecovery(b)
		if err != nil {
			t.Fatal(err)
		}
		if want := fault.Clean(long, maxCauseDetail); got.Reason != want || got.Last.Cause.Detail != want {
			t.Errorf("%q and %q: want %q", got.Reason, got.Last.Cause.Detail, want)
		}
		if len(r.Last.Cause.Detail) != len(long) {
			t.Error("the caller's record was changed")
		}
	}
}

func TestDecodeRecoveryRefuses(t *testing.T) {
	for _, s := range []string{
		"", "x", "{}", `{"half":1}`, `{"half":3,"state":"running"}`, `{"half":1,"state":"flying"}`, `{"half":1,"state":""}`,
		`{"half":1,"state":"running","last":{}}`, `{"half":1,"state":"running","pid":-1}`,
		`{"half":1,"state":"running","last":{"cause":{"kind":"bored"}}}`,
		`{"half":1,"state":"stopped","ended":{}}`, `{"half":1,"state":"stopped","ended":{"pid":-1,"start_ticks":1,"pid_namespace":1}}`,
		`{"half":1,"state":"running","reason":"` + strings.Repeat("x", MaxRecoveryRecord) + `"}`,
	} {
		if r, err := DecodeRecovery([]byte(s)); !errors.Is(err, ErrMalformedRecord) {
			t.Errorf("%.40s: %+v, %v", s, r, err)
		}
	}
}

func TestCauseOfRecoveryIsDescribed(t *testing.T) {
	for want, c := range map[string]Cause{
		"ended by signal 9":                          {Kind: Killed, Code: 9},
		"ended with code 0":                          {Kind: Exited},
		"hung (nothing written for 150ms)":           {Kind: Hung, Detail: "nothing written for 150ms"},
		"hung":                                       {Kind: Hung},
		"could not be started: no such program":      {Kind: NotStarted, Detail: "no such program"},
		"failed its self-test (report path altered)": {Kind: FailedTest, Detail: "report path altered"},
		"ended unseen":                               {Kind: Unseen},
		"ended on request":                           Cause{Kind: Killed, Code: 9}.ByRequest(),
		"ended with code 1":                          Cause{Kind: Exited, Code: 1}.ByRequest(),
		"CauseKind(0)":                               {},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q: want %q", got, want)
		}
	}
	want := "next start after 2m0s: 5 restarts within 1m0s, the last ended by signal 9"
	if got := GivenUpReason(5, time.Minute, 2*time.Minute, Cause{Kind: Killed, Code: 9}); got != want {
		t.Errorf("%q: want %q", got, want)
	}
	for _, k := range CauseKinds() {
		if !k.Valid() || strings.Contains(k.String(), "(") {
			t.Error(k)
		}
	}
}

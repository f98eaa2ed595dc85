package store

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

var responseStart = time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)

// fullResponse returns a response with a value in every field.
func fullResponse(id string) *response.Response {
	at := func(s int) time.Time { return responseStart.Add(time.Duration(s) * time.Second) }
	return &response.Response{
		ID: id, Policy: "drain", Digest: "d1", Mode: response.Enforce, Target: response.Target{Node: "n1-0-1", Component: fault.ComponentMemory},
		FaultState: fault.Failed, FaultCause: fault.CauseNode, FaultSince: at(-9), State: response.Waiting, Reason: response.ReasonApproval,
		Detail: "1 of 2",
		Guards: response.Guards{Approvals: 2, MaxNodes: 3, Cooldown: time.Minute,
			MaxEvidenceAge: time.Second}, Undo: response.Undo{OnRecovery: true, After: time.Minute},
		Steps: []response.StepRecord{{
			Step: response.Step{
				Name: "cordon", Kind: response.KubernetesCordon, Parameters: map[string]string{"a": "b"}, Timeout: time.Second, Retries: 2,
				Wait: time.Minute, OnFailure: response.Next,
			},
			State: response.Undoing, Attempt: 3, Failures: 1, First: at(1), Started: at(2), Ended: at(3), Changed: true, Again: true, Reported: true,
			Up: true, Epoch: 7, Detail: "it is \"so\"",
		}},
		Step: 1, Undoing: true, Cancelled: true, Approvals: []response.Approval{{Subject: "operator/ann", At: at(4)}},
		Proposed: at(5), Asked: at(6), Gone: at(7), Closed: at(8), Token: 9, Version: 10,
	}
}

func fullBreaker() *response.Breaker {
	return &response.Breaker{Open: true, At: responseStart, Detail: "3 of 4", ClosedBy: "operator/ann", Token: 9}
}

// The form of a record is permanent: other versions read it. The test covers every field.
func TestRecordFormIsPermanent(t *testing.T) {
	var text strings.Builder
	for _, r := range []response.Record{fullBreaker(), fullResponse("r9-1")} {
		b, err := EncodeRecord(r)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s %s\n", r.Key(), b)
		got, err := DecodeRecord(r.Key(), b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: read as %+v, %v: want %+v", b, got, err, r)
		}
	}
	golden.Files(t, "testdata/records.txt", func(*testing.T, string) string { return text.String() })
	filled(t, reflect.ValueOf(*fullResponse("r9-1")), "Response")
	filled(t, reflect.ValueOf(*fullBreaker()), "Breaker")
}

// filled checks that every field has a value, except the group, which a fault of a node does not have.
func filled(t *testing.T, v reflect.Value, at string) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Name; v.Type() != reflect.TypeFor[time.Time]() && name != "Group" {
				filled(t, v.Field(i), at+"."+name)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			filled(t, v.Index(i), at+"[]")
		}
	default:
	}
	if v.IsZero() {
		t.Errorf("%s is not tried", at)
	}
}

// Every name that a record can have is readable: a leader that cannot read one record decides nothing.
func TestEveryRecordNameIsReadable(t *testing.T) {
	for name, set := range map[string]func(r *response.Response, v uint8) fmt.Stringer{
		"mode": func(r *response.Response, v uint8) fmt.Stringer { r.Mode = response.Mode(v); return r.Mode },
		"component": func(r *response.Response, v uint8) fmt.Stringer {
			r.Target.Component = fault.Component(v)
			return r.Target.Component
		},
		"fault":  func(r *response.Response, v uint8) fmt.Stringer { r.FaultState = fault.State(v); return r.FaultState },
		"cause":  func(r *response.Response, v uint8) fmt.Stringer { r.FaultCause = fault.Cause(v); return r.FaultCause },
		"state":  func(r *response.Response, v uint8) fmt.Stringer { r.State = response.State(v); return r.State },
		"reason": func(r *response.Response, v uint8) fmt.Stringer { r.Reason = response.Reason(v); return r.Reason },
		"step": func(r *response.Response, v uint8) fmt.Stringer {
			r.Steps[0].State = response.StepState(v)
			return r.Steps[0].State
		},
		"onFailure": func(r *response.Response, v uint8) fmt.Stringer {
			r.Steps[0].OnFailure = response.OnFailure(v)
			return r.Steps[0].OnFailure
		},
	} {
		named := 0
		for v := range uint8(255) {
			want := fullResponse("r9-1")
			if strings.HasSuffix(set(want, v+1).String(), fmt.Sprintf("(%d)", v+1)) {
				continue // a value without a name
			}
			named++
			b, err := EncodeRecord(want)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := DecodeRecord(want.Key(), b); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s %s: %v", name, set(want, v+1), err)
			}
		}
		if named == 0 {
			t.Errorf("%s has no names", name)
		}
	}
}

func TestRecordOfGroup(t *testing.T) {
	want := &response.Response{ID: "r1-1", Mode: response.ObserveOnly, Target: response.Target{Group: "label/rack=r7"},
		State: response.Proposed, Steps: []response.StepRecord{{State: response.Pending}}}
	b, err := EncodeRecord(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeRecord(want.Key(), b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: read as %+v, %v", b, got, err)
	}
}

// Records with unknown content are refused.
func TestUnknownRecordContentIsRefused(t *testing.T) {
	b, err := EncodeRecord(fullResponse("r9-1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ from, to, want string }{
		{`"version":1`, `"version":2`, "version: given 2: want 1"},
		{`"version":1`, `"version":0`, "version: given 0"},
		{`"policy":`, `"polity":`, "unknown field"},
		{`"state":"waiting"`, `"state":"dreaming"`, `state: given "dreaming"`},
		{`"mode":"enforce"`, `"mode":"x"`, "mode: given"},
		{`"faultCause":"`, `"faultCause":"x`, "faultCause"},
		{`"state":"undoing"`, `"state":"x"`, "steps[0].state: given"},
		{`"id":"r9-1"`, `"id":"r9-2"`, `it is that of "response/r9-2"`},
		{`"number":10}`, `"number":10}{}`, "follows the end"},
	} {
		bad := strings.Replace(string(b), tc.from, tc.to, 1)
		if bad == string(b) {
			t.Fatalf("%s: not there", tc.from)
		}
		if _, err := DecodeRecord("response/r9-1", []byte(bad)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", tc.to, err, tc.want)
		}
	}
	if _, err := DecodeRecord("breaker", b); err == nil {
		t.Error("a response is taken for the breaker")
	}
}

// FuzzDecodeRecord: no input makes it panic, and every accepted record is encoded and decoded to the same value.
func FuzzDecodeRecord(f *testing.F) {
	for _, r := range []response.Record{fullBreaker(), fullResponse("r9-1")} {
		b, err := EncodeRecord(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(r.Key(), b)
	}
	f.Fuzz(func(t *testing.T, key string, b []byte) {
		r, err := DecodeRecord(key, b)
		if err != nil {
			return
		}
		again, err := EncodeRecord(r)
		if err != nil {
			return // JSON has no such time
		}
		got, err := DecodeRecord(key, again)
		if err != nil {
			t.Fatalf("%q is written as %q: %v", b, again, err)
		}
		if twice, err := EncodeRecord(got); err != nil || !bytes.Equal(again, twice) {
			t.Errorf("%q, then %q, %v", again, twice, err)
		}
	})
}

// splitter returns a writer for tests of split.
func splitter(maxOps int) *ResponseWriter {
	return NewEtcd((*clientv3.Client)(nil), Options{MaxOps: maxOps}).ResponseWriter(Fence{}, Responses{}, AuditLimits{})
}

func TestResponseBatchIsSplit(t *testing.T) {
	for _, tc := range []struct{ responses, detail, maxOps, parts int }{
		{0, 0, 128, 1}, {1, 10, 128, 1}, {100, 10, 128, 1}, {2000, 10, 128, 16}, {2000, 3000, 16384, 12},
	} {
		b := ResponseBatch{Decisions: []response.Decision{{At: responseStart, Act: response.Refuses, Reason: response.ReasonGrace}}}
		for i := range tc.responses {
			r := fullResponse(fmt.Sprintf("r9-%d", i))
			b.Records = append(b.Records, r)
			for _, act := range []response.Act{response.Proposes, response.Starts} {
				b.Decisions = append(b.Decisions, response.Decision{At: responseStart, Act: act, Response: r.ID,
					Detail: strings.Repeat("x", tc.detail)})
			}
		}
		b.Forget = []string{"response/r1-1"}
		w := splitter(tc.maxOps)
		parts, err := w.split(b)
		if err != nil || len(parts) < tc.parts || len(parts) > 2*tc.parts {
			t.Fatalf("%+v: %d parts, %v", tc, len(parts), err)
		}
		checkParts(t, w, b, parts)
	}
}

// checkParts checks that the parts contain everything once and in order, within the bounds, and no record before the
// last decision about it.
func checkParts(t *testing.T, w *ResponseWriter, b ResponseBatch, parts []responsePart) {
	t.Helper()
	var lines []response.AuditLine
	records := map[string]bool{}
	forgotten := 0
	for _, p := range parts {
		if n := len(p.records) + len(p.forget) + responseOps; n > w.s.opts.MaxOps {
			t.Fatalf("%d operations", n)
		}
		size := len(p.chunk)
		lines = append(lines, p.lines...)
		for i, r := range p.records {
			size += len(p.values[i]) + len(r.Key())
			if records[r.Key()] {
				t.Fatalf("%s twice", r.Key())
			}
			records[r.Key()] = true
		}
		if size > maxBytes {
			t.Fatalf("%d bytes", size)
		}
		for _, d := range b.Decisions[len(lines):] {
			if key := recordOf(d); key != "" && records[key] {
				t.Fatalf("%s is committed before a decision about it", key)
			}
		}
		forgotten += len(p.forget)
	}
	var chain response.AuditChecker
	for i, l := range lines {
		text, err := l.Marshal()
		if err == nil {
			err = chain.Check(text)
		}
		if err != nil || l.Decision.Act != b.Decisions[i].Act || l.Decision.Response != b.Decisions[i].Response {
			t.Fatalf("line %d: %+v, %v", i, l, err)
		}
	}
	if len(records) != len(b.Records) || len(lines) != len(b.Decisions) || forgotten != len(b.Forget) {
		t.Fatalf("%d records, %d lines, %d forgotten", len(records), len(lines), forgotten)
	}
}

// A text of any length is recorded, cut to the bound.
func TestLongDecisionIsCut(t *testing.T) {
	parts, err := splitter(128).split(ResponseBatch{Decisions: []response.Decision{{At: responseStart, Act: response.Fails,
		Detail: strings.Repeat("x", 1<<20)}}})
	if err != nil || len(parts[0].chunk) > maxDecision+1000 {
		t.Errorf("%v", err)
	}
}

package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// testReports: the last report of either kind is the one committed last, also by an earlier leader.
func testReports(t *testing.T, h Harness) {
	w := lead(t, h)
	want := func(diagnosis, procedure string) {
		t.Helper()
		d, err := h.Store.LastDiagnosis(t.Context())
		if err != nil || (d == nil) != (diagnosis == "") || d.GetSubject() != diagnosis {
			t.Errorf("the last diagnosis is %v, %v: want that of %q", d, err, diagnosis)
		}
		p, err := h.Store.LastProcedure(t.Context())
		if err != nil || (p == nil) != (procedure == "") || p.GetSubject() != procedure {
			t.Errorf("the last procedure is %v, %v: want that of %q", p, err, procedure)
		}
	}
	diagnosis := func(by string) store.KV {
		kv, err := store.DiagnosisPut(&lofamov1.DiagnosisReport{Subject: by})
		if err != nil {
			t.Fatal(err)
		}
		return kv
	}
	want("", "")
	commit(t, w, store.Batch{Puts: []store.KV{diagnosis("operator/a")}})
	want("operator/a", "")
	kv, err := store.ProcedurePut(&lofamov1.ProcedureReport{Subject: "policy"})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, w, store.Batch{Puts: []store.KV{kv, diagnosis("policy")}})
	want("policy", "policy")
	want("policy", "policy")
	order, err := store.OrderedPut(store.Ordered{Term: 3, Count: 9, Subject: "operator/a", Started: time.Unix(1000, 0), Absent: []uint32{4}})
	if err != nil {
		t.Fatal(err)
	}
	if o, err := h.Store.LastOrdered(t.Context()); o != nil || err != nil {
		t.Errorf("nothing is ordered: %v, %v", o, err)
	}
	if runs, err := h.Store.PolicyRuns(t.Context()); len(runs) > 0 || err != nil {
		t.Errorf("the policy has no runs: %v, %v", runs, err)
	}
	ran := []store.PolicyRun{{Node: "a", Direction: "X+", Peer: "b", Ended: time.Unix(1000, 0).UTC()}, {Ended: time.Unix(2000, 0).UTC()}}
	runs, err := store.PolicyRunsPut(ran)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, w, store.Batch{Puts: []store.KV{order, runs}})
	w = lead(t, h)
	if got, err := h.Store.PolicyRuns(t.Context()); err != nil || !slices.Equal(got, ran) {
		t.Errorf("the policy's runs under an earlier leader: %v, %v: want %v", got, err, ran)
	}
	want("policy", "policy")
	if o, err := h.Store.LastOrdered(t.Context()); err != nil || o == nil || o.Count != 9 || len(o.Absent) != 1 ||
		!o.Started.Equal(time.Unix(1000, 0)) {
		t.Errorf("what an earlier leader has ordered: %v, %v", o, err)
	}
	commit(t, w, store.Batch{Puts: []store.KV{kv}, Deletes: []string{store.OrderedKey}})
	if o, err := h.Store.LastOrdered(t.Context()); o != nil || err != nil {
		t.Errorf("there is a report: %v, %v", o, err)
	}
}

// testDamagedReports: a value that cannot be decoded differs from a failed read.
func testDamagedReports(t *testing.T, h Harness) {
	w := lead(t, h)
	var puts []store.KV
	for _, name := range []string{"diagnosis", "procedure", "ordered", "policy"} {
		puts = append(puts, store.KV{Key: store.Prefix + "managed/" + name, Value: []byte("{")})
	}
	commit(t, w, store.Batch{Puts: puts})
	_, diagnosis := h.Store.LastDiagnosis(t.Context())
	_, procedure := h.Store.LastProcedure(t.Context())
	_, ordered := h.Store.LastOrdered(t.Context())
	_, policy := h.Store.PolicyRuns(t.Context())
	for name, err := range map[string]error{"diagnosis": diagnosis, "procedure": procedure, "ordered": ordered, "policy": policy} {
		if !errors.Is(err, store.ErrUndecodable) {
			t.Errorf("%s: %v: want %v", name, err, store.ErrUndecodable)
		}
	}
}

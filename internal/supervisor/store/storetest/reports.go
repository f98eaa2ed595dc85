package storetest

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

// testReports: the last report of either kind is what was committed last, also by an earlier leader.
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
	lead(t, h)
	want("policy", "policy")
}

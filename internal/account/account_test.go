package account

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTableSumsEqualEntries(t *testing.T) {
	var a Account
	a.Note(Entry{"kubernetes.taint", "done", ""})
	a.Note(Entry{"kubernetes.cordon", "refused", "stale token"})
	a.Add(Entry{"kubernetes.cordon", "done", ""}, 11)
	a.Note(Entry{"kubernetes.cordon", "refused", "stale token"})
	want := `ASKED              BECAME   TIMES  WHY
kubernetes.cordon  done     11     
kubernetes.cordon  refused  2      stale token
kubernetes.taint   done     1      
`
	if diff := cmp.Diff(want, a.String()); diff != "" {
		t.Error(diff)
	}
	if n := a.Times(func(e Entry) bool { return e.Became == "refused" }); n != 2 {
		t.Errorf("%d refused", n)
	}
}

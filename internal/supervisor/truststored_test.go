package supervisor

import "testing"

// TestLateReadOfStoreKeepsNewerDenyList: a read of the store from before this replica's own write does not replace
// the list that it wrote, or the operator's next change would fail. A list of a later revision replaces it, whatever its
// version.
func TestLateReadOfStoreKeepsNewerDenyList(t *testing.T) {
	var tr trust
	for _, step := range []struct {
		list     string
		revision uint64
		want     string
	}{{"first", 5, "first"}, {"own", 7, "own"}, {"first", 5, "own"}, {"own", 7, "own"}, {"refused", 9, "refused"}} {
		tr.sees([]byte(step.list), step.revision)
		if got := string(tr.inStore()); got != step.want {
			t.Errorf("after %q of revision %d the stored list is %q: want %q", step.list, step.revision, got, step.want)
		}
	}
}

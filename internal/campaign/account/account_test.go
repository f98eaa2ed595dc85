package account

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// TestAuditFindsLostAndDoubledReports: the accounts find lost and doubled reports. Each case has the logs of two
// supervisors and the expected accepted reports with their contents.
func TestAuditFindsLostAndDoubledReports(t *testing.T) {
	const (
		taken1  = `{"msg":"report taken","term":1,"report":"n/host@2#7","content":"aa"}`
		commit1 = `{"msg":"reports committed","term":1,"reports":["n/host@2#7","n/host@2#8"]}`
		taken2  = `{"msg":"report taken","term":2,"report":"n/host@2#7","content":"bb"}`
		commit2 = `{"msg":"reports committed","term":2,"reports":["n/host@2#7"]}`
		knows   = `{"msg":"inbox position","term":2,"position":{"Origin":{"Node":"n","Half":1},"Epoch":2,"Highest":8,"Window":[2,0,0,0]}}`
		noTerm  = `{"msg":"leading","term":2}` + "\n" + `{"msg":"term begins","term":3}` + "\n" +
			`{"msg":"inbox position","term":3,"position":{"Origin":{"Node":"n","Half":1},"Epoch":2,"Highest":8,"Window":[2,0,0,0]}}`
		knewOnce = `{"msg":"inbox position","term":2,"position":{"Origin":{"Node":"n","Half":1},"Epoch":4,"Highest":3,"Window":[1,0,0,0],` +
			`"Earlier":[{},{"Highest":7,"Window":[1,0,0,0]}]}}`
		other  = `{"msg":"order sent again","node":"n","content":{"Coord":""}}`
		others = `{"msg":"inbox position","term":2,"position":{"Origin":{"Node":"n","Half":1},"Epoch":2,"Highest":8,"Window":[1,0,0,0]}}`
	)
	for _, tc := range []struct {
		name string
		logs []string
		want map[string][]string
	}{
		{"taken and committed", []string{taken1 + "\n" + commit1}, map[string][]string{"n/host@2#7": {"aa"}}},
		{"taken only", []string{taken1}, map[string][]string{}},
		{"committed, killed before it was told", []string{taken1, knows}, map[string][]string{"n/host@2#7": {"aa"}}},
		{"the same, and the next leader was none before it could begin", []string{taken1, noTerm}, map[string][]string{"n/host@2#7": {"aa"}}},
		{"the same, of an earlier epoch", []string{taken1, knewOnce}, map[string][]string{"n/host@2#7": {"aa"}}},
		{"killed before the commit, taken again", []string{taken1, others + "\n" + taken2 + "\n" + commit2},
			map[string][]string{"n/host@2#7": {"bb"}}},
		{"twice", []string{taken1 + "\n" + commit1, taken2 + "\n" + commit2}, map[string][]string{"n/host@2#7": {"aa", "bb"}}},
		{"twice, once untold", []string{taken1, knows + "\n" + taken2 + "\n" + commit2}, map[string][]string{"n/host@2#7": {"aa", "bb"}}},
		{"a content of another message", []string{taken1 + "\n" + other + "\n" + commit1}, map[string][]string{"n/host@2#7": {"aa"}}},
		{"a last line cut off", []string{taken1 + "\n" + commit1 + "\n" + `{"msg":"rep`}, map[string][]string{"n/host@2#7": {"aa"}}},
	} {
		a := NewAudit()
		for _, text := range tc.logs {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := a.Read(path); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
		if got := a.Accepted(); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: accepted %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestAuditRefusesGarbage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("garbage\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewAudit().Read(path); err == nil {
		t.Error("a garbled line in the middle passes")
	}
}

func TestBalanceCountsFateOfEachReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.log")
	text := `{"msg":"reports kept","reports":["n/host@1#1","n/host@1#2"]}` + "\n" + `{"msg":"host half runs"}` + "\n" +
		`{"msg":"reports kept","reports":["n/host@1#3","n/host@1#4","n/host@1#5"]}` + "\n" +
		`{"msg":"reports replaced","reports":["n/host@1#1","n/host@1#4"]}` + "\n" + `{"msg":"rep`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := map[string]Fate{}
	for _, p := range []string{path, path + ".none"} {
		if err := ReadKept(p, kept); err != nil {
			t.Fatal(err)
		}
	}
	lost, doubled, replaced := Balance(kept, map[string][]string{"n/host@1#1": {"aa"}, "n/host@1#2": {"bb", "bb"}, "n/host@1#5": {"cc"}})
	if len(kept) != 5 || replaced != 1 || !slices.Equal(lost, []string{"n/host@1#3"}) ||
		!slices.Equal(doubled, []string{"n/host@1#2, 2 times"}) {
		t.Errorf("kept %v, lost %v, doubled %v, replaced %d: want that of those replaced only the one that was not accepted counts", kept,
			lost, doubled, replaced)
	}
}

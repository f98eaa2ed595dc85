package campaign

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestJournalRefusesDamagedLines(t *testing.T) {
	for _, tc := range []struct {
		text, err string
		made      int
		kept      []int
	}{
		{"made 1 n/host@1#1 aa 0\nmade 2 n/host@1#2 bb 2\nkept 1\nmade 3 n/host@2#1 cc 0\nkept 2 3\n", "", 3, []int{1, 2, 3}},
		{"", "", 0, nil},
		{"made 1 n/host@1#1 aa 0\nmade 1 n/host@2#1 aa 0\n", "was made as", 0, nil},
		{"kept 1 x\n", "expected integer", 0, nil},
		{"lost 1\n", "what is that", 0, nil},
		{"\n", "empty", 0, nil},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(journalPath(dir), []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := readJournal(journalPath(dir))
		if err != nil || tc.err != "" {
			if err == nil || tc.err == "" || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%q: %v, want %q", tc.text, err, tc.err)
			}
			continue
		}
		if kept := slices.Sorted(maps.Keys(a.kept)); a.last != tc.made || !slices.Equal(kept, tc.kept) {
			t.Errorf("%q: last %d, kept %v", tc.text, a.last, kept)
		}
	}
}

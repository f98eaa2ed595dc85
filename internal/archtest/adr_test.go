package archtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const decisions = "../../docs/adr"

var decisionName = regexp.MustCompile(`^(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md$`)

// decisionFaults returns the errors in decision records, given their first lines by file name: the file name and the
// heading have one unique number, so that "ADR 36" is unambiguous.
func decisionFaults(first map[string]string) (out []string) {
	taken := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(first)) {
		m := decisionName.FindStringSubmatch(name)
		if m == nil {
			out = append(out, fmt.Sprintf("%s: want a name such as 0001-words-of-its-title.md", name))
			continue
		}
		if other := taken[m[1]]; other != "" {
			out = append(out, fmt.Sprintf("%s: %s has its number too", name, other))
		}
		taken[m[1]] = name
		if !strings.HasPrefix(first[name], "# "+m[1]+": ") {
			out = append(out, fmt.Sprintf("%s begins with %q: want \"# %s: \"", name, first[name], m[1]))
		}
	}
	return out
}

func TestDecisionsAreNumberedOnce(t *testing.T) {
	entries, err := os.ReadDir(decisions)
	if err != nil {
		t.Fatal(err)
	}
	first := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(decisions, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		first[e.Name()], _, _ = strings.Cut(string(b), "\n")
	}
	if len(first) < 30 {
		t.Fatalf("%s: %d records", decisions, len(first))
	}
	for _, f := range decisionFaults(first) {
		t.Error(f)
	}
}

func TestDecisionRuleRefuses(t *testing.T) {
	for _, tc := range []struct {
		first map[string]string
		want  []string
	}{
		{map[string]string{"0001-one.md": "# 0001: One", "0002-two-things.md": "# 0002: Two things"}, nil},
		{map[string]string{"0001-one.md": "# 0001: One", "0001-two.md": "# 0001: Two"}, []string{"0001-two.md: 0001-one.md has its number too"}},
		{map[string]string{"0002-two.md": "# 0001: Two"}, []string{`0002-two.md begins with "# 0001: Two": want "# 0002: "`}},
		{map[string]string{"notes.md": "# Notes"}, []string{"notes.md: want a name such as 0001-words-of-its-title.md"}},
	} {
		if got := decisionFaults(tc.first); !slices.Equal(got, tc.want) {
			t.Errorf("%v: %q, want %q", tc.first, got, tc.want)
		}
	}
}

package docstest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
)

// TestSecurityNamesTestsThatExist: every test in docs/security.md that serves as proof exists, and every row of the
// price table names a test, or states that it has none.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	if named := testName.FindAllStringSubmatch(string(b), -1); len(named) < 5 {
		t.Fatalf("docs/security.md names %d tests: want at least 5", len(named))
	}
	rows := priceRows(string(b))
	if len(rows) < 5 {
		t.Fatalf("the price table has %d rows: want at least 5", len(rows))
	}
	for _, r := range rows {
		if proof := r[len(r)-1]; len(r) != 4 || proof != "–" && !testName.MatchString(proof) {
			t.Errorf("price of %q: proof %q: want tests, or – where there is none", r[0], proof)
		}
	}
}

// sourcePath is a path of the repository in a page. A path with capitals, such as internal/executor/NAME, is a pattern.
var sourcePath = regexp.MustCompile("`((?:pkg|internal|cmd|bench|papers|hack|deploy|examples|api|web|helm|client|docs)/[a-z0-9_./-]+)`")

// formerPaths are packages that ADRs name because they existed before the decision.
var formerPaths = []string{"internal/supervisor/orderer"}

// TestPagesNameTestsAndPathsThatExist: every test and every repository path that a page names exists.
func TestPagesNameTestsAndPathsThatExist(t *testing.T) {
	there, err := allTests(top)
	if err != nil {
		t.Fatal(err)
	}
	pages, paths := 0, 0
	if err := filepath.WalkDir(filepath.Join(top, "docs"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pages++
		for _, m := range testName.FindAllStringSubmatch(string(b), -1) {
			if !there[m[1]] {
				t.Errorf("%s names %s: there is no such test", path, m[1])
			}
		}
		for _, m := range sourcePath.FindAllStringSubmatch(string(b), -1) {
			paths++
			if _, err := os.Stat(filepath.Join(top, m[1])); err != nil && !slices.Contains(formerPaths, m[1]) {
				t.Errorf("%s names %s: %v", path, m[1], err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if pages < 40 || paths < 100 {
		t.Errorf("%d pages with %d paths: the search is wrong", pages, paths)
	}
}

// priceRows returns the rows of the price table.
func priceRows(text string) [][]string {
	_, part, _ := strings.Cut(text, "\n## The price of each goal\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var out [][]string
	for line := range strings.Lines(part) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| attacker ") {
			row := cells.FindAllString(strings.TrimSpace(line), -1)
			for i := range row {
				row[i] = strings.TrimSpace(row[i])
			}
			out = append(out, row)
		}
	}
	return out
}

// allTests returns the names of all tests and fuzz targets below a directory.
func allTests(dir string) (map[string]bool, error) {
	out := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if slices.Contains([]string{"node_modules", ".git", ".tools"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(b, -1) {
			out[string(m[1])] = true
		}
		return err
	})
	return out, err
}

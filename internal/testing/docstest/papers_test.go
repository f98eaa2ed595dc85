package docstest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/pkg/watchdog"
)

// paper lists the required rows of docs/papers.md.
type paper struct {
	heading         string
	figures, tables []string
	sections        []string
}

func numbers(last int) []string {
	var out []string
	for i := 1; i <= last; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

var papers = []paper{
	{
		heading: "## 000, FTGM", figures: numbers(13), tables: numbers(2),
		sections: strings.Fields("2 3 3.1 3.2 4 4.1 4.2 5 5.1 5.2 5.3 5.4"),
	},
	{
		heading: "## 001, LO|FA|MO", figures: numbers(7), tables: strings.Fields("I II III IV V VI VII"),
		sections: strings.Fields("II III III-A III-B III-C III-D III-E IV-A IV-B"),
	},
	{
		heading: "## 002, NewMadeleine", figures: numbers(8),
		sections: strings.Fields("2 3 4 5 5.1 5.2 5.3 6.1 6.2"),
	},
	{
		heading: "## 003, Chaos", figures: numbers(18), tables: numbers(7),
		sections: strings.Fields(`
			1.1 1.2 1.3 1.4 2 2.1 2.2 3 3.1 3.2 3.3 3.3.1 3.3.2 3.3.3 3.3.4 3.3.5 3.4 3.4.1 3.4.2 3.4.3 3.4.4 4.1 4.2
			4.3.1 4.3.2 4.3.3 4.3.4 4.3.5 4.3.6 4.3.7 4.3.8 4.4 4.4.1 4.4.2 4.4.3 4.4.4 4.5 4.5.1 4.5.2 4.5.3 4.5.4 5.1
			5.2 5.2.1.1 5.2.1.2 5.2.1.3 5.2.2 5.2.2.1 5.2.2.2 5.2.2.3 5.2.3 5.2.3.1 5.2.3.2 5.3 5.4 6.1 7.2`),
	},
	{
		heading: "## 004, Hybrid-IBNFT", figures: numbers(15),
		sections: strings.Fields("II-A II-B II-C III IV-A IV-B IV-C IV-D V-A V-B V-C V-D"),
	},
}

// tableRow is a row of docs/papers.md: of a mechanism (mechanism, section, status, where), or of a figure or table (id,
// shows, status, where).
type tableRow struct {
	line                         int
	first, second, status, where string
}

var (
	cells       = regexp.MustCompile(`(?:[^|\\]|\\.)+`)
	sectionName = regexp.MustCompile(`§([0-9IVX][0-9A-Z.-]*[0-9A-Z]|[0-9IVX])`)
)

// paperRows returns the rows with a status below a heading, up to the next one of its level.
func paperRows(t *testing.T, text, heading string) []tableRow {
	t.Helper()
	start := strings.Index(text, heading+"\n")
	if start < 0 {
		t.Fatalf("docs/papers.md has no %q", heading)
	}
	first := strings.Count(text[:start], "\n") + 1
	part := text[start+len(heading):]
	if end := strings.Index(part, "\n## "); end >= 0 {
		part = part[:end]
	}
	var out []tableRow
	status := false
	for i, line := range strings.Split(part, "\n") {
		c := cells.FindAllString(line, -1)
		for j := range c {
			c[j] = strings.TrimSpace(c[j])
		}
		switch {
		case !strings.HasPrefix(line, "| "):
			status = status && strings.HasPrefix(line, "|-")
		case len(c) == 4 && c[2] == "status":
			status = true
		case status && len(c) != 4:
			t.Errorf("docs/papers.md:%d: %d cells, want 4", first+i, len(c))
		case status:
			out = append(out, tableRow{first + i, c[0], c[1], c[2], c[3]})
		}
	}
	return out
}

// wrong returns the error in a row; "" for none.
func (r tableRow) wrong() string {
	word, why, explained := strings.Cut(r.status, ": ")
	switch {
	case !slices.Contains([]string{"done", "differs", "missing"}, word):
		return fmt.Sprintf("status %q: want done, differs or missing", r.status)
	case word != "done" && (!explained || len(why) < 8):
		return fmt.Sprintf("status %q: want how it differs or why it is missing after a colon", r.status)
	case word != "missing" && r.where == "–":
		return "it is there, but not said where"
	}
	return ""
}

var (
	namedTest    = regexp.MustCompile("`([a-z0-9]+)\\.(Test[A-Za-z0-9_]+)`")
	declaredTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	// recorded matches a link to a section of a page with recorded results.
	recorded = regexp.MustCompile(`\]\((?:campaign|deaths|figures|papers/chaos|papers/chaos-router|trials)\.md#[a-z0-9-]+\)`)
)

// testNames returns the tests of all modules of the repository, as "package.TestName" with the name of the directory.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range declaredTest.FindAllStringSubmatch(string(b), -1) {
			out[filepath.Base(filepath.Dir(path))+"."+m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unproved names the missing evidence of a done row, or returns "". TestEveryLinkLeadsToFile checks that the section exists.
func (r tableRow) unproved(tests map[string]bool) string {
	if word, _, _ := strings.Cut(r.status, ": "); word != "done" {
		return ""
	}
	named := namedTest.FindAllStringSubmatch(r.where, -1)
	for _, m := range named {
		if !tests[m[1]+"."+m[2]] {
			return fmt.Sprintf("no test %s.%s exists", m[1], m[2])
		}
	}
	if len(named) == 0 && !recorded.MatchString(r.where) {
		return "done, but names neither a test (`package.TestName`) nor the section of a page with recorded results"
	}
	return ""
}

// TestDoneRowsNameTheirEvidence: each done row of docs/papers.md names a test that exists, or a page with recorded results.
func TestDoneRowsNameTheirEvidence(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "docs", "papers.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	for _, p := range papers {
		for _, r := range paperRows(t, string(b), p.heading) {
			if lack := r.unproved(tests); lack != "" {
				t.Errorf("docs/papers.md:%d: %s: %s", r.line, r.first, lack)
			}
		}
	}
}

// TestDoneWithoutEvidenceIsRefused: a done row without a test or a record is reported, and so is a test that does not exist.
func TestDoneWithoutEvidenceIsRefused(t *testing.T) {
	tests := map[string]bool{"b.TestReal": true}
	for _, c := range []struct {
		status, where string
		refused       bool
	}{
		{"done", "`pkg/b` (b.go)", true},
		{"done: with words", "`b.TestGone`", true},
		{"done", "`b.TestReal`, `b.TestGone`", true},
		{"done", "`TestReal`", true},
		{"done", "[page](campaign.md)", true},
		{"done", "[page](concepts.md#a-drawing)", true},
		{"done", "`pkg/b`; `b.TestReal`", false},
		{"done", "[page](campaign.md#flips-in-code)", false},
		{"differs: in all", "`pkg/b`", false},
	} {
		if lack := (tableRow{status: c.status, where: c.where}).unproved(tests); (lack != "") != c.refused {
			t.Errorf("%s, %s: %q; want refused: %t", c.status, c.where, lack, c.refused)
		}
	}
}

// TestPapersAreAccountedFor: docs/papers.md has a row with a status for every section, figure and table of the five
// papers, and for every mechanism of testdata/mechanisms.txt, which lists all rows of mechanisms. So no row disappears
// unnoticed, even if another row covers the same section.
func TestPapersAreAccountedFor(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "docs", "papers.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all []tableRow
	for _, p := range papers {
		rows := paperRows(t, string(b), p.heading)
		all = append(all, rows...)
		for _, lack := range p.lacks(rows) {
			t.Errorf("docs/papers.md, %s: no row for %s", p.heading[3:], lack)
		}
	}
	list, err := os.ReadFile("testdata/mechanisms.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range mechanismFaults(all, strings.Split(strings.TrimSpace(string(list)), "\n")) {
		t.Errorf("docs/papers.md: %s", f)
	}
	for _, r := range all {
		if w := r.wrong(); w != "" {
			t.Errorf("docs/papers.md:%d: %s: %s", r.line, r.first, w)
		}
	}
}

// mechanismFaults returns the listed mechanisms without a row, and the rows of mechanisms that the list lacks.
func mechanismFaults(rows []tableRow, list []string) (out []string) {
	for _, m := range list {
		if !slices.ContainsFunc(rows, func(r tableRow) bool { return r.first == m }) {
			out = append(out, fmt.Sprintf("no row for the mechanism %q", m))
		}
	}
	for _, r := range rows {
		figure := strings.HasPrefix(r.first, "Fig. ") || strings.HasPrefix(r.first, "Table ")
		if !figure && !slices.Contains(list, r.first) {
			out = append(out, fmt.Sprintf("%q is not in testdata/mechanisms.txt", r.first))
		}
	}
	return out
}

// lacks returns the parts of the paper without a row.
func (p paper) lacks(rows []tableRow) []string {
	have := map[string]bool{}
	for _, r := range rows {
		have[r.first] = true
		for _, m := range sectionName.FindAllStringSubmatch(r.second, -1) {
			have["§"+m[1]] = true
		}
	}
	var out []string
	for prefix, ids := range map[string][]string{"Fig. ": p.figures, "Table ": p.tables, "§": p.sections} {
		for _, id := range ids {
			if !have[prefix+id] {
				out = append(out, prefix+id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestMissingPaperRowIsReported: a row that is gone, and one without a reason, is found.
func TestMissingPaperRowIsReported(t *testing.T) {
	const text = "## X\n\n| mechanism | section | status | where |\n|---|---|---|---|\n| a | §2.1, §III-A | done | `b` |\n" +
		"| Fig. 1 | c | missing | – |\n| d | Fig. 9 | maybe | `e` |\n"
	rows := paperRows(t, text, "## X")
	if len(rows) != 3 {
		t.Fatalf("%d rows: want 3: %v", len(rows), rows)
	}
	p := paper{figures: numbers(2), tables: numbers(1), sections: strings.Fields("2.1 2.2 III-A")}
	if got := strings.Join(p.lacks(rows), " "); got != "Fig. 2 Table 1 §2.2" {
		t.Errorf("lacking: %s", got)
	}
	if rows[0].wrong() != "" || rows[1].wrong() == "" || rows[2].wrong() == "" {
		t.Errorf("what is wrong: %q, %q, %q", rows[0].wrong(), rows[1].wrong(), rows[2].wrong())
	}
	if got := mechanismFaults(rows, []string{"a", "gone"}); len(got) != 2 {
		t.Errorf("mechanisms: %q: want one without a row, and one that is not listed", got)
	}
}

// sickCore is the sentence of docs/papers.md on the bits that do not make the DNP core sick.
var sickCore = regexp.MustCompile(`any bit of router \(but bits (\d+), (\d+) and (\d+) to (\d+)\), RDMA or\s+` +
	`engine \(but\s+bit (\d+)\) is set`)

// TestPapersNameBitsOfSickCore: docs/papers.md excludes the same bits of the exception registers as the code.
func TestPapersNameBitsOfSickCore(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(top, "docs", "papers.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := sickCore.FindStringSubmatch(string(b))
	if m == nil {
		t.Fatalf("docs/papers.md: no sentence %s", sickCore)
	}
	var n [5]int
	for i := range n {
		if n[i], err = strconv.Atoi(m[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	for bit := range 32 {
		set := uint32(1) << bit
		for _, r := range []struct {
			name     string
			known    uint32
			health   watchdog.Health
			excluded bool
		}{
			{"router", watchdog.RouterKnown, watchdog.CoreHealth(set, 0, 0, 0), bit == n[0] || bit == n[1] || n[2] <= bit && bit <= n[3]},
			{"RDMA", watchdog.RDMAKnown, watchdog.CoreHealth(0, 0, set, 0), false},
			{"engine", watchdog.EngineKnown, watchdog.CoreHealth(0, 0, 0, set), bit == n[4]},
		} {
			if r.known&set != 0 && (r.health == watchdog.HealthNormal) != r.excluded {
				t.Errorf("bit %d of %s: %s, docs/papers.md excludes it: %t", bit, r.name, r.health, r.excluded)
			}
		}
	}
}

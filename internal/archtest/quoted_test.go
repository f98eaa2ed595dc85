package archtest

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Pages for people in trouble quote output of the programs: in backquotes, or in italics as parts of longer lines. "…" in a
// quotation stands for anything.
var quoting = []string{"docs/troubleshooting.md", "docs/runbooks/*.md"}

// notOurs are quotations on these pages that no program of ours prints, and what they are.
var notOurs = map[string]string{
	"address already in use":  "the kernel's error",
	"no space left on device": "the kernel's error",
	"rtprio 1":                "a line of limits.conf",
	"onFailure: next":         "a line of a policy",
	"get node":                "a command of lofamoctl",
	"Platform: shared-kernel": "a field of a table and its value",
}

var (
	blocks   = regexp.MustCompile("(?s)```.*?```")
	inspan   = regexp.MustCompile("`([^`]+)`")
	emphasis = regexp.MustCompile(`(?:^|[^*\w])\*([^*\s][^*]*)\*`)
	programs = regexp.MustCompile(`^(lofamo|systemctl|journalctl|kubectl|openssl|make|sort\()`)
	verb     = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)
)

// quotationsOf returns the quotations of two words or more of a page.
func quotationsOf(text string) (out []string) {
	text = blocks.ReplaceAllString(text, "")
	add := func(found [][]string) {
		for _, m := range found {
			if q := strings.Join(strings.Fields(m[1]), " "); strings.Contains(q, " ") && !programs.MatchString(q) {
				out = append(out, q)
			}
		}
	}
	add(inspan.FindAllStringSubmatch(text, -1))
	text = strings.ReplaceAll(inspan.ReplaceAllString(text, "`x`"), "**", "")
	add(emphasis.FindAllStringSubmatch(text, -1))
	return out
}

// printed returns the string constants of a file, each sum of strings as one. NUL stands for values unknown before it runs.
func printed(f *ast.File) (out []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr, *ast.BasicLit:
			if s := textOf(n.(ast.Expr)); strings.Trim(s, "\x00") != "" {
				out = append(out, verb.ReplaceAllString(s, "\x00"))
				return false
			}
		}
		return true
	})
	return out
}

func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return textOf(e.X) + textOf(e.Y)
		}
	}
	return "\x00"
}

// leastKnown is the number of letters that a string needs for prints to fill in its unknown values.
const leastKnown = 10

// prints reports whether a string could be the quotation, or a line with it.
func prints(s, quotation string) bool {
	rest, found := s, true
	for part := range strings.SplitSeq(quotation, "…") {
		if _, rest, found = strings.Cut(rest, strings.TrimSpace(part)); !found {
			break
		}
	}
	if known := strings.Split(s, "\x00"); !found && len(known) > 1 && len(s) >= leastKnown+len(known)-1 {
		for i := range known {
			if !strings.Contains(quotation, known[i]) {
				return false
			}
			known[i] = regexp.QuoteMeta(known[i])
		}
		found, _ = regexp.MatchString("^"+strings.Join(known, ".*")+"$", quotation)
	}
	return found
}

// TestQuotedOutputExists: a line of a log or a command that a page quotes stands in the source, or is a heading that the page
// refers to.
func TestQuotedOutputExists(t *testing.T) {
	var texts []string
	for _, f := range sources(t) {
		if !f.test && !within(f.dir, "papers") {
			texts = append(texts, printed(f.ast)...)
		}
	}
	for name := range readPages(t) {
		b, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(b)) {
			if strings.HasPrefix(l, "#") {
				texts = append(texts, l)
			}
		}
	}
	stands := func(q string) bool {
		// half.Condition adds these to the name of what fails
		for _, q := range []string{q, strings.TrimSuffix(q, " fails"), strings.TrimSuffix(q, " works again")} {
			for _, s := range texts {
				if prints(s, q) {
					return true
				}
			}
		}
		return false
	}
	n, used := 0, map[string]bool{}
	for _, pattern := range quoting {
		pages, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(pages), err)
		}
		for _, page := range pages {
			b, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range quotationsOf(string(b)) {
				n++
				if notOurs[q] != "" {
					used[q] = true
				} else if !stands(q) {
					t.Errorf("%s quotes %q: nothing prints it", page, q)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d quotations found", n)
	}
	for q := range notOurs {
		if !used[q] {
			t.Errorf("%q is quoted nowhere any more", q)
		}
	}
	if stands("renew certificate of the moon") {
		t.Error("a line that nothing prints was found")
	}
}

package archtest

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// lowerProse rewrites proseBounds with the counts of today where these are lower.
var lowerProse = flag.Bool("lower-prose", false, "lower the bounds in testdata/prose.txt to today's counts")

// proseBounds lists the folders that still hold more odd constructions than plainRate allows, and how many.
const proseBounds = "testdata/prose.txt"

// plainRate is the number of odd constructions per 1,000 words that every folder may have.
const plainRate = 1.0

// oddProse are constructions that native writers of technical English avoid.
var oddProse = []struct {
	advice string
	re     *regexp.Regexp
}{
	{"use a noun instead of a clause",
		regexp.MustCompile(
			`(?i)\b(?:what|whoever|whatever|whom) ` +
				`(?:is|was|are|were|has|have|had|can|comes|came|goes|it|they|a|the|there|follows|stands|becomes|became)\b`)},
	{"name who acts, with an active verb",
		regexp.MustCompile(`(?i)\b(?:is|are|was|were|be|been) (?:said|told|had|heard|asked|wanted|meant|taken|gone on)\b`)},
	{"use a current word",
		regexp.MustCompile(`(?i)\b(?:anew|beforehand|thereof|for want of|as it is|nobody|likewise|hence|once more|gone on with)\b`)},
	{"end the sentence with the noun", regexp.MustCompile(`(?i)\b(?:of it|of them|of that|for it|with it|to it)[.,;:]`)},
}

var proseWord = regexp.MustCompile(`[A-Za-z]+`)

// prose counts the text of one folder.
type prose struct {
	words, odd int
	examples   []string
}

func (p *prose) add(where, text string) {
	p.words += len(proseWord.FindAllString(text, -1))
	for _, o := range oddProse {
		for _, m := range o.re.FindAllString(text, -1) {
			p.odd++
			if len(p.examples) < 5 {
				p.examples = append(p.examples, fmt.Sprintf("%s: %q: %s", where, m, o.advice))
			}
		}
	}
}

// TestProseStaysPlain counts odd constructions in comments, user-visible strings and documentation. A folder may have
// plainRate per 1,000 words. Folders in testdata/prose.txt may have as many as stand there, and must never have more.
func TestProseStaysPlain(t *testing.T) {
	found := proseOfRepository(t)
	bounds := readProseBounds(t)
	next := map[string]int{}
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		p := found[dir]
		plain := int(plainRate * float64(p.words) / 1000)
		allowed := max(bounds[dir], plain)
		if p.odd > allowed {
			t.Errorf("%s: %d odd constructions in %d words: want at most %d, for example\n\t%s",
				dir, p.odd, p.words, allowed, strings.Join(p.examples, "\n\t"))
		}
		if p.odd > plain {
			next[dir] = min(p.odd, allowed)
		}
	}
	for dir := range bounds {
		if found[dir] == nil {
			t.Logf("%s: %s has no text: -lower-prose removes its line", proseBounds, dir)
		}
	}
	if *lowerProse {
		writeProseBounds(t, next)
	}
}

func proseOfRepository(t *testing.T) map[string]*prose {
	t.Helper()
	found := map[string]*prose{}
	in := func(dir string) *prose {
		if found[dir] == nil {
			found[dir] = &prose{}
		}
		return found[dir]
	}
	for _, f := range sources(t) {
		if strings.HasPrefix(f.dir, "api/") || f.dir == "internal/archtest" { // generated; quotes the constructions
			continue
		}
		p := in(f.dir)
		for _, group := range f.ast.Comments {
			p.add(at(f, group.Pos()), group.Text())
		}
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if s, err := strconv.Unquote(lit.Value); err == nil && strings.Count(s, " ") >= 2 {
				p.add(at(f, lit.Pos()), s)
			}
			return true
		})
	}
	for name := range readPages(t) {
		if name == "docs/api.md" || name == "docs/metrics.md" || name == "docs/configuration.md" {
			continue // generated from comments
		}
		b, err := os.ReadFile(filepath.Join(repository, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		in(path.Dir(name)).add(name, string(b))
	}
	protos, err := filepath.Glob(filepath.Join(repository, "api", "lofamo", "v1", "*.proto"))
	if err != nil || len(protos) == 0 {
		t.Fatalf("%d protos, %v", len(protos), err)
	}
	for _, name := range protos {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if _, comment, ok := strings.Cut(line, "//"); ok {
				in("api/lofamo/v1").add(filepath.Base(name), comment)
			}
		}
	}
	return found
}

func readProseBounds(t *testing.T) map[string]int {
	t.Helper()
	f, err := os.Open(proseBounds)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	bounds := map[string]int{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		dir, count, ok := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n <= 0 {
			t.Fatalf("%s: %q: want a folder and a count", proseBounds, lines.Text())
		}
		bounds[dir] = n
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return bounds
}

func writeProseBounds(t *testing.T, bounds map[string]int) {
	t.Helper()
	var b strings.Builder
	for _, dir := range slices.Sorted(maps.Keys(bounds)) {
		fmt.Fprintf(&b, "%s %d\n", dir, bounds[dir])
	}
	if err := os.WriteFile(proseBounds, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestProseRuleRefuses checks that each rule finds its construction and leaves plain sentences alone.
func TestProseRuleRefuses(t *testing.T) {
	for text, want := range map[string]int{
		"is how what is late is known":                          1,
		"executors of all that nodes are had do":                1,
		"Rotates keys, so that the cluster need not start anew": 1,
		"the register, and the half that wrote to it.":          1,
		"The leader retries every 30 s.":                        0,
		"Reports whether the verdict has changed.":              0,
	} {
		var p prose
		p.add("", text)
		if p.odd != want {
			t.Errorf("%q: %d odd constructions: want %d", text, p.odd, want)
		}
	}
}

// at returns the place of a node of the source, as path:line.
func at(f file, pos token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(pos).Line)
}

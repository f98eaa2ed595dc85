package archtest

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
)

const repository = "../.."

// TestEveryLinkLeadsToFile: every relative link and image of every *.md leads to an existing file or folder, and its anchor to a
// heading there. External links are not checked.
func TestEveryLinkLeadsToFile(t *testing.T) {
	pages := readPages(t)
	n := 0
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		for _, target := range pages[name].links {
			n++
			if err := leads(pages, name, target); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d links found", n)
	}
}

// TestDocumentationIsReached: links lead from the map, docs/README.md, to every page of docs. A page for one folder is
// reached by that folder's page, or by a link to the folder, which lists its files.
func TestDocumentationIsReached(t *testing.T) {
	pages := readPages(t)
	const start = "docs/README.md"
	if pages[start] == nil {
		t.Fatalf("%s is not there", start)
	}
	reached := map[string]bool{start: true}
	for todo := []string{start}; len(todo) > 0; todo = todo[1:] {
		for _, target := range pages[todo[0]].links {
			to, _, ok := resolve(todo[0], target)
			if !ok {
				continue
			}
			for other := range pages {
				if !reached[other] && (other == to || path.Dir(other) == to) {
					reached[other] = true
					todo = append(todo, other)
				}
			}
		}
	}
	for name := range pages {
		if strings.HasPrefix(name, "docs/") && !reached[name] {
			t.Errorf("%s: no link leads there from %s", name, start)
		}
	}
}

// snippet is a block of a page with a comment before it that names its file.
var snippet = regexp.MustCompile("(?s)<!-- of (\\S+) -->\n```\\w+\n(.*?)```\n")

// TestQuotedSnippetsEqualTheirFiles: snippets in pages equal the files of the repository that they quote, which tests compile or run.
func TestQuotedSnippetsEqualTheirFiles(t *testing.T) {
	n := 0
	for name := range readPages(t) {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		found := snippet.FindAllSubmatch(text, -1)
		if told := strings.Count(string(text), "<!-- of "); told != len(found) {
			t.Errorf("%s: %d comments <!-- of FILE -->, and %d of them with a block behind", name, told, len(found))
		}
		for _, m := range found {
			n++
			file, err := os.ReadFile(filepath.Join(repository, string(m[1])))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if len(m[2]) < 100 || !strings.Contains(string(file), string(m[2])) {
				t.Errorf("%s: what it shows of %s does not stand there", name, m[1])
			}
		}
	}
	if n < 3 {
		t.Errorf("only %d found", n)
	}
}

// TestHeadingsBecomeGitHubAnchors: headings become anchors as GitHub makes them.
func TestHeadingsBecomeGitHubAnchors(t *testing.T) {
	text := "# A `code` and [a link](x.md), *so*\n## Twice\n## Twice\n```sh\n# no heading\n```\n<a id=\"own\"></a>\n" +
		"See [one](#a), `[not](this)` and [two](b.md#c \"title\").\n\n    [nor](this)\n\n![image](c.svg)\n\n[ref]: d.md\n"
	p := parse(text)
	if want := []string{"a-code-and-a-link-so", "own", "twice", "twice-1"}; !slices.Equal(slices.Sorted(maps.Keys(p.anchors)), want) {
		t.Errorf("anchors %v, want %v", slices.Sorted(maps.Keys(p.anchors)), want)
	}
	if want := []string{"x.md", "#a", "b.md#c", "c.svg", "d.md"}; !slices.Equal(p.links, want) {
		t.Errorf("links %q, want %q", p.links, want)
	}
	pages := map[string]*mdPage{"links_test.go": p}
	for target, right := range map[string]bool{"#own": true, "#none": false, "https://example.org/none": true} {
		if err := leads(pages, "links_test.go", target); (err == nil) != right {
			t.Errorf("%s: error %v", target, err)
		}
	}
	for _, target := range []string{"none.md", "/etc/passwd", "../../../outside.md"} {
		if leads(map[string]*mdPage{}, "docs/a.md", target) == nil {
			t.Errorf("%s leads somewhere", target)
		}
	}
}

// mdPage is the part of a page that the links need.
type mdPage struct {
	anchors map[string]bool
	links   []string // as written, in order
}

// leads returns the error in a link of a page; nil for a good or an external link.
func leads(pages map[string]*mdPage, from, target string) error {
	to, anchor, ok := resolve(from, target)
	if !ok {
		return nil
	}
	if strings.HasPrefix(target, "/") || to == ".." || strings.HasPrefix(to, "../") {
		return fmt.Errorf("link %q leads out of the repository", target)
	}
	if p := pages[to]; p != nil {
		if anchor != "" && !p.anchors[anchor] {
			return fmt.Errorf("link %q: %s has no heading #%s", target, to, anchor)
		}
		return nil
	}
	if anchor != "" && strings.HasSuffix(to, ".md") {
		return fmt.Errorf("link %q: no page %s", target, to)
	}
	if _, err := os.Stat(filepath.Join(repository, filepath.FromSlash(to))); err != nil {
		return fmt.Errorf("link %q: no file %s", target, to)
	}
	return nil
}

// resolve returns the target file of a page's link, from the repository's root, and its anchor; false for an external
// link.
func resolve(from, target string) (file, anchor string, ok bool) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "" || u.Host != "" {
		return "", "", false
	}
	if u.Path == "" {
		return from, u.Fragment, true
	}
	return path.Join(path.Dir(from), u.Path), u.Fragment, true
}

// readPages has every *.md of the repository by its path, except test data and folders that git ignores. They are read
// once for all tests.
func readPages(t *testing.T) map[string]*mdPage {
	t.Helper()
	pages, err := pagesOf()
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

var pagesOf = sync.OnceValues(func() (map[string]*mdPage, error) {
	pages := map[string]*mdPage{}
	err := filepath.WalkDir(repository, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if n := e.Name(); e.IsDir() && (n == "node_modules" || n == "testdata" || n == "dist" || n == "bin" || strings.HasPrefix(n, ".") &&
			file != repository) {
			return filepath.SkipDir
		}
		if e.IsDir() || filepath.Ext(file) != ".md" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(repository, file)
		pages[filepath.ToSlash(name)] = parse(string(text))
		return err
	})
	return pages, err
})

var (
	inlineCode = regexp.MustCompile("`+[^`]*`+")
	inlineLink = regexp.MustCompile(`\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)`)
	refLink    = regexp.MustCompile(`^\s{0,3}\[[^\]^]+\]:\s+(\S+)`)
	htmlLink   = regexp.MustCompile(`(?:src|href|srcset)="([^"]+)"`)
	htmlAnchor = regexp.MustCompile(`<[a-z]+ (?:id|name)="([^"]+)"`)
	heading    = regexp.MustCompile(`^#{1,6}\s+(.*?)\s*#*$`)
	linkText   = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
)

func parse(text string) *mdPage {
	p := &mdPage{anchors: map[string]bool{}}
	fence, before := "", ""
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\r\n")
		trimmed := strings.TrimLeft(l, " ")
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
			continue
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			fence = trimmed[:3]
			continue
		case strings.HasPrefix(l, "    ") && (before == "" || strings.HasPrefix(before, "    ")):
			before = l
			continue // code
		}
		before = l
		if strings.HasPrefix(l, "#") {
			if m := heading.FindStringSubmatch(l); m != nil {
				p.anchor(m[1])
			}
		}
		p.linksOf(l)
	}
	return p
}

func (p *mdPage) linksOf(l string) {
	if !strings.ContainsAny(l, "[<") {
		return
	}
	l = inlineCode.ReplaceAllString(l, "`")
	for _, re := range []*regexp.Regexp{inlineLink, refLink, htmlLink} {
		for _, m := range re.FindAllStringSubmatch(l, -1) {
			p.links = append(p.links, m[1])
		}
	}
	for _, m := range htmlAnchor.FindAllStringSubmatch(l, -1) {
		p.anchors[m[1]] = true
	}
}

// anchor converts a heading: small letters, digits, '-' and '_' stay, a space becomes '-', and the second of a name
// gets a number.
func (p *mdPage) anchor(title string) {
	var b strings.Builder
	for _, r := range strings.ToLower(linkText.ReplaceAllString(title, "$1")) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	name := b.String()
	for i := 1; p.anchors[name]; i++ {
		name = fmt.Sprintf("%s-%d", b.String(), i)
	}
	p.anchors[name] = true
}

package web

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/docs/runbooks"
)

func served(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// Every alert's page is public, under the name in the alert's link and under the alert's own name, without
// leftover Markdown and with working links.
func TestEveryRunbookIsPublic(t *testing.T) {
	s := New(Config{Files: nil})
	t.Cleanup(s.Close)
	names, err := fs.Glob(runbooks.Pages, "*.md")
	if err != nil || len(names) < 30 {
		t.Fatalf("%d runbooks, error %v", len(names), err)
	}
	tags, link := regexp.MustCompile(`(?s)<pre>.*?</pre>|<[^>]*>`), regexp.MustCompile(`href="(/[^"]*)"`)
	for _, name := range names {
		code, page := served(t, s, "/runbooks/"+name)
		if _, short := served(t, s, "/runbooks/"+strings.TrimSuffix(name, ".md")); code != http.StatusOK || short != page {
			t.Errorf("%s: answered with %d, and otherwise without .md", name, code)
		}
		want, err := fs.ReadFile(runbooks.Pages, name)
		if err != nil {
			t.Fatal(err)
		}
		if got, is := strings.Count(page, "<h2>"), strings.Count(string(want), "\n## "); got != is || !strings.Contains(page, "<h1>") {
			t.Errorf("%s: %d headings of %d:\n%s", name, got, is, page)
		}
		if name != "README.md" && strings.Contains(string(want), "\n\n    ") && !strings.Contains(page, "<pre>") {
			t.Errorf("%s: what is to be typed is no block:\n%s", name, page)
		}
		_, body, _ := strings.Cut(page, "<main>")
		text := tags.ReplaceAllString(body, "")
		for _, left := range []string{"](", "**", "`", "|--", "\n#"} {
			if strings.Contains(text, left) {
				t.Errorf("%s: %q is left:\n%s", name, left, text)
			}
		}
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if code, _ := served(t, s, m[1]); code != http.StatusOK {
				t.Errorf("%s: a link to %s, which is answered with %d", name, m[1], code)
			}
		}
	}
	if _, list := served(t, s, "/runbooks/"); !strings.Contains(list, `<a href="/runbooks/LofamoNodeFailed">`) {
		t.Errorf("the list of all:\n%s", list)
	}
	for _, none := range []string{"/runbooks/LofamoNothing", "/runbooks/pages.go", "/runbooks/../web.go", "/runbooks/a/b"} {
		if code, _ := served(t, s, none); code == http.StatusOK {
			t.Errorf("%s is served", none)
		}
	}
}

// Links to runbooks lead to their pages, and other links show their path. Only Markdown of a page becomes markup.
func TestMarkdownBecomesSafeMarkup(t *testing.T) {
	for in, want := range map[string]string{
		"a <b> & `c <d>`":           "<p>a <!-- raw HTML omitted --> &amp; <code>c &lt;d&gt;</code></p>\n",
		"**`a` [`b`](C.md)**":       `<p><strong><code>a</code> <a href="/runbooks/C"><code>b</code></a></strong></p>` + "\n",
		"[a](B.md), [c](../d.md#e)": `<p><a href="/runbooks/B">a</a>, c (docs/d.md#e)</p>` + "\n",
		"[`a`](javascript:x<y)":     `<p><code>a</code> (docs/runbooks/javascript:x&lt;y)</p>` + "\n",
		"| a | b |\n|---|---|\n| c | d |": "<table>\n<thead>\n<tr>\n<th>a</th>\n<th>b</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td>c</td>\n" +
			"<td>d</td>\n</tr>\n</tbody>\n</table>\n",
	} {
		var got strings.Builder
		if err := markdown.Convert([]byte(in), &got); err != nil || got.String() != want {
			t.Errorf("%q: %v, %q: want %q", in, err, got.String(), want)
		}
	}
}

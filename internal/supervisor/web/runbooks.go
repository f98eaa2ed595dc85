package web

import (
	"bytes"
	"html"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"github.com/lofamo/lofamo/docs/runbooks"
)

// runbooksPath is the path of the alerts' pages, by the alert's name, with or without ".md". They need no login:
// they are the same in every cluster, and an engineer who follows an alert at night has no session yet.
const runbooksPath = "/runbooks/"

// runbookStyle also works on a phone in the dark.
const runbookStyle = `:root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem}
pre,code{font-family:ui-monospace,monospace;font-size:.9em}pre{overflow-x:auto;padding:.6rem;border:1px solid #8888;border-radius:4px}
table{border-collapse:collapse}td,th{text-align:left;padding:.2rem .8rem .2rem 0}
`

// runbook serves a page.
func runbook(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimSuffix(r.PathValue("name"), ".md")
	w.Header().Set("Cache-Control", "no-cache") // another release has others
	switch name {
	case "style.css":
		w.Header().Set("Content-Type", "text/css; charset=utf-8")
		write(w, r, []byte(runbookStyle))
		return
	case "":
		name = "README"
	}
	b, err := fs.ReadFile(runbooks.Pages, name+".md")
	if err != nil {
		http.Error(w, "there is no runbook of that name: the list of all is at "+runbooksPath, http.StatusNotFound)
		return
	}
	var page bytes.Buffer
	if err := markdown.Convert(b, &page); err != nil {
		http.Error(w, "runbook "+name+": "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	write(w, r, []byte(`<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>`+
		html.EscapeString(name)+
		` - LO|FA|MO</title><link rel="stylesheet" href="`+runbooksPath+`style.css"><main>`+page.String()+`</main></html>`))
}

// markdown renders a runbook as HTML. It omits raw HTML in the runbook, so that no text becomes markup by itself.
var markdown = goldmark.New(goldmark.WithExtensions(extension.Table),
	goldmark.WithParserOptions(parser.WithASTTransformers(util.Prioritized(links{}, 0)))) //nolint:misspell // the library spells it so

// runbookFile is a link to another runbook.
var runbookFile = regexp.MustCompile(`^([A-Za-z]+)\.md$`)

// links rewrites links: those to other runbooks lead to their pages; for other documents, which the web server
// does not have, the text names the path in the repository.
type links struct{}

// Transform implements parser.ASTTransformer.
func (links) Transform(doc *ast.Document, _ text.Reader, _ parser.Context) {
	var all []*ast.Link
	// never fails: the callback returns no error
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if l, ok := n.(*ast.Link); ok && entering {
			all = append(all, l)
		}
		return ast.WalkContinue, nil
	})
	for _, l := range all {
		if to := runbookFile.FindSubmatch(l.Destination); to != nil {
			l.Destination = append([]byte(runbooksPath), to[1]...)
			continue
		}
		around := l.Parent()
		for c := l.FirstChild(); c != nil; c = l.FirstChild() {
			around.InsertBefore(around, l, c)
		}
		around.ReplaceChild(around, l, ast.NewString([]byte(" ("+html.EscapeString(path.Join("docs/runbooks", string(l.Destination)))+")")))
	}
}

package web

import (
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/lofamo/lofamo/docs/runbooks"
)

// runbooksPath is where the alerts' pages are, by the alert's name, with or without ".md". Whoever reaches the page may read them: they are the
// same in every cluster, and who comes from an alert at night has no login yet.
const runbooksPath = "/runbooks/"

// runbookStyle is for a phone in the dark as well.
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
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	write(w, r, []byte(`<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>`+html.EscapeString(name)+
		` - LO|FA|MO</title><link rel="stylesheet" href="`+runbooksPath+`style.css"><main>`+marked(string(b))+`</main></html>`))
}

// What a line of a runbook begins with.
var (
	heading  = regexp.MustCompile(`^(#{1,3}) (.*)`)
	listItem = regexp.MustCompile(`^(\d+\.|-) (.*)`)
)

// marked is a runbook as HTML: of Markdown what those pages have, which is headings, paragraphs, lists, tables and indented blocks of what is
// typed. Whatever else there is stays to be read as it was written; nothing of it becomes markup by itself.
func marked(text string) string {
	var out strings.Builder
	open := "" // the element that the lines before are in
	in := func(tag string) {
		if tag == open {
			return
		}
		if open != "" {
			fmt.Fprintf(&out, "</%s>\n", open)
		}
		if open = tag; open != "" {
			fmt.Fprintf(&out, "<%s>", open)
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch h, item := heading.FindStringSubmatch(line), listItem.FindStringSubmatch(line); {
		case line == "":
			in("")
		case h != nil:
			in("")
			fmt.Fprintf(&out, "<h%d>%s</h%d>\n", len(h[1]), inline(h[2]), len(h[1]))
		case strings.HasPrefix(line, "    ") && (open == "" || open == "pre"):
			in("pre")
			out.WriteString(html.EscapeString(line[4:]) + "\n")
		case item != nil:
			in(map[bool]string{true: "ul", false: "ol"}[item[1] == "-"])
			out.WriteString("<li>" + inline(item[2]))
		case strings.HasPrefix(line, "|---"):
		case strings.HasPrefix(line, "|"):
			in("table")
			out.WriteString("<tr>")
			for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				out.WriteString("<td>" + inline(strings.TrimSpace(cell)))
			}
		default:
			if open == "" {
				in("p")
			}
			out.WriteString(" " + inline(strings.TrimSpace(line)))
		}
	}
	in("")
	return out.String()
}

// What stands within a line, in what is escaped already.
var (
	typed  = regexp.MustCompile("`([^`]+)`")
	linked = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)
	strong = regexp.MustCompile(`\*\*([^*]+)\*\*`)
	marks  = regexp.MustCompile(`\*([^*]+)\*`)
	page   = regexp.MustCompile(`^([A-Za-z]+)\.md$`)
)

// inline is the text of a line as HTML. Links to other runbooks lead to them; of those to other documents, which are not here, the place in the
// repository is told.
func inline(text string) string {
	var code []string
	text = typed.ReplaceAllStringFunc(html.EscapeString(text), func(m string) string {
		code = append(code, "<code>"+strings.Trim(m, "`")+"</code>")
		return fmt.Sprintf("\x00%d\x00", len(code)-1) // what is typed has no marks in it
	})
	text = words(text)
	for i, c := range code {
		text = strings.Replace(text, fmt.Sprintf("\x00%d\x00", i), c, 1)
	}
	return text
}

func words(text string) string {
	text = linked.ReplaceAllStringFunc(text, func(l string) string {
		m := linked.FindStringSubmatch(l)
		if to := page.FindStringSubmatch(m[2]); to != nil {
			return `<a href="` + runbooksPath + to[1] + `">` + m[1] + `</a>`
		}
		return m[1] + " (" + path.Join("docs/runbooks", m[2]) + ")"
	})
	return marks.ReplaceAllString(strong.ReplaceAllString(text, "<b>$1</b>"), "<i>$1</i>")
}

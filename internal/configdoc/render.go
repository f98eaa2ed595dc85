package configdoc

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// width is that of comments in default files, in columns.
const width = 120

// YAML is a default file: every key under its explanation. Those that have a default have it; the others stand behind a '#',
// without a blank, to be filled in.
func YAML(head string, fields []Field, defaults map[string]any) string {
	var b strings.Builder
	comment(&b, head, "")
	for _, f := range fields {
		value, ok := defaults[f.Key]
		b.WriteString("\n")
		yamlField(&b, f, value, ok, "")
	}
	return b.String()
}

// comment writes text behind '# ', broken into lines.
func comment(b *strings.Builder, text, indent string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(indent)+2+len(line)+1+len(word) > width {
			fmt.Fprintf(b, "%s# %s\n", indent, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	if line != "" {
		fmt.Fprintf(b, "%s# %s\n", indent, line)
	}
}

// set says whether a default is one, and not just nothing.
func set(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case string:
		return v != ""
	case map[string]any:
		for _, inner := range v {
			if set(inner) {
				return true
			}
		}
		return false
	case []any:
		return slices.ContainsFunc(v, set)
	}
	return true
}

func yamlField(b *strings.Builder, f Field, value any, ok bool, indent string) {
	comment(b, f.Doc, indent)
	ok = ok && set(value)
	switch {
	case len(f.Fields) == 0 && ok:
		fmt.Fprintf(b, "%s%s: %s\n", indent, f.Key, scalar(value))
	case len(f.Fields) == 0:
		fmt.Fprintf(b, "%s#%s:%s\n", indent, f.Key, empty(f))
	case ok && !f.List && !f.Map:
		fmt.Fprintf(b, "%s%s:\n", indent, f.Key)
		inner, _ := value.(map[string]any)
		for _, g := range f.Fields {
			v, has := inner[g.Key]
			yamlField(b, g, v, has, indent+"  ")
		}
	case ok && f.List:
		fmt.Fprintf(b, "%s%s:\n", indent, f.Key)
		entries, _ := value.([]any)
		for _, e := range entries {
			// In the flow style: what each key means stands once, below.
			fmt.Fprintf(b, "%s- %s\n", indent, scalar(e))
		}
		off(b, f.Fields, indent, "# ")
	default:
		fmt.Fprintf(b, "%s#%s:\n", indent, f.Key)
		lead := "  "
		if f.List {
			lead = "- "
		} else if f.Map {
			fmt.Fprintf(b, "%s#  NAME:\n", indent)
			lead = "    "
		}
		off(b, f.Fields, indent, lead)
	}
}

// off writes unset keys: commented out with '#', each with its explanation.
func off(b *strings.Builder, fields []Field, indent, lead string) {
	for i, f := range fields {
		if i > 0 {
			lead = strings.ReplaceAll(lead, "-", " ")
		}
		comment(b, f.Doc, indent+"#"+strings.Repeat(" ", len(lead)))
		fmt.Fprintf(b, "%s#%s%s:%s\n", indent, lead, f.Key, empty(f))
		if len(f.Fields) > 0 {
			next := strings.Repeat(" ", len(lead)) + "  "
			if f.List {
				next = strings.Repeat(" ", len(lead)) + "- "
			}
			off(b, f.Fields, indent, next)
		}
	}
}

func empty(f Field) string {
	switch {
	case len(f.Fields) > 0:
		return ""
	case f.List:
		return " []"
	case f.Map:
		return " {}"
	case f.Type == "true or false":
		return " false"
	}
	return ""
}

func scalar(v any) string {
	if s, ok := v.(string); ok && plainWord(s) {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprintf("%q", fmt.Sprint(v))
	}
	return strings.TrimSpace(b.String())
}

// plainWord says whether YAML reads a text as itself without quotes.
func plainWord(s string) bool {
	switch strings.ToLower(s) {
	case "", "true", "false", "yes", "no", "on", "off", "null", "y", "n":
		return false
	}
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '/'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789-._", r)) {
			return false
		}
	}
	return true
}

// Markdown is a table of all keys.
func Markdown(fields []Field, defaults map[string]any) string {
	var b strings.Builder
	b.WriteString("| key | is | default | |\n|---|---|---|---|\n")
	rows(&b, "", fields, defaults)
	return b.String()
}

func rows(b *strings.Builder, prefix string, fields []Field, defaults map[string]any) {
	for _, f := range fields {
		value, shown := defaults[f.Key], ""
		if len(f.Fields) == 0 && set(value) {
			shown = "`" + scalar(value) + "`"
		}
		key := prefix + f.Key
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", key, f.Type, shown, strings.ReplaceAll(f.Doc, "|", `\|`))
		inner, _ := value.(map[string]any)
		switch {
		case f.List:
			rows(b, key+"[].", f.Fields, nil)
		case f.Map:
			rows(b, key+".*.", f.Fields, nil)
		default:
			rows(b, key+".", f.Fields, inner)
		}
	}
}

package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/pkg/fault"
)

// split returns the non-empty documents of a YAML stream. Every line that begins with "---" ends a document, even
// inside block scalars.
func split(b []byte) [][]byte {
	var out [][]byte
	var doc []byte
	content := false
	flush := func() {
		if content {
			out = append(out, doc)
		}
		doc, content = nil, false
	}
	for line := range bytes.Lines(b) {
		if t := bytes.TrimRight(line, " \t\r\n"); bytes.Equal(t, []byte("---")) || bytes.HasPrefix(t, []byte("--- ")) {
			flush()
			line = line[3:]
		}
		if t := bytes.TrimSpace(line); len(t) > 0 && t[0] != '#' {
			content = true
		}
		doc = append(doc, line...)
	}
	flush()
	return out
}

// tree converts YAML to JSON, and to JSON's own types. It refuses duplicate keys.
func tree(b []byte) (any, []byte, error) {
	js, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return nil, nil, fmt.Errorf("not YAML: %s", strings.TrimPrefix(strings.Join(strings.Fields(err.Error()), " "), "yaml: "))
	}
	var v any
	if err := json.Unmarshal(js, &v); err != nil {
		return nil, nil, fmt.Errorf("not YAML: %w", err)
	}
	return v, escaped(js), nil
}

// foreign reports whether JSON permits a character in a text, and YAML refuses or changes it.
func foreign(c rune) bool { return c >= 0x7f && c <= 0x9f || c == 0xfffe || c == 0xffff }

// escaped returns JSON that YAML reads as the same values. Other JSON stays as it is, to the byte.
func escaped(js []byte) []byte {
	if !bytes.ContainsFunc(js, foreign) {
		return js
	}
	var out []byte
	for len(js) > 0 {
		c, n := utf8.DecodeRune(js)
		if foreign(c) {
			out = fmt.Appendf(out, `\u%04x`, c)
		} else {
			out = append(out, js[:n]...)
		}
		js = js[n:]
	}
	return out
}

// reader collects errors.
type reader struct{ errs []error }

func (r *reader) bad(path string, given any, want string) {
	r.errs = append(r.errs, fmt.Errorf("%s: given %s: want %s", path, show(given), want))
}

// show formats a value of a document for people.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		if len(v) > 80 {
			v = fault.Cut(v, 80) + "…"
		}
		return strconv.Quote(v)
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case shown:
		return string(v)
	default:
		return fmt.Sprint(v)
	}
}

// shown is a string that show prints unchanged.
type shown string

// object is a mapping in a document. Every key that the parser reads is known; done reports the others.
type object struct {
	r     *reader
	path  string
	m     map[string]any
	known []string
}

// object converts a value to a mapping; any other value is an error and yields an empty mapping.
func (r *reader) object(path string, v any) *object {
	m, ok := v.(map[string]any)
	if !ok && v != nil {
		r.bad(path, v, "a mapping")
	}
	return &object{r: r, path: path, m: m}
}

func (o *object) at(key string) string {
	if o.path == "" {
		return key
	}
	return o.path + "." + key
}

// get returns the value of a key, and whether it exists. A key without a value is an error.
func (o *object) get(key string) (any, bool) {
	o.known = append(o.known, key)
	v, ok := o.m[key]
	if ok && v == nil {
		o.r.bad(o.at(key), nil, "a value, or leave the key out")
		return nil, false
	}
	return v, ok
}

// done reports the unknown keys.
func (o *object) done() {
	for _, key := range slices.Sorted(maps.Keys(o.m)) {
		if slices.Contains(o.known, key) {
			continue
		}
		if len(o.known) == 0 {
			o.r.errs = append(o.r.errs, fmt.Errorf("%s: unknown field: want none", o.at(key)))
			continue
		}
		o.r.errs = append(o.r.errs, fmt.Errorf("%s: unknown field: want one of %s", o.at(key), strings.Join(o.known, ", ")))
	}
}

// text reads a string.
func (o *object) text(key string, required bool, most int) string {
	v, ok := o.get(key)
	if !ok {
		if _, given := o.m[key]; required && !given {
			o.r.bad(o.at(key), nil, "a text")
		}
		return ""
	}
	s, ok := v.(string)
	switch {
	case !ok:
		o.r.bad(o.at(key), v, "a text")
	case required && strings.TrimSpace(s) == "":
		o.r.bad(o.at(key), s, "a text that is not empty")
	case len(s) > most:
		o.r.bad(o.at(key), shown(fmt.Sprintf("%d bytes", len(s))), fmt.Sprintf("at most %d", most))
	}
	return s
}

// oneOf reads a string that must be one of the options.
func (o *object) oneOf(key, otherwise string, options ...string) string {
	v, ok := o.get(key)
	if !ok {
		if _, given := o.m[key]; otherwise == "" && !given {
			o.r.bad(o.at(key), nil, "one of "+strings.Join(options, ", "))
		}
		return otherwise
	}
	s, _ := v.(string)
	if !slices.Contains(options, s) {
		o.r.bad(o.at(key), v, "one of "+strings.Join(options, ", "))
		return otherwise
	}
	return s
}

// maxTime limits every duration of a document.
const maxTime = 7 * 24 * time.Hour

// duration reads a duration in Go's syntax.
func (o *object) duration(key string, otherwise, least time.Duration) time.Duration {
	v, ok := o.get(key)
	if !ok {
		return otherwise
	}
	s, _ := v.(string)
	d, err := time.ParseDuration(s)
	if err != nil || d < least || d > maxTime {
		o.r.bad(o.at(key), v, fmt.Sprintf("a duration from %s to %s, as in 30s or 1h30m", least, hours(maxTime)))
		return otherwise
	}
	return d
}

// hours writes a duration of whole hours as people do: 168h.
func hours(d time.Duration) string {
	if d > 0 && d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}

// integer reads a whole number.
func (o *object) integer(key string, otherwise, least, most int) int {
	v, ok := o.get(key)
	if !ok {
		return otherwise
	}
	f, isNumber := v.(float64)
	if !isNumber || f != math.Trunc(f) || f < float64(least) || f > float64(most) {
		o.r.bad(o.at(key), v, fmt.Sprintf("a whole number from %d to %d", least, most))
		return otherwise
	}
	return int(f)
}

// boolean reads true or false.
func (o *object) boolean(key string, otherwise bool) bool {
	v, ok := o.get(key)
	if !ok {
		return otherwise
	}
	b, isBool := v.(bool)
	if !isBool {
		o.r.bad(o.at(key), v, "true or false")
		return otherwise
	}
	return b
}

// list reads a list.
func (o *object) list(key string, least, most int) []any {
	v, ok := o.get(key)
	if !ok {
		if _, given := o.m[key]; least > 0 && !given {
			o.r.bad(o.at(key), nil, fmt.Sprintf("a list of %d to %d", least, most))
		}
		return nil
	}
	l, isList := v.([]any)
	switch {
	case !isList:
		o.r.bad(o.at(key), v, "a list")
	case len(l) < least || len(l) > most:
		o.r.bad(o.at(key), shown(fmt.Sprintf("%d", len(l))), fmt.Sprintf("%d to %d", least, most))
		return nil
	}
	return l
}

// texts reads a mapping of strings.
func (o *object) texts(key string, check func(key, value string) error) map[string]string {
	v, ok := o.get(key)
	if !ok {
		return nil
	}
	sub := o.r.object(o.at(key), v)
	out := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(sub.m)) {
		s, isText := sub.m[k].(string)
		if !isText {
			o.r.bad(sub.at(k), sub.m[k], "a text")
			continue
		}
		if err := check(k, s); err != nil {
			o.r.errs = append(o.r.errs, fmt.Errorf("%s: %w", sub.at(k), err))
		}
		out[k] = s
	}
	return out
}

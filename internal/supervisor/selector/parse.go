package selector

import (
	"fmt"
	"slices"
	"strings"
)

type kind uint8

const (
	end kind = iota
	word
	comma
	open
	closing
	not
	equal   // = and ==
	unequal // !=
	foreign // a byte that stands in no selector
)

// token is a piece of a selector and where it begins.
type token struct {
	kind kind
	text string
	at   int
}

// lexer cuts a selector into tokens. Spaces separate words and mean nothing else.
type lexer struct {
	text string
	at   int
}

func isWord(c byte) bool {
	return isAlnum(c) || c == '-' || c == '_' || c == '.' || c == '/'
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func (l *lexer) scan() token {
	for l.at < len(l.text) && (l.text[l.at] == ' ' || l.text[l.at] == '\t') {
		l.at++
	}
	from := l.at
	if from == len(l.text) {
		return token{kind: end, at: from}
	}
	take := func(k kind, n int) token {
		l.at = from + n
		return token{k, l.text[from:l.at], from}
	}
	rest := l.text[from:]
	switch {
	case strings.HasPrefix(rest, "=="):
		return take(equal, 2)
	case strings.HasPrefix(rest, "!="):
		return take(unequal, 2)
	}
	switch rest[0] {
	case '=':
		return take(equal, 1)
	case '!':
		return take(not, 1)
	case ',':
		return take(comma, 1)
	case '(':
		return take(open, 1)
	case ')':
		return take(closing, 1)
	}
	n := 0
	for n < len(rest) && isWord(rest[n]) {
		n++
	}
	if n == 0 {
		return take(foreign, 1)
	}
	return take(word, n)
}

// parser reads requirements; tok is the token that comes next.
type parser struct {
	lexer
	tok token
}

func (p *parser) next() token {
	t := p.tok
	p.tok = p.scan()
	return t
}

func (p *parser) unexpected(want string) error {
	if p.tok.kind == end {
		return fmt.Errorf("it ends at byte %d: want %s", p.tok.at, want)
	}
	return fmt.Errorf("%q at byte %d: want %s", p.tok.text, p.tok.at, want)
}

// requirement reads one condition.
func (p *parser) requirement() (requirement, error) {
	if p.tok.kind == not {
		p.next()
		key, err := p.key()
		return requirement{key: key, op: absent}, err
	}
	key, err := p.key()
	if err != nil {
		return requirement{}, err
	}
	switch {
	case p.tok.kind == end || p.tok.kind == comma:
		return requirement{key: key, op: exists}, nil
	case p.tok.kind == equal || p.tok.kind == unequal:
		op := in
		if p.next().kind == unequal {
			op = notIn
		}
		v, err := p.value()
		return requirement{key, op, []string{v}}, err
	case p.tok.kind == word && (p.tok.text == "in" || p.tok.text == "notin"):
		op := in
		if p.next().text == "notin" {
			op = notIn
		}
		values, err := p.values()
		return requirement{key, op, values}, err
	}
	return requirement{}, p.unexpected("=, ==, !=, in, notin, ',' or the end")
}

func (p *parser) key() (string, error) {
	if p.tok.kind != word {
		return "", p.unexpected("a key")
	}
	t := p.next()
	if err := CheckKey(t.text); err != nil {
		return "", fmt.Errorf("at byte %d: %w", t.at, err)
	}
	return t.text, nil
}

// value reads a value, which may be empty.
func (p *parser) value() (string, error) {
	switch p.tok.kind {
	case word:
	case comma, closing, end:
		return "", nil
	default:
		return "", p.unexpected("a value, ',' or the end")
	}
	t := p.next()
	if err := CheckValue(t.text); err != nil {
		return "", fmt.Errorf("at byte %d: %w", t.at, err)
	}
	return t.text, nil
}

// values reads a list in parentheses, at least one of which must be there.
func (p *parser) values() ([]string, error) {
	if p.tok.kind != open {
		return nil, p.unexpected("'('")
	}
	p.next()
	if p.tok.kind == closing {
		return nil, p.unexpected("at least one value")
	}
	var out []string
	for {
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		out = append(out, v)
		switch p.tok.kind {
		case comma:
			p.next()
		case closing:
			p.next()
			slices.Sort(out)
			return slices.Compact(out), nil
		default:
			return nil, p.unexpected("',' or ')'")
		}
	}
}

// The lengths of names and of prefixes, as Kubernetes has them.
const (
	maxName   = 63
	maxPrefix = 253
)

// CheckKey says what is wrong with the key of a label.
func CheckKey(key string) error {
	name := key
	if prefix, rest, ok := strings.Cut(key, "/"); ok {
		name = rest
		if !isDomain(prefix) {
			return fmt.Errorf("key %q: the prefix before '/' wants 1 to %d lower-case letters, digits, '-' and '.'", key, maxPrefix)
		}
	}
	if !isName(name) {
		return fmt.Errorf("key %q: want 1 to %d letters, digits, '-', '_' and '.', the first and last a letter or digit", key, maxName)
	}
	return nil
}

// CheckValue says what is wrong with the value of a label.
func CheckValue(value string) error {
	if value != "" && !isName(value) {
		return fmt.Errorf("value %q: want at most %d letters, digits, '-', '_' and '.', the first and last a letter or digit", value, maxName)
	}
	return nil
}

func isName(s string) bool {
	return s != "" && len(s) <= maxName && isAlnum(s[0]) && isAlnum(s[len(s)-1]) &&
		strings.IndexFunc(s, func(r rune) bool { return r > 127 || !isWord(byte(r)) || r == '/' }) < 0
}

func isDomain(s string) bool {
	if len(s) > maxPrefix {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || part[0] == '-' || part[len(part)-1] == '-' {
			return false
		}
		if strings.IndexFunc(part, func(r rune) bool { return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') }) >= 0 {
			return false
		}
	}
	return true
}

// Package selector reads label and field selectors as Kubernetes has them, and says what they match.
//
// Label selectors: requirements separated by commas, all of which must hold.
//
//	KEY=VALUE  KEY==VALUE   the label has that value, which may be empty
//	KEY!=VALUE              it has another, or is not there
//	KEY in (A,B)            it has one of them
//	KEY notin (A,B)         it has none of them, or is not there
//	KEY                     it is there
//	!KEY                    it is not there
//
// Field selectors: FIELD=VALUE, FIELD==VALUE and FIELD!=VALUE, separated by commas. The values of some fields may
// hold commas themselves, so that coordinates (coord=1,0,1) and names of group faults (group=row/Y=1,Z=2) can be
// written as they are; such a value ends where the next field is named.
//
// It knows no node and no event: who asks tells which fields there are, and what an object's are.
package selector

import (
	"fmt"
	"slices"
	"strings"
)

// MaxLength is the most bytes that a selector may have.
const MaxLength = 4096

type operator uint8

const (
	exists operator = iota + 1
	absent
	in
	notIn
)

// requirement is one of the conditions of a label selector.
type requirement struct {
	key    string
	op     operator
	values []string // sorted
}

func (r requirement) matches(labels map[string]string) bool {
	v, ok := labels[r.key]
	switch r.op {
	case exists:
		return ok
	case absent:
		return !ok
	case in:
		return ok && slices.Contains(r.values, v)
	default:
		return !ok || !slices.Contains(r.values, v)
	}
}

// Labels is a label selector. The zero value matches everything.
type Labels struct{ all []requirement }

// Empty says that it matches everything.
func (l Labels) Empty() bool { return len(l.all) == 0 }

// Matches says whether an object with these labels is chosen.
func (l Labels) Matches(labels map[string]string) bool {
	for _, r := range l.all {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

// String writes it in one form, whatever form it was given in.
func (l Labels) String() string {
	parts := make([]string, len(l.all))
	for i, r := range l.all {
		switch {
		case r.op == exists:
			parts[i] = r.key
		case r.op == absent:
			parts[i] = "!" + r.key
		case r.op == in && len(r.values) == 1:
			parts[i] = r.key + "=" + r.values[0]
		case r.op == in:
			parts[i] = r.key + " in (" + strings.Join(r.values, ",") + ")"
		case len(r.values) == 1:
			parts[i] = r.key + "!=" + r.values[0]
		default:
			parts[i] = r.key + " notin (" + strings.Join(r.values, ",") + ")"
		}
	}
	return strings.Join(parts, ",")
}

// ParseLabels reads a label selector. An error says what is wrong at which byte, and what may stand there.
func ParseLabels(text string) (Labels, error) {
	if len(text) > MaxLength {
		return Labels{}, fmt.Errorf("label selector: given %d bytes: want at most %d", len(text), MaxLength)
	}
	p := parser{lexer: lexer{text: text}}
	p.next()
	var out Labels
	if p.tok.kind == end {
		return out, nil
	}
	for {
		r, err := p.requirement()
		if err != nil {
			return Labels{}, fmt.Errorf("label selector %q: %w", text, err)
		}
		out.all = append(out.all, r)
		switch p.tok.kind {
		case end:
			return out, nil
		case comma:
			p.next()
		default:
			return Labels{}, fmt.Errorf("label selector %q: %w", text, p.unexpected("',' or the end"))
		}
	}
}

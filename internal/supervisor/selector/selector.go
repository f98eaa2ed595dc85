// Package selector parses label and field selectors and matches them. Label selectors are those of Kubernetes, by its own library.
//
// Label selectors: requirements separated by commas, all of which must hold.
//
//	KEY=VALUE  KEY==VALUE   the label has that value, which may be empty
//	KEY!=VALUE              it has another, or is not there
//	KEY in (A,B)            it has one of them
//	KEY notin (A,B)         it has none of them, or is not there
//	KEY                     it is there
//	!KEY                    it is not there
//	KEY>N  KEY<N            it is a whole number above or below N
//
// Field selectors: FIELD=VALUE, FIELD==VALUE and FIELD!=VALUE, separated by commas. The values of some fields may
// hold commas themselves, so that coordinates (coord=1,0,1) and names of group faults (group=row/Y=1,Z=2) can be
// written unquoted; such a value ends at the name of the next field.
//
// The package knows no nodes and no events: the caller supplies the fields and their values.
package selector

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxLength is the most bytes that a selector may have.
const MaxLength = 4096

// Labels is a label selector. The zero value matches everything.
type Labels struct{ selector labels.Selector }

// Empty reports whether the selector matches everything.
func (l Labels) Empty() bool { return l.selector == nil || l.selector.Empty() }

// Matches reports whether the selector chooses an object with these labels.
func (l Labels) Matches(of map[string]string) bool {
	return l.selector == nil || l.selector.Matches(labels.Set(of))
}

// String returns one form for equal conditions, sorted by key.
func (l Labels) String() string {
	if l.selector == nil {
		return ""
	}
	return l.selector.String()
}

// ParseLabels parses a label selector. The error names the faulty part and the permitted syntax.
func ParseLabels(text string) (Labels, error) {
	if len(text) > MaxLength {
		return Labels{}, fmt.Errorf("label selector: given %d bytes: want at most %d", len(text), MaxLength)
	}
	s, err := labels.Parse(text, field.WithPath(field.NewPath("label")))
	if err != nil {
		return Labels{}, fmt.Errorf("label selector %q: %w", text, err)
	}
	return Labels{s}, nil
}

// CheckKey returns an error for a label key that Kubernetes would refuse.
func CheckKey(key string) error {
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return fmt.Errorf("key %q: %s", key, strings.Join(wrong, "; "))
	}
	return nil
}

// Label and field selectors of lists and watches. Label selectors are those of Kubernetes, by its own library.
//
// Label selectors: requirements separated by commas, all of which must hold.
//
//	KEY=VALUE  KEY==VALUE   the label has that value, which may be empty
//	KEY!=VALUE              it has another, or is not there
//	KEY in (A,B)            it has one of them
//	KEY notin (A,B)         it has none of these, or is not there
//	KEY                     it is there
//	!KEY                    it is not there
//	KEY>N  KEY<N            it is a whole number above or below N
//
// Field selectors: FIELD=VALUE, FIELD==VALUE and FIELD!=VALUE, separated by commas. The values of some fields may
// hold commas themselves, so that coordinates (coord=1,0,1) and names of group faults (group=row/Y=1,Z=2) can be
// written unquoted; such a value ends at the name of the next field.
//
// Both files are pure and know no nodes and no events: the caller supplies the fields and their values.

package api

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxSelector is the most bytes that a selector may have.
const maxSelector = 4096

// labelSelector is a label selector. The zero value matches everything.
type labelSelector struct{ selector labels.Selector }

// Empty reports whether the selector matches everything.
func (l labelSelector) Empty() bool { return l.selector == nil || l.selector.Empty() }

// Matches reports whether the selector chooses an object with these labels.
func (l labelSelector) Matches(of map[string]string) bool {
	return l.selector == nil || l.selector.Matches(labels.Set(of))
}

// String returns one form for equal conditions, sorted by key.
func (l labelSelector) String() string {
	if l.selector == nil {
		return ""
	}
	return l.selector.String()
}

// parseLabelSelector parses a label selector. The error names the faulty part and the permitted syntax.
func parseLabelSelector(text string) (labelSelector, error) {
	if len(text) > maxSelector {
		return labelSelector{}, fmt.Errorf("label selector: given %d bytes: want at most %d", len(text), maxSelector)
	}
	s, err := labels.Parse(text, field.WithPath(field.NewPath("label")))
	if err != nil {
		return labelSelector{}, fmt.Errorf("label selector %q: %w", text, err)
	}
	return labelSelector{s}, nil
}

// checkLabelKey returns an error for a label key that Kubernetes would refuse.
func checkLabelKey(key string) error {
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return fmt.Errorf("key %q: %s", key, strings.Join(wrong, "; "))
	}
	return nil
}

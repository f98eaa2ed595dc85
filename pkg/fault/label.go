package fault

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// MaxLabels is how many labels a node may have.
const MaxLabels = 64

// DomainLabels returns the label keys that are failure domains when their owner names none: nodes
// that share a value may die of one cause.
func DomainLabels() []string { return []string{"rack", "switch", "power"} }

// The syntax of labels is that of Kubernetes.
var (
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/`)
)

// CheckLabelKey refuses what is no label's key.
func CheckLabelKey(key string) error {
	if !labelName.MatchString(key[len(labelPrefix.FindString(key)):]) {
		return fmt.Errorf("label key %q: want 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit, with an optional DNS name and '/' before", key)
	}
	return nil
}

// CheckLabelValue refuses what is no label's value.
func CheckLabelValue(value string) error {
	if value != "" && !labelName.MatchString(value) {
		return fmt.Errorf("label value %q: want nothing, or 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit", value)
	}
	return nil
}

// CheckLabels names all that is wrong with the labels of a node, by key.
func CheckLabels(labels map[string]string) []error {
	var errs []error
	if n := len(labels); n > MaxLabels {
		errs = append(errs, fmt.Errorf("%d labels: want at most %d", n, MaxLabels))
	}
	for key, value := range labels {
		if err := CheckLabelKey(key); err != nil {
			errs = append(errs, err)
		}
		if err := CheckLabelValue(value); err != nil {
			errs = append(errs, fmt.Errorf("label %s: %w", key, err))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

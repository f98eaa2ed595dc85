package fault

import (
	"fmt"
	"slices"
	"strings"
)

// MaxLabels is the maximum number of labels of a node.
const MaxLabels = 64

// MaxDomainLabels is the maximum number of keys of failure domains: each costs a look at every suspected group.
const MaxDomainLabels = 16

// DomainLabels returns the default keys of failure domains: nodes that share a value may die of one cause.
func DomainLabels() []string { return []string{"rack", "switch", "power"} }

// ManagedLabel marks a node that named itself, as by a token for any name. With a value other than "true", executors leave the node alone.
const ManagedLabel = "lofamo.io/managed"

// Managed reports whether an operator, the inventory or Kubernetes has named the node with these labels.
func Managed(labels map[string]string) bool {
	value, marked := labels[ManagedLabel]
	return !marked || value == "true"
}

// CheckDomainLabels checks the key domainLabels of configurations and topologies. It calls bad for each error, with the
// field.
func CheckDomainLabels(keys []string, bad func(field string, err error)) {
	if len(keys) > MaxDomainLabels {
		bad("domainLabels", fmt.Errorf("given %.500s: want at most %d keys", fmt.Sprint(keys), MaxDomainLabels))
	}
	for i, key := range keys {
		field := fmt.Sprintf("domainLabels[%d]", i)
		if err := CheckLabelKey(key); err != nil {
			bad(field, err)
		}
		if slices.Contains(keys[:i], key) {
			bad(field, fmt.Errorf("given %s: want each key once", key))
		}
	}
}

// maxPrefix is the maximum length of the optional prefix of a label's key, as in Kubernetes.
const maxPrefix = 253

// IsName reports whether s has 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit: the
// syntax of node ids and labels.
func IsName(s string) bool { return IsNameWith(s, true, "-_.") }

// IsNameWith reports whether s has 1 to 63 lower-case letters, upper-case ones if permitted, digits and characters of
// further, the first and last a letter or digit. A large topology has a million names, and a regular expression costs
// every program time at its start, so it uses none.
func IsNameWith(s string, upper bool, further string) bool {
	return len(s) <= 63 && isWord(s, upper, further)
}

// isWord is IsNameWith for a text of any length.
func isWord(s string, upper bool, further string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || upper && c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || i == len(s)-1 || strings.IndexByte(further, c) < 0) {
			return false
		}
	}
	return s != ""
}

// CheckLabelKey returns an error for an invalid label key.
func CheckLabelKey(key string) error {
	name := key
	prefix, rest, found := strings.Cut(key, "/")
	if found && len(prefix) <= maxPrefix && isWord(prefix, false, "-.") {
		name = rest
	}
	if !IsName(name) {
		return fmt.Errorf("label key %q: want 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit, with an "+
			"optional DNS name and '/' before", key)
	}
	return nil
}

// CheckLabelValue returns an error for an invalid label value.
func CheckLabelValue(value string) error {
	if value != "" && !IsName(value) {
		return fmt.Errorf("label value %q: want nothing, or 1 to 63 letters, digits, '-', '_' and '.', the first and last a letter or digit",
			value)
	}
	return nil
}

// CheckLabels returns all errors in the labels of a node, by key.
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

package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// selectorField is a field that a selector may name.
type selectorField struct {
	Name string
	// Check refuses values that the field can never have, and names the possible ones; nil accepts any.
	Check func(value string) error
	// Open: values may hold commas, followed by anything but the name of a field and an operator.
	Open bool
}

// oneOf is a Check for a field with few values.
func oneOf(values ...string) func(string) error {
	return func(v string) error {
		if !slices.Contains(values, v) {
			return fmt.Errorf("want one of %s", strings.Join(values, ", "))
		}
		return nil
	}
}

// countField is a Check for a field that counts from 0.
func countField(v string) error {
	if n, err := strconv.ParseUint(v, 10, 31); err != nil || strconv.FormatUint(n, 10) != v {
		return fmt.Errorf("want a number from 0 on")
	}
	return nil
}

// fieldCondition is one of the conditions of a field selector.
type fieldCondition struct {
	field, value string
	not          bool
}

// fieldSelector is a field selector. The zero value matches everything.
type fieldSelector struct{ all []fieldCondition }

// Empty reports whether the selector matches everything.
func (f fieldSelector) Empty() bool { return len(f.all) == 0 }

// Matches reports whether the selector matches an object. has reports whether a field of the object has a value; a
// field may have several.
func (f fieldSelector) Matches(has func(field, value string) bool) bool {
	for _, c := range f.all {
		if has(c.field, c.value) == c.not {
			return false
		}
	}
	return true
}

// String writes it in one form.
func (f fieldSelector) String() string {
	parts := make([]string, len(f.all))
	for i, c := range f.all {
		op := "="
		switch {
		case c.not:
			op = "!="
		case strings.HasPrefix(c.value, "="):
			op = "=="
		}
		parts[i] = c.field + op + c.value
	}
	return strings.Join(parts, ",")
}

// parseFieldSelector parses a field selector that may contain only these fields.
func parseFieldSelector(text string, allowed []selectorField) (fieldSelector, error) {
	if len(text) > maxSelector {
		return fieldSelector{}, fmt.Errorf("field selector: given %d bytes: want at most %d", len(text), maxSelector)
	}
	var out fieldSelector
	if strings.TrimSpace(text) == "" {
		return out, nil
	}
	for _, term := range fieldTerms(text, allowed) {
		c, err := parseCondition(term, allowed)
		if err != nil {
			return fieldSelector{}, fmt.Errorf("field selector %q: %w", text, err)
		}
		out.all = append(out.all, c)
	}
	return out, nil
}

// fieldTerms cuts at the commas that a condition follows.
func fieldTerms(text string, allowed []selectorField) []string {
	var out []string
	open := false // the last value may continue
	for part := range strings.SplitSeq(text, ",") {
		f := fieldOf(part, allowed)
		if len(out) > 0 && open && f == nil {
			out[len(out)-1] += "," + part
			continue
		}
		out = append(out, part)
		open = f != nil && f.Open
	}
	return out
}

// fieldOf returns the field of a condition; nil: the condition is on none of these.
func fieldOf(term string, allowed []selectorField) *selectorField {
	name, _, ok := strings.Cut(term, "=")
	if !ok {
		return nil
	}
	name = strings.TrimSpace(strings.TrimSuffix(name, "!"))
	i := slices.IndexFunc(allowed, func(f selectorField) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &allowed[i]
}

func parseCondition(term string, allowed []selectorField) (fieldCondition, error) {
	name, value, ok := strings.Cut(term, "=")
	if !ok {
		return fieldCondition{}, fmt.Errorf("%q: want FIELD=VALUE or FIELD!=VALUE", term)
	}
	var c fieldCondition
	if before, found := strings.CutSuffix(name, "!"); found {
		c.not, name = true, before
	} else {
		value = strings.TrimPrefix(value, "=")
	}
	c.field, c.value = strings.TrimSpace(name), strings.TrimSpace(value)
	f := fieldOf(term, allowed)
	if f == nil {
		names := make([]string, len(allowed))
		for k := range allowed {
			names[k] = allowed[k].Name
		}
		return fieldCondition{}, fmt.Errorf("field %q: want one of %s", c.field, strings.Join(names, ", "))
	}
	if f.Check != nil {
		if err := f.Check(c.value); err != nil {
			return fieldCondition{}, fmt.Errorf("%s: given %q: %w", c.field, c.value, err)
		}
	}
	return c, nil
}

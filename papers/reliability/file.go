package reliability

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"sigs.k8s.io/yaml"
)

// The limits of a model: a person reads it.
const (
	maxEstimates = 8
	maxDepth     = 8
)

// Parse reads a model in YAML or JSON. It refuses unknown keys, and reports all errors at once.
func Parse(b []byte) (Model, error) {
	var m Model
	if err := yaml.UnmarshalStrict(b, &m); err != nil {
		return Model{}, fmt.Errorf("reliability model: %w", err)
	}
	if err := m.Validate(); err != nil {
		return Model{}, fmt.Errorf("reliability model: %w", err)
	}
	return m.withDefaults(), nil
}

// UnmarshalJSON accepts a number or a list of numbers.
func (c *Coverage) UnmarshalJSON(b []byte) error {
	var one float64
	if err := json.Unmarshal(b, &one); err == nil && string(b) != "null" {
		*c = Coverage{one}
		return nil
	}
	var many []float64
	if err := json.Unmarshal(b, &many); err != nil || many == nil {
		return fmt.Errorf("coverage %s: want a number from 0 to 1, or a list of such numbers, one for each estimate", b)
	}
	*c = many
	return nil
}

func (m Model) withDefaults() Model {
	if m.Hours == 0 {
		m.Hours = HoursPerYear
	}
	if len(m.Estimates) == 0 {
		m.Estimates = []string{"coverage"}
	}
	return m
}

// Validate names everything that is wrong.
func (m Model) Validate() error {
	d := m.withDefaults()
	c := checker{estimates: len(d.Estimates)}
	c.positive("hours", d.Hours)
	if len(d.Estimates) > maxEstimates {
		c.wrong("estimates: given %d: want at most %d", len(d.Estimates), maxEstimates)
	}
	c.names("estimates", d.Estimates)
	if len(m.Faults) == 0 {
		c.wrong("faults: none: want at least one kind")
	}
	c.names("faults", namesOf(m.Faults, func(k Kind) string { return k.Name }))
	for i, k := range m.Faults {
		at := fmt.Sprintf("faults[%d]", i)
		if len(k.Sources) == 0 {
			c.wrong("%s.sources: none: want at least one", at)
		}
		c.names(at+".sources", namesOf(k.Sources, func(s Source) string { return s.Name }))
		for j, s := range k.Sources {
			c.source(fmt.Sprintf("%s.sources[%d]", at, j), s)
		}
		if r := float64(k.Rate()); len(c.errs) == 0 && (!(r > 0) || math.IsInf(r, 0)) {
			c.wrong("%s.sources: their rates add up to %v failures an hour: too small or too large a number", at, r)
		}
		c.classes(at+".classes", k.Classes, 1)
	}
	if r := float64(m.rate()); len(c.errs) == 0 && math.IsInf(r, 0) {
		c.wrong("faults: the rates of all kinds add up to %v failures an hour: too large a number", r)
	}
	return errors.Join(c.errs...)
}

func namesOf[T any](of []T, name func(T) string) []string {
	var out []string
	for _, v := range of {
		out = append(out, name(v))
	}
	return out
}

type checker struct {
	estimates int
	errs      []error
}

func (c *checker) wrong(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

func (c *checker) positive(field string, v float64) {
	if !(v > 0) || math.IsInf(v, 0) {
		c.wrong("%s: %v: want a number above 0", field, v)
	}
}

func (c *checker) names(field string, names []string) {
	for i, n := range names {
		if n == "" {
			c.wrong("%s[%d]: no name", field, i)
		} else if slices.Contains(names[:i], n) {
			c.wrong("%s[%d]: name %q is there twice", field, i, n)
		}
	}
}

func (c *checker) source(at string, s Source) {
	c.positive(at+".count", s.Count)
	given := 0
	for _, r := range []struct {
		name string
		v    float64
	}{{"perMillionHours", s.PerMillionHours}, {"perYear", s.PerYear}, {"mttfHours", s.MTTFHours}} {
		if r.v != 0 {
			given++
			c.positive(at+"."+r.name, r.v)
		}
	}
	if given != 1 {
		c.wrong("%s: %d rates: want exactly one of perMillionHours, perYear and mttfHours, above 0", at, given)
	}
}

func (c *checker) classes(at string, classes []Class, depth int) {
	if len(classes) == 0 {
		c.wrong("%s: none: want at least one", at)
	}
	if depth > maxDepth {
		c.wrong("%s: %d classes within one another: want at most %d", at, depth, maxDepth)
		return
	}
	c.names(at, namesOf(classes, func(k Class) string { return k.Name }))
	total := 0.0
	for i, k := range classes {
		here := fmt.Sprintf("%s[%d]", at, i)
		c.positive(here+".weight", k.Weight)
		total += k.Weight
		switch n := len(k.Coverage); {
		case len(k.Classes) > 0 && n > 0:
			c.wrong("%s: coverage and classes: want one of them", here)
		case len(k.Classes) > 0:
			c.classes(here+".classes", k.Classes, depth+1)
		case n != 1 && n != c.estimates:
			c.wrong("%s.coverage: %d numbers: want one, or one for each of the %d estimates", here, n, c.estimates)
		}
		for _, v := range k.Coverage {
			if !(v >= 0 && v <= 1) {
				c.wrong("%s.coverage: %v: want 0 to 1", here, v)
			}
		}
	}
	if math.IsInf(total, 1) {
		c.wrong("%s: the weights add up to %v", at, total)
	}
}

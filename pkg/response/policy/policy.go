// Package policy reads ResponsePolicy documents: YAML in the manner of Kubernetes, checked as a whole before any of it
// is used. What is wrong is said all at once, each with the field, what was given and what is allowed: types, unknown
// and duplicate fields, and rules that nothing could ever reach.
//
//	apiVersion: lofamo.io/v1
//	kind: ResponsePolicy
//	metadata:
//	  name: drain-failing-memory
//	spec:
//	  mode: observe-only                   # or enforce
//	  target: Node                         # or Group: group faults, with other variables
//	  match: fault.component == "memory" && fault.state == "FAILED" && fault.duration >= duration("1m")
//	  guards: {approvals: 1, maxNodes: 2, cooldown: 1h, maxEvidenceAge: 30s}
//	  steps:
//	  - {name: cordon, executor: kubernetes.cordon, timeout: 30s, retries: 3, wait: 10m, onFailure: stop}
//	  - {name: drain, executor: kubernetes.drain, parameters: {gracePeriod: 5m}, timeout: 30m, onFailure: next}
//	  - {name: reset, executor: power.reset, parameters: {method: redfish}, timeout: 10m}
//	  undo: {onRecovery: true, after: 10m}
//
// A condition is CEL, type-checked, and bounded in what one evaluation may cost. It is asked again when the fault
// changes, and when fault.duration passes one of the durations that it is compared with: so it may be compared with
// literals only.
//
// It says nothing of when a policy may act: that is pkg/response, and no document changes it. Nor does it know where
// documents are stored.
package policy

import (
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/response"
)

// The only version and kind that there are.
const (
	APIVersion = "lofamo.io/v1"
	DocKind    = "ResponsePolicy"
)

// Bounds of what is read.
const (
	MaxBytes     = 1 << 20 // of a file
	MaxDocuments = 200     // in a file, and in force
	MaxSteps     = 16      // of a policy
	MaxMatch     = 2048    // bytes of a condition
)

// Document is one policy, as written and as compiled.
type Document struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Description string
	Match       string // the condition
	// JSON is the document itself in canonical JSON; Parse reads it back alike.
	JSON   []byte
	Policy *response.Policy
}

// Parse reads a file of one document or several, separated by "---", and checks each by itself and all together.
func Parse(b []byte) ([]*Document, error) {
	return ParseWhile(b, func() error { return nil })
}

// ParseWhile is like Parse, but calls more before each document and stops with its error. A document takes some milliseconds.
func ParseWhile(b []byte, more func() error) ([]*Document, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("policies: given %d bytes: want at most %d", len(b), MaxBytes)
	}
	texts := split(b)
	switch n := len(texts); {
	case n == 0:
		return nil, errors.New("policies: given no document: want at least one")
	case n > MaxDocuments:
		return nil, fmt.Errorf("policies: given %d documents: want at most %d", n, MaxDocuments)
	}
	var docs []*Document
	var errs []error
	c := &compiler{}
	for i, text := range texts {
		if err := more(); err != nil {
			return nil, err
		}
		doc, name, bad := parse(text, c)
		for _, err := range bad {
			errs = append(errs, fmt.Errorf("%s: %w", place(i, len(texts), name), err))
		}
		if len(bad) == 0 {
			docs = append(docs, doc)
		}
	}
	if len(errs) == 0 {
		errs = checkSet(docs)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return docs, nil
}

// place says which document an error is of.
func place(i, of int, name string) string {
	switch {
	case name != "":
		return "policy " + name
	case of > 1:
		return fmt.Sprintf("document %d", i+1)
	default:
		return "policy"
	}
}

// CheckSet says what is wrong with documents together, each of which is right by itself.
func CheckSet(docs []*Document) error { return errors.Join(checkSet(docs)...) }

func checkSet(docs []*Document) []error {
	var errs []error
	if len(docs) > MaxDocuments {
		errs = append(errs, fmt.Errorf("policies: given %d: want at most %d", len(docs), MaxDocuments))
	}
	names, does := map[string]bool{}, map[string]string{}
	for _, d := range docs {
		if names[d.Name] {
			errs = append(errs, fmt.Errorf("policy %s: metadata.name: given twice: want distinct names", d.Name))
			continue
		}
		names[d.Name] = true
		if other, same := does[d.deeds()]; same {
			errs = append(errs, fmt.Errorf("policy %s: spec.match: the same condition and the same steps as policy %s: want one of the two",
				d.Name, other))
		}
		does[d.deeds()] = d.Name
	}
	return errs
}

// deeds is what a policy does and when, as text.
func (d *Document) deeds() string {
	out := []string{strings.Join(strings.Fields(d.Match), " "), fmt.Sprint(d.Policy.Groups)}
	for _, s := range d.Policy.Steps {
		out = append(out, fmt.Sprint(s.Kind, s.Parameters)) // maps print sorted
	}
	return strings.Join(out, "\n")
}

// Policies returns the compiled policies, for response.PoliciesChanged.
func Policies(docs []*Document) []*response.Policy {
	out := make([]*response.Policy, 0, len(docs))
	for _, d := range docs {
		out = append(out, d.Policy)
	}
	return out
}

//go:embed defaults/*.yaml
var defaults embed.FS

// DefaultYAML returns the policies that the project ships, one document after the other. All of them only observe.
func DefaultYAML() ([]byte, error) {
	entries, err := defaults.ReadDir("defaults")
	if err != nil {
		return nil, fmt.Errorf("default policies: %w", err)
	}
	var out [][]byte
	for _, entry := range entries {
		b, err := defaults.ReadFile("defaults/" + entry.Name())
		if err != nil {
			return nil, fmt.Errorf("default policies: %w", err)
		}
		out = append(out, b)
	}
	return slices.Concat(interleave(out, []byte("---\n"))...), nil
}

func interleave(parts [][]byte, between []byte) [][]byte {
	var out [][]byte
	for i, p := range parts {
		if i > 0 {
			out = append(out, between)
		}
		out = append(out, p)
	}
	return out
}

// Default returns the policies that the project ships.
func Default() ([]*Document, error) {
	b, err := DefaultYAML()
	if err != nil {
		return nil, err
	}
	return Parse(b)
}

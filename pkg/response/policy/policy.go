// Package policy reads ResponsePolicy documents: YAML in the manner of Kubernetes, checked as a whole before any of it
// is used. It reports all errors at once, each with the field, the given value and the permitted values. Errors include
// wrong types, unknown and duplicate fields, and rules that can never take effect.
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
// A condition is CEL, type-checked, with a limited cost per evaluation. It is evaluated again when the fault changes,
// and when fault.duration passes one of the durations in the condition. It may therefore compare durations with
// literals only.
//
// A policy does not determine when it may act: that is pkg/response, and no document changes it. The package does not
// know where documents are stored either.
package policy

import (
	"embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/response"
)

// The only supported version and kind.
const (
	APIVersion = "lofamo.io/v1"
	DocKind    = "ResponsePolicy"
)

// Limits of the input.
const (
	MaxBytes     = 1 << 20 // of a file
	MaxDocuments = 200     // in a file, and in force
	MaxSteps     = 16      // of a policy
	MaxMatch     = 2048    // bytes of a condition

	maxDescription = 1024 // bytes
	maxText        = 317  // bytes of the type of a condition in Kubernetes
	maxRetries     = 10
	maxNodes       = 1 << 20
)

// Document is one policy, as written and as compiled.
type Document struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	Description string
	Match       string // the condition
	// JSON is the document itself in canonical JSON; Parse restores the same document.
	JSON   []byte
	Policy *response.Policy
}

// Parse parses a file with one or more documents, separated by "---", and checks each by itself and all together.
func Parse(b []byte) ([]*Document, error) {
	return ParseWhile(b, func() error { return nil })
}

// ParseWhile is like Parse, but calls more before each document and stops on its error. A document takes some
// milliseconds.
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

// place names the document of an error.
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

// CheckNew returns the values that new documents may not have, although Parse accepts them: an earlier version may have stored such
// documents, and they stay in force.
func CheckNew(docs []*Document) error {
	var errs []error
	for _, d := range docs {
		for i, s := range d.Policy.Steps {
			if s.Kind.Traits().Remote && s.Timeout > response.MaxRemoteTimeout {
				errs = append(errs, fmt.Errorf("policy %s: spec.steps[%d].timeout: given %s: want at most %s with %s", d.Name, i,
					hours(s.Timeout), hours(response.MaxRemoteTimeout), s.Kind))
			}
		}
	}
	return errors.Join(errs...)
}

// CheckTargets returns the steps that name a target which does not exist or cannot do what they need. names returns the targets for a kind
// of step.
func CheckTargets(docs []*Document, names func(response.Kind) []string) error {
	var errs []error
	for _, d := range docs {
		for i, s := range d.Policy.Steps {
			target, all := s.Parameters["target"], names(s.Kind)
			if target != "" && !slices.Contains(all, target) {
				errs = append(errs, fmt.Errorf("policy %s: spec.steps[%d].parameters.target: given %s: %w", d.Name, i, target, response.NoTarget(all)))
			}
		}
	}
	return errors.Join(errs...)
}

// CheckSet returns the conflicts between documents, each of which is valid by itself.
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

// deeds describes the policy's actions and conditions as text. The order of the outside conditions does not matter.
func (d *Document) deeds() string {
	out := []string{strings.Join(strings.Fields(d.Match), " "), fmt.Sprint(d.Policy.Groups)}
	for _, o := range d.Policy.Outside {
		out = append(out, fmt.Sprintf("%+v", o))
	}
	slices.Sort(out[2:])
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

// DefaultYAML returns the policies that the project ships as one YAML stream. All of them only observe.
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

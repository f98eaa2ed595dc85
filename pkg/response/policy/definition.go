package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/pkg/response"
)

// schema is a part of an OpenAPI schema.
type schema = map[string]any

// maxDurationText bounds the text of a duration in a schema.
const maxDurationText = 32

// celText returns a text as a literal of CEL. It may contain no quotation mark.
func celText(s string) string { return "r'" + s + "'" }

func celList(list []string) string { return "['" + strings.Join(list, "', '") + "']" }

// celDuration returns the check of a duration, which CEL reads as Go does.
func celDuration(v string, least, most time.Duration) string {
	return fmt.Sprintf("duration(%s) >= duration('%s') && duration(%s) <= duration('%s')", v, hours(least), v, hours(most))
}

// celField returns the access to a field. CEL escapes its own words.
func celField(of, name string) string {
	if name == "for" || name == "namespace" {
		name = "__" + name + "__"
	}
	return of + "." + name
}

func rule(cel, message string) schema { return schema{"rule": cel, "message": message} }

func mapping(required []string, rules []any, properties schema) schema {
	s := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	if len(rules) > 0 {
		s["x-kubernetes-validations"] = rules
	}
	return s
}

func explained(text string, s schema) schema {
	s["description"] = text
	return s
}

func textSchema(most int) schema {
	return schema{"type": "string", "maxLength": most, "x-kubernetes-validations": []any{
		rule(fmt.Sprintf("size(bytes(self)) <= %d", most), fmt.Sprintf("want at most %d bytes", most))}}
}

func optionSchema(options ...string) schema { return schema{"type": "string", "enum": options} }

func numberSchema(least, most int) schema {
	return schema{"type": "integer", "minimum": least, "maximum": most}
}

func durationSchema(least time.Duration) schema {
	return schema{"type": "string", "maxLength": maxDurationText, "x-kubernetes-validations": []any{
		rule(celDuration("self", least, maxTime), fmt.Sprintf("want a duration from %s to %s, as in 30s or 1h30m", least, hours(maxTime)))}}
}

// kindsWith lists the kinds of executors with a trait.
func kindsWith(has func(response.Traits) bool) []string {
	var out []string
	for _, k := range response.Kinds() {
		if has(k.Traits()) {
			out = append(out, string(k))
		}
	}
	return out
}

// stepSchema returns the schema of a step, with a rule for each executor and for each parameter.
func stepSchema() schema {
	var rules []any
	users, params := map[string][]string{}, schema{}
	for _, k := range response.Kinds() {
		var checks, wants []string
		for _, p := range parametersOf[k] {
			users[p.name] = append(users[p.name], string(k))
			params[p.name] = schema{"type": p.of}
			if p.of == "string" {
				params[p.name] = schema{"type": p.of, "maxLength": maxText}
			}
			v := celField("self.parameters", p.name)
			check := strings.ReplaceAll(p.cel, "{v}", v)
			switch {
			case p.required:
				checks = append(checks, "has(self.parameters) && has("+v+") && "+check)
			case check != "":
				checks = append(checks, "(!has(self.parameters) || !has("+v+") || "+check+")")
			default:
				continue
			}
			wants = append(wants, p.name+": "+p.want)
		}
		if len(checks) > 0 {
			rules = append(rules, rule(fmt.Sprintf("self.executor != '%s' || %s", k, strings.Join(checks, " && ")),
				fmt.Sprintf("parameters of %s: want %s", k, strings.Join(wants, "; "))))
		}
	}
	for _, p := range slices.Sorted(maps.Keys(users)) {
		v := celField("self.parameters", p)
		rules = append(rules, rule("!has(self.parameters) || !has("+v+") || self.executor in "+celList(users[p]),
			fmt.Sprintf("parameters.%s: want it only with %s", p, strings.Join(users[p], ", "))))
	}
	return mapping([]string{"name", "executor"}, rules, schema{
		"name": schema{"type": "string", "maxLength": 63, "pattern": name.String()},
		"executor": explained("The executor, as described in docs/responses.md.",
			optionSchema(kindsWith(func(response.Traits) bool { return true })...)),
		"parameters": mapping(nil, nil, params),
		"timeout":    durationSchema(time.Second),
		"retries":    numberSchema(0, maxRetries),
		"wait":       explained("The pause after the step.", durationSchema(0)),
		"onFailure":  optionSchema("stop", "next"),
	})
}

// specSchema returns the schema of a spec. It refuses nothing that Parse accepts, apart from very long texts of durations. Parse also
// compiles the condition, and compares the policy with the others.
func specSchema() schema {
	last := "self.steps[size(self.steps) - 1]"
	undone := "has(self.undo) && has(self.undo.onRecovery) && self.undo.onRecovery"
	uses := func(kinds []string) string { return "self.steps.exists(s, s.executor in " + celList(kinds) + ")" }
	acts := uses(kindsWith(func(t response.Traits) bool { return t.Class > response.Notify }))
	waits := kindsWith(func(t response.Traits) bool { return t.Waits })
	group := "has(self.target) && self.target == 'Group'"
	rules := []any{
		rule("self.steps.all(s, self.steps.exists_one(o, o.name == s.name))", "steps: want distinct names"),
		rule("!("+group+") || self.steps.all(s, s.executor in "+celList(kindsWith(func(t response.Traits) bool { return t.Groups }))+")",
			"steps: want executors that may respond to group faults with target: Group"),
		rule("!("+group+") || !has(self.outside)", "outside: want none with target: Group, because conditions describe one node"),
		rule("!has("+last+".wait) || duration("+last+".wait) == duration('0s')", "steps: want no wait at the last step: nothing comes after it"),
		rule("!has("+last+".onFailure) || "+last+".onFailure != 'next'", "steps: want onFailure: stop at the last step: nothing comes after it"),
		rule("!("+last+".executor in "+celList(waits)+")",
			"steps: want another executor than "+strings.Join(waits, ", ")+" at the last step: it only delays the steps after it"),
		rule("self.steps.all(s, !(s.executor in "+celList(waits)+") || !has(s.onFailure) || s.onFailure != 'next')",
			"steps: want onFailure: stop with "+strings.Join(waits, ", ")+": the steps after it need a node that is down"),
		rule("!("+undone+") || "+uses(kindsWith(func(t response.Traits) bool { return t.Undoable })),
			"undo.onRecovery: want false: no step can be undone"),
		rule("("+undone+") || !"+uses([]string{string(response.KubernetesRemediate)}),
			"undo.onRecovery: want true with kubernetes.remediate: the remediation must end when the fault is gone"),
		rule("!has(self.undo) || !has(self.undo.after) || "+undone,
			"undo.after: want onRecovery: true as well, because otherwise nothing is undone"),
		rule("!has(self.guards) || !has(self.guards.approvals) || self.guards.approvals == 0 || "+acts,
			"guards.approvals: want none: the steps only notify"),
		rule("!has(self.guards) || !has(self.guards.maxNodes) || "+acts, "guards.maxNodes: want none: the steps only notify"),
	}
	match := textSchema(MaxMatch)
	match["pattern"] = `\S`
	outside := mapping([]string{"condition"}, nil, schema{
		"condition": schema{"type": "string", "maxLength": maxText, "pattern": conditionName.String(), "x-kubernetes-validations": []any{
			rule("!self.startsWith('lofamo.io/') || self in "+celList(response.ControllerConditions()),
				"want the type of another program's condition, or one of a management controller")}},
		"status": optionSchema("True", "False", "Unknown"),
		"for":    durationSchema(0),
	})
	return explained("The policy, as in docs/responses.md.", mapping([]string{"match", "steps"}, rules, schema{
		"description": textSchema(maxDescription),
		"mode":        explained("observe-only, the default, or enforce.", optionSchema("observe-only", "enforce")),
		"target":      explained("Node, the default, or Group.", optionSchema("Node", "Group")),
		"match":       explained("The condition on a fault, in CEL.", match),
		"outside":     schema{"type": "array", "minItems": 1, "maxItems": response.MaxOutside, "items": outside},
		"guards": mapping(nil, nil, schema{
			"approvals":      numberSchema(0, response.MaxApprovals),
			"maxNodes":       numberSchema(1, maxNodes),
			"cooldown":       durationSchema(0),
			"maxEvidenceAge": durationSchema(time.Second),
		}),
		"steps": schema{"type": "array", "minItems": 1, "maxItems": MaxSteps, "items": stepSchema()},
		"undo":  mapping(nil, nil, schema{"onRecovery": schema{"type": "boolean"}, "after": durationSchema(0)}),
	}))
}

// definitionHead is the definition without the spec's schema.
const definitionHead = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: faultpolicies.lofamo.io}
spec:
  group: lofamo.io
  scope: Namespaced
  names: {kind: FaultPolicy, listKind: FaultPolicyList, plural: faultpolicies, singular: faultpolicy, categories: [lofamo]}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Mode, type: string, jsonPath: .status.mode}
    - {name: Accepted, type: string, jsonPath: '.status.conditions[?(@.type=="Accepted")].status'}
    - {name: Reason, type: string, jsonPath: '.status.conditions[?(@.type=="Accepted")].reason'}
    - {name: Version, type: integer, jsonPath: .status.version, priority: 1}
    - {name: Last Fired, type: date, jsonPath: .status.lastFired}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    - {name: Message, type: string, jsonPath: '.status.conditions[?(@.type=="Accepted")].message', priority: 1}
    schema:
      openAPIV3Schema:
        description: FaultPolicy is a policy of responses to faults. The leader of the supervisors puts it in force.
        type: object
        required: [spec]
        x-kubernetes-validations:
        - {rule: size(self.metadata.name) <= 63, message: 'metadata.name: want at most 63 characters'}
        properties:
          apiVersion: {type: string}
          kind: {type: string}
          metadata: {type: object}
          status:
            type: object
            properties:
              observedGeneration: {description: The generation that the conditions describe., type: integer, format: int64, minimum: 0}
              mode: {description: 'The mode of the policy in force: observe-only or enforce.', type: string, maxLength: 63}
              version: {description: 'Its version, as in lofamoctl get policies.', type: integer, format: int64, minimum: 0}
              lastFired: {description: 'The time of the last response of the policy.', type: string, format: date-time}
              conditions:
                description: 'Accepted: True if this generation is in force. If not, the last accepted one stays in force.'
                type: array
                maxItems: 8
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [type]
                items:
                  type: object
                  required: [type, status, reason, message, lastTransitionTime]
                  properties:
                    type: {type: string, minLength: 1, maxLength: 316}
                    status: {type: string, enum: ['True', 'False', Unknown]}
                    reason: {type: string, minLength: 1, maxLength: 1024}
                    message: {type: string, maxLength: 1024}
                    lastTransitionTime: {type: string, format: date-time}
                    observedGeneration: {type: integer, format: int64, minimum: 0}
`

// Definition returns the custom resource definition of FaultPolicy, whose spec is that of a ResponsePolicy. 'make generate' writes it
// to deploy/kubernetes.
func Definition() ([]byte, error) {
	var d struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(definitionHead), &d); err != nil {
		return nil, fmt.Errorf("definition of FaultPolicy: %w", err)
	}
	versions, _ := d.Spec["versions"].([]any)
	version, _ := versions[0].(map[string]any)
	outer, _ := version["schema"].(map[string]any)
	top, _ := outer["openAPIV3Schema"].(map[string]any)
	properties, _ := top["properties"].(map[string]any)
	properties["spec"] = specSchema()
	b, err := yaml.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("definition of FaultPolicy: %w", err)
	}
	return append([]byte("# FaultPolicy: a policy of responses as an object (docs/kubernetes.md). Made by 'make generate' from the rules of "+
		"pkg/response/policy.\n"), b...), nil
}

// FromSpec returns the document of a policy with that name and spec, in JSON, for Parse.
func FromSpec(name string, spec []byte) ([]byte, error) {
	b, err := json.Marshal(map[string]any{
		"apiVersion": APIVersion, "kind": DocKind, "metadata": map[string]string{"name": name}, "spec": json.RawMessage(spec)})
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", name, err)
	}
	return escaped(b), nil
}

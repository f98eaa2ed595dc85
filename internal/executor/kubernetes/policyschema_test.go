package kubernetes

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/testing/kubetest"
	"github.com/lofamo/lofamo/pkg/response"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

// policySpec is a spec with one step.
func policySpec(executor, parameters string) string {
	return "match: fault.state == \"FAILED\"\nsteps: [{name: a, executor: " + executor + ", parameters: {" + parameters + "}}]\n"
}

// goodParameters are parameters of each kind that needs any.
var goodParameters = map[response.Kind]string{
	response.KubernetesCondition: "type: LofamoFault, reason: Broken",
	response.KubernetesEvent:     "reason: Broken",
	response.KubernetesLabel:     "key: example.org/a, value: b",
	response.KubernetesTaint:     "key: a, effect: NoSchedule",
	response.KubernetesEvict:     "key: a, value: ''",
	response.KubernetesDrain:     "gracePeriod: 1m, force: true, deleteEmptyDirData: false",
	response.KubernetesRemediate: "apiVersion: a.io/v1, kind: ATemplate, namespace: medik8s, name: a",
	response.SlurmDrain:          "reason: much in words",
	response.WebhookNotify:       "target: a",
	response.WebhookRemediate:    "target: a",
	response.Alertmanager:        "severity: info",
	response.Command:             "command: a",
	response.NodeCheck:           "script: a",
	response.NodeRestartHalf:     "half: dnp",
	response.NodeLimitFrequency:  "percent: 50",
	response.PowerReset:          "method: ipmi",
	response.Eureka:              "text: some words",
}

// refusedSpecs are specs that the API server and we refuse.
func refusedSpecs() map[string]string {
	tell := func(more string) string { return policySpec("alertmanager", "severity: info") + more + "\n" }
	cordon := func(more string) string { return policySpec("kubernetes.cordon", "") + more + "\n" }
	step := func(more string) string {
		return "match: 'true'\nsteps: [{name: a, executor: kubernetes.cordon, " + more + "}, {name: b, executor: kubernetes.cordon}]"
	}
	out := map[string]string{
		"no match":                "steps: [{name: a, executor: kubernetes.cordon}]",
		"empty match":             "match: ' '\nsteps: [{name: a, executor: kubernetes.cordon}]",
		"match of another type":   "match: 5\nsteps: [{name: a, executor: kubernetes.cordon}]",
		"long match":              "match: '" + strings.Repeat("x", policy.MaxMatch+1) + "'\nsteps: [{name: a, executor: kubernetes.cordon}]",
		"many bytes in a match":   "match: '" + strings.Repeat("ä", policy.MaxMatch/2+1) + "'\nsteps: [{name: a, executor: kubernetes.cordon}]",
		"no steps":                "match: 'true'",
		"empty steps":             "match: 'true'\nsteps: []",
		"too many steps":          "match: 'true'\nsteps: [" + strings.Repeat("{name: a, executor: kubernetes.cordon},", policy.MaxSteps+1) + "]",
		"unknown field":           tell("gaurds: {}"),
		"mode":                    tell("mode: on"),
		"target":                  tell("target: Rack"),
		"long description":        tell("description: '" + strings.Repeat("ä", 600) + "'"),
		"approvals":               cordon("guards: {approvals: 3}"),
		"text for a number":       cordon("guards: {approvals: '1'}"),
		"max nodes":               cordon("guards: {maxNodes: 0}"),
		"cooldown":                cordon("guards: {cooldown: 1 hour}"),
		"long cooldown":           cordon("guards: {cooldown: 169h}"),
		"negative cooldown":       cordon("guards: {cooldown: -1s}"),
		"evidence age":            cordon("guards: {maxEvidenceAge: 1ms}"),
		"unknown guard":           cordon("guards: {percent: 5}"),
		"approvals to notify":     tell("guards: {approvals: 1}"),
		"max nodes to notify":     tell("guards: {maxNodes: 1}"),
		"undo of nothing":         policySpec("power.reset", "method: redfish") + "undo: {onRecovery: true}",
		"undo after":              cordon("undo: {after: 1m}"),
		"undo that is no bool":    cordon("undo: {onRecovery: 'yes'}"),
		"remediation for ever":    policySpec("kubernetes.remediate", goodParameters[response.KubernetesRemediate]),
		"outside of a group":      tell("target: Group\noutside: [{condition: A}]"),
		"empty outside":           cordon("outside: []"),
		"nine outside":            cordon("outside: [" + strings.Repeat("{condition: A},", response.MaxOutside+1) + "]"),
		"outside without type":    cordon("outside: [{status: 'True'}]"),
		"outside of a wrong form": cordon("outside: [{condition: a b}]"),
		"our own condition":       cordon("outside: [{condition: lofamo.io/LinksReady}]"),
		"unknown own condition":   cordon("outside: [{condition: lofamo.io/NodePoweredOn}]"),
		"outside status":          cordon("outside: [{condition: A, status: Yes}]"),
		"outside time":            cordon("outside: [{condition: A, for: soon}]"),
		"unknown executor":        policySpec("kubernetes.delete", ""),
		"node's act on a group":   cordon("target: Group"),
		"no executor":             "match: 'true'\nsteps: [{name: a}]",
		"no name":                 "match: 'true'\nsteps: [{executor: kubernetes.cordon}]",
		"name of a step":          "match: 'true'\nsteps: [{name: A, executor: kubernetes.cordon}]",
		"names that are equal": "match: 'true'\nsteps: [{name: a, executor: kubernetes.cordon}, " +
			"{name: a, executor: alertmanager, parameters: {severity: info}}]",
		"timeout":                 step("timeout: 0s"),
		"number for a timeout":    step("timeout: 5"),
		"retries":                 step("retries: 11"),
		"wait":                    step("wait: -1s"),
		"on failure":              step("onFailure: panic"),
		"unknown field of a step": step("when: now"),
		"wait at the end":         "match: 'true'\nsteps: [{name: a, executor: kubernetes.cordon, wait: 1s}]",
		"fence at the end":        "match: 'true'\nsteps: [{name: a, executor: node.fence}]",
		"next after a fence": "match: 'true'\nsteps: [{name: a, executor: node.fence, onFailure: next}, " +
			"{name: b, executor: kubernetes.cordon}]",
		"next at the end":     "match: 'true'\nsteps: [{name: a, executor: kubernetes.cordon, onFailure: next}]",
		"parameter of none":   policySpec("kubernetes.cordon", "force: true"),
		"parameter of others": policySpec("kubernetes.event", "reason: A, severity: info"),
		"unknown parameter":   policySpec("kubernetes.drain", "grace: 1m"),
	}
	for k, bad := range map[response.Kind][]string{
		response.KubernetesCondition: {"", "type: lofamo", "type: A, reason: a", "type: 5"},
		response.KubernetesEvent:     {"", "reason: '1'", "reason: " + strings.Repeat("A", 64)},
		response.KubernetesLabel: {"", "value: a", "key: a b", "key: A/b",
			"key: a/" + strings.Repeat("b", 64), "key: a, value: -", "key: a, value: b c"},
		response.KubernetesTaint: {"", "key: a", "key: a, effect: NoExecute", "effect: NoSchedule"},
		response.KubernetesEvict: {"", "key: '-'", "key: a, value: a/b"},
		response.KubernetesDrain: {"gracePeriod: 61m", "gracePeriod: soon", "gracePeriod: -1s", "force: 'true'", "deleteEmptyDirData: 1"},
		response.KubernetesRemediate: {"",
			"apiVersion: v1, kind: ATemplate, namespace: a, name: a", "apiVersion: a/v1, kind: A, namespace: a, name: a",
			"apiVersion: a/v1, kind: ATemplate, namespace: a.b, name: a", "apiVersion: a/v1, kind: ATemplate, namespace: a, name: A",
			"apiVersion: a/v1, kind: ATemplate, name: a"},
		response.SlurmDrain: {"", "reason: ''", "reason: \"a\\nb\"",
			"reason: " + strings.Repeat("a", 121), "reason: " + strings.Repeat("ä", 61)},
		response.WebhookNotify:      {"", "target: A"},
		response.WebhookRemediate:   {"", "target: a/b"},
		response.Alertmanager:       {"", "severity: high"},
		response.Command:            {"", "command: a b"},
		response.NodeCheck:          {"", "script: ''"},
		response.NodeRestartHalf:    {"", "half: both"},
		response.NodeLimitFrequency: {"", "percent: 9", "percent: 101", "percent: '50'", "percent: 50.5"},
		response.PowerReset:         {"", "method: ssh"},
		response.Eureka:             {"", "text: \"\\x7f\""},
	} {
		for _, p := range bad {
			s := policySpec(string(k), p)
			if k == response.KubernetesRemediate {
				s += "undo: {onRecovery: true}\n"
			}
			out[string(k)+" with "+p] = s
		}
	}
	return out
}

// goodSpecs are specs that the API server and we accept.
func goodSpecs() map[string]string {
	out := map[string]string{
		"fence first": "match: 'true'\nsteps: [{name: a, executor: node.fence, timeout: 15m}, {name: b, executor: kubernetes.cordon}]",
		"every field": `description: some words
mode: enforce
target: Node
match: fault.component == "memory" && fault.state == "FAILED"
outside: [{condition: KernelDeadlock, for: 30s}, {condition: example.org/Healthy, status: "False"}]
guards: {approvals: 2, maxNodes: 3, cooldown: 1h30m, maxEvidenceAge: 168h}
steps:
- {name: a.b-c, executor: kubernetes.cordon, timeout: 1s, retries: 10, wait: 10m, onFailure: next}
- {name: d, executor: kubernetes.drain, wait: 0s, onFailure: stop}
undo: {onRecovery: true, after: 10m}
`,
		"group":             "target: Group\nmatch: fault.members > 2\nsteps: [{name: a, executor: alertmanager, parameters: {severity: info}}]",
		"zero":              policySpec("alertmanager", "severity: info") + "guards: {approvals: 0, cooldown: '0'}\nundo: {onRecovery: false}",
		"links":             "match: fault.component == \"link/X+\"\nsteps: [{name: a, executor: node.mask-channel}]",
		"slash in a key":    policySpec("kubernetes.label", "key: "+strings.Repeat("a", 253)+"/"+strings.Repeat("b", 63)),
		"words of 120 byte": policySpec("slurm.drain", "reason: "+strings.Repeat("ä", 60)),
		"limits":            policySpec("node.limit-frequency", "percent: 100"),
		"grace":             policySpec("kubernetes.drain", "gracePeriod: 60m"),
	}
	for k, p := range goodParameters {
		s := policySpec(string(k), p)
		if k == response.KubernetesRemediate {
			s += "undo: {onRecovery: true}\n"
		}
		out[string(k)] = s
	}
	return out
}

// oursOnly are specs that only we refuse: the API server does not know the variables of a condition.
var oursOnly = map[string]string{
	"condition with an error":       "match: fault.state ==\nsteps: [{name: a, executor: kubernetes.cordon}]",
	"condition on unknown variable": "match: fault.colour == \"red\"\nsteps: [{name: a, executor: kubernetes.cordon}]",
	"mask of no link":               policySpec("node.mask-channel", ""),
}

// createPolicy creates a FaultPolicy as kubectl does, or with dry only has the API server check it.
func createPolicy(t *testing.T, ns, name, spec string, dry bool) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(spec), &v); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	js, err := json.Marshal(map[string]any{
		"apiVersion": objectsVersion, "kind": "FaultPolicy", "metadata": map[string]string{"name": name}, "spec": v})
	if err != nil {
		t.Fatal(err)
	}
	path := objectsPath(ns, "faultpolicies") + "?fieldValidation=Strict"
	if dry {
		path += "&dryRun=All"
	}
	_, err = cluster(t).Admin.Do(http.MethodPost, path, "", js)
	return err
}

// parsePolicy checks a spec as the supervisors do.
func parsePolicy(t *testing.T, name, spec string) error {
	t.Helper()
	js, err := yaml.YAMLToJSON([]byte(spec))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := policy.FromSpec(name, js)
	if err != nil {
		t.Fatal(err)
	}
	_, err = policy.Parse(doc)
	return err
}

// TestServerChecksPoliciesAsWeDo: the API server refuses a FaultPolicy when we refuse its spec, apart from the contents of the condition.
func TestServerChecksPoliciesAsWeDo(t *testing.T) {
	ns := objectsNamespace(t)
	check := func(specs map[string]string, server, ours bool) {
		for name, spec := range specs {
			err := createPolicy(t, ns, "a", spec, true)
			if refused, is := errors.AsType[*kubetest.StatusError](err); err != nil && (!is || refused.Code != http.StatusUnprocessableEntity &&
				refused.Code != http.StatusBadRequest) {
				t.Fatal(err)
			}
			if (err == nil) != server {
				t.Errorf("%s: the API server said %v: accepted should be %v", name, err, server)
			}
			if err := parsePolicy(t, "a", spec); (err == nil) != ours {
				t.Errorf("%s: we said %v: accepted should be %v", name, err, ours)
			}
		}
	}
	check(goodSpecs(), true, true)
	check(refusedSpecs(), false, false)
	check(oursOnly, true, false)
	if err := createPolicy(t, ns, strings.Repeat("a", 64), policySpec("kubernetes.cordon", ""), true); err == nil {
		t.Error("the API server accepts a name of 64 characters")
	}
	defaults, err := policy.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range defaults {
		var doc struct {
			Spec any `json:"spec"`
		}
		if err := yaml.Unmarshal(d.JSON, &doc); err != nil {
			t.Fatal(err)
		}
		b, err := yaml.Marshal(doc.Spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := createPolicy(t, ns, d.Name, string(b), true); err != nil {
			t.Errorf("default policy %s: %v", d.Name, err)
		}
	}
}

// TestEveryParameterIsChecked: the table above has a good and a bad form for every executor with parameters.
func TestEveryParameterIsChecked(t *testing.T) {
	bad := refusedSpecs()
	for _, k := range response.Kinds() {
		if _, has := goodParameters[k]; has != (parsePolicy(t, "a", policySpec(string(k), "")) != nil || k == response.KubernetesDrain) &&
			k != response.NodeMaskChannel && k != response.NodeFence { // neither can be a policy's only step
			t.Errorf("%s: good parameters %v", k, has)
		}
		found := false
		for name := range bad {
			found = found || strings.HasPrefix(name, string(k)+" with ")
		}
		if _, has := goodParameters[k]; has && !found {
			t.Errorf("%s: no bad parameters in the table", k)
		}
	}
}

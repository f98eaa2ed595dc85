package policy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/response"
)

// withOutside is a policy with outside conditions.
func withOutside(target, outside string) string {
	return `apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: p}
spec:
  match: fault.state == "FAILED"
  target: ` + target + `
  outside: ` + outside + `
  steps:
  - {name: tell, executor: alertmanager, parameters: {severity: info}}
`
}

func TestOutsideConditionsAreRead(t *testing.T) {
	docs, err := Parse([]byte(withOutside("Node",
		`[{condition: KernelDeadlock, for: 30s}, {condition: example.org/Healthy, status: "False"}, {condition: lofamo.io/NodePoweredOff}]`)))
	if err != nil {
		t.Fatal(err)
	}
	want := []response.Outside{{Condition: "KernelDeadlock", Status: "True", For: 30 * time.Second},
		{Condition: "example.org/Healthy", Status: "False"}, {Condition: response.NodePoweredOff, Status: "True"}}
	if got := docs[0].Policy.Outside; !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	for given, want := range map[string]string{
		withOutside("Node", `[]`):                                         "spec.outside",
		withOutside("Node", `[{status: "True"}]`):                         "spec.outside[0].condition",
		withOutside("Node", `[{condition: "a b"}]`):                       "spec.outside[0].condition",
		withOutside("Node", `[{condition: lofamo.io/LinksReady}]`):        "spec.outside[0].condition",
		withOutside("Node", `[{condition: A, status: Maybe}]`):            "spec.outside[0].status",
		withOutside("Node", `[{condition: A, for: -1s}]`):                 "spec.outside[0].for",
		withOutside("Node", `[{condition: A, since: 1s}]`):                "spec.outside[0].since",
		withOutside("Node", `[`+strings.Repeat("{condition: A},", 5)+`]`): "spec.outside",
		withOutside("Group", `[{condition: A}]`):                          "spec.outside: given conditions: want none with target: Group",
	} {
		if _, err := Parse([]byte(given)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", given, err, want)
		}
	}
}

func TestOutsideConditionsDistinguishPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		one, other string
		same       bool
	}{
		"another condition": {`[{condition: A}]`, `[{condition: B}]`, false},
		"another status":    {`[{condition: A}]`, `[{condition: A, status: "False"}]`, false},
		"another duration":  {`[{condition: A}]`, `[{condition: A, for: 30s}]`, false},
		"one more":          {`[{condition: A}]`, `[{condition: A}, {condition: B}]`, false},
		"the same":          {`[{condition: A}]`, `[{condition: A, status: "True"}]`, true},
		"another order":     {`[{condition: A}, {condition: B}]`, `[{condition: B}, {condition: A}]`, true},
	} {
		_, err := Parse([]byte(withOutside("Node", c.one) + "---\n" + strings.Replace(withOutside("Node", c.other), "name: p", "name: q", 1)))
		if same := err != nil && strings.Contains(err.Error(), "the same condition and the same steps as policy p"); same != c.same ||
			!same && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

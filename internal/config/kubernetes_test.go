package config

import (
	"strings"
	"testing"
	"time"
)

func TestKubernetesValidationNamesField(t *testing.T) {
	if err := (KubernetesConfig{}).Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for want, given := range map[string]KubernetesConfig{
		`kubeconfig: given here: want an absolute path`:                                     {Kubeconfig: "here"},
		`context: given c: want nothing without kubeconfig`:                                 {Context: "c"},
		`nodeName: given node: want a text of a-z, 0-9, '-' and '.' with {node} in it once`: {NodeName: "node"},
		`nodeName: given {node}{node}`:                                                      {NodeName: "{node}{node}"},
		`nodeLabel: given l: want nothing beside nodeName`:                                  {NodeName: "{node}", NodeLabel: "l"},
		`nodeLabel: label key "not a key"`:                                                  {NodeLabel: "not a key"},
		`qps: given 2001: want 1 to 2000`:                                                   {QPS: 2001},
		`burst: given -1: want 1 to 4000`:                                                   {Burst: -1},
		`requestTimeout: given 2m: want 100ms to 1m`:                                        {RequestTimeout: Duration(2 * time.Minute)},
		`requestTimeout: given -1ns`:                                                        {QPS: -1, RequestTimeout: Duration(-1)},
		`qps: given 3000`:                                                                   {Kubeconfig: "/k", Context: "c", QPS: 3000},
		`nodeName: given UPPER-{node}`:                                                      {NodeName: "UPPER-{node}", NodeLabel: "a/b"},
		`conditions.types[0]: given lower`: {Conditions: &KubernetesConditions{Types: []string{
			"lower"}}},
		`conditions.types[0]: given Ready: want none of`: {Conditions: &KubernetesConditions{Types: []string{
			"Ready"}}},
		`conditions.types[1]: given A: want each type once`: {Conditions: &KubernetesConditions{Types: []string{
			"A", "A"}}},
		`conditions.types: given 9: want at most 8`: {Conditions: &KubernetesConditions{
			Types: make([]string, 9)}},
		`conditions.heartbeat: given 1s: want 1m to 1h`: {Conditions: &KubernetesConditions{Enabled: true,
			Heartbeat: Duration(time.Second)}},
		`goodConditions.A: given good: want "True" or "False"`: {GoodConditions: map[string]string{"A": "good"}},
		`goodConditions.a b: label key "a b"`:                  {GoodConditions: map[string]string{"a b": "True"}},
	} {
		if err := given.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", given, err, want)
		}
	}
	for given, want := range map[string]string{"": "N1", "{node}": "N1", "a-{node}.b": "a-N1.b"} {
		if got := (KubernetesConfig{NodeName: given}).NameOf("N1"); got != want {
			t.Errorf("%s: %s, want %s", given, got, want)
		}
		if got := (KubernetesConfig{NodeName: given}).IDOf(want); got != "N1" {
			t.Errorf("%s: %s is %q, want N1", given, want, got)
		}
	}
	for _, name := range []string{"N1", "a-N1", "N1.b", "a-.b", "a"} {
		if got := (KubernetesConfig{NodeName: "a-{node}.b"}).IDOf(name); got != "" {
			t.Errorf("%s: %q, want none", name, got)
		}
	}
}

func TestKubernetesObjectsNameWhatIsWrong(t *testing.T) {
	for want, c := range map[string]KubernetesObjects{
		"":                                 {},
		"kubernetes.namespace: given":      {Faults: true},
		"kubernetes.namespace: given n":    {Policies: true},
		"kubernetes.namespace: given a":    {Namespace: "a"},
		"kubernetes.namespace: given A.b":  {Namespace: "A.b", Faults: true},
		"kubernetes.kubeconfig":            {Namespace: "a", Faults: true, Kubeconfig: "b"},
		"kubernetes.context":               {Namespace: "a", Faults: true, Context: "b"},
		"kubernetes.maxFaults: given 1001": {Namespace: "a", Faults: true, MaxFaults: 1001},
		"kubernetes.keepClosed: given 1s":  {Namespace: "a", Faults: true, KeepClosed: Duration(time.Second)},
	} {
		p := &problems{}
		c.validate(p)
		if err := p.err(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q", c, err, want)
		}
	}
}

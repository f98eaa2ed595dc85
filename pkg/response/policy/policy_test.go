package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestPolicyErrors plays testdata/*.txt: documents, "----", the expected errors; "====" between two cases.
func TestPolicyErrors(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		var out []string
		for part := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n====\n") {
			doc, _, _ := strings.Cut(part, "\n----")
			docs, err := Parse([]byte(doc))
			said := "right"
			if err != nil {
				said = err.Error()
			}
			if (err == nil) == (len(docs) == 0) {
				t.Errorf("%d documents and error %v of\n%s", len(docs), err, doc)
			}
			out = append(out, doc+"\n----\n"+said)
		}
		return strings.Join(out, "\n====\n") + "\n"
	})
}

func policyWith(match string) []byte {
	return fmt.Appendf(nil, `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: p}
spec:
  match: %q
  steps:
  - {name: event, executor: kubernetes.event, parameters: {reason: Fault}}
`, match)
}

func compiled(t testing.TB, match string) response.Matcher {
	t.Helper()
	docs, err := Parse(policyWith(match))
	if err != nil {
		t.Fatal(err)
	}
	return docs[0].Policy.Match
}

func TestConditionsMatchFaults(t *testing.T) {
	f := response.Fault{Node: "n1", Component: fault.ComponentMemory, State: fault.Failed, Cause: fault.CauseMemory, Flapping: true,
		Evidence: response.Evidence{SingleWitness: true}}
	s := response.Subject{Fault: f, Labels: map[string]string{"rack": "r7"}, Groups: []string{"ROW"}, Duration: time.Minute, Recurrence: 3}
	for match, want := range map[string]string{
		`fault.component == "memory"`:                                                    "true",
		`fault.component == "host"`:                                                      "false",
		`fault.state == "FAILED" && fault.cause == "MEMORY"`:                             "true",
		`fault.duration >= duration("1m")`:                                               "true",
		`fault.duration > duration("60s")`:                                               "false",
		`fault.recurrence == 3`:                                                          "true",
		`node.labels["rack"] == "r7"`:                                                    "true",
		`node.labels["pool"] == "gpu"`:                                                   "no such key: pool",
		`"pool" in node.labels && node.labels["pool"] == "x"`:                            "false",
		`node.labels[?"pool"].orValue("cpu") == "cpu"`:                                   "true",
		`"ROW" in fault.groups`:                                                          "true",
		`size(fault.groups) == 0`:                                                        "false",
		`fault.singleWitness && fault.flapping && !fault.inferred && !fault.unreachable`: "true",
		`node.id.matches("^n[0-9]$")`:                                                    "true",
		`["memory", "host"].exists(c, c == fault.component)`:                             "true",
		`fault.platform == ""`:                                                           "true",
		`fault.kernelDead == ""`:                                                         "true",
		`fault.kernelDead == "yes"`:                                                      "false",
		`fault.kernelDead == "no"`:                                                       "false",
		`fault.platform == "dpu"`:                                                        "false",
	} {
		got, err := compiled(t, match).Match(&s)
		if said := fmt.Sprint(got); said != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v: want %s", match, got, err, want)
		}
	}
	if got, err := compiled(t, `fault.state == "FAILED"`).Match(&response.Subject{Group: &response.Group{State: fault.Failed}}); got ||
		err != nil {
		t.Errorf("a condition on nodes takes a group fault: %v, %v", got, err)
	}
}

func TestConditionsMatchGroups(t *testing.T) {
	b := bytes.ReplaceAll(policyWith(
		`fault.group == "LABEL" && fault.members * 2 > fault.of && fault.id.startsWith("label/rack=") && fault.state == "FAILED" && `+
			`fault.cause == "NODE"`),
		[]byte("kubernetes.event, parameters: {reason: Fault}"), []byte("alertmanager, parameters: {severity: info}"))
	docs, err := Parse(bytes.Replace(b, []byte("spec:"), []byte("spec:\n  target: Group"), 1))
	if err != nil {
		t.Fatal(err)
	}
	g := response.Group{ID: "label/rack=r7", Kind: "LABEL", State: fault.Failed, Cause: fault.CauseNode,
		Members: []fault.NodeID{"a", "b"}, Of: 3}
	m := docs[0].Policy.Match
	if got, err := m.Match(&response.Subject{Group: &g}); !got || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	if !m.May(0, fault.Failed) || m.May(0, fault.Unknown) || m.May(fault.ComponentNode, fault.Failed) {
		t.Error("it may be for others than failed groups")
	}
}

// TestPossibleMatchesFollowMeaning checks that the possible matches of a condition follow from its meaning, not from its text.
func TestPossibleMatchesFollowMeaning(t *testing.T) {
	for _, tc := range []struct {
		match string
		may   string // component=state, all of them
	}{
		{`fault.component == "memory" && fault.state == "FAILED"`, "memory=FAILED"},
		{`!(fault.component != "memory" || fault.state != "FAILED") && fault.recurrence > 2`, "memory=FAILED"},
		{`fault.cause == "HOST" && fault.component.startsWith("ho") && fault.duration < duration("1m")`, "host=FAILED host=SICK"},
		{`fault.component.endsWith("Z-") && fault.state == "SICK" && node.labels["x"] == "y"`, "link/Z-=SICK"},
	} {
		m := compiled(t, tc.match)
		var got []string
		for _, c := range fault.Components() {
			for _, s := range []fault.State{fault.Failed, fault.Normal, fault.Sick, fault.Unknown} {
				if m.May(c, s) {
					got = append(got, c.String()+"="+s.String())
				}
			}
		}
		if s := strings.Join(got, " "); s != tc.may {
			t.Errorf("%s: may be for %s: want %s", tc.match, s, tc.may)
		}
	}
}

// TestPossibleMatchesTakeFewEvaluations: no condition takes long to compile, and the shipped ones stay far below the limit.
func TestPossibleMatchesTakeFewEvaluations(t *testing.T) {
	docs, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range docs {
		if m, is := d.Policy.Match.(*matcher); !is || m.asked > maxAsked/4 {
			t.Errorf("%s takes %d evaluations: want at most %d", d.Name, m.asked, maxAsked/4)
		}
	}
	var ranges, thresholds []string
	for i := range maxThresholds / 2 {
		ranges = append(ranges, fmt.Sprintf(`fault.duration<duration("%dm")&&fault.duration>duration("%dm")`, 2*i+1, 2*i+2))
	}
	for i := range maxThresholds {
		thresholds = append(thresholds, fmt.Sprintf(`fault.duration>duration("%dm")`, i+1))
	}
	long := func(n int) string { return strings.Repeat("fault.inferred!=fault.flapping&&", n) }
	failed := `||fault.component=="memory"&&fault.state=="FAILED"`
	for _, tc := range []struct {
		match string
		exact bool // it stays below the limit
	}{
		{long(50) + "(" + strings.Join(ranges, "||") + ")" + failed, true},
		{long(40) + `fault.cause=="NONE"&&fault.state!="UNKNOWN"&&(` + strings.Join(thresholds, "||") + ")" + failed, false},
	} {
		begin := time.Now()
		m, is := compiled(t, tc.match).(*matcher)
		t.Logf("%d evaluations in %s", m.asked, time.Since(begin))
		if most := maxAsked + len(fault.Components())*len(badStates); !is || m.asked > most || !m.May(fault.ComponentMemory, fault.Failed) {
			t.Errorf("%d evaluations: want at most %d, and a possible match", m.asked, most)
		}
		if got := !m.May(fault.Component(fault.NumComponents-1), fault.Sick); got != tc.exact {
			t.Errorf("exact %v: want %v", got, tc.exact)
		}
	}
}

// TestExpensivePatternsAreEvaluatedLessOften: the compiler evaluates a condition with an expensive pattern less often, and any other up to
// maxAsked times.
func TestExpensivePatternsAreEvaluatedLessOften(t *testing.T) {
	var thresholds []string
	for i := range maxThresholds {
		thresholds = append(thresholds, fmt.Sprintf(`fault.duration>duration("%dm")`, i+1))
	}
	for text, most := range map[string]int{strings.Repeat("a", 250): 300, "a": maxAsked} {
		never := fmt.Sprintf(`!%q.matches("(.?){230}z")`, text) + ` && fault.cause == "BUS" && fault.cause == "DNP"`
		match := never + ` && node.id != "" && (` + strings.Join(thresholds, "||") + `) || fault.component == "memory"`
		m, is := compiled(t, match).(*matcher)
		if !is || m.asked > most+len(fault.Components())*len(badStates) || !m.May(fault.ComponentMemory, fault.Failed) {
			t.Fatalf("%d bytes: %d evaluations: want at most %d, and a possible match", len(text), m.asked, most)
		}
		t.Logf("%d bytes: %d evaluations", len(text), m.asked)
	}
}

func TestDurationThresholdsAreFound(t *testing.T) {
	m := compiled(t,
		`fault.duration > duration("5m") && !(duration("1h") <= fault.duration) || fault.duration >= duration("5m") && fault.recurrence > 2`)
	if got := m.Thresholds(); !reflect.DeepEqual(got, []time.Duration{5 * time.Minute, time.Hour}) {
		t.Errorf("%v", got)
	}
}

// TestDigestDependsOnContentAlone checks that the digest depends on the content and not on the layout.
func TestDigestDependsOnContentAlone(t *testing.T) {
	digest := func(b []byte) string {
		docs, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		return docs[0].Policy.Digest
	}
	a := policyWith(`fault.state == "SICK"`)
	if got := digest(append([]byte("# a comment\n"), a...)); got != digest(a) || len(got) != 16 {
		t.Errorf("%s: want %s", got, digest(a))
	}
	for _, change := range []string{"spec:\n  mode: enforce", "spec:\n  guards: {cooldown: 1h}", "spec:\n  undo: {onRecovery: false}"} {
		if digest(bytes.Replace(a, []byte("spec:"), []byte(change), 1)) == digest(a) {
			t.Errorf("%q changes nothing", change)
		}
	}
}

// TestDefaultPoliciesOnlyObserve checks that the shipped policies are valid, only observe, and have explanations.
func TestDefaultPoliciesOnlyObserve(t *testing.T) {
	docs, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) < 8 {
		t.Errorf("%d policies", len(docs))
	}
	for _, d := range docs {
		if d.Policy.Mode != response.ObserveOnly || d.Description == "" {
			t.Errorf("%s: mode %s, described %q", d.Name, d.Policy.Mode, d.Description)
		}
	}
}

// TestOneFaultSetsOneCondition checks that the consequences of one fault for a node's components cause one condition.
func TestOneFaultSetsOneCondition(t *testing.T) {
	docs, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(docs, func(d *Document) bool { return d.Name == "mark-in-kubernetes" })
	for _, tc := range []struct {
		node, host, memory    fault.State
		ofNode, ofHost, ofMem fault.Cause
		want                  []fault.Component
	}{
		{fault.Sick, fault.Normal, fault.Failed, fault.CauseMemory, fault.CauseNone, fault.CauseMemory, []fault.Component{fault.ComponentMemory}},
		{fault.Sick, fault.Failed, fault.Unknown, fault.CauseHost, fault.CauseHost, fault.CauseNone, []fault.Component{fault.ComponentHost}},
		{fault.Failed, fault.Failed, fault.Unknown, fault.CauseNode, fault.CauseNode, fault.CauseNone, []fault.Component{fault.ComponentNode}},
		{fault.Sick, fault.Normal, fault.Normal, fault.CauseLink, fault.CauseNone, fault.CauseNone, []fault.Component{fault.ComponentNode}},
		// two faults
		{fault.Sick, fault.Normal, fault.Sick, fault.CauseLink, fault.CauseNone, fault.CauseMemory,
			[]fault.Component{fault.ComponentNode, fault.ComponentMemory}},
		{fault.Normal, fault.Normal, fault.Normal, fault.CauseNone, fault.CauseNone, fault.CauseNone, nil},
	} {
		var got []fault.Component
		for _, f := range []response.Fault{
			{Component: fault.ComponentNode, State: tc.node, Cause: tc.ofNode}, {Component: fault.ComponentHost, State: tc.host,
				Cause: tc.ofHost}, {Component: fault.ComponentMemory, State: tc.memory, Cause: tc.ofMem},
		} {
			match, err := docs[i].Policy.Match.Match(&response.Subject{Fault: f, Duration: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if match {
				got = append(got, f.Component)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%+v: conditions for %v", tc, got)
		}
	}
}

// TestEveryKindHasParameters checks that policies can use every kind of executor with its parameters.
func TestEveryKindHasParameters(t *testing.T) {
	given := map[response.Kind]string{
		response.KubernetesCondition: "{type: A, reason: B}", response.KubernetesEvent: "{reason: A}",
		response.KubernetesLabel: "{key: a/b, value: c}", response.KubernetesCordon: "{}",
		response.KubernetesTaint: "{key: a, effect: PreferNoSchedule}", response.KubernetesEvict: "{key: a, value: b}",
		response.KubernetesDrain: "{gracePeriod: 30s, force: true, deleteEmptyDirData: false}", response.SlurmDrain: "{reason: a b}",
		response.WebhookNotify:       "{target: a}",
		response.KubernetesRemediate: "{apiVersion: a.example.org/v1alpha1, kind: ATemplate, namespace: a, name: b}",
		response.WebhookRemediate:    "{target: a}", response.Alertmanager: "{severity: info}", response.Command: "{command: a}",
		response.NodeCheck:       "{script: a}",
		response.NodeRestartHalf: "{half: dnp}", response.NodeMaskChannel: "{}", response.NodeLimitFrequency: "{percent: 50}",
		response.PowerReset: "{method: ipmi}", response.Eureka: "{text: a}", response.NodeFence: "{}",
	}
	for _, k := range response.Kinds() {
		text := strings.Replace(string(policyWith(`fault.component == "link/X+"`)), "kubernetes.event, parameters: {reason: Fault}",
			string(k)+", parameters: "+given[k], 1)
		if k == response.KubernetesRemediate { // which must be undone
			text += "  undo: {onRecovery: true}\n"
		}
		if k == response.NodeFence { // which only delays the steps after it
			text += "  - {name: then, executor: kubernetes.cordon}\n"
		}
		docs, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", k, err)
			continue
		}
		if got := docs[0].Policy.Steps[0]; got.Kind != k || len(got.Parameters) != strings.Count(given[k], ":") {
			t.Errorf("%s: %+v", k, got)
		}
	}
}

// TestLongTimeoutsAreNotForNewPolicies: an executor process and the agents refuse an attempt of more than a day. CheckNew says so, and
// Parse still reads such a policy, which an earlier version may have stored.
func TestLongTimeoutsAreNotForNewPolicies(t *testing.T) {
	refused := map[string]bool{"command, parameters: {command: a}": true, "slurm.drain, parameters: {reason: a}": true,
		"power.reset, parameters: {method: ipmi}": true, "node.check, parameters: {script: a}": true,
		"node.restart-half, parameters: {half: dnp}": true, "node.limit-frequency, parameters: {percent: 50}": true,
		"eureka, parameters: {text: a}": true, "kubernetes.drain": false, "webhook.remediate, parameters: {target: a}": false}
	for kind, wrong := range refused {
		for timeout, long := range map[string]bool{"24h": false, "24h0m1s": true, "168h": true} {
			docs, err := Parse([]byte(strings.Replace(string(policyWith(`fault.component == "host"`)),
				"kubernetes.event, parameters: {reason: Fault}", kind+", timeout: "+timeout, 1)))
			if err != nil {
				t.Fatalf("%s, %s: %v", kind, timeout, err)
			}
			k := string(docs[0].Policy.Steps[0].Kind)
			want := fmt.Sprintf("policy %s: spec.steps[0].timeout: given %s: want at most 24h with %s", docs[0].Name, timeout, k)
			if err = CheckNew(docs); (err != nil) != (wrong && long) || err != nil && err.Error() != want {
				t.Errorf("%s, %s: %v", kind, timeout, err)
			}
		}
	}
}

// describing returns a document with a description, which is YAML.
func describing(text string) string {
	return strings.Replace(string(policyWith(`fault.state == "SICK"`)), "spec:", "spec:\n  description: "+text, 1)
}

// restored compares a document with the one that Parse has read from its JSON.
func restored(t *testing.T, want, got *Document) {
	t.Helper()
	if string(got.JSON) != string(want.JSON) || got.Policy.Digest != want.Policy.Digest {
		t.Errorf("%s of digest %s: want %s of %s", got.JSON, got.Policy.Digest, want.JSON, want.Policy.Digest)
	}
	a, b := *got, *want
	a.JSON, a.Policy, b.JSON, b.Policy = nil, nil, nil, nil
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%+v: want %+v", a, b)
	}
}

// TestAcceptedDocumentsRestoreThemselves: the supervisors store a document's JSON and parse it again, whatever characters its texts have.
func TestAcceptedDocumentsRestoreThemselves(t *testing.T) {
	for escape, want := range map[string]string{
		`\x00`: "\x00", `\x01`: "\x01", `\x1b`: "\x1b", `\n`: "\n", `\x7e`: "~", `\x7f`: "\x7f", `\x80`: "\u0080", `\x85`: "\u0085",
		`\x9f`: "\u009f", `\xa0`: "\u00a0", `\u2028`: "\u2028", `\ufeff`: "\ufeff", `\ufffd`: "\ufffd",
		`\ufffe`: "\ufffe", `\uffff`: "\uffff", `\\\x7f`: "\\\x7f",
		`\"\x7f`: "\"\x7f", `\U0001F600`: "\U0001F600", `\U0010FFFF`: "\U0010FFFF", `é`: "é",
	} {
		docs, err := Parse([]byte(describing(`"a ` + escape + ` b"`)))
		if err != nil || docs[0].Description != "a "+want+" b" {
			t.Errorf("%s: %v, %v: want %q", escape, docs, err, want)
			continue
		}
		again, err := Parse(docs[0].JSON)
		if err != nil {
			t.Errorf("%s: the stored JSON: %v", escape, err)
			continue
		}
		restored(t, docs[0], again[0])
		spec, err := json.Marshal(map[string]any{"description": "a " + want + " b", "match": `fault.state == "SICK"`,
			"steps": []any{map[string]any{"name": "event", "executor": "kubernetes.event", "parameters": map[string]any{"reason": "Fault"}}}})
		if err != nil {
			t.Fatal(err)
		}
		js, err := FromSpec("p", spec)
		if err != nil {
			t.Fatal(err)
		}
		if again, err = Parse(js); err != nil {
			t.Errorf("%s: as an object: %v", escape, err)
			continue
		}
		restored(t, docs[0], again[0])
	}
}

// TestPlainDocumentsKeepTheirJSON: an upgrade changes no version of a stored policy.
func TestPlainDocumentsKeepTheirJSON(t *testing.T) {
	text := describing(`"é \u00a0 \u2028 \ufffd \U0001F600 \x1b <&>"`)
	docs, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want, err := yaml.YAMLToJSON([]byte(text))
	if err != nil || string(docs[0].JSON) != string(want) {
		t.Errorf("%s, %v: want %s", docs[0].JSON, err, want)
	}
}

// FuzzParse checks that no input causes a panic, and that a valid document restores itself from its JSON.
func FuzzParse(f *testing.F) {
	b, err := DefaultYAML()
	if err != nil {
		f.Fatal(err)
	}
	for _, doc := range split(b) {
		f.Add(string(doc))
	}
	f.Add(string(policyWith(`fault.state == "SICK"`)))
	f.Add("---\n--- |\n a")
	f.Add("{")
	f.Add(describing(`"a\x7f \x85 \x9f \uffff"`))
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := Parse([]byte(text))
		if err != nil {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		for _, d := range docs {
			again, err := Parse(d.JSON)
			if err != nil || len(again) != 1 {
				t.Fatalf("as JSON: %v\n%s", err, d.JSON)
			}
			restored(t, d, again[0])
			a, b := *d.Policy, *again[0].Policy
			if a.Match, b.Match = nil, nil; !reflect.DeepEqual(a, b) {
				t.Errorf("as JSON it is %+v: want %+v", b, a)
			}
		}
	})
}

// BenchmarkMatch measures one evaluation.
func BenchmarkMatch(b *testing.B) {
	m := compiled(b, `fault.component == "memory" && fault.state == "FAILED" && fault.duration >= duration("1m") && size(fault.groups) == 0`)
	s := response.Subject{Fault: response.Fault{Node: "n1", Component: fault.ComponentMemory, State: fault.Failed}, Duration: time.Hour}
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := m.Match(&s); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// TestDeadHalfOnSharedKernelIsNoDeadMachine: if both halves share a kernel, a dead host half does not prove a dead
// machine, because the kernel lives. No shipped policy may then take the node's capacity away, unless the fault keeps
// coming back.
func TestDeadHalfOnSharedKernelIsNoDeadMachine(t *testing.T) {
	docs, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	reset := 0
	for _, d := range docs {
		p := d.Policy
		if p.Groups || !slices.ContainsFunc(p.Steps, func(s response.Step) bool { return s.Kind.Traits().Class != response.Notify }) {
			continue
		}
		matches := func(platform fault.Platform) bool {
			got, err := p.Match.Match(&response.Subject{
				Fault:    response.Fault{Node: "n1", Component: fault.ComponentHost, State: fault.Failed, Cause: fault.CauseHost, Platform: platform},
				Duration: time.Hour, Recurrence: 1,
			})
			if err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
			return got
		}
		if matches(fault.PlatformSharedKernel) || matches(0) {
			t.Errorf("%s takes a dead host half on a shared kernel for a dead host", p.Name)
		}
		if p.Name == "reset-dead-host" && matches(fault.PlatformDPU) {
			reset++
		}
	}
	if reset != 1 {
		t.Errorf("reset-dead-host matches a dead host beside a living network processor in %d policies: want 1", reset)
	}
}

// TestKernelDeadIsNeverTrueByDefault: a condition on a dead kernel is met only by its proof, one on a dead agent only by a living kernel.
// Values that do not exist, and faults of which it is never proven, are refused.
func TestKernelDeadIsNeverTrueByDefault(t *testing.T) {
	for k, want := range map[fault.KernelDead][2]bool{0: {}, fault.KernelIsDead: {true, false}, fault.KernelIsAlive: {false, true}} {
		s := response.Subject{Fault: response.Fault{Node: "n1", Component: fault.ComponentHost, State: fault.Failed, Cause: fault.CauseHost,
			KernelDead: k}}
		for i, match := range []string{`fault.kernelDead == "yes"`, `fault.kernelDead == "no"`} {
			if got, err := compiled(t, match).Match(&s); err != nil || got != want[i] {
				t.Errorf("%s of %q: %v, %v; want %v", match, k, got, err, want[i])
			}
		}
	}
	for match, want := range map[string]string{
		`fault.kernelDead == "true"`:                                    `fault.kernelDead: given "true": want one of , yes, no`,
		`fault.kernelDead`:                                              "given a condition that is a string: want a bool",
		`fault.kernelDead == true`:                                      "found no matching overload",
		`fault.component == "memory" && fault.kernelDead == "yes"`:      "no fault can meet",
		`fault.state == "UNKNOWN" && fault.kernelDead in ["yes", "no"]`: "no fault can meet",
	} {
		if _, err := Parse(policyWith(match)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", match, err, want)
		}
	}
	group := strings.Replace(string(policyWith(`fault.kernelDead == "yes"`)), "spec:", "spec:\n  target: Group", 1)
	if _, err := Parse([]byte(group)); err == nil {
		t.Error("a policy for group faults may ask for a dead kernel")
	}
}

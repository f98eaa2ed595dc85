package policy

import (
	"strings"
	"testing"
)

// TestValuesOfConditionsAreBounded: a condition whose macros double a value again and again is refused before it is evaluated.
func TestValuesOfConditionsAreBounded(t *testing.T) {
	const deep, dear = "given a computed list or mapping that contains", "given a condition that may cost"
	times := func(start, step, end string) string { return start + strings.Repeat(step, 30) + end }
	for match, want := range map[string]string{
		times(`[1]`, `.map(x,[x,x])`, `.exists(x, x == x)`):                                    deep,
		times(`[1]`, `.map(x,[x,x])`, `.exists(x, x in [x])`):                                  deep,
		times(`[1]`, `.map(x,[dyn(x),dyn(x)])`, `.exists(x, x == x)`):                          deep,
		times(`[1]`, `.map(x,{"a":x,"b":x})`, `.exists(x, x == x)`):                            deep,
		times(`optional.of(1)`, `.optMap(x,[x,x])`, `.hasValue()`):                             deep,
		times(`[optional.of(1)]`, `.map(x,optional.of([x,x]))`, `.exists(x, x == x)`):          deep,
		times(`[optional.of(1)]`, `.map(x,.optional.of([x,x]))`, `.exists(x, x == x)`):         deep,
		times(`[{"a":[1]}]`, `.map(x,{"a":x.a+x.a})`, `.exists(x, 3 in x.a)`):                  deep,
		times(`[[1]]`, `.map(x,x+x)`, `.exists(x, x == x)`):                                    deep,
		times(`optional.of([1])`, `.optMap(x,x+x)`, `.value() == [3]`):                         deep,
		times(`["x"]`, `.map(x,x+x)`, `.exists(x, x == node.id)`):                              dear,
		times(`["x"]`, `.map(x,{"a":x+x}.a)`, `.exists(x, x == node.id)`):                      dear,
		times(`["x"]`, `.map(x,{"a":x+x}["a"])`, `.exists(x, x == node.id)`):                   dear,
		times(`["x"]`, `.map(x,{"a":x+x}[?"a"].value())`, `.exists(x, x == node.id)`):          dear,
		times(`["x"]`, `.map(x,string(x+x))`, `.exists(x, x == node.id)`):                      dear,
		times(`["x"]`, `.map(x,string(bytes(x+x)))`, `.exists(x, x == node.id)`):               dear,
		times(`["x"]`, `.map(x,dyn(x+x))`, `.exists(x, x == node.id)`):                         deep,
		times(`["x"]`, `.map(x,string(dyn(x+x)))`, `.exists(x, x == node.id)`):                 dear,
		times(`["x"]`, `.map(x,[x+x][0])`, `.exists(x, x == node.id)`):                         dear,
		times(`["x"]`, `.map(x,[x+x].first().value())`, `.exists(x, x == node.id)`):            dear,
		times(`optional.of("x")`, `.optMap(x,x+x)`, `.value() == node.id`):                     dear,
		times(`optional.of("x")`, `.optFlatMap(x,optional.of(string(x+x)))`, `.hasValue()`):    dear,
		`google.protobuf.StringValue{value: node.id} == "a"`:                                   "line 1, column 28: given a message",
		`google.protobuf.ListValue{values: []} == []`:                                          "given a message",
		`[1].map(x, [x]) == [[2]]`:                                                             "line 1, column 8: " + deep,
		`[["r7", "a"], ["r8", "b"]].exists(p, node.labels["rack"] == p[0] && node.id == p[1])`: "",
		`node.id in {"r7": ["a", "b"]}[node.labels["rack"]]`:                                   "",
		`{"r7": ["a"]}[?node.labels["rack"]].orValue([]).exists(x, x == node.id)`:              "",
		`fault.groups == [] || fault.groups.filter(x, x != "ROW").size() == 0`:                 "",
		`fault.groups.map(x, x == "ROW").exists(x, x)`:                                         "",
		`["a", "b"].exists(x, x + "-" + x == node.id)`:                                         "",
		`["1", "2"].map(x, "rack" + x).exists(x, node.labels["rack"] == x)`:                    "",
		`[1, 2].map(n, "rack" + string(n)).exists(x, node.labels["rack"] == x)`:                "",
		`[1, 2].map(n, ["rack" + string(n)][0]).exists(x, node.labels["rack"] == x)`:           "",
		`node.labels[?"a"].optMap(x, x + "b").orValue("") == "ab"`:                             "",
		`[node.labels[?"a"].orValue("") + "/" + node.labels[?"b"].orValue("")] == ["a/b"]`:     "",
		`{"a": node.id, "b": node.labels["b"]}.exists(k, k == "a")`:                            "",
	} {
		_, err := Parse(policyWith(match))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v: want %q", match, err, want)
		}
	}
}

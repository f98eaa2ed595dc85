package policy

import (
	"fmt"
	"regexp/syntax"
	"runtime"
	"strings"
	"testing"
)

// hugePattern takes some 360 MiB and more than a minute to compile.
var hugePattern = "^(" + strings.Repeat("x?", 900) + "){1000}$"

// TestPatternsAreBounded: a condition with a computed or a large pattern is refused, in every form of the call.
func TestPatternsAreBounded(t *testing.T) {
	const computed, large = "matches: given a computed pattern: want a text in quotation marks", "matches: given patterns of "
	for match, want := range map[string]string{
		`node.id.matches("^rack0[1-7]-.*$")`:                                   "",
		`matches(node.id, "^rack0[1-7]-.*$")`:                                  "",
		`node.id.matches(r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")`:           "",
		`node.id.matches("^\\pL{8}$")`:                                         "",
		`node.labels[?"rack"].orValue("").matches("^r[0-9]{1,3}$")`:            "",
		`"x".matches("^(` + strings.Repeat("x?", 900) + `){1000}$")`:           large + "1802002 instructions: want at most 1000 in a",
		`node.id.matches("(.?.?){1000}")`:                                      large,
		`node.id.matches("((a{10}){10}){10}b")`:                                large,
		`node.id.matches("(.?){200}") || node.id.matches("(.?){200}")`:         large + "1600 instructions",
		`"x".matches("(x\\pL){1000}")`:                                         large,
		`matches("x", "(xx){1000}")`:                                           large,
		`.matches("x", "(xx){1000}")`:                                          large,
		`["x"].exists(x, x.matches("(xx){1000}"))`:                             large,
		`["x"].map(x, x.matches("(xx){1000}")).exists(x, x)`:                   large,
		`{"x": "x".matches("(xx){1000}")}["x"]`:                                large,
		`optional.of("x").optMap(x, x.matches("(xx){1000}")).value()`:          large,
		`false && "x".matches("(xx){1000}")`:                                   large,
		`node.id.matches("(xx)" + "{1000}")`:                                   "line 1, column 24: " + computed,
		`node.id.matches(node.labels["pattern"])`:                              computed,
		`node.id.matches(true ? "(xx){1000}" : "")`:                            computed,
		`node.id.matches(["(xx){1000}"][0])`:                                   computed,
		`node.id.matches(string(b"(xx){1000}"))`:                               computed,
		`["(xx){1000}"].exists(p, node.id.matches(p))`:                         computed,
		`matches("x", "(xx)" + "{1000}")`:                                      computed,
		`.matches("x", "(xx)" + "{1000}")`:                                     computed,
		`node.id.matches(dyn("(xx){1000}"))`:                                   computed,
		`node.id.matches(1)`:                                                   computed,
		`node.id.matches()`:                                                    "found no matching overload",
		`node.id.matches("(xx){1001}")`:                                        "invalid matches argument",
		`node.labels.exists(k, k.matches("(.?){200}"))`:                        "given a condition that may cost",
		`node.id.matches("(.?){240}") && matches(node.labels["a"], "x{30}")`:   "given a condition that may cost",
		`node.id.matches("` + strings.Repeat("x", 300) + `")`:                  "given a condition that may cost",
		`node.id.matches("^rack0[1-7]-.*$") && matches(node.id, "x{100,200}")`: "",
	} {
		_, err := Parse(policyWith(match))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v: want %q", match, err, want)
		}
	}
}

// TestNoOtherFunctionMultiplies: functions of CEL's extensions that take a pattern or make a long text or list are not available.
func TestNoOtherFunctionMultiplies(t *testing.T) {
	for _, match := range []string{
		`"a".replace("", "bb") == node.id`, `"a".split("") == ["a"]`, `["a"].join("b") == "a"`, `"%1000s".format(["a"]) == node.id`,
		`strings.quote("a") == "a"`, `lists.range(1000000) == [1]`, `[[1]].flatten() == [1]`, `["a"].sort() == ["a"]`, `math.greatest(1, 2) == 2`,
		`regex.replace("a", "a", "b") == "b"`, `regex.extract("a", "a").hasValue()`, `regex.extractAll("a", "a") == ["a"]`,
		`cel.bind(a, "a", a + a) == node.id`, `base64.encode(b"a") == "a"`, `sets.contains([1], [1])`,
	} {
		if _, err := Parse(policyWith(match)); err == nil || !strings.Contains(err.Error(), "undeclared reference") {
			t.Errorf("%s: %v: want an undeclared reference", match, err)
		}
	}
}

// TestInstructionsFollowCompiledPattern compares the estimate with the compiled pattern.
func TestInstructionsFollowCompiledPattern(t *testing.T) {
	for _, pattern := range []string{
		"", "a", "abc", "a*", "a+", "a?", "a|b", "ab|cd|ef", "a{3}", "a{3,}", "a{0,}", "a{2,5}", "a{0}", "(a)", "(?:a)", "(a|bc){7}", "[a-z]",
		"[^a]", ".",
		"(?s).*", "^a$", `\bab\B`, "(a{10}){20}", "(x?x?){100}", "(.*x){50}", "((a|b)*c{0,9}){30}", "(?i)abc", labelKeyForm, labelValueForm,
		name.String(), `^rack(0[1-9]|1[0-2])-blade[0-9]{2}$`, "(){100}",
	} {
		re, err := syntax.Parse(pattern, syntax.Perl)
		if err != nil {
			t.Fatal(pattern, err)
		}
		prog, err := syntax.Compile(re.Simplify())
		if err != nil {
			t.Fatal(pattern, err)
		}
		real := len(prog.Inst) - 2 // its first one fails, and its last one matches
		if got := instructions(pattern); got < real || got > 2*real+2 {
			t.Errorf("%s: %d instructions: want about %d", pattern, got, real)
		}
	}
	if n := instructions(`\pL`); n < 50 || n > 200 {
		t.Errorf("a large class has %d instructions: want about 80", n)
	}
}

// TestRefusedPatternIsNotCompiled: the refusal of a large pattern takes little memory.
func TestRefusedPatternIsNotCompiled(t *testing.T) {
	for _, match := range []string{fmt.Sprintf(`"x".matches(%q)`, hugePattern), fmt.Sprintf(`.matches("x", %q)`, hugePattern),
		fmt.Sprintf(`"x".matches("" + %q)`, hugePattern)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Parse(policyWith(match)); err == nil {
			t.Fatalf("%.40s: it is accepted", match)
		}
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 16<<20 {
			t.Errorf("%.40s: the refusal took %d MiB: want less than 16", match, taken>>20)
		}
	}
}

// TestLargestPatternsTakeLittleMemory: the largest accepted patterns take less than 2 MiB each.
func TestLargestPatternsTakeLittleMemory(t *testing.T) {
	var alternatives strings.Builder
	for i := range 290 {
		_, _ = fmt.Fprintf(&alternatives, "%cb|", rune(0x100+i))
	}
	for _, pattern := range []string{
		"^(" + alternatives.String() + "z)$", "(.?){249}", "^(.?){249}$", "^(?:a?){490}$", `(\pL){11}`, `^(\pL|-){11}$`,
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		docs, err := Parse(policyWith(fmt.Sprintf(`"x".matches(%q) || node.id != ""`, pattern)))
		if err != nil {
			t.Errorf("%.40s: %v", pattern, err)
			continue
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 2<<20 {
			t.Errorf("%.40s: the policy takes %d KiB: want less than 2048", pattern, kept>>10)
		} else {
			t.Logf("%.40s: %d KiB, %d allocated", pattern, kept>>10, (after.TotalAlloc-before.TotalAlloc)>>10)
		}
		runtime.KeepAlive(docs)
	}
}

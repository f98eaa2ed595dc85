package fault

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// roundTrip checks that every value of an enum prints and parses back, and that zero does neither.
func roundTrip[E interface {
	~uint8
	String() string
}](t *testing.T, parse func(string) (E, error), last E) {
	t.Helper()
	for v := E(1); v <= last; v++ {
		got, err := parse(v.String())
		if err != nil || got != v {
			t.Errorf("%v parses as %v, %v", v, got, err)
		}
	}
	for _, v := range []E{0, last + 1} {
		if !strings.Contains(v.String(), "(") {
			t.Errorf("invalid value %d prints as %q", uint8(v), v)
		}
		if _, err := parse(v.String()); err == nil || !strings.Contains(err.Error(), "want one of") {
			t.Errorf("parsing %q: %v", v, err)
		}
	}
}

func TestEnumsRoundTrip(t *testing.T) {
	roundTrip(t, ParseHalf, HalfDNP)
	roundTrip(t, ParseState, Failed)
	roundTrip(t, ParseCause, CauseBus)
	roundTrip(t, ParseKind, KindAbsent)
	roundTrip(t, ParsePath, PathTorus)
	roundTrip(t, ParseComponent, Component(NumComponents-1))
}

func TestLinkComponentsHaveDirections(t *testing.T) {
	for _, d := range grid.Directions() {
		c := Link(d)
		if got, ok := c.LinkDirection(); !ok || got != d || c.String() != "link/"+d.String() || c.Cause() != CauseLink {
			t.Errorf("Link(%s) = %s, direction %s %t, cause %s", d, c, got, ok, c.Cause())
		}
	}
	for _, c := range [...]Component{ComponentVoltage, ComponentBus} {
		if _, ok := c.LinkDirection(); ok {
			t.Errorf("%s has a link direction", c)
		}
	}
	for _, c := range Components() {
		if c.Cause() == CauseNone || strings.Contains(c.Cause().String(), "(") {
			t.Errorf("%s has no cause", c)
		}
	}
	if got := len(Components()); got != 18 {
		t.Errorf("%d components, want 18", got)
	}
}

// TestSeverityOfCauses: the bus ranks between the service network and the halves, although its number is the highest.
func TestSeverityOfCauses(t *testing.T) {
	order := []Cause{
		CauseNone, CauseSensor, CausePeripheral, CauseMemory, CauseLink, CauseServiceNetwork, CauseBus, CauseDNP, CauseHost, CauseNode,
	}
	for i := range order[1:] {
		if order[i].Severity() >= order[i+1].Severity() {
			t.Errorf("%s does not rank below %s", order[i], order[i+1])
		}
	}
}

func TestReportOrderAndAge(t *testing.T) {
	id := func(e Epoch, s Seq) ReportID { return ReportID{Origin{"a", HalfHost}, e, s} }
	if !id(2, 1).Newer(id(1, 9)) || !id(1, 2).Newer(id(1, 1)) || id(1, 1).Newer(id(1, 1)) || id(1, 9).Newer(id(2, 1)) {
		t.Error("Newer is not the order of (epoch, seq)")
	}
	d := Delivery{Hops: []Hop{{Held: 2 * time.Millisecond}, {Held: time.Millisecond}}}
	if got := d.Age(Observation{Age: 50 * time.Millisecond}); got != 53*time.Millisecond {
		t.Errorf("age %v, want 53ms", got)
	}
	if HalfHost.Other() != HalfDNP || HalfDNP.Other() != HalfHost {
		t.Error("Other is not the other half")
	}
	if got := id(3, 4).String(); got != "a/host@3#4" {
		t.Error(got)
	}
}

func TestInvalidLabelsAreRefused(t *testing.T) {
	for _, tc := range []struct{ key, value, wrong string }{
		{"rack", "r7", ""}, {"gpu", "", ""}, {"example.com/rack", "A_b.c-1", ""}, {strings.Repeat("k", 63), strings.Repeat("v", 63), ""},
		{"", "x", "label key"}, {"a b", "x", "label key"}, {"-a", "x", "label key"}, {"/a", "x", "label key"}, {"A.com/a", "x", "label key"},
		{"a/b/c", "x", "label key"}, {strings.Repeat("k", 64), "x", "label key"}, {"rack", "r 7", "label value"}, {"rack", "r7-", "label value"},
		{"rack", strings.Repeat("v", 64), "label value"}, {"rack\n", "x", "label key"},
	} {
		errs := CheckLabels(map[string]string{tc.key: tc.value})
		if tc.wrong == "" && errs != nil || tc.wrong != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), tc.wrong)) {
			t.Errorf("%q=%q: %v", tc.key, tc.value, errs)
		}
	}
	many := make(map[string]string)
	for i := range MaxLabels + 1 {
		many[strings.Repeat("k", i%60+1)+string(rune('a'+i/60))] = ""
	}
	if errs := CheckLabels(many); len(errs) != 1 || errs[0].Error() != "65 labels: want at most 64" {
		t.Errorf("%v", errs)
	}
}

func TestCutKeepsCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.String().Draw(t, "s"), rapid.IntRange(0, 20).Draw(t, "n")
		if got := Cut(s, n); len(got) > n || !strings.HasPrefix(s, got) || len(s) > n && n-len(got) > 3 || strings.ToValidUTF8(got, "?") != got {
			t.Fatalf("%q cut to %d is %q", s, n, got)
		}
	})
}

// TestCleanTextIsValidAndBounded: Clean makes a valid, bounded text of any bytes, and does not change a clean text.
func TestCleanTextIsValidAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := string(rapid.SliceOf(rapid.Byte()).Draw(t, "s")), rapid.IntRange(0, 20).Draw(t, "n")
		got := Clean(s, n)
		if len(got) > n || !IsText(got) {
			t.Fatalf("%q of at most %d bytes is %q", s, n, got)
		}
		if again := Clean(got, n); again != got {
			t.Fatalf("%q is fine, and becomes %q", got, again)
		}
	})
	for in, want := range map[string]string{"": "", "a bé": "a bé", "a\nb\x1b[31m": "a b [31m", "\xff\xfeé": "?é", "12345678é": "12345678",
		strings.Repeat("\xff", 30) + "12345678": "?123456"} {
		if got := Clean(in, 9); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestTextHasNoHiddenCharacters: characters that control a terminal, reorder the text around them or are not shown are no text, and Clean
// replaces them. Letters, marks, symbols and spaces of all scripts are text.
func TestTextHasNoHiddenCharacters(t *testing.T) {
	hidden := []rune{0, '\n', '\x1b', 0x7f, 0x85, 0x9b, 0xad, 0x034f, 0x061c, 0x115f, 0x180e, 0xfe0f, 0xfeff, 0xfff9, 0x3164, 0xe0001,
		0xe0061, 0xe0100}
	for _, span := range [][2]rune{{0x200b, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x2069}} {
		for r := span[0]; r <= span[1]; r++ {
			hidden = append(hidden, r)
		}
	}
	for _, r := range hidden {
		if s := "a" + string(r) + "b"; IsText(s) || Clean(s, 9) != "a b" {
			t.Errorf("%U: is text %v, becomes %q", r, IsText(s), Clean(s, 9))
		}
	}
	if IsText("a\xffb") {
		t.Error("invalid UTF-8 is text")
	}
	for _, s := range []string{"", "node n1: 3 °C, µs, 80 %", "überhitzt", "узел", "ノード", "عقدة", "नोड", "e\u0301", "⚠ 🔥", "\ufffd"} {
		if !IsText(s) || Clean(s, 90) != s {
			t.Errorf("%q: is text %v, becomes %q", s, IsText(s), Clean(s, 90))
		}
	}
}

// TestNamesAreThoseOfTheirRegularExpressions compares hand-written checks with the expressions that they replace.
func TestNamesAreThoseOfTheirRegularExpressions(t *testing.T) {
	lower := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)
	any63 := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._@-]{0,61}[A-Za-z0-9])?$`)
	prefix := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]$`)
	check := func(s string) {
		t.Helper()
		if got, want := IsNameWith(s, false, "-."), lower.MatchString(s); got != want {
			t.Errorf("lower-case name %q: given %t: want %t", s, got, want)
		}
		if got, want := IsNameWith(s, true, "._@-"), any63.MatchString(s); got != want {
			t.Errorf("name %q: given %t: want %t", s, got, want)
		}
		if got, want := CheckLabelKey(s+"/x") == nil, prefix.MatchString(s+"/x"); got != want {
			t.Errorf("label key %q: valid %t: want %t", s+"/x", got, want)
		}
	}
	for a := range 256 {
		check(string([]byte{byte(a)}))
		for _, more := range []string{"a%c", "%ca", "a%cb", "A%c9", "-%cx", "é%c", "a%c\n"} {
			check(strings.Replace(more, "%c", string([]byte{byte(a)}), 1))
		}
	}
	for _, n := range []int{0, 62, 63, 64, 252, 253, 254} {
		check(strings.Repeat("a", n))
		check(strings.Repeat("a", max(n-1, 0)) + "-")
	}
}

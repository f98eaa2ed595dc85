package api

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var labelled = map[string]map[string]string{
	"r7":    {"rack": "r7", "power": "a", "gpu": ""},
	"r8":    {"rack": "r8", "power": "b", "site.example/row": "3"},
	"spare": {"spare": "yes"},
	"none":  nil,
}

func TestLabelSelectorsSelectNodes(t *testing.T) {
	for _, tc := range []struct{ selector, canonical, want string }{
		{"", "", "none r7 r8 spare"},
		{"  ", "", "none r7 r8 spare"},
		{"rack=r7", "rack=r7", "r7"},
		{"rack==r7", "rack==r7", "r7"},
		{" rack = r7 ", "rack=r7", "r7"},
		{"rack!=r7", "rack!=r7", "none r8 spare"},
		{"rack", "rack", "r7 r8"},
		{"!rack", "!rack", "none spare"},
		{"! rack", "!rack", "none spare"},
		{"gpu=", "gpu=", "r7"},
		{"gpu!=", "gpu!=", "none r8 spare"},
		{"gpu=,rack", "gpu=,rack", "r7"},
		{"rack in (r7,r8)", "rack in (r7,r8)", "r7 r8"},
		{"rack in(r8, r7,r8)", "rack in (r7,r8)", "r7 r8"},
		{"rack in (r7)", "rack in (r7)", "r7"},
		{"rack notin (r7,r9)", "rack notin (r7,r9)", "none r8 spare"},
		{"rack notin (r7),power", "power,rack notin (r7)", "r8"},
		{"gpu in (,x)", "gpu in (,x)", "r7"},
		{"site.example/row=3", "site.example/row=3", "r8"},
		{"rack=r7,power!=b,gpu,!spare,power in (a,c)", "gpu,power!=b,power in (a,c),rack=r7,!spare", "r7"},
		{"site.example/row>2", "site.example/row>2", "r8"},
		{"site.example/row<3", "site.example/row<3", ""},
		{"in in (in)", "in in (in)", ""},
		{"notin", "notin", ""},
	} {
		l, err := parseLabelSelector(tc.selector)
		if err != nil {
			t.Errorf("%q: %v", tc.selector, err)
			continue
		}
		var got []string
		for _, name := range slices.Sorted(maps.Keys(labelled)) {
			if l.Matches(labelled[name]) {
				got = append(got, name)
			}
		}
		if s := strings.Join(got, " "); s != tc.want || l.String() != tc.canonical || l.Empty() != (tc.canonical == "") {
			t.Errorf("%q matches %q as %q, want %q as %q", tc.selector, s, l, tc.want, tc.canonical)
		}
	}
}

func TestLabelSelectorRefusals(t *testing.T) {
	for _, tc := range []struct{ selector, want string }{
		{",", "found ','"},
		{"rack=r7,", "expected: identifier after ','"},
		{"rack=r7 power=b", "found 'power', expected: ',' or 'end of string'"},
		{"rack in r7", "found 'r7' expected: '('"},
		{"rack in (r7", "expected: ',' or ')'"},
		{"rack in (a b)", "found 'b', expected: ',' or ')'"},
		{"rack in (a=b)", "found '='"},
		{"rack in ((", "found '('"},
		{"rack>r3", "the value must be an integer"},
		{"rack within (a)", "found 'within', expected: in, notin, =, ==, !="},
		{"=r7", "found '='"},
		{"!", "expected: identifier"},
		{"!rack=r7", "found '='"},
		{"rack=-r7", `label.values[0][rack]: Invalid value: "-r7"`},
		{"rack=r7-", `Invalid value: "r7-"`},
		{"rack=a/b", `Invalid value: "a/b"`},
		{"rack in (a/b)", `Invalid value: "a/b"`},
		{"-rack", `label: Invalid value: "-rack": name part must consist of`},
		{"a/b/c", `Invalid value: "a/b/c"`},
		{"/rack", "prefix part must be non-empty"},
		{"Site/rack", "prefix part a lowercase RFC 1123 subdomain"},
		{"-site/rack", "prefix part"},
		{"site./rack", "prefix part"},
		{strings.Repeat("a", 64), "no more than 63"},
		{strings.Repeat("a", 254) + "/b", "no more than 253"},
		{"räck", `Invalid value: "räck"`},
		{strings.Repeat("a", maxSelector+1), "given 4097 bytes: want at most 4096"},
	} {
		_, err := parseLabelSelector(tc.selector)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.40q: %v, want %q", tc.selector, err, tc.want)
		}
	}
}

var testedFields = []selectorField{{Name: "state", Check: oneOf("NORMAL", "FAILED")}, {Name: "coord", Open: true},
	{Name: "group", Open: true},
	{Name: "x", Check: countField}}

func TestFieldSelectorsSelectObjects(t *testing.T) {
	object := map[string][]string{
		"state": {"FAILED"}, "coord": {"1,0,1"}, "x": {"1"}, "group": {"block/0,0,0..9,9,9", "label/rack=r7", "row/Y=1,Z=2"},
	}
	has := func(field, value string) bool { return slices.Contains(object[field], value) }
	for _, tc := range []struct {
		selector, canonical string
		want                bool
	}{
		{"", "", true},
		{" ", "", true},
		{"state=FAILED", "state=FAILED", true},
		{"state==FAILED", "state=FAILED", true},
		{"state!=FAILED", "state!=FAILED", false},
		{"state=NORMAL", "state=NORMAL", false},
		{"state!=NORMAL,x=1", "state!=NORMAL,x=1", true},
		{"coord=1,0,1", "coord=1,0,1", true},
		{"coord=1,0,1,state=NORMAL", "coord=1,0,1,state=NORMAL", false},
		{"coord!=1,0,1,state=FAILED", "coord!=1,0,1,state=FAILED", false},
		{"group=label/rack=r7", "group=label/rack=r7", true},
		{"group!=label/rack=r8", "group!=label/rack=r8", true},
		{"group!=label/rack=r7", "group!=label/rack=r7", false},
		{"group=block/0,0,0..9,9,9,state=FAILED", "group=block/0,0,0..9,9,9,state=FAILED", true},
		{"group=", "group=", false},
		{"group=row/Y=1,Z=2", "group=row/Y=1,Z=2", true},
		{"x=1,group!=row/Y=1,Z=2,state=FAILED", "x=1,group!=row/Y=1,Z=2,state=FAILED", false},
		{"group===a", "group===a", false},
		{" x = 1 , state = FAILED ", "x=1,state=FAILED", true},
	} {
		f, err := parseFieldSelector(tc.selector, testedFields)
		if err != nil || f.Matches(has) != tc.want || f.String() != tc.canonical || f.Empty() != (tc.canonical == "") {
			t.Errorf("%q: %q matches %v, %v: want %q, %v", tc.selector, f, f.Matches(has), err, tc.canonical, tc.want)
		}
	}
}

func TestFieldSelectorRefusals(t *testing.T) {
	for _, tc := range []struct{ selector, want string }{
		{"state", `"state": want FIELD=VALUE or FIELD!=VALUE`},
		{"colour=red", `field "colour": want one of state, coord, group, x`},
		{"state=failed", `state: given "failed": want one of NORMAL, FAILED`},
		{"x=-1", `x: given "-1": want a number from 0 on`},
		{"x=01", "want a number"},
		{"=1", `field "": want one of`},
		{"!=1", `field "": want one of`},
		{"state=FAILED,", `"": want FIELD=VALUE`},
		{"state=FAILED,1,2", `"1": want FIELD=VALUE`},
		{"state=FAILED,colour=red", `field "colour": want one of`},
		{strings.Repeat("x", maxSelector+1), "given 4097 bytes"},
	} {
		_, err := parseFieldSelector(tc.selector, testedFields)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.40q: %v, want %q", tc.selector, err, tc.want)
		}
	}
}

// TestLabelSelectorsAgainstNaive: random requirements are rendered as a selector and parsed again. The selector must match
// the same objects as a deliberately naive evaluation of the requirements.
func TestLabelSelectorsAgainstNaive(t *testing.T) {
	keys, values := []string{"a", "b", "site.example/c"}, []string{"", "x", "y", "in"}
	type drawn struct {
		key, op string
		values  []string
	}
	naive := func(d drawn, labels map[string]string) bool {
		present, equal := false, false
		for k, v := range labels {
			if k != d.key {
				continue
			}
			present = true
			for _, w := range d.values {
				equal = equal || v == w
			}
		}
		return map[string]bool{
			"=": equal, "==": equal, "in": equal, "!=": !equal, "notin": !equal, "": present, "!": !present,
		}[d.op]
	}
	rapid.Check(t, func(t *rapid.T) {
		pad := func() string { return rapid.SampledFrom([]string{"", " ", "\t "}).Draw(t, "space") }
		var all []drawn
		var text []string
		for range rapid.IntRange(1, 4).Draw(t, "requirements") {
			d := drawn{key: rapid.SampledFrom(keys).Draw(t, "key"),
				op: rapid.SampledFrom([]string{"=", "==", "!=", "in", "notin", "", "!"}).Draw(t, "op")}
			switch d.op {
			case "":
				text = append(text, pad()+d.key+pad())
			case "!":
				text = append(text, pad()+"!"+pad()+d.key+pad())
			case "in", "notin":
				d.values = rapid.SliceOfN(rapid.SampledFrom(values), 1, 3).Draw(t, "values")
				if len(d.values) == 1 { // "in ()" is refused
					d.values = append(d.values, d.values[0])
				}
				text = append(text, pad()+d.key+" "+d.op+pad()+"("+pad()+strings.Join(d.values, pad()+",")+pad()+")"+pad())
			default:
				d.values = []string{rapid.SampledFrom(values).Draw(t, "value")}
				text = append(text, pad()+d.key+pad()+d.op+pad()+d.values[0]+pad())
			}
			all = append(all, d)
		}
		labels := rapid.MapOfN(rapid.SampledFrom(keys), rapid.SampledFrom(values), 0, 3).Draw(t, "labels")
		want := true
		for _, d := range all {
			want = want && naive(d, labels)
		}
		l, err := parseLabelSelector(strings.Join(text, ","))
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseLabelSelector(l.String())
		if err != nil || again.String() != l.String() {
			t.Fatalf("%q is read back as %q, %v", l, again, err)
		}
		if l.Matches(labels) != want || again.Matches(labels) != want {
			t.Fatalf("%q on %v: %v, want %v", strings.Join(text, ","), labels, l.Matches(labels), want)
		}
	})
}

// FuzzSelectors: for any input, the result is an error, or a selector whose string form parses back to itself.
func FuzzSelectors(f *testing.F) {
	for _, s := range []string{"", "rack=r7,power!=b,gpu,!spare,switch in (s1,s2),switch notin (s3)", "coord=1,0,1,state!=FAILED",
		"a in (", "!=,", "x===", "coord===1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if l, err := parseLabelSelector(s); err == nil {
			again, err := parseLabelSelector(l.String())
			if err != nil || again.String() != l.String() {
				t.Errorf("labels %q: %q is read back as %q, %v", s, l, again, err)
			}
			l.Matches(map[string]string{"rack": "r7"})
		}
		if c, err := parseFieldSelector(s, testedFields); err == nil {
			again, err := parseFieldSelector(c.String(), testedFields)
			if err != nil || again.String() != c.String() {
				t.Errorf("fields %q: %q is read back as %q, %v", s, c, again, err)
			}
		}
	})
}

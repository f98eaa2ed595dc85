package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/metricsdoc"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const top = "../.."

// queries calls f for every query of every panel.
func queries(f func(where string, p Panel, q Query)) {
	for _, d := range All() {
		for _, r := range d.Rows {
			for _, p := range r.Panels {
				for i, q := range p.Queries {
					f(fmt.Sprintf("%s: %s: query %d", d.Title, p.Title, i+1), p, q)
				}
			}
		}
	}
}

func TestFilesAreCurrent(t *testing.T) {
	want, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := filepath.Glob(top + "/deploy/grafana/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want) {
		t.Errorf("deploy/grafana: %q: want %d files", entries, len(want))
	}
	for name, text := range want {
		if got, err := os.ReadFile(filepath.Join(top, "deploy", "grafana", name)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s is not what the source says: run make generate and commit (%v)", name, err)
		}
	}
}

// TestFaultMapSaysSinceWhenWhyAndWhatNow: the first table of the fault map has a row for each incident, with its start, its cause, and a
// link to its runbook.
func TestFaultMapSaysSinceWhenWhyAndWhatNow(t *testing.T) {
	var p Panel
	for _, r := range faultMap().Rows {
		for _, of := range r.Panels {
			if p.Title == "" && of.Kind == "table" {
				p = of
			}
		}
	}
	if len(p.Queries) != 1 || !strings.Contains(p.Queries[0].Expr, "max by (incident,") {
		t.Fatalf("the first table is %q with queries %v: want one row for each incident", p.Title, p.Queries)
	}
	text, err := json.Marshal([]any{p.transformations, p.overrides})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"Value":"Since"`, `"cause":"Cause"`, `"runbook":"Runbook"`, `"dateTimeFromNow"`, `"url":"${web}/runbooks/${__data.fields[\"Runbook\"]}"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("want %s in the columns of %q: %s", want, p.Title, text)
		}
	}
	for _, label := range []string{"cause", "runbook"} {
		by, _, _ := strings.Cut(strings.TrimPrefix(p.Queries[0].Expr, "1000 * max by ("), ")")
		if !slices.Contains(strings.Split(by, ","), label) {
			t.Errorf("the query keeps the labels %s: want %s", by, label)
		}
	}
}

// TestPanelsAreUniqueAndDescribed: identifiers are unique, panels do not overlap, and everything has a description.
func TestPanelsAreUniqueAndDescribed(t *testing.T) {
	uids := map[string]bool{}
	files, err := Files()
	if err != nil {
		t.Fatal(err)
	}
	type rect struct{ X, Y, W, H int }
	for name, text := range files {
		var d struct {
			UID, Description string
			Panels           []struct {
				ID                       int
				Type, Title, Description string
				GridPos                  rect
				FieldConfig              struct{ Defaults struct{ Unit string } }
				Targets                  []struct{ RefID, Expr string }
			}
			Templating struct {
				List []struct{ Name, Description string }
			}
		}
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		if d.UID+".json" != name || uids[d.UID] || d.Description == "" {
			t.Errorf("%s: uid %q, description %q", name, d.UID, d.Description)
		}
		uids[d.UID] = true
		ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] || titles[p.Title] || p.Title == "" {
				t.Errorf("%s: panel %d, %q: not the only one", name, p.ID, p.Title)
			}
			ids[p.ID], titles[p.Title] = true, true
			if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 2 || p.GridPos.H < 1 {
				t.Errorf("%s: %s: at %+v: there are 24 columns", name, p.Title, p.GridPos)
			}
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if taken[at] != "" {
						t.Fatalf("%s: %s lies over %s", name, p.Title, taken[at])
					}
					taken[at] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if !strings.HasSuffix(p.Description, ".") || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("%s: %s: description %q, unit %q, %d queries: want a sentence, a unit, and queries", name, p.Title, p.Description,
					p.FieldConfig.Defaults.Unit, len(p.Targets))
			}
			refs := map[string]bool{}
			for _, q := range p.Targets {
				if refs[q.RefID] {
					t.Errorf("%s: %s: two queries %s", name, p.Title, q.RefID)
				}
				refs[q.RefID] = true
			}
		}
		// All variables in use are defined and described, and no variable is unused.
		known := map[string]bool{"__rate_interval": true, "__range": true, "__data": true, "__all": true}
		for _, v := range d.Templating.List {
			known[v.Name] = true
			if !strings.HasSuffix(v.Description, ".") {
				t.Errorf("%s: variable %s: description %q", name, v.Name, v.Description)
			}
			if !regexp.MustCompile(`\$\{?` + v.Name + `\b`).Match(text) {
				t.Errorf("%s: nothing asks for the variable %s", name, v.Name)
			}
		}
		for _, m := range regexp.MustCompile(`\$\{?([a-z_]+)`).FindAllSubmatch(text, -1) {
			if !known[string(m[1])] {
				t.Errorf("%s: there is no variable %s", name, m[1])
			}
		}
	}
	links := regexp.MustCompile(`/d/([a-z-]+)`)
	for name, text := range files {
		for _, m := range links.FindAllSubmatch(text, -1) {
			if !uids[string(m[1])] {
				t.Errorf("%s: a link to %s", name, m[1])
			}
		}
	}
}

// TestQueriesUseExistingMetrics: every metric in a query is in docs/metrics.md with the labels in use, except those of
// the target. Queries use only raw metrics, so that no rule has to be loaded. ALERTS is Prometheus' own.
func TestQueriesUseExistingMetrics(t *testing.T) {
	known, err := metricsdoc.Known()
	if err != nil {
		t.Fatal(err)
	}
	selector := regexp.MustCompile(`\b([a-zA-Z_:]+)\{([^}]*)\}`)
	label := regexp.MustCompile(`([a-z_$]+)(?:=~|!~|!=|=)"`)
	bare := regexp.MustCompile(`\b(?:lofamo|etcd|process)_[a-z_]+\b`)
	queries(func(where string, p Panel, q Query) {
		if strings.Contains(q.Expr, "lofamo:") {
			t.Errorf("%s: rests on a recording rule", where)
		}
		found := selector.FindAllStringSubmatch(q.PromQL(), -1)
		if len(bare.FindAllString(q.PromQL(), -1)) > len(found) || len(found) == 0 {
			t.Errorf("%s: a metric without the cluster's selector: %s", where, q.Expr)
		}
		for _, s := range found {
			if s[1] == "ALERTS" {
				continue
			}
			m, ok := known[s[1]]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, has := strings.CutSuffix(s[1], suffix); has && known[base].Type == metricsdoc.Histogram {
					m, ok = known[base], true
				}
			}
			if !ok {
				t.Errorf("%s: %s is no metric of docs/metrics.md", where, s[1])
			}
			if !strings.Contains(s[2], `cluster="$cluster"`) {
				t.Errorf("%s: %s is asked of all clusters", where, s[1])
			}
			for _, l := range label.FindAllStringSubmatch(s[2], -1) {
				if !slices.Contains(append([]string{"cluster", "job", "$axis", "le"}, m.Labels...), l[1]) {
					t.Errorf("%s: %s has no label %s", where, s[1], l[1])
				}
			}
			shown, _, _ := strings.Cut(q.Expr, " and on ") // the rest only filters the series
			if !strings.Contains(shown, s[1]) {
				continue
			}
			if wants := unitOf(s[1], m, q.Expr, p); wants != "" && p.Unit != wants {
				t.Errorf("%s: %s in %q: want %q", where, s[1], p.Unit, wants)
			}
		}
	})
}

// unitOf returns the unit for a metric, if its name implies one and the panel does not show a ratio, a table or a
// count.
func unitOf(name string, m metricsdoc.Metric, expr string, p Panel) string {
	switch {
	case strings.Contains(expr, " / ") || p.Kind == "table" || strings.HasSuffix(name, "_count") || p.Kind == "heatmap":
		return ""
	case strings.HasSuffix(m.Name, "_cpu_seconds_total"):
		return "percentunit"
	case m.Unit() == "seconds":
		return "s"
	case m.Unit() == "bytes":
		return "bytes"
	case m.Type == metricsdoc.Counter && strings.Contains(expr, "rate("):
		return "ops"
	}
	return "none"
}

// TestPromtoolParsesEveryQuery: promtool parses every query, as the expression of a rule.
func TestPromtoolParsesEveryQuery(t *testing.T) {
	tool := requirements.Program(t, "Debian's package prometheus", "promtool")
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	queries(func(_ string, _ Panel, q Query) {
		rules = append(rules, rule{fmt.Sprintf("query:%d", len(rules)), q.Of("c", "n0-0-0")})
	})
	b, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboards", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tool, "check", "rules", file).CombinedOutput()
	if want := fmt.Sprintf("SUCCESS: %d rules found", len(rules)); err != nil || !strings.Contains(string(out), want) {
		t.Errorf("promtool: %v: want %q\n%s", err, want, out)
	}
}

// TestStatesHaveColoursOfWebPage: states have the same colours as on the page for browsers.
func TestStatesHaveColoursOfWebPage(t *testing.T) {
	css, err := os.ReadFile(top + "/web/src/style.css")
	if err != nil {
		t.Fatal(err)
	}
	_, dark, ok := strings.Cut(string(css), `[data-theme="dark"]`)
	for _, s := range states {
		if want := fmt.Sprintf("--%s: %s;", strings.ToLower(s.name), s.colour); !ok || !strings.Contains(dark, want) {
			t.Errorf("web/src/style.css: on dark ground: no %q", want)
		}
	}
}

package metricsdoc

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const (
	top   = "../.."
	rules = top + "/deploy/prometheus"
	books = top + "/docs/runbooks"
)

func TestPageIsCurrent(t *testing.T) {
	want, err := Page(rules)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(top + "/docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/metrics.md is not what the programs register: run make generate and commit")
	}
}

// Names and labels are as Prometheus wants them, and no family is described twice.
func TestMetricsAreNamedAsPrometheusWants(t *testing.T) {
	sup, err := Supervisor()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := Executor()
	if err != nil {
		t.Fatal(err)
	}
	word := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	seen := make(map[string]bool)
	for _, m := range slices.Concat(sup, Agent(), exe) {
		if seen[m.Name] {
			t.Errorf("%s is described twice", m.Name)
		}
		seen[m.Name] = true
		if !strings.HasPrefix(m.Name, "lofamo_") || !word.MatchString(m.Name) || !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: %q: want a name of lower case that begins with lofamo_, and a sentence", m.Name, m.Help)
		}
		if (m.Type == Counter) != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s is a %s", m.Name, m.Type)
		}
		for _, bad := range []string{"_milliseconds", "_ms", "_us", "_ns", "_minutes", "_kilobytes", "_percent"} {
			if strings.HasSuffix(strings.TrimSuffix(m.Name, "_total"), bad) {
				t.Errorf("%s: %s is no base unit", m.Name, bad)
			}
		}
		for _, l := range m.Labels {
			if !word.MatchString(l) || slices.Contains([]string{"le", "quantile", "job", "instance"}, l) {
				t.Errorf("%s: label %q", m.Name, l)
			}
		}
	}
}

// rule is one of a file of rules.
type rule struct {
	Record, Alert, Expr string
	Labels, Annotations map[string]string
}

func readRules(t *testing.T, name string) (out []rule) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(rules, name))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []rule }
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	if len(out) == 0 {
		t.Fatalf("%s: no rules", name)
	}
	return out
}

// All that rules name is there: metrics with their labels, what other rules record, and labels' values where the program gives them.
func TestRulesUseExistingMetrics(t *testing.T) {
	known, err := Known()
	if err != nil {
		t.Fatal(err)
	}
	used, err := Used(rules)
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range used {
		if known[name].Name == "" {
			t.Errorf("%s: %s is no metric of docs/metrics.md", file, name)
		}
	}
	recorded := make(map[string]bool)
	all := slices.Concat(readRules(t, "lofamo-recording.yaml"), readRules(t, "lofamo-alerts.yaml"))
	for _, r := range all {
		recorded[r.Record] = true
	}
	ours := regexp.MustCompile(`lofamo(?::\w+)+`)
	selector := regexp.MustCompile(`\b((?:lofamo|etcd)_\w+)\{([^}]*)\}`)
	label := regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"`)
	for _, r := range all {
		for _, name := range ours.FindAllString(r.Expr, -1) {
			if !recorded[name] {
				t.Errorf("%s%s: %s is recorded by no rule", r.Record, r.Alert, name)
			}
		}
		for _, s := range selector.FindAllStringSubmatch(r.Expr, -1) {
			for _, l := range label.FindAllStringSubmatch(s[2], -1) {
				if !slices.Contains(known[s[1]].Labels, l[1]) {
					t.Errorf("%s%s: %s has no label %s", r.Record, r.Alert, s[1], l[1])
				}
			}
		}
	}
}

// Every alert says how bad it is and what to do, and is tested both ways; no page is of an alert that is gone.
func TestAlertsHaveRunbooks(t *testing.T) {
	tests, err := os.ReadFile(rules + "/lofamo-tests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	index, err := os.ReadFile(books + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]bool{"README.md": true, "pages.go": true}
	for _, r := range readRules(t, "lofamo-alerts.yaml") {
		page := r.Alert + ".md"
		pages[page] = true
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q: want critical or warning", r.Alert, s)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Annotations["runbook_url"] != "docs/runbooks/"+page {
			t.Errorf("%s: annotations %v: want summary, description and runbook_url docs/runbooks/%s", r.Alert, r.Annotations, page)
		}
		if !strings.Contains(string(index), "| ["+r.Alert+"]("+page+") | "+r.Labels["severity"]+" |") {
			t.Errorf("%s: not, or with another severity, in docs/runbooks/README.md", r.Alert)
		}
		for _, name := range []string{r.Alert + " fires", r.Alert + " does not"} {
			if !strings.Contains(string(tests), "- name: "+name+"\n") {
				t.Errorf("lofamo-tests.yaml: no test %q", name)
			}
		}
		b, err := os.ReadFile(filepath.Join(books, page))
		if err != nil {
			t.Errorf("%s: %v", r.Alert, err)
			continue
		}
		for _, h := range []string{"# " + r.Alert + "\n", "\n## Meaning\n", "\n## Diagnosis\n", "\n## Mitigation\n",
			"\n## False alarms\n"} {
			if !strings.Contains(string(b), h) {
				t.Errorf("%s: no heading %q", page, strings.TrimSpace(h))
			}
		}
		for _, to := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(string(b), -1) {
			file, _, _ := strings.Cut(to[1], "#")
			if _, err := os.Stat(filepath.Join(books, file)); err != nil {
				t.Errorf("%s: link: %v", page, err)
			}
		}
	}
	entries, err := os.ReadDir(books)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !pages[e.Name()] {
			t.Errorf("docs/runbooks/%s is of no alert", e.Name())
		}
	}
}

// Prometheus' own tool reads the example and the rules, and runs their tests.
func TestPromtoolAcceptsExampleAndRules(t *testing.T) {
	tool := requirements.Program(t, "Debian's package prometheus", "promtool")
	for _, args := range [][]string{{"check", "config", "prometheus.yml"},
		{"check", "rules", "lofamo-recording.yaml", "lofamo-alerts.yaml"}, {"test", "rules", "lofamo-tests.yaml"}} {
		c := exec.CommandContext(t.Context(), tool, args...)
		c.Dir = rules
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/dashboards"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/metricsdoc"
	"github.com/lofamo/lofamo/internal/testing/freeport"
	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// prometheus is a real one with the project's own example of a configuration and its rules.
type prometheus struct {
	t    *testing.T
	addr string
}

// programs finds Prometheus and its tool. Without them the test is skipped, and fails where everything has to be there.
func programs(t *testing.T) (server, tool string) {
	t.Helper()
	const from = "Debian's package prometheus"
	return requirements.Program(t, from, "prometheus"), requirements.Program(t, from, "promtool")
}

// startPrometheus starts one by the example, but that it reads the list of this cluster, and more often.
func startPrometheus(t *testing.T, server string, of *cluster.Cluster) prometheus {
	t.Helper()
	rules, err := filepath.Abs("../../deploy/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(rules, "prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	conf := string(b)
	for _, change := range [][2]string{
		{"scrape_interval: 10s", "scrape_interval: 500ms"}, {"evaluation_interval: 10s", "evaluation_interval: 500ms"},
		{"- lofamo-recording.yaml", "- " + rules + "/lofamo-recording.yaml"}, {"- lofamo-alerts.yaml", "- " + rules + "/lofamo-alerts.yaml"},
		{"../../.lofamo/" + inventory.TargetsFile, of.Targets()},
	} {
		if strings.Count(conf, change[0]) != 1 {
			t.Fatalf("deploy/prometheus/prometheus.yml: want %q once", change[0])
		}
		conf = strings.Replace(conf, change[0], change[1], 1)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	p := prometheus{t, freeport.Addr(t).String()}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var log bytes.Buffer
	c := exec.CommandContext(ctx, server, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.addr, "--log.level=warn")
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = c.Wait()
		if t.Failed() {
			t.Logf("Prometheus said:\n%s", log.String())
		}
	})
	return p
}

// ask gets the data of an answer; false: not now.
func (p prometheus) ask(path string, into any) bool {
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.addr+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var answer struct{ Data json.RawMessage }
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(&answer) == nil && json.Unmarshal(answer.Data, into) == nil
}

// series are those that a query finds.
func (p prometheus) series(query string) (out []map[string]string) {
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	if p.ask("/api/v1/query?query="+url.QueryEscape(query), &data) {
		for _, r := range data.Result {
			out = append(out, r.Metric)
		}
	}
	return out
}

// comes waits until a query finds something.
func (p prometheus) comes(query string) []map[string]string {
	p.t.Helper()
	end := time.Now().Add(settling)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(end) {
		if got := p.series(query); len(got) > 0 {
			return got
		}
		select {
		case <-tick.C:
		case <-p.t.Context().Done():
		}
	}
	p.t.Fatalf("nothing within %s: %s", settling, query)
	return nil
}

// TestPrometheusAlertNamesKilledHalf has a real Prometheus scrape a real cluster: the metrics are those of docs/metrics.md, promtool finds
// no error in them, and a killed half raises an alert that names it.
func TestPrometheusAlertNamesKilledHalf(t *testing.T) {
	t.Parallel()
	server, tool := programs(t)
	const node = "n1-1-0"
	l := clusterOf(t, "2x2x1", cluster.Options{Supervisors: 1, Periods: patient()})
	p := startPrometheus(t, server, l.Cluster)
	try(t, l, "a killed half", func(tr trial) {
		p.comes(`sum(up{cluster="local",job=~"lofamo-(supervisor|agent)"}) == 5 and on () lofamo:nodes:count{state="NORMAL"} == 4`)
		if got := p.series(`ALERTS{alertstate="firing",alertname!="LofamoAwarenessLate"}`); len(got) > 0 {
			t.Errorf("alerts while all is well: %v", got)
		}
		tr.inject(node, simple(cluster.KillHost))
		tr.becomes(node, "host", failed)
		got := p.comes(`ALERTS{alertname="LofamoHalfFailed"}`)
		if got[0]["node"] != node || got[0]["component"] != "host" || got[0]["severity"] != "warning" || len(got) != 1 {
			t.Errorf("alerts %v", got)
		}
		p.comes(`lofamo_node_state{node="` + node + `",state="SICK"} * on (node) group_left (map_x, map_y, rack) lofamo_node_info`)
		p.shown("n0-0-0")
	})
	p.asDocumented()
	for _, addr := range []string{l.Cluster.Info().Supervisors[0].HTTP, l.Cluster.Info().Nodes[0].HTTP} {
		c := exec.CommandContext(t.Context(), tool, "check", "metrics")
		c.Stdin = strings.NewReader(ours(t, addr))
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool check metrics of %s: %v\n%s", addr, err, out)
		}
	}
}

// shown sends the queries of the dashboards of deploy/grafana: each query is answered, and has a result wherever one
// should always exist.
func (p prometheus) shown(node string) {
	for _, d := range dashboards.All() {
		for _, r := range d.Rows {
			for _, panel := range r.Panels {
				for _, q := range panel.Queries {
					query := q.Of("local", node)
					if q.Rare == "" {
						p.comes(query)
						continue
					}
					var any json.RawMessage
					if !p.ask("/api/v1/query?query="+url.QueryEscape(query), &any) {
						p.t.Errorf("%s: %s: refused: %s", d.Title, panel.Title, query)
					}
				}
			}
		}
	}
}

// asDocumented compares the scraped metrics with docs/metrics.md.
func (p prometheus) asDocumented() {
	known, err := metricsdoc.Known()
	if err != nil {
		p.t.Fatal(err)
	}
	var scraped map[string][]struct{ Type, Help string }
	if !p.ask("/api/v1/metadata", &scraped) {
		p.t.Fatal("no metadata")
	}
	for name, is := range scraped {
		m, ok := known[name]
		switch {
		case !ok && strings.HasPrefix(name, "lofamo_"):
			p.t.Errorf("%s is scraped, and not in docs/metrics.md", name)
		case ok && (is[0].Type != m.Type || strings.HasPrefix(name, "lofamo_") && is[0].Help != m.Help):
			p.t.Errorf("%s is a %s, %q; documented as a %s, %q", name, is[0].Type, is[0].Help, m.Type, m.Help)
		}
	}
	used, err := metricsdoc.Used("../../deploy/prometheus")
	if err != nil {
		p.t.Fatal(err)
	}
	for name, file := range used {
		if strings.HasPrefix(name, "lofamo_executor_") { // of the executor process, whose own tests look
			continue
		}
		// of parents; of modules in use; of broken links; of given-up halves
		if _, ok := scraped[name]; !ok && name != "lofamo_region_cut_off" && name != "lofamo_agent_selftest_state" &&
			name != "lofamo_link_state" && name != "lofamo_half_given_up" {
			p.t.Errorf("%s: %s is not scraped", file, name)
		}
	}
}

// ours returns the served metrics without those of libraries.
func ours(t *testing.T, addr string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(served(t, addr)) {
		if rest := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "); strings.HasPrefix(rest, "lofamo_") {
			b.WriteString(line)
		}
	}
	if b.Len() == 0 {
		t.Errorf("%s serves nothing", addr)
	}
	return b.String()
}

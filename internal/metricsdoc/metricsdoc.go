// Package metricsdoc makes docs/metrics.md from the metrics that the programs register: nothing is written twice, and nothing is left out.
package metricsdoc

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/executor/process"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
	"github.com/lofamo/lofamo/internal/supervisor/respond"
	"github.com/lofamo/lofamo/internal/supervisor/view"
)

// The types of metrics.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// Metric is one family.
type Metric struct {
	Name, Type, Help string
	Labels           []string
}

// Unit is the base unit that the name says, or that it is a number of things.
func (m Metric) Unit() string {
	name := strings.TrimSuffix(m.Name, "_total")
	for _, u := range []struct{ suffix, unit string }{{"_timestamp_seconds", "seconds since 1970"}, {"_seconds", "seconds"},
		{"_bytes", "bytes"}, {"_ratio", "ratio"}, {"_info", "1"}} {
		if strings.HasSuffix(name, u.suffix) {
			return u.unit
		}
	}
	return "number"
}

// Agent are the metrics of a host half, which speaks for both halves of its node.
func Agent() []Metric {
	var out []Metric
	for _, f := range host.Metrics() {
		m := Metric{Name: f.Name, Type: Gauge, Help: f.Help, Labels: f.Labels}
		if strings.HasSuffix(f.Name, "_total") {
			m.Type = Counter
		}
		out = append(out, m)
	}
	return sorted(out)
}

// Supervisor are the metrics of a replica, those of libraries apart.
func Supervisor() ([]Metric, error) {
	var r recorder
	metrics.New(&r)
	respond.NewMetrics(&r)
	r.MustRegister(metrics.Collectors(metrics.Replica{
		Map:    func() (view.Map, bool) { return view.Map{}, false },
		Leader: func() string { return "" }, QuorumAge: func() float64 { return -1 }, Discounting: func() bool { return false },
		Begins: func() time.Time { return time.Time{} }, Expires: func() time.Time { return time.Time{} },
		Replicas: func() map[string]bool { return nil }, Oversized: func() uint64 { return 0 }, Dropped: func() uint64 { return 0 },
	})...)
	return sorted(r.all), r.err
}

// Executor are the metrics of an executor process, those of libraries apart.
func Executor() ([]Metric, error) {
	var r recorder
	process.NewMetrics(&r, nil, process.Standing{})
	return sorted(r.all), r.err
}

func sorted(all []Metric) []Metric {
	slices.SortFunc(all, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// recorder is a registry that records every registered metric.
type recorder struct {
	all []Metric
	err error
}

// MustRegister implements prometheus.Registerer.
func (r *recorder) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil && r.err == nil {
			r.err = err
		}
	}
}

// Unregister implements prometheus.Registerer.
func (r *recorder) Unregister(prometheus.Collector) bool { return false }

// descOf is how client_golang prints a description: it tells it in no other way.
var descOf = regexp.MustCompile(
	`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?constLabels: \{([^}]*)\}, variableLabels: ` +
		`\{([^}]*)\}\}$`)

// Register implements prometheus.Registerer.
func (r *recorder) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 64)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		parts := descOf.FindStringSubmatch(d.String())
		if parts == nil {
			return fmt.Errorf("description %s: not as expected", d)
		}
		name, err := strconv.Unquote(parts[1])
		if err != nil {
			return fmt.Errorf("description %s: name: %w", d, err)
		}
		help, err := strconv.Unquote(parts[2])
		if err != nil {
			return fmt.Errorf("description %s: help: %w", d, err)
		}
		m := Metric{Name: name, Help: help, Type: typeOf(c, name)}
		for l := range strings.SplitSeq(parts[3], ",") {
			if l, _, ok := strings.Cut(l, "="); ok {
				m.Labels = append(m.Labels, l)
			}
		}
		if parts[4] != "" {
			m.Labels = append(m.Labels, strings.Split(parts[4], ",")...)
		}
		r.all = append(r.all, m)
	}
	return nil
}

// typeOf is the type of a family: a histogram shows it, and of the others the counters are named so.
func typeOf(c prometheus.Collector, name string) string {
	if _, ok := c.(*prometheus.HistogramVec); ok {
		return Histogram
	}
	if _, ok := c.(prometheus.Histogram); ok { // counters and gauges do not observe
		return Histogram
	}
	if strings.HasSuffix(name, "_total") {
		return Counter
	}
	return Gauge
}

// Libraries are the metrics of others that rules rest on.
func Libraries() []Metric {
	return []Metric{
		{"etcd_disk_wal_fsync_duration_seconds", Histogram, "Syncs of the write-ahead log of the embedded etcd.", nil},
		{"etcd_mvcc_db_total_size_in_bytes", Gauge, "Size of the embedded etcd's store.", nil},
		{"etcd_server_has_leader", Gauge, "1 while the embedded etcd knows its leader.", nil},
		{"etcd_server_quota_backend_bytes", Gauge, "Quota of the store.", nil},
		{"process_cpu_seconds_total", Counter, "Processor time of the process.", nil},
		{"process_resident_memory_bytes", Gauge, "Resident memory of the process.", nil},
		{"process_start_time_seconds", Gauge, "When the process was started, in seconds since 1970.", nil},
	}
}

// named is a metric in a rule or a dashboard.
var named = regexp.MustCompile(`\b(?:lofamo|etcd|process)_[a-z0-9_]+\b`)

// Used are the metrics that the files below a directory rest on, by name, with one of the files.
func Used(dir string) (map[string]string, error) {
	known, err := Known()
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range named.FindAllString(string(b), -1) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, ok := strings.CutSuffix(name, suffix); ok && known[base].Type == Histogram {
					name = base
				}
			}
			out[name] = path
		}
		return nil
	})
	return out, err
}

// Known are all metrics, by name.
func Known() (map[string]Metric, error) {
	sup, err := Supervisor()
	exe, eerr := Executor()
	out := make(map[string]Metric)
	for _, m := range slices.Concat(sup, Agent(), exe, Libraries()) {
		out[m.Name] = m
	}
	return out, errors.Join(err, eerr)
}

// drawn are the metrics from which dashboards draw the torus, and compute the parts missing in the drawing.
var drawn = []string{"lofamo_link_info", "lofamo_map_series_left_out", "lofamo_node_info", "lofamo_torus_size"}

// Page renders the page. What rules rest on, and drawings, is stable.
func Page(rules string) ([]byte, error) {
	sup, err := Supervisor()
	if err != nil {
		return nil, err
	}
	exe, err := Executor()
	if err != nil {
		return nil, err
	}
	used, err := Used(rules)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(head)
	table := func(title, text string, all []Metric) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| name | type | labels | unit | stability | meaning |\n|---|---|---|---|---|---|\n", title, text)
		for _, m := range all {
			stability := "evolving"
			if used[m.Name] != "" || slices.Contains(drawn, m.Name) {
				stability = "stable"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", m.Name, m.Type, strings.Join(m.Labels, ", "), m.Unit(), stability,
				strings.ReplaceAll(m.Help, "|", "\\|"))
		}
	}
	table("Supervisors", supervisors, sup)
	table("Agents", agents, Agent())
	table("Executor process", executors, exe)
	table("Of libraries", libraries, Libraries())
	return []byte(b.String()), nil
}

package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/internal/supervisor/view"
)

// Replica provides the values of a replica's metrics. None of the functions may block.
type Replica struct {
	// Map returns the map of a leader; false on other replicas.
	Map func() (view.Map, bool)
	// Incidents returns all incidents that this replica knows.
	Incidents func() []*lofamov1.Incident
	// Leader returns the leader that this replica knows; empty: none.
	Leader func() string
	// QuorumAge returns for how many seconds this replica has had no quorum; -1: never one since it started.
	QuorumAge func() float64
	// Begins and Expires return the validity of the certificate that this replica uses.
	Begins, Expires func() time.Time
	// Discounting reports whether this replica leads and now ignores the silence of nodes: see engine.Engine.Discounting.
	Discounting func() bool
	// Replicas reports for each configured replica whether this one reaches it.
	Replicas func() map[string]bool
	// Oversized and Dropped count the datagrams at the report addresses that were longer than any message, and those
	// that the kernel dropped.
	Oversized, Dropped func() uint64
}

// Collectors returns all collectors of a replica.
func Collectors(r Replica) []prometheus.Collector {
	counter := func(name, help string, of func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "lofamo", Subsystem: "supervisor", Name: name, Help: help},
			func() float64 { return float64(of()) })
	}
	gauge := func(name, help string, of func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "lofamo", Name: name, Help: help}, of)
	}
	build := program.Build()
	return []prometheus.Collector{
		NewCollector(r.Map, r.Incidents),
		replicas{prometheus.NewDesc("lofamo_replica_up", "1 for each configured replica that this one reaches; for itself always.",
			[]string{"replica"}, nil), r.Replicas},
		gauge("leader_known", "1 while this replica knows a leader; without a quorum that knowledge may be wrong.",
			func() float64 { return one(r.Leader() != "") }),
		gauge("silence_discounted", "1 while this leader keeps silent nodes from becoming UNKNOWN because supervisors may be losing "+
			"messages; else 0, also on followers.", func() float64 { return one(r.Discounting()) }),
		gauge("supervisor_quorum_age_seconds", "Time since a quorum last confirmed this replica; -1: never since it "+
			"started.", r.QuorumAge),
		gauge("supervisor_certificate_begins_timestamp_seconds", "Begin of the certificate that this replica uses now.",
			func() float64 { return float64(r.Begins().Unix()) }),
		gauge("supervisor_certificate_expires_timestamp_seconds",
			"Earlier end of the certificates that this replica uses now. Afterwards all others, or foreign clients, refuse it.",
			func() float64 { return float64(r.Expires().Unix()) }),
		counter("oversized_total", "Datagrams at the report addresses that exceed the longest message.", r.Oversized),
		counter("kernel_dropped_total", "Datagrams at the report addresses that the kernel dropped because this replica was too slow.",
			r.Dropped),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "lofamo", Name: "build_info", Help: "Always 1, with the build of this supervisor.",
			ConstLabels: prometheus.Labels{"version": build.Version, "goversion": runtime.Version()},
		}, func() float64 { return 1 }),
	}
}

// replicas exports which replicas are reached.
type replicas struct {
	desc *prometheus.Desc
	get  func() map[string]bool
}

// Describe implements prometheus.Collector.
func (c replicas) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c replicas) Collect(ch chan<- prometheus.Metric) {
	for id, up := range c.get() {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, one(up), id)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

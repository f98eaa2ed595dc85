package respond

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/response"
)

// Metrics of a responder. Values that only a leader knows are 0 elsewhere.
type Metrics struct {
	Leading prometheus.Gauge
	Broken  prometheus.Gauge
	Breaker prometheus.Gauge
	Nodes   prometheus.Gauge
	Running prometheus.Gauge
	Commit  prometheus.Histogram

	Open          *prometheus.GaugeVec     // state
	Waiting       *prometheus.GaugeVec     // reason
	Policies      *prometheus.GaugeVec     // mode
	Decisions     *prometheus.CounterVec   // act
	Refused       *prometheus.CounterVec   // reason
	Results       *prometheus.CounterVec   // kind, outcome
	Took          *prometheus.HistogramVec // kind
	AuditFailures prometheus.Counter
}

// NewMetrics creates and registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "lofamo", Subsystem: "responses", Name: name, Help: help}
	}
	m := &Metrics{
		Leading: prometheus.NewGauge(prometheus.GaugeOpts(opts("leading", "Whether this replica decides on responses."))),
		Broken: prometheus.NewGauge(prometheus.GaugeOpts(opts("broken",
			"Whether this replica could not resume the committed responses when it last became leader: it then responds to no fault."))),
		Breaker: prometheus.NewGauge(prometheus.GaugeOpts(opts("breaker_open",
			"Whether the circuit breaker is open; a person must close it."))),
		Nodes:   prometheus.NewGauge(prometheus.GaugeOpts(opts("nodes", "Nodes under response: with an action that was not undone."))),
		Running: prometheus.NewGauge(prometheus.GaugeOpts(opts("attempts_running", "Running attempts of executors."))),
		Commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "lofamo", Subsystem: "responses", Name: "commit_seconds", Help: "Duration of the commits of decisions.",
			Buckets: prometheus.ExponentialBuckets(.001, 2, 14),
		}),
		Open: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("open", "Open responses.")), []string{"state"}),
		Waiting: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("waiting", "Open responses that wait, by reason.")),
			[]string{"reason"}),
		Policies: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("policies",
			"Policies in force, by mode; unreadable: this replica cannot read them.")), []string{"mode"}),
		Decisions: prometheus.NewCounterVec(prometheus.CounterOpts(opts("decisions_total", "Decisions: the lines of the audit.")),
			[]string{"act"}),
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts(opts("refused_total", "Actions not taken, by "+
			"reason.")), []string{"reason"}),
		Results: prometheus.NewCounterVec(prometheus.CounterOpts(opts("results_total", "Outcomes of executors' attempts.")),
			[]string{"kind", "outcome"}),
		Took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "lofamo", Subsystem: "responses", Name: "attempt_seconds", Help: "Duration of executors' attempts.",
			Buckets: prometheus.ExponentialBuckets(.002, 2.5, 14),
		}, []string{"kind"}),
		AuditFailures: prometheus.NewCounter(prometheus.CounterOpts(opts("audit_failures_total",
			"Number of times that the audit was damaged, or its chain broken."))),
	}
	for a := response.Proposes; a <= response.Observes; a++ {
		m.Decisions.WithLabelValues(a.String())
	}
	for _, r := range response.Reasons() {
		m.Refused.WithLabelValues(r.String())
	}
	for _, k := range response.Kinds() {
		for _, o := range executor.OutcomeNames() {
			m.Results.WithLabelValues(string(k), o)
		}
	}
	reg.MustRegister(m.Leading, m.Broken, m.Breaker, m.Nodes, m.Running, m.Commit, m.Open, m.Waiting, m.Policies, m.Decisions, m.Refused,
		m.Results, m.Took, m.AuditFailures)
	return m
}

// policies records the policies in force.
func (m *Metrics) policies(set []*response.Policy, unreadable int) {
	counts := map[response.Mode]int{}
	for _, p := range set {
		counts[p.Mode]++
	}
	for _, mode := range []response.Mode{response.ObserveOnly, response.Enforce} {
		m.Policies.WithLabelValues(mode.String()).Set(float64(counts[mode]))
	}
	m.Policies.WithLabelValues("unreadable").Set(float64(unreadable))
}

func (m *Metrics) broken(is bool) {
	m.Broken.Set(0)
	if is {
		m.Broken.Set(1)
	}
}

func (m *Metrics) decided(list []response.Decision) {
	for _, d := range list {
		m.Decisions.WithLabelValues(d.Act.String()).Inc()
		if d.Act == response.Refuses {
			m.Refused.WithLabelValues(d.Reason.String()).Inc()
		}
	}
}

// stands records the state of the engine.
func (m *Metrics) stands(e *response.Engine) {
	m.Breaker.Set(0)
	if e.Breaker().Open {
		m.Breaker.Set(1)
	}
	m.Nodes.Set(float64(e.UnderResponse()))
	counts, waiting := map[response.State]int{}, map[response.Reason]int{response.ReasonApproval: 0}
	for _, r := range e.Responses() {
		counts[r.State]++
		if r.State == response.Waiting && r.Reason != 0 {
			waiting[r.Reason]++
		}
	}
	m.Waiting.Reset()
	for reason, n := range waiting {
		m.Waiting.WithLabelValues(reason.String()).Set(float64(n))
	}
	for s := response.Proposed; s <= response.Expired; s++ {
		m.Open.WithLabelValues(s.String()).Set(float64(counts[s]))
	}
}

// lost resets the values that only a leader knows.
func (m *Metrics) lost() {
	for _, g := range []prometheus.Gauge{m.Leading, m.Breaker, m.Nodes} {
		g.Set(0)
	}
	m.Open.Reset()
	m.Waiting.Reset()
}

// ended records the end of an attempt.
func (m *Metrics) ended(j executor.Job, res executor.Result, took time.Duration, begun bool) {
	m.Results.WithLabelValues(string(j.Kind), executor.OutcomeName(res.Outcome)).Inc()
	if begun {
		m.Took.WithLabelValues(string(j.Kind)).Observe(took.Seconds())
	}
}

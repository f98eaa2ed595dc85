package process

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lofamo/lofamo/internal/bounded"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/controller"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/response"
)

// Standing returns a process's current values for its metrics.
type Standing struct {
	Token      func() float64 // the highest token seen
	Running    func() float64 // attempts in progress
	Remembered func() float64 // attempts in the ledger
	Begins     func() float64 // start of its certificate's validity, in seconds since 1970
	Expires    func() float64 // end of its certificate's validity, in seconds since 1970
	// Controllers returns the number of management controllers by their last finding.
	Controllers func() map[controller.Finding]int
}

// Metrics of an executor process.
type Metrics struct {
	Attempts *prometheus.CounterVec // kind, outcome
	Refused  *prometheus.CounterVec // reason
	Failures prometheus.Counter
}

// controllerCollector counts management controllers.
type controllerCollector struct {
	counts func() map[controller.Finding]int
}

var controllersDesc = prometheus.NewDesc("lofamo_executor_controllers",
	"Management controllers that this process reads, by the last finding; none: not read yet.", []string{"finding"}, nil)

// Describe implements prometheus.Collector.
func (c controllerCollector) Describe(out chan<- *prometheus.Desc) { out <- controllersDesc }

// Collect implements prometheus.Collector.
func (c controllerCollector) Collect(out chan<- prometheus.Metric) {
	n := c.counts()
	for f, name := range findingNames {
		out <- prometheus.MustNewConstMetric(controllersDesc, prometheus.GaugeValue, float64(n[controller.Finding(f)]), name) //nolint:gosec // 5
	}
}

// findingNames are the values of the label "finding", by controller.Finding.
var findingNames = [...]string{"none", "powered_off", "powered_on", "silent", "error"}

// NewMetrics creates and registers the metrics of a process for these kinds.
func NewMetrics(reg prometheus.Registerer, kinds []response.Kind, s Standing) *Metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "lofamo", Subsystem: "executor", Name: name, Help: help}
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts(name, help)), f)
	}
	m := &Metrics{
		Attempts: prometheus.NewCounterVec(prometheus.CounterOpts(opts("attempts_total",
			"Attempts that were admitted and have ended, by executor and how they ended.")), []string{"kind", "outcome"}),
		Refused: prometheus.NewCounterVec(prometheus.CounterOpts(opts("refused_total",
			"Attempts that were not admitted: stale_token (a higher one was seen), late (a newer attempt at the step was seen), full (too many "+
				"are remembered).")), []string{"reason"}),
		Failures: prometheus.NewCounter(prometheus.CounterOpts(opts("ledger_failures_total",
			"Times that the ledger could not be written; the process ends then."))),
	}
	for _, k := range kinds {
		for _, o := range executor.OutcomeNames() {
			m.Attempts.WithLabelValues(string(k), o)
		}
	}
	for _, v := range []verdict{stale, late, crowded} {
		m.Refused.WithLabelValues(v.reason())
	}
	build := program.Build()
	info := opts("build_info", "Always 1, with the build of this executor process.")
	info.ConstLabels = prometheus.Labels{"version": build.Version, "goversion": runtime.Version()}
	reg.MustRegister(m.Attempts, m.Refused, m.Failures, controllerCollector{s.Controllers},
		gauge("highest_token", "The highest fencing token that was seen; lower ones are refused.", s.Token),
		gauge("certificate_begins_timestamp_seconds", "Begin of the certificate that this process uses now.", s.Begins),
		gauge("certificate_expires_timestamp_seconds",
			"End of the certificate that this process uses now. Afterwards supervisors give it no work.", s.Expires),
		gauge("attempts_running", "Attempts under way, those included that wait for another to end.", s.Running),
		gauge("attempts_remembered", fmt.Sprintf(
			"Attempts in the ledger, of at most %d; each is forgotten 48 hours after its end at the earliest.", maxEntries), s.Remembered),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts(info), func() float64 { return 1 }),
	)
	return m
}

// reason returns the value of the label "reason"; empty for an attempt that is not refused.
func (v verdict) reason() string {
	switch v {
	case stale:
		return "stale_token"
	case late:
		return "late"
	case crowded:
		return "full"
	default:
		return ""
	}
}

// refused counts an attempt that was not admitted.
func (m *Metrics) refused(v verdict) {
	if r := v.reason(); r != "" {
		m.Refused.WithLabelValues(r).Inc()
	}
}

// ended counts an attempt that has ended.
func (m *Metrics) ended(k response.Kind, o response.Outcome) {
	m.Attempts.WithLabelValues(string(k), executor.OutcomeName(o)).Inc()
}

// handler serves metrics and health: /healthz while the process lives, /readyz while it takes attempts.
func (p *Process) handler(reg *prometheus.Registry) http.Handler {
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ok := func(w http.ResponseWriter) { _, _ = fmt.Fprintln(w, "ok") }
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { ok(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := p.server.refuses(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		ok(w)
	})
	return mux
}

// serveHTTP serves a handler until the process is stopped.
func (p *Process) serveHTTP(l net.Listener, h http.Handler) {
	p.http = bounded.HTTPServer(h)
	p.serving.Go(func() {
		if err := p.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			p.fail(fmt.Errorf("metrics: serve %s: %w", l.Addr(), err))
		}
	})
}

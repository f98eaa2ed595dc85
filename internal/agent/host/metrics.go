package host

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host/hostcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/bounded"
)

// metric describes one family.
type metric struct {
	name, help string
	labels     []string
}

// MetricFamily describes one family of metrics. All carry the labels node and platform too.
type MetricFamily struct {
	Name, Help string
	Labels     []string
}

// Metrics returns the host half's Prometheus metric families, for the documentation.
func Metrics() []MetricFamily {
	var out []MetricFamily
	for _, m := range allFamilies() {
		out = append(out, MetricFamily{m.name, m.help, append([]string{"node", "platform"}, m.labels...)})
	}
	return out
}

// allFamilies returns all metric families of a host half.
func allFamilies() []metric {
	return slices.Concat(families(), renewalFamilies(), halfStatusFamilies(), counterFamilies(), linkFamilies())
}

func families() []metric {
	return []metric{
		{"lofamo_agent_epoch", "Boot epoch of the host half.", nil},
		{"lofamo_agent_certificate_begins_timestamp_seconds", "Begin of the certificate that a half uses now.", []string{"half"}},
		{"lofamo_agent_certificate_expires_timestamp_seconds",
			"End of the certificate that a half uses now. Afterwards all others refuse its messages.", []string{"half"}},
		{"lofamo_agent_dnp_alive", "1 when the DNP half validates its watchdog word, 0 when not or not yet.", nil},
		{"lofamo_agent_reports_pending", "Reports in the sender's log.", nil},
		{"lofamo_agent_reports_unanswered", "Reports in the sender's log that no supervisor has received yet.", nil},
		{"lofamo_agent_reports_oldest_age_seconds", "Age of the oldest report in the sender's log, 0 when it is empty.", nil},
		{"lofamo_agent_reports_total", "Reports and digests logged.", nil},
		{"lofamo_agent_reports_committed_total", "Reports that the supervisors committed.", nil},
		{"lofamo_agent_reports_shortened_total", "Reports left out because the log was full.", nil},
		{"lofamo_agent_sends_total", "Attempts by kind of rail.", []string{"path"}},
		{"lofamo_agent_retries_total", "Attempts that were not the first of their report.", nil},
		{"lofamo_agent_path_state", "State of the path to the supervisors, one series a state.", []string{"state"}},
		{"lofamo_agent_path_migrations_total", "Changes of the primary path, by reason.", []string{"reason"}},
		{"lofamo_agent_isolated", "1 while no rail at all brings an answer of a supervisor.", nil},
		{"lofamo_agent_isolated_seconds", "How long no rail at all has brought an answer, 0 when one does.", nil},
		{"lofamo_agent_rail_up", "0 while a rail is known not to work, else 1.", []string{"rail"}},
		{"lofamo_agent_rail_reports_in_flight", "Reports sent by a rail last and not answered.", []string{"rail"}},
		{"lofamo_agent_rail_reports_sent_total", "Reports sent by a rail.", []string{"rail"}},
		{"lofamo_agent_rail_reports_answered_total", "Reports whose first answer came by a rail.", []string{"rail"}},
		{"lofamo_agent_rail_rtt_seconds", "Smoothed time from a report to its answer, 0 before the first.", []string{"rail"}},
		{"lofamo_agent_spool_bytes", "Bytes that kept reports take on disk.", nil},
		{"lofamo_agent_spool_reports", "Reports that would outlive a restart.", nil},
		{"lofamo_agent_spool_lost_total", "Reports that could not be kept on disk.", nil},
		{"lofamo_agent_disk_free_bytes", "Free space of the state directory's disk.", nil},
		{"lofamo_agent_disk_low", "1 while the state directory's disk has less than diskWarnBytes free.", nil},
		{"lofamo_agent_spool_failing", "1 while the spool does not keep reports on disk; 0 if there is none (spoolBytes 0).", nil},
		{"lofamo_agent_damaged_total", "Damaged packets received; the half requests them again.", nil},
		{"lofamo_agent_refused_total", "Messages refused, by reason.", []string{"reason"}},
		{"lofamo_agent_oversized_total", "Datagrams on the service interfaces that were longer than any message.", nil},
		{"lofamo_agent_kernel_dropped_total", "Datagrams on the service interfaces that the kernel dropped because the half was too slow.", nil},
		{"lofamo_agent_mailbox_dropped_total", "Messages to the DNP half dropped because its mailbox was full.", nil},
		{"lofamo_agent_broadcasts_raised_total", "Express broadcasts raised at this node, by topic.", []string{"topic"}},
		{"lofamo_agent_broadcasts_delivered_total", "Express broadcasts of other nodes that came here, by topic.", []string{"topic"}},
		{"lofamo_agent_broadcasts_repeated_total", "Express broadcasts sent to a neighbour again, by topic.", []string{"topic"}},
		{"lofamo_agent_broadcasts_dropped_total", "Express broadcasts refused because of room or budget, or given up, by topic.",
			[]string{"topic"}},
		{"lofamo_agent_procedure_state", "State of the fault management procedure at this node, one series a state.", []string{"state"}},
		{"lofamo_agent_procedures_total", "Fault management procedures that ended here with the torus empty or not, and those that this node " +
			"wanted and did not begin.", []string{"result"}},
		{"lofamo_agent_procedure_held_up_total", "Messages of this node that waited for the end of a procedure.", nil},
		{"lofamo_agent_procedure_waiting", "Messages of this node that wait now.", nil},
		{"lofamo_agent_registers_corrupt_total", "Register words found torn or flipped.", nil},
		{"lofamo_agent_component_state", "State of each component as this half states it, one series a state; none for a sensor or " +
			"peripheral that the node does not have.", []string{"component", "state"}},
	}
}

// hostMetrics gathers the host half's metrics at scrape time, so an agent without scrapes pays nothing. The DNP
// half's values come from the registers.
type hostMetrics struct {
	h    *hostHalf
	desc map[string]map[string]*prometheus.Desc // by platform, which a window shows only after a while, and name
}

func newHostMetrics(h *hostHalf) *hostMetrics {
	m := &hostMetrics{h: h, desc: map[string]map[string]*prometheus.Desc{}}
	for _, platform := range h.window.PlatformNames() {
		labels, desc := prometheus.Labels{"node": string(h.Config.Node), "platform": platform}, map[string]*prometheus.Desc{}
		for _, d := range allFamilies() {
			desc[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, labels)
		}
		m.desc[platform] = desc
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *hostMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, of := range m.desc {
		for _, d := range of {
			ch <- d
		}
	}
}

// sink takes values of one scrape.
type sink struct {
	desc map[string]*prometheus.Desc
	ch   chan<- prometheus.Metric
}

func (s sink) counter(name string, v uint64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.desc[name], prometheus.CounterValue, float64(v), labels...)
}

func (s sink) gauge(name string, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.desc[name], prometheus.GaugeValue, v, labels...)
}

func (s sink) certificate(half fault.Half, c half.Validity) {
	if c.Begins != 0 { // a DNP half of an earlier version states the end alone
		s.gauge("lofamo_agent_certificate_begins_timestamp_seconds", float64(c.Begins), half.String())
	}
	s.gauge("lofamo_agent_certificate_expires_timestamp_seconds", float64(c.Ends), half.String())
}

// seconds turns nanoseconds into the base unit.
func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }

// Collect implements prometheus.Collector.
func (m *hostMetrics) Collect(ch chan<- prometheus.Metric) {
	h, s := m.h, sink{m.desc[m.h.window.PlatformName()], ch}
	h.mu.Lock()
	box, verdict, e := h.core.OutboxStats(), h.core.Verdict(), h.core.Epoch()
	states := h.core.States()
	corrupt := h.page.File.Corrupt()
	delivery, moved := h.core.Delivery(time.Now()), h.core.Migrations()
	halves, broadcasts, procedures := h.heardHalfStatus(time.Now()), h.broadcasts(), h.procedures()
	counts, links := h.otherCounts(), h.linkCounts()
	h.mu.Unlock()
	halves.rails = delivery

	s.gauge("lofamo_agent_epoch", float64(e))
	s.certificate(fault.HalfHost, half.Validity{Begins: h.Signer.Begins().Unix(), Ends: h.Signer.Expires().Unix()})
	if c := h.dnpCert.Load(); c != nil { // else the half has just started
		s.certificate(fault.HalfDNP, *c)
	}
	s.renewals(&h.courier.counts)
	s.gauge("lofamo_agent_dnp_alive", one(verdict == watchdog.Alive))
	s.gauge("lofamo_agent_reports_pending", float64(box.Pending))
	s.counter("lofamo_agent_reports_total", box.Added)
	s.counter("lofamo_agent_reports_committed_total", box.Committed)
	s.counter("lofamo_agent_reports_shortened_total", box.Shortened)
	s.counter("lofamo_agent_retries_total", box.Retries)
	for p := fault.PathDirect; p.Valid(); p++ {
		s.counter("lofamo_agent_sends_total", box.Sent[p], p.String())
	}
	for _, r := range servicenet.MigrationReasons() {
		s.counter("lofamo_agent_path_migrations_total", moved[r], r.String())
	}
	s.delivery(delivery)
	s.halfStatus(halves)
	s.spool(h.Keeper)
	s.broadcasts(broadcasts)
	s.procedures(procedures)
	s.counts(counts)
	s.links(links)
	s.counter("lofamo_agent_damaged_total", h.damaged.Load())
	for r := range servicenet.NumRefusals {
		if r > 0 {
			s.counter("lofamo_agent_refused_total", h.refused[r].Load(), servicenet.Refusal(r).String())
		}
	}
	var oversized, dropped uint64
	for _, n := range h.nets {
		st := n.Stats()
		oversized, dropped = oversized+st.Oversized, dropped+st.Dropped
	}
	s.counter("lofamo_agent_oversized_total", oversized)
	s.gauge("lofamo_agent_disk_free_bytes", float64(h.disk.free.Load()))
	s.gauge("lofamo_agent_disk_low", one(h.disk.low.Load()))
	s.counter("lofamo_agent_kernel_dropped_total", dropped)
	s.counter("lofamo_agent_mailbox_dropped_total", h.box.Stats().DroppedFull)
	s.counter("lofamo_agent_registers_corrupt_total", corrupt)
	s.states(states)
}

// delivery emits the sender's metrics of its log, paths and rails.
func (s sink) delivery(d *lofamov1.DeliveryStatus) {
	s.gauge("lofamo_agent_reports_unanswered", float64(d.GetUnanswered()))
	s.gauge("lofamo_agent_reports_oldest_age_seconds", seconds(d.GetOldestNs()))
	for state := lofamov1.PathState_MIGRATED; state <= lofamov1.PathState_REESTABLISHING; state++ {
		s.gauge("lofamo_agent_path_state", one(d.GetState() == state), state.String())
	}
	s.gauge("lofamo_agent_isolated", one(d.GetIsolatedNs() > 0))
	s.gauge("lofamo_agent_isolated_seconds", seconds(d.GetIsolatedNs()))
	for _, r := range d.GetRails() {
		s.gauge("lofamo_agent_rail_up", one(!r.GetDown()), r.GetName())
		s.gauge("lofamo_agent_rail_reports_in_flight", float64(r.GetInFlight()), r.GetName())
		s.counter("lofamo_agent_rail_reports_sent_total", r.GetSent(), r.GetName())
		s.counter("lofamo_agent_rail_reports_answered_total", r.GetAnswered(), r.GetName())
		s.gauge("lofamo_agent_rail_rtt_seconds", seconds(r.GetRttNs()), r.GetName())
	}
}

func (s sink) spool(k *storage.ReportLog) {
	st := k.Status()
	s.gauge("lofamo_agent_spool_bytes", float64(st.Bytes))
	s.gauge("lofamo_agent_spool_reports", float64(st.Depth))
	s.counter("lofamo_agent_spool_lost_total", st.Lost)
	s.gauge("lofamo_agent_spool_failing", one(k.Path() != "" && st.Err != ""))
}

func (s sink) states(states []hostcore.ComponentState) {
	for _, c := range states {
		for st := fault.Unknown; st.Valid(); st++ {
			s.gauge("lofamo_agent_component_state", one(c.State == st), c.Component.String(), st.String())
		}
	}
}

// metrics is the handler of the configured HTTP address: /metrics and /healthz.
func (h *hostHalf) metrics() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newHostMetrics(h))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 2}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return mux
}

// httpRetry is the pause before another attempt to listen for HTTP. The address may appear after the half starts, and another program may
// have the port.
const httpRetry = 2 * time.Second

// serveHTTP serves h at a TCP address until ctx ends. It retries after every failure: the half runs without metrics too.
func serveHTTP(ctx context.Context, addr string, log *slog.Logger, h http.Handler) {
	var failing half.Condition
	for {
		l, err := bounded.ListenTCP(addr, bounded.Options{Limits: bounded.Limits{All: 64, PerSource: 16}, Log: log})
		if err == nil {
			log.Info("metrics served", "address", addr)
			failing.On = false
			err = half.Serve(ctx, l, h)
		}
		if ctx.Err() != nil {
			return
		}
		failing.Set(log, "serve metrics at "+addr, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(httpRetry):
		}
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/hostcore"
)

// hostMetrics gathers the host half's metrics when they are asked for: an agent that nobody
// scrapes pays nothing. What the DNP half knows comes from the registers.
type hostMetrics struct {
	h    *hostHalf
	desc map[string]*prometheus.Desc
}

func newHostMetrics(h *hostHalf) *hostMetrics {
	labels := prometheus.Labels{"node": string(h.cfg.Node), "platform": h.cfg.Platform}
	m := &hostMetrics{h: h, desc: map[string]*prometheus.Desc{}}
	for _, d := range []struct {
		name, help string
		labels     []string
	}{
		{"lofamo_agent_epoch", "Boot epoch of the host half.", nil},
		{"lofamo_agent_dnp_alive", "1 when the DNP half validates its watchdog word, 0 when not or not yet.", nil},
		{"lofamo_agent_reports_pending", "Reports in the sender's log.", nil},
		{"lofamo_agent_reports_total", "Reports and digests logged.", nil},
		{"lofamo_agent_reports_committed_total", "Reports that the supervisors committed.", nil},
		{"lofamo_agent_reports_shortened_total", "Reports left out because the log was full.", nil},
		{"lofamo_agent_sends_total", "Attempts by rail.", []string{"path"}},
		{"lofamo_agent_retries_total", "Attempts that were not the first of their report.", nil},
		{"lofamo_agent_refused_total", "Messages refused, by reason.", []string{"reason"}},
		{"lofamo_agent_mailbox_dropped_total", "Messages to the DNP half dropped because its mailbox was full.", nil},
		{"lofamo_agent_registers_corrupt_total", "Register words found torn or flipped.", nil},
		{"lofamo_agent_component_state", "State of each component as this half states it, one series a state.", []string{"component", "state"}},
	} {
		m.desc[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, labels)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *hostMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.desc {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *hostMetrics) Collect(ch chan<- prometheus.Metric) {
	h := m.h
	h.mu.Lock()
	box, verdict, e := h.core.OutboxStats(), h.core.Verdict(), h.core.Epoch()
	states := h.core.States()
	corrupt := h.page.file.Corrupt()
	h.mu.Unlock()

	counter := func(name string, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.desc[name], prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(name string, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.desc[name], prometheus.GaugeValue, v, labels...)
	}
	gauge("lofamo_agent_epoch", float64(e))
	gauge("lofamo_agent_dnp_alive", one(verdict == watchdog.Alive))
	gauge("lofamo_agent_reports_pending", float64(box.Pending))
	counter("lofamo_agent_reports_total", box.Added)
	counter("lofamo_agent_reports_committed_total", box.Committed)
	counter("lofamo_agent_reports_shortened_total", box.Shortened)
	counter("lofamo_agent_retries_total", box.Retries)
	for p := fault.PathDirect; p.Valid(); p++ {
		counter("lofamo_agent_sends_total", box.Sent[p], p.String())
	}
	for r := range servicenet.NumRefusals {
		if r > 0 {
			counter("lofamo_agent_refused_total", h.refused[r].Load(), servicenet.Refusal(r).String())
		}
	}
	counter("lofamo_agent_mailbox_dropped_total", h.box.Stats().DroppedFull)
	counter("lofamo_agent_registers_corrupt_total", corrupt)
	m.collectStates(states, gauge)
}

func (m *hostMetrics) collectStates(states []hostcore.ComponentState, gauge func(string, float64, ...string)) {
	for _, c := range states {
		for s := fault.Unknown; s.Valid(); s++ {
			gauge("lofamo_agent_component_state", one(c.State == s), c.Component.String(), s.String())
		}
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
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

// serveHTTP serves h on a TCP address until ctx ends.
func serveHTTP(ctx context.Context, addr string, h http.Handler) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("metrics: listen on TCP %s: %w", addr, err)
	}
	return serve(ctx, l, h)
}

package host

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/servicenet"

	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// halfStatusScrape is a collector of the families in halfStatusFamilies.
type halfStatusScrape struct {
	desc map[string]*prometheus.Desc
	f    heardHalfStatus
}

func (c halfStatusScrape) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
}

func (c halfStatusScrape) Collect(ch chan<- prometheus.Metric) { sink{c.desc, ch}.halfStatus(c.f) }

func TestHalfStatusMetrics(t *testing.T) {
	c := halfStatusScrape{desc: map[string]*prometheus.Desc{}, f: heardHalfStatus{
		health: servicenet.Health{DNP: &lofamov1.HalfHealth{
			Recovery: &lofamov1.RecoveryStatus{State: lofamov1.RecoveryState_RUNNING, Restarts: 3, InWindow: 1, GoneUs: 1, StartedUs: 3000,
				ServingUs: 43_000, Resumption: lofamov1.Resumption_RESUMED},
			Tests: []*lofamov1.SelfTest{{Number: 16, State: lofamov1.TestState_FAILING, LatencyUs: 250, LearnedUs: 200, Tests: 9, Late: 4,
				Proving: true}},
			Processor: &lofamov1.ProcessorTime{BudgetLevel: 3, UsedPermille: 143},
		}},
		rails:   &lofamov1.DeliveryStatus{Rails: []*lofamov1.RailStatus{{Name: "direct/eth0"}}},
		copy:    storage.CopyStats{Made: 2, Mended: 1, Reports: 7},
		failing: true,
	}}
	c.f.records[1].Causes[halfcore.Hung-1] = 2
	for _, d := range halfStatusFamilies() {
		c.desc[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	w := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	page := w.Body.String()
	for name, want := range map[string][]string{
		"lofamo_agent_restarts_total":     {`{half="dnp"} 3`, `{half="host"} 0`},
		"lofamo_agent_restarts_in_window": {`{half="dnp"} 1`},
		"lofamo_agent_recovery_state": {`{half="dnp",state="RUNNING"} 1`, `{half="dnp",state="GIVEN_UP"} 0`,
			`{half="host",state="RUNNING"} 0`},
		"lofamo_agent_failures_total": {`{cause="hung",half="dnp"} 2`, `{cause="killed",half="dnp"} 0`},
		"lofamo_agent_recovery_seconds": {`{half="dnp",step="serving"} 0.043`, `{half="dnp",step="proven"} 0`,
			`{half="host",step="gone"} 0`},
		"lofamo_agent_budget_level":      {`{half="dnp"} 3`, `{half="host"} 0`},
		"lofamo_agent_budget_use_ratio":  {`{half="dnp"} 0.143`, `{half="host"} 0`},
		"lofamo_agent_resumed":           {`{half="dnp"} 1`, `{half="host"} 0`},
		"lofamo_agent_copy_failing":      {` 1`},
		"lofamo_agent_copy_remade_total": {` 2`},
		"lofamo_agent_copy_reports":      {` 7`},
		"lofamo_agent_copy_mended_total": {` 1`},
		"lofamo_agent_selftest_state": {`{half="dnp",module="direct/eth0",state="FAILING"} 1`,
			`{half="dnp",module="direct/eth0",state="PASSED"} 0`},
		"lofamo_agent_selftest_proving":         {`{half="dnp",module="direct/eth0"} 1`},
		"lofamo_agent_selftest_latency_seconds": {`{half="dnp",module="direct/eth0"} 0.00025`},
		"lofamo_agent_selftest_faults_total": {`{fault="late",half="dnp",module="direct/eth0"} 4`,
			`{fault="lost",half="dnp",module="direct/eth0"} 0`},
	} {
		for _, line := range want {
			if !strings.Contains(page, name+line+"\n") {
				t.Errorf("no %s%s in\n%s", name, line, page)
			}
		}
	}
	if problems, err := promlint.New(bytes.NewBufferString(page)).Lint(); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// spoolScrape is a collector of the spool's families.
type spoolScrape struct {
	desc map[string]*prometheus.Desc
	k    *storage.ReportLog
}

func (c spoolScrape) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
}

func (c spoolScrape) Collect(ch chan<- prometheus.Metric) { sink{c.desc, ch}.spool(c.k) }

// TestSpoolFailsOnlyIfConfigured: a node that keeps no reports on disk by its configuration raises no alert LofamoSpoolFailing. One whose
// spool cannot be opened does.
func TestSpoolFailsOnlyIfConfigured(t *testing.T) {
	for size, want := range map[int64]string{0: "lofamo_agent_spool_failing 0", 1 << 17: "lofamo_agent_spool_failing 1"} {
		k, _ := storage.OpenReportLog(storage.ReportLogConfig{Path: filepath.Join(t.TempDir(), "missing", "host.spool"), Size: size,
			Logger: slog.New(slog.DiscardHandler), Now: func() int64 { return 1 }})
		c := spoolScrape{map[string]*prometheus.Desc{}, k}
		for _, d := range allFamilies() {
			if strings.HasPrefix(d.name, "lofamo_agent_spool_") {
				c.desc[d.name] = prometheus.NewDesc(d.name, d.help, d.labels, nil)
			}
		}
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(c)
		w := httptest.NewRecorder()
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if !strings.Contains(w.Body.String(), want+"\n") {
			t.Errorf("a spool of %d bytes: want %q in\n%s", size, want, w.Body)
		}
	}
}

package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/half"
	"github.com/lofamo/lofamo/internal/agent/host"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/testing/agenttest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// The metrics of a running half: all families are there from the first scrape after the DNP half put its
// counts onto the register page, named and described as Prometheus wants it.
func TestRunningHalfServesAllMetrics(t *testing.T) {
	addr := freeport.Addr(t).String()
	// With these limits no answer and no watchdog word is late, even on a busy machine, so no such event is counted.
	patience, misses := config.Duration(10*time.Second), 16
	n := newTestNet(t, grid.Dims{X: 2, Y: 1, Z: 1}, func(c *config.Agent) {
		c.Periods = &config.PeriodsOverride{AckTimeout: &patience, ReadMisses: &misses}
		if c.Node == "n0-0-0" {
			c.HTTP = addr
		}
	})
	n.startAll()
	n.awaitHealthy()
	var page []byte
	agenttest.Await(n.t, "the DNP half's counts in a scrape", func() bool {
		page = scrape(t, addr)
		return bytes.Contains(page, []byte("lofamo_agent_link_state{")) && bytes.Contains(page, []byte("lofamo_agent_procedure_state{")) &&
			bytes.Contains(page, []byte(`_timestamp_seconds{half="dnp"`))
	})
	problems, err := promlint.New(bytes.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	lines := strings.Split(string(page), "\n")
	told := 0
	for _, l := range lines {
		if strings.HasPrefix(l, "lofamo_") {
			told++
		}
	}
	if told > 500 { // of two links; each of the other four adds 16
		t.Errorf("a node tells %d series", told)
	}
	t.Logf("%d series", told)
	for _, f := range host.Metrics() {
		if strings.HasPrefix(f.Name, "lofamo_agent_selftest_") {
			continue // of modules that were in use
		}
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, f.Name+"{") }) &&
			!strings.HasPrefix(f.Name, "lofamo_agent_rail_") {
			t.Errorf("no series of %s", f.Name)
		}
	}
	for _, of := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		s, err := half.LoadSigner(n.cfgs[grid.Coord{}], of)
		if err != nil {
			t.Fatal(err)
		}
		for what, at := range map[string]time.Time{"begins": s.Begins(), "expires": s.Expires()} {
			want := fmt.Sprintf("lofamo_agent_certificate_%s_timestamp_seconds{half=%q,node=\"n0-0-0\",platform=\"shared-kernel\"} %v", what, of,
				float64(at.Unix()))
			if !slices.Contains(lines, want) {
				t.Errorf("no line %s", want)
			}
		}
	}
	for _, want := range []string{
		`lofamo_agent_path_migrations_total{node="n0-0-0",platform="shared-kernel",reason="unanswered"} 0`,
		`lofamo_agent_isolated{node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_spool_failing{node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_damaged_total{node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_oversized_total{node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_kernel_dropped_total{node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_restarts_total{half="dnp",node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_failures_total{cause="killed",half="host",node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_copy_failing{node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_link_crc_errors_total{dir="X+",node="n0-0-0",platform="shared-kernel"} 0`,
		`lofamo_agent_component_state{component="dnp",node="n0-0-0",platform="shared-kernel",state="NORMAL"} 1`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %s", want)
		}
	}
}

func scrape(t *testing.T, addr string) []byte {
	t.Helper()
	r, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	page, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

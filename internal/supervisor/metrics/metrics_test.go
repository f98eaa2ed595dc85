package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lofamo/lofamo/pkg/fault"
)

// series returns the series of some metrics in the registry, one per line.
func series(t *testing.T, reg *prometheus.Registry, names ...string) []string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if !slices.Contains(names, f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			var line strings.Builder
			line.WriteString(f.GetName())
			for _, l := range m.GetLabel() {
				line.WriteString(" " + l.GetValue())
			}
			out = append(out, fmt.Sprint(line.String(), " ", m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
	return out
}

func TestCutOffRegionIsExported(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	m.Region("west", false, time.Unix(1000, 500_000_000))
	m.Region("east", true, time.Time{})
	names := []string{"lofamo_region_cut_off", "lofamo_region_heard_timestamp_seconds"}
	want := []string{"lofamo_region_cut_off east 1", "lofamo_region_cut_off west 0", "lofamo_region_heard_timestamp_seconds west 1000.5"}
	if got := series(t, reg, names...); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	m.NoRegions()
	if got := series(t, reg, names...); len(got) != 0 {
		t.Errorf("a replica that does not lead tells %v", got)
	}
}

func TestCountersStartAtZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg)
	if got := series(t, reg, "lofamo_reports_total"); len(got) != 3 {
		t.Errorf("before the first report: %v", got)
	}
}

// The names are those that the listeners' owners give to Closed.
func TestClosedConnectionsStartAtZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg)
	var want []string
	for _, l := range []string{"enrolment", "etcd-client", "etcd-peer", "grpc", "http", "web"} {
		for _, reason := range []string{"evicted", "refused", "subject"} {
			want = append(want, fmt.Sprint("lofamo_connections_closed_total ", l, " ", reason, " 0"))
		}
	}
	if got := series(t, reg, "lofamo_connections_closed_total"); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTransfersOfLargeObjectsStartAtZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	New(reg)
	want := []string{
		"lofamo_bulk_packets_total chunk 0", "lofamo_bulk_packets_total dropped 0", "lofamo_bulk_packets_total foreign 0",
		"lofamo_bulk_packets_total malformed 0", "lofamo_bulk_transfers_total busy 0", "lofamo_bulk_transfers_total cancelled 0",
		"lofamo_bulk_transfers_total complete 0", "lofamo_bulk_transfers_total data loss 0", "lofamo_bulk_transfers_total refused 0",
		"lofamo_bulk_transfers_total timeout 0",
	}
	if got := series(t, reg, "lofamo_bulk_packets_total", "lofamo_bulk_transfers_total"); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Every failure has one outcome: the outcomes together are the denominator of the percentage in time.
func TestEveryFailureHasOutcome(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	m.Promise(Bounds{Half: time.Second, DPUHalf: 2 * time.Second, Node: 3 * time.Second, SingleNode: 4 * time.Second})
	m.Failed(fault.CauseDNP, fault.PlatformSharedKernel, false, 900*time.Millisecond)
	m.Failed(fault.CauseDNP, 0, false, 1100*time.Millisecond)
	m.Failed(fault.CauseDNP, fault.PlatformDPU, false, 1100*time.Millisecond)
	m.Failed(fault.CauseDNP, fault.PlatformDPU, false, 2100*time.Millisecond)
	m.Failed(fault.CauseDNP, fault.PlatformSharedKernel, false, -1)
	m.Failed(fault.CauseNode, fault.PlatformDPU, false, 3100*time.Millisecond)
	m.Failed(fault.CauseNode, fault.PlatformSharedKernel, true, 3100*time.Millisecond)
	m.Aware(fault.CauseDNP, 40*time.Second) // a change to SICK
	want := []string{"lofamo_awareness_late_total DNP 2", "lofamo_awareness_late_total HOST 0", "lofamo_awareness_late_total NODE 1",
		"lofamo_failures_total DNP in-time 2", "lofamo_failures_total DNP late 2", "lofamo_failures_total DNP unmeasured 1",
		"lofamo_failures_total HOST in-time 0", "lofamo_failures_total HOST late 0", "lofamo_failures_total HOST unmeasured 0",
		"lofamo_failures_total NODE in-time 1", "lofamo_failures_total NODE late 1", "lofamo_failures_total NODE unmeasured 0"}
	if got := series(t, reg, "lofamo_failures_total", "lofamo_awareness_late_total"); !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		h := f.GetMetric()[0].GetHistogram()
		if n, sum := h.GetSampleCount(), h.GetSampleSum(); f.GetName() == "lofamo_failure_latency_seconds" && (n != 4 || sum > 5.3) {
			t.Errorf("%d failures took %.1f s: want 4 measured ones of DNP halves, 5.2 s, without the change to SICK", n, sum)
		}
	}
}

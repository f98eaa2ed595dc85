package supervisor

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/supervisor/metrics"
)

func TestAlarmsOfStoreAreDescribed(t *testing.T) {
	full, corrupt := etcdserverpb.AlarmType_NOSPACE, etcdserverpb.AlarmType_CORRUPT
	for _, tc := range []struct {
		quorum           bool
		own              []etcdserverpb.AlarmType
		sync, committing time.Duration
		want             string
	}{
		{true, nil, 0, 0, "[]"},
		{true, nil, slowSync - 1, 0, "[]"},
		{true, nil, 340 * time.Millisecond, 0, "[store slow: a sync takes 340ms]"},
		{true, []etcdserverpb.AlarmType{full}, 0, 0, "[store full]"},
		{true, nil, 0, slowCommit - 1, "[]"},
		{true, nil, 0, 3 * time.Second, "[store slow: a commit has been under way for 3s]"},
		{true, nil, time.Second, 3 * time.Second, "[store slow: a sync takes 1s]"},
		{false, []etcdserverpb.AlarmType{corrupt, full}, time.Second, 0, "[store corrupt store full store slow: a sync takes 1s no quorum]"},
	} {
		if got := fmt.Sprint(complaints(tc.quorum, tc.own, tc.sync, tc.committing)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc, got, tc.want)
		}
	}
}

// TestLowDiskIsLoggedOnce: the alarm names the disk at every look, the log only at its begin and its end.
func TestLowDiskIsLoggedOnce(t *testing.T) {
	var out strings.Builder
	s := &Supervisor{site: site{logger: slog.New(slog.NewTextHandler(&out, nil)), cfg: config.Supervisor{DataDir: t.TempDir()}}}
	var low durable.Low
	for _, tc := range []struct {
		bound   int64
		alarms  int
		logged  string // since the look before
		message string
	}{
		{0, 0, "", ""}, {1, 0, "", ""}, {1 << 60, 1, "level=WARN", "disk low"}, {1 << 60, 1, "", ""}, {1, 0, "level=INFO", "has room again"},
	} {
		out.Reset()
		s.cfg.DiskWarnBytes = tc.bound
		words := s.diskLow(&low)
		if len(words) != tc.alarms || tc.alarms > 0 && (!strings.HasPrefix(words[0], alarmDisk+": ") ||
			!strings.Contains(words[0], " free on /")) {
			t.Errorf("bound %d: alarms %q", tc.bound, words)
		}
		if got := out.String(); !strings.Contains(got, tc.logged) || !strings.Contains(got, tc.message) || (got == "") != (tc.logged == "") {
			t.Errorf("bound %d: the log has %q: want %q", tc.bound, got, tc.message)
		}
	}
}

// TestFullExternalEtcdRaisesAlarm: while an external etcd refuses commits because it is full, the leader has the alarm `store full`.
func TestFullExternalEtcdRaisesAlarm(t *testing.T) {
	var r spaceRefusals
	began := time.Now()
	for _, tc := range []struct {
		at   time.Duration
		err  error // of a commit; nil: none was tried
		want string
	}{
		{0, rpctypes.ErrTimeout, "[]"},
		{1, fmt.Errorf("commit: %w", rpctypes.ErrNoSpace), "[store full]"},
		{fullTime, nil, "[store full]"},
		{fullTime + 1, nil, "[]"},
		{2 * fullTime, rpctypes.ErrNoSpace, "[store full]"},
	} {
		now := began.Add(tc.at)
		r.note(tc.err, now)
		if got := fmt.Sprint(complaints(true, r.alarms(now), 0, 0)); got != tc.want {
			t.Errorf("after %s, %v: %s, want %s", tc.at, tc.err, got, tc.want)
		}
	}
}

// TestCutOffRegionRaisesAlarm: a parent's leader raises an alarm about regions out of contact.
func TestCutOffRegionRaisesAlarm(t *testing.T) {
	west := &lofamov1.Region{Name: "west", State: lofamov1.State_UNKNOWN, Age: durationpb.New(5400 * time.Millisecond)}
	for _, tc := range []struct {
		all  []*lofamov1.Region
		want string
	}{
		{nil, "[]"},
		{[]*lofamov1.Region{{Name: "east", State: lofamov1.State_NORMAL}}, "[]"},
		{[]*lofamov1.Region{west, {Name: "east", State: lofamov1.State_UNKNOWN}, {Name: "north", State: lofamov1.State_NORMAL}},
			"[region cut off: west (since 5s), east]"},
	} {
		if got := fmt.Sprint(regionsCut(tc.all)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.all, got, tc.want)
		}
	}
}

func TestAlarmsAreMetrics(t *testing.T) {
	a := alarms{gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "alarm"}, []string{"alarm"})}
	reg := prometheus.NewRegistry()
	reg.MustRegister(a.gauge)
	for _, words := range [][]string{{"store slow: a sync takes 1s", "no quorum"}, nil} {
		a.set(words)
		families, err := reg.Gather()
		if err != nil || len(families) != 1 || len(families[0].GetMetric()) != len(allAlarms()) {
			t.Fatal(families, err)
		}
		for _, m := range families[0].GetMetric() {
			alarm, want := m.GetLabel()[0].GetValue(), 0.0
			if len(words) > 0 && (alarm == alarmSlow || alarm == alarmQuorum) {
				want = 1
			}
			if got := m.GetGauge().GetValue(); got != want {
				t.Errorf("%v: %s is %v", words, alarm, got)
			}
		}
	}
}

// TestAlarmMetricNamesEveryAlarm: the metric's help, and with it docs/metrics.md, lists all values of its label.
func TestAlarmMetricNamesEveryAlarm(t *testing.T) {
	descs := make(chan *prometheus.Desc, 1)
	metrics.New(prometheus.NewRegistry()).Alarm.Describe(descs)
	help := (<-descs).String()
	for _, alarm := range allAlarms() {
		if !strings.Contains(help, alarm) {
			t.Errorf("%s: no alarm %q", help, alarm)
		}
	}
}

func TestMeanSyncTimeOfLastInterval(t *testing.T) {
	reg := prometheus.NewRegistry()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: syncMetric})
	reg.MustRegister(h)
	var s syncs
	for _, step := range []struct {
		took []float64
		want time.Duration
	}{{nil, 0}, {[]float64{0.1, 0.3}, 200 * time.Millisecond}, {nil, 0}, {[]float64{1}, time.Second}} {
		for _, v := range step.took {
			h.Observe(v)
		}
		if got := s.mean(reg).Round(time.Millisecond); got != step.want {
			t.Errorf("%v: %v, want %v", step.took, got, step.want)
		}
	}
}

// TestBrokenResponsesRaiseAlarm: an alarm tells people when responses do not handle faults.
func TestBrokenResponsesRaiseAlarm(t *testing.T) {
	for _, tc := range []struct {
		broken  bool
		breaker string
		want    string
	}{
		{false, "", "[]"},
		{true, "", "[responses unreadable: nothing is done about faults]"},
		{true, "3 of 9", "[responses unreadable: nothing is done about faults response breaker open: 3 of 9]"},
	} {
		if got := fmt.Sprint(responsesTroubled(tc.broken, tc.breaker)); got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}

package half

import (
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestOrdinaryProcessLacksRealtime: preset relaxed needs no real-time scheduling, and a half with another class by choice lacks nothing.
func TestOrdinaryProcessLacksRealtime(t *testing.T) {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	ordinary := attr.Policy != unix.SCHED_FIFO
	for _, tc := range []struct {
		s      Scheduling
		preset string
		want   bool
	}{
		{SchedulingAuto, config.PresetDefault, ordinary},
		{SchedulingAuto, config.PresetFast, ordinary},
		{SchedulingAuto, config.PresetRelaxed, false},
		{SchedulingPrompt, config.PresetDefault, false},
		{SchedulingDefault, config.PresetFast, false},
	} {
		if got := LacksRealtime(tc.s, tc.preset); got != tc.want {
			t.Errorf("scheduling %s, preset %s: %t, want %t", tc.s, tc.preset, got, tc.want)
		}
	}
}

// TestMissingRealtimeIsWarning: the log has a warning that names preset relaxed as a remedy. Where the preset is relaxed already, it has
// none.
func TestMissingRealtimeIsWarning(t *testing.T) {
	for preset, want := range map[string]struct {
		level slog.Level
		parts []string
	}{
		config.PresetDefault: {slog.LevelWarn, []string{"no real-time scheduling: a loaded machine may delay this half",
			`err="operation not permitted"`, "LimitRTPRIO=1 in the unit", "preset relaxed on all nodes and supervisors"}},
		config.PresetFast:    {slog.LevelWarn, []string{"preset relaxed on all nodes and supervisors"}},
		config.PresetRelaxed: {slog.LevelInfo, []string{"no real-time scheduling: preset relaxed allows for the delays"}},
	} {
		var out strings.Builder
		logNoRealtime(slog.New(slog.NewTextHandler(&out, nil)), preset, unix.EPERM)
		for _, part := range append(want.parts, "level="+want.level.String()+" ") {
			if !strings.Contains(out.String(), part) {
				t.Errorf("preset %s: want %q in %s", preset, part, out.String())
			}
		}
	}
}

// TestStatusSaysThatHalfLacksRealtime: even while the half is in time and within its budget, and in addition to other
// content.
func TestStatusSaysThatHalfLacksRealtime(t *testing.T) {
	now := time.Unix(1000, 0)
	s := Status{NotRealtime: true}
	if h, tell := s.Look(now); !tell || !h.GetProcessor().GetNotRealtime() {
		t.Errorf("%v, sent %t: want a status without real-time scheduling", h, tell)
	}
	s.Processor = func() *lofamov1.ProcessorTime { return &lofamov1.ProcessorTime{BudgetLevel: 2} }
	if h, tell := s.Look(now); !tell || !h.GetProcessor().GetNotRealtime() || h.GetProcessor().GetBudgetLevel() != 2 {
		t.Errorf("%v, sent %t: want both", h, tell)
	}
	var k halfcore.HealthLog
	h, _ := s.Look(now)
	k.Set(now, fault.HalfHost, &lofamov1.HalfHealth{Processor: &lofamov1.ProcessorTime{NotRealtime: h.GetProcessor().GetNotRealtime()}})
	if got := k.As(now.Add(time.Second)).Host; !got.GetProcessor().GetNotRealtime() {
		t.Errorf("digests say %v: want that it lacks real-time scheduling", got)
	}
}

// A half collects garbage rarely while it starts, and as often as before afterwards. An operator's GOGC stays.
func TestGarbageCollectionAfterStart(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "off") // these two are for the whole process, which the test does not change
	t.Setenv(goThreads, "2")
	now := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	const other = 123
	defer debug.SetGCPercent(debug.SetGCPercent(other))
	for _, tc := range []struct {
		gogc           string
		starts, serves uint64
	}{
		{"", startGC, steadyGC},
		{"123", other, other},
	} {
		t.Setenv("GOGC", tc.gogc)
		synctest.Test(t, func(t *testing.T) {
			TuneProcess(SchedulingDefault, config.PresetDefault, slog.New(slog.DiscardHandler))
			time.Sleep(startTime - time.Nanosecond)
			synctest.Wait()
			if got := now(); got != tc.starts {
				t.Errorf("GOGC %q: %d %% at the start: want %d", tc.gogc, got, tc.starts)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if got := now(); got != tc.serves {
				t.Errorf("GOGC %q: %d %% after %s: want %d", tc.gogc, got, startTime, tc.serves)
			}
		})
		debug.SetGCPercent(other)
	}
}

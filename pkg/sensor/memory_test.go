package sensor

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

func memoryTestConfig(root string, clock source.Clock) memoryConfig {
	return memoryConfig{
		Procfs: root, Sysfs: root, Clock: clock,
		SickCorrected: 10, CorrectedWindow: time.Hour, OOMHold: 5 * time.Minute, SickPressure: 40,
	}
}

func TestMemoryScenarios(t *testing.T) {
	sourcetest.Run(t, "testdata/memory/*.txt", func(_, root string, clock source.Clock) source.Source {
		return newMemory(memoryTestConfig(root, clock))
	})
}

// TestMemoryOfThisMachine reads the real files: any Linux has /proc/vmstat with its OOM kills.
func TestMemoryOfThisMachine(t *testing.T) {
	cfg := memoryTestConfig("", time.Now)
	cfg.Procfs, cfg.Sysfs = "/proc", "/sys"
	src := newMemory(cfg)
	r, err := src.Read(t.Context())
	if err != nil || r.State == fault.Unknown {
		t.Errorf("this machine's memory: %+v, %v", r, err)
	}
	sourcetest.Check(t, src, r)
	t.Logf("%+v", r)
}

func FuzzVMStat(f *testing.F) {
	f.Add("nr_free_pages 1\noom_kill 2\n")
	f.Add("oom_kill\n")
	f.Add("oom_kill_a 1\noom_kill_b 2\n")
	f.Add("oom_kill 99999999999999999999")
	f.Fuzz(func(t *testing.T, text string) {
		if v, ok, err := sumVMStat(text, "oom_kill"); (!ok || err != nil) && v != 0 {
			t.Errorf("value %d with %t, %v", v, ok, err)
		}
	})
}

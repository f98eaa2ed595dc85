package regfile

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// A half reads these words in each of its ticks.
func TestReadingWordsAllocatesNothing(t *testing.T) {
	host, _, _ := openBoth(t)
	if n := testing.AllocsPerRun(100, func() {
		_, err := host.Load(watchdog.AddrTemperatureThresholds)
		_, err2 := host.Sensor(fault.ComponentTemperature)
		_, err3 := host.LoadLinkDetail(grid.XPlus)
		if err != nil || err2 != nil || err3 != nil {
			t.Fatal(err, err2, err3)
		}
	}); n > 0 {
		t.Errorf("reading three words makes %v allocations: want 0", n)
	}
}

package sensor

import (
	"os"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

func TestBlockdevScenarios(t *testing.T) {
	sourcetest.Run(t, "testdata/blockdev/*.txt", func(_, root string, clock source.Clock) source.Source {
		return newBlockdev(blockdevConfig{Sysfs: root, Device: "dev0", Component: fault.ComponentPeripheral1, Clock: clock})
	})
}

// TestBlockdevOfThisMachine reads the real block devices, if there are any.
func TestBlockdevOfThisMachine(t *testing.T) {
	entries, err := os.ReadDir("/sys/class/block")
	if err != nil || len(entries) == 0 {
		t.Skip("skipped: no block device on this machine")
	}
	for _, e := range entries {
		src := newBlockdev(blockdevConfig{Sysfs: "/sys", Device: e.Name(), Component: fault.ComponentPeripheral0, Clock: time.Now})
		r, err := src.Read(t.Context())
		if err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
		sourcetest.Check(t, src, r)
		t.Logf("%s: %+v", e.Name(), r)
	}
}

func FuzzStat(f *testing.F) {
	f.Add("100 0 800 10 50 0 400 5 3 15 15 0 0 0 0 7 0")
	f.Add("1 2 3")
	f.Fuzz(func(t *testing.T, text string) {
		if done, inFlight, err := parseStat(text); err != nil && (done != 0 || inFlight != 0) {
			t.Errorf("%d, %d with %v", done, inFlight, err)
		}
	})
}

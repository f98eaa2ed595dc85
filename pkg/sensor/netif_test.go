package sensor

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

func TestNetifScenarios(t *testing.T) {
	sourcetest.Run(t, "testdata/netif/*.txt", func(_, root string, clock source.Clock) source.Source {
		return newNetif(netifConfig{Sysfs: root, Interface: "if0", SickErrors: 1, SickDrops: 100, Window: 10 * time.Second, Clock: clock})
	})
}

// TestNetifOfThisMachine reads the real loopback interface, whose operstate is "unknown".
func TestNetifOfThisMachine(t *testing.T) {
	src := newNetif(netifConfig{Sysfs: "/sys", Interface: "lo", SickErrors: 1, SickDrops: 100, Window: 10 * time.Second, Clock: time.Now})
	r, err := src.Read(t.Context())
	sourcetest.Check(t, src, r)
	if err != nil || r.State == fault.Unknown {
		t.Errorf("lo: %+v, %v", r, err)
	}
	t.Logf("%+v", r)
}

package sensor

import (
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

func TestRDMAScenarios(t *testing.T) {
	sourcetest.Run(t, "testdata/rdma/*.txt", func(_, root string, _ source.Clock) source.Source {
		return newRDMA(rdmaConfig{Sysfs: root, Device: "dev0", Port: 2, Component: fault.ComponentPeripheral0})
	})
}

func TestRDMAPeripheralReadsItsPort(t *testing.T) {
	for port, want := range map[int]string{0: "rdma:mlx5_0/1", 1: "rdma:mlx5_0/1", 2: "rdma:mlx5_0/2"} {
		c := DefaultConfig()
		c.Sysfs = t.TempDir()
		c.Peripherals[1] = PeripheralConfig{Kind: PeripheralRDMA, Device: "mlx5_0", Port: port}
		sources, err := HostSources(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := sources[3]; s.Name() != want || s.Component() != fault.ComponentPeripheral1 {
			t.Errorf("port %d: source %s of %v: want %s of peripheral/1", port, s.Name(), s.Component(), want)
		}
	}
}

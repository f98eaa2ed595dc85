package sensor

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

// TestMissingComponentsAreUnknown checks that everything is unknown on a machine without components.
func TestMissingComponentsAreUnknown(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Procfs, cfg.Sysfs = t.TempDir(), t.TempDir()
	cfg.ServiceInterface = "eth7"
	cfg.Peripherals[0] = PeripheralConfig{Kind: PeripheralBlock, Device: "nvme9n1", Interval: Duration(time.Second)}
	host, err := HostSources(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	dnp, err := DNPSources(cfg)
	if err != nil {
		t.Fatal(err)
	}
	want := []fault.Component{
		fault.ComponentMemory, fault.ComponentServiceNetwork, fault.ComponentPeripheral0, fault.ComponentPeripheral1,
		fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage,
	}
	all := slices.Concat(host, dnp)
	if len(all) != len(want) {
		t.Fatalf("%d sources, want %d", len(all), len(want))
	}
	for i, src := range all {
		r, err := src.Read(t.Context())
		if err != nil || r.State != fault.Unknown || r.Component != want[i] {
			t.Errorf("%s: %+v, %v: want UNKNOWN on %s", src.Name(), r, err, want[i])
		}
		sourcetest.Check(t, src, r)
	}
	if p, ok := host[2].(Periodic); !ok || p.Interval() != time.Second {
		t.Error("the block device has lost its interval")
	}
}

// TestUnconfiguredComponentsAreAbsent checks that the defaults name no interface and no peripherals.
func TestUnconfiguredComponentsAreAbsent(t *testing.T) {
	host, err := HostSources(DefaultConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, src := range host[1:] {
		r, err := src.Read(t.Context())
		if err != nil || r.State != fault.Unknown || !strings.Contains(r.Detail, "configured") {
			t.Errorf("%s: %+v, %v", src.Name(), r, err)
		}
	}
}

// TestCheckRunsAtItsOwnInterval checks that a check is requested from another process, at its own interval, and not for ever.
func TestCheckRunsAtItsOwnInterval(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Peripherals[1] = PeripheralConfig{Kind: PeripheralScript, Command: []string{"/no/such/program"}}
	if interval, timeout := cfg.Peripherals[1].ScriptTimes(); interval != 5*time.Second || timeout != 2*time.Second {
		t.Errorf("every %s, within %s", interval, timeout)
	}
	refusal := errors.New("nobody runs checks")
	host, err := HostSources(cfg, func(ctx context.Context, c fault.Component) (Reading, error) {
		if c != fault.ComponentPeripheral1 {
			t.Errorf("asked for %s", c)
		}
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > 2*time.Second+answerMargin {
			t.Errorf("asked until %s, %t", end, ok)
		}
		return Reading{State: fault.Sick, Detail: "worn"}, refusal
	})
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := host[3].(Periodic); !ok || p.Interval() != 5*time.Second {
		t.Errorf("%v", host[3])
	}
	r, err := host[3].Read(t.Context())
	if !errors.Is(err, refusal) || r.State != fault.Sick || r.Component != fault.ComponentPeripheral1 ||
		r.Source != "script:peripheral/1" || r.Detail != "worn" {
		t.Errorf("%+v, %v", r, err)
	}
	if host[3].Name() != r.Source || host[3].Component() != r.Component {
		t.Errorf("%s of %s", host[3].Name(), host[3].Component())
	}
}

// TestConfiguredBoundsReachChips checks that bounds of the configuration reach the chips.
func TestConfiguredBoundsReachChips(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Sysfs = t.TempDir()
	low, high := 1.0, 50.0
	cfg.Temperature.AlarmLow, cfg.Temperature.WarnHigh = &low, &high
	sourcetest.Write(t, cfg.Sysfs, "class/hwmon/hwmon0/name", "lm75")
	for value, want := range map[string]fault.State{"500": fault.Failed, "20000": fault.Normal, "51000": fault.Sick} {
		sourcetest.Write(t, cfg.Sysfs, "class/hwmon/hwmon0/temp1_input", value)
		dnp, err := DNPSources(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := dnp[0].Read(t.Context()); err != nil || r.State != want {
			t.Errorf("%s: %+v, %v: want %s", value, r, err, want)
		}
	}
}

func TestSensorValidationNamesField(t *testing.T) {
	if err := DefaultConfig().Validate(""); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	f := func(v float64) *float64 { return &v }
	for _, tc := range []struct {
		change func(*Config)
		names  string
	}{
		{func(c *Config) { c.Procfs = "proc" }, `sensors.procfs: given "proc": want an absolute path`},
		{func(c *Config) { c.Sysfs = "" }, `sensors.sysfs: given "": want an absolute path`},
		{func(c *Config) { c.ServiceInterface = "../eth0" }, "sensors.serviceInterface: given ../eth0"},
		{func(c *Config) { c.ServiceInterface = ".." }, "sensors.serviceInterface: given .."},
		{func(c *Config) { c.Interface.SickErrorsPerSecond = 0 }, "sensors.interface.sickErrorsPerSecond: given 0: want more than 0"},
		{func(c *Config) { c.Interface.SickDropsPerSecond = math.NaN() }, "sensors.interface.sickDropsPerSecond: given NaN"},
		{func(c *Config) { c.Interface.Window = 1 }, "sensors.interface.window: given 1ns: want 1s to 1h0m0s"},
		{func(c *Config) { c.Memory.SickCorrected = -1 }, "sensors.memory.sickCorrected: given -1: want 0 or more"},
		{func(c *Config) { c.Memory.CorrectedWindow = 0 }, "sensors.memory.correctedWindow: given 0s"},
		{func(c *Config) { c.Memory.OOMHold = Duration(48 * time.Hour) }, "sensors.memory.oomHold: given 48h0m0s"},
		{func(c *Config) { c.Memory.SickPressurePercent = 101 }, "sensors.memory.sickPressurePercent: given 101: want more than 0, at most 100"},
		{func(c *Config) { c.Power.AlarmHigh = f(math.Inf(1)) }, "sensors.power.alarmHigh: given +Inf: want a finite number"},
		{func(c *Config) { c.Voltage.WarnLow, c.Voltage.WarnHigh = f(12), f(11) },
			"sensors.voltage.warnHigh: given 11: want at least sensors.voltage.warnLow (12)"},
		{func(c *Config) { c.Peripherals[0].Kind = "tape" }, "sensors.peripherals[0].kind: given tape: want one of none, block, rdma, script"},
		{func(c *Config) { c.Peripherals[1] = PeripheralConfig{Kind: "block", Device: "/dev/sda"} },
			`sensors.peripherals[1].device: given "/dev/sda"`},
		{func(c *Config) { c.Peripherals[1] = PeripheralConfig{Kind: "rdma"} },
			`sensors.peripherals[1].device: given "": want an RDMA device's kernel name, such as mlx5_0`},
		{func(c *Config) { c.Peripherals[1] = PeripheralConfig{Kind: "rdma", Device: "mlx5_0", Port: 256} },
			"sensors.peripherals[1].port: given 256: want 1 to 255"},
		{func(c *Config) { c.Peripherals[1] = PeripheralConfig{Kind: "block", Device: "sda", Port: 1} },
			"sensors.peripherals[1].port: given 1: want no port, except for kind rdma"},
		{func(c *Config) { c.Peripherals[1] = PeripheralConfig{Kind: "script", Command: []string{"check"}} },
			`sensors.peripherals[1].command: given ["check"]`},
		{func(c *Config) { c.Peripherals[1].Interval = 1 }, "sensors.peripherals[1].interval: given 1ns: want 100ms to 24h0m0s"},
		{func(c *Config) { c.Peripherals[1].Timeout = Duration(time.Hour) }, "sensors.peripherals[1].timeout: given 1h0m0s: want 10ms to 10m0s"},
		{func(c *Config) { c.Peripherals[1].Timeout = Duration(6 * time.Second) },
			"sensors.peripherals[1].timeout: given 6s: want at most sensors.peripherals[1].interval (5s)"},
	} {
		c := DefaultConfig()
		tc.change(&c)
		if err := c.Validate("sensors."); err == nil || !strings.Contains(err.Error(), tc.names) {
			t.Errorf("error %v: want one that has %q", err, tc.names)
		}
		if _, err := HostSources(c, nil); err == nil {
			t.Errorf("%s: host sources made", tc.names)
		}
		if _, err := DNPSources(c); err == nil {
			t.Errorf("%s: DNP sources made", tc.names)
		}
	}
}

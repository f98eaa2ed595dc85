package sensor

import (
	"time"

	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Duration is a time.Duration with the form "25ms" in YAML and JSON.
type Duration = source.Duration

// Reading is a source's result for its component at one moment.
type Reading = source.Reading

// Source measures one component.
type Source = source.Source

// Config defines the measurements and their bounds. DefaultConfig has the defaults.
type Config struct {
	// Procfs is where the proc file system is mounted. Default /proc; another for recorded trees.
	Procfs string `json:"procfs"`
	// Sysfs is where the sys file system is mounted. Default /sys; another for recorded trees.
	Sysfs string `json:"sysfs"`
	// ServiceInterface is the network interface of the service network, such as "eth0". A bond is SICK while a member fails. Default
	// none: the component is then judged by the acknowledgements of reports alone.
	ServiceInterface string `json:"serviceInterface,omitempty"`
	// Interface bounds the error and drop rates of ServiceInterface.
	Interface InterfaceConfig `json:"interface"`
	// Memory bounds the corrected errors, the hold after an OOM kill and the pressure.
	Memory MemoryConfig `json:"memory"`
	// Temperature, in °C. Default: the chips' own limits.
	Temperature ThresholdConfig `json:"temperature"`
	// Power, in W. Default: the chips' own limits.
	Power ThresholdConfig `json:"power"`
	// Voltage, in V. Default: the chips' own limits.
	Voltage ThresholdConfig `json:"voltage"`
	// Peripherals define peripheral 0 and peripheral 1 of the registers.
	Peripherals [2]PeripheralConfig `json:"peripherals"`
}

// InterfaceConfig bounds the rates of the service network's interface.
type InterfaceConfig struct {
	// SickErrorsPerSecond: rx_errors and tx_errors together, above which the interface is SICK.
	// More than 0. Default 1.
	SickErrorsPerSecond float64 `json:"sickErrorsPerSecond"`
	// SickDropsPerSecond: rx_dropped and tx_dropped together, above which the interface is SICK. More than 0. Default
	// 100: healthy stacks drop a few packets.
	SickDropsPerSecond float64 `json:"sickDropsPerSecond"`
	// Window for the rates. 1s to 1h. Default 10s.
	Window Duration `json:"window"`
}

// MemoryConfig limits the errors and pressure of normal memory. Any uncorrected error is FAILED, without a bound.
type MemoryConfig struct {
	// SickCorrected is the number of corrected ECC errors within CorrectedWindow above which memory is
	// SICK. 0 or more. Default 10. Memory that the kernel has withdrawn because of hardware errors is SICK too.
	SickCorrected int `json:"sickCorrected"`
	// CorrectedWindow is 1s to 24h. Default 1h.
	CorrectedWindow Duration `json:"correctedWindow"`
	// OOMHold is how long a machine-wide out-of-memory kill keeps memory SICK. A kill counts if the machine was short of memory within the
	// 10 s before: MemAvailable below 5 % and 4 GiB. Others are kills at the limit of a memory cgroup. 1s to 24h. Default 5m.
	OOMHold Duration `json:"oomHold"`
	// SickPressurePercent is the share of time (PSI "full avg10") in which all tasks waited for memory,
	// above which it is SICK if the machine is short of memory, as for OOMHold. More than 0, up to 100. Default 40.
	SickPressurePercent float64 `json:"sickPressurePercent"`
}

// ThresholdConfig selects inputs of one quantity and may set its four bounds. The default of a bound is the chip's own,
// and none if the chip has none or nobody programmed it. Inputs of drivers that are not known to be good count only if Chip or Label names
// them. With a window, the bounds in the host half's configuration overrule the DNP half's, rounded
// to the units of the registers: 1 °C, 2 W and 1/16 V. AlarmLow ≤ WarnLow ≤ WarnHigh ≤ AlarmHigh.
// A chip, an input or a bound that appears while the half runs takes effect within 5 s and one reading.
type ThresholdConfig struct {
	// Chip limits the inputs to hwmon chips (or thermal zone types) of this name. Default all of drivers that are known to be good.
	Chip string `json:"chip,omitempty"`
	// Label limits the inputs to those with this label or file name, such as "temp1". Default all.
	Label string `json:"label,omitempty"`
	// AlarmLow: FAILED below this. Default the chip's lcrit.
	AlarmLow *float64 `json:"alarmLow,omitempty"`
	// WarnLow: SICK below this. Default the chip's min.
	WarnLow *float64 `json:"warnLow,omitempty"`
	// WarnHigh: SICK above this. Default the chip's max.
	WarnHigh *float64 `json:"warnHigh,omitempty"`
	// AlarmHigh: FAILED above this. Default the chip's crit.
	AlarmHigh *float64 `json:"alarmHigh,omitempty"`
}

// The kinds of peripheral.
const (
	PeripheralNone   = "none"   // no peripheral: UNKNOWN
	PeripheralBlock  = "block"  // a block or NVMe device
	PeripheralRDMA   = "rdma"   // a port of an RDMA device
	PeripheralScript = "script" // a check program
)

// PeripheralConfig defines a peripheral and its check.
type PeripheralConfig struct {
	// Kind is none, block, rdma or script. Default none.
	Kind string `json:"kind"`
	// Device is a device's kernel name: "nvme0n1" for kind block, "mlx5_0" for kind rdma (InfiniBand, RoCE, iWARP).
	Device string `json:"device,omitempty"`
	// Port is the number of the device's port. 1 to 255. Default 1. For kind rdma.
	Port int `json:"port,omitempty"`
	// Command is the program's absolute path and arguments; no shell is involved. Exit codes 0, 1, 2 are NORMAL, SICK,
	// FAILED. For kind script. lofamo-agent run starts it, or lofamo-agent checks beside a host half that runs alone;
	// without them the peripheral is UNKNOWN.
	Command []string `json:"command,omitempty"`
	// Interval between two checks. 100ms to 24h. Default 5s for a script, otherwise the sensor period.
	Interval Duration `json:"interval,omitempty"`
	// Timeout after which a script and its children are killed and the peripheral is SICK; UNKNOWN if they waited for a
	// processor for at least half of that time. 10ms to 10m, at most Interval. Default 2s, or Interval if that is less.
	Timeout Duration `json:"timeout,omitempty"`
}

// DefaultConfig returns the defaults that the field comments document.
func DefaultConfig() Config {
	return Config{
		Procfs:    "/proc",
		Sysfs:     "/sys",
		Interface: InterfaceConfig{SickErrorsPerSecond: 1, SickDropsPerSecond: 100, Window: Duration(10 * time.Second)},
		Memory: MemoryConfig{SickCorrected: 10, CorrectedWindow: Duration(time.Hour), OOMHold: Duration(5 * time.Minute),
			SickPressurePercent: 40},
		Peripherals: [2]PeripheralConfig{{Kind: PeripheralNone}, {Kind: PeripheralNone}},
	}
}

package cluster

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lofamo/lofamo/pkg/sensor"
)

// serviceInterface is the network interface that the synthetic trees show as the service network.
const serviceInterface = "svc0"

// carrierSensor shows whether the service network's interface has a carrier.
const carrierSensor = "carrier"

// sysFiles is the synthetic /sys of a healthy node, in the form of the kernel's ABI documents
// (hwmon: millidegrees, millivolts, microwatts).
func sysFiles() map[string]string {
	const hwmon, net, mc = "class/hwmon/hwmon0/", "class/net/" + serviceInterface + "/", "devices/system/edac/mc/mc0/"
	f := map[string]string{
		hwmon + "name":        "pmbus", // a driver that is judged
		hwmon + "temp1_label": "board", hwmon + "temp1_input": "45000",
		hwmon + "temp1_lcrit": "-10000", hwmon + "temp1_min": "5000", hwmon + "temp1_max": "75000", hwmon + "temp1_crit": "90000",
		hwmon + "in0_label": "12V", hwmon + "in0_input": "12000",
		hwmon + "in0_lcrit": "10800", hwmon + "in0_min": "11400", hwmon + "in0_max": "12600", hwmon + "in0_crit": "13200",
		hwmon + "power1_label": "board", hwmon + "power1_input": "180000000",
		hwmon + "power1_lcrit": "5000000", hwmon + "power1_min": "20000000", hwmon + "power1_max": "250000000",
		hwmon + "power1_crit": "300000000",

		net + "operstate": "up", net + "carrier": "1", net + "flags": "0x1003", net + "mtu": "1500", net + "speed": "10000",
		net + "address": "02:00:00:00:00:01", net + "type": "1", net + "carrier_changes": "1",

		mc + "mc_name": "synthetic", mc + "size_mb": "16384", mc + "ce_count": "0", mc + "ue_count": "0",
		mc + "ce_noinfo_count": "0", mc + "ue_noinfo_count": "0",
	}
	for _, s := range []string{
		"rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped",
		"rx_crc_errors", "rx_frame_errors", "rx_fifo_errors", "rx_over_errors", "rx_length_errors", "rx_missed_errors",
		"tx_carrier_errors", "tx_fifo_errors", "tx_aborted_errors", "tx_heartbeat_errors", "tx_window_errors",
		"collisions", "multicast", "rx_nohandler", "rx_compressed", "tx_compressed",
	} {
		f[net+"statistics/"+s] = "0"
	}
	return f
}

// procFiles is the synthetic /proc of a healthy node.
func procFiles() map[string]string {
	return map[string]string{
		"vmstat":          "oom_kill 0",
		"pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0",
		"meminfo":         "MemTotal:       16777216 kB\nMemFree:        12582912 kB\nMemAvailable:   13631488 kB",
	}
}

// checkScript answers for a peripheral: exit code 0, 1 or 2 for normal, sick or failed, from the file named by its
// argument.
const checkScript = `#!/bin/sh
# The state of a pretended peripheral: the file holds 0 (normal), 1 (sick) or 2 (failed).
read -r code < "$1" || exit 2
exit "$code"
`

// sensorInput is one thing that `inject NODE sensor NAME VALUE` can set.
type sensorInput struct {
	name     string
	unit     string
	min, max float64
	whole    bool // only whole numbers
	files    func(v float64) map[string]string
}

func sysScaled(file string, scale float64) func(float64) map[string]string {
	return func(v float64) map[string]string {
		return map[string]string{"sys/" + file: strconv.FormatInt(int64(math.Round(v*scale)), 10)}
	}
}

func peripheralFile(n int) func(float64) map[string]string {
	return func(v float64) map[string]string {
		return map[string]string{fmt.Sprintf("peripheral%d", n): strconv.Itoa(int(v))}
	}
}

func carrierFiles(v float64) map[string]string {
	state := "down"
	if v == 1 {
		state = "up"
	}
	return map[string]string{
		"sys/class/net/" + serviceInterface + "/carrier":   strconv.Itoa(int(v)),
		"sys/class/net/" + serviceInterface + "/operstate": state,
	}
}

func sensorInputs() []sensorInput {
	const hwmon, mc = "class/hwmon/hwmon0/", "devices/system/edac/mc/mc0/"
	return []sensorInput{
		{"temperature", "°C", -39, 126, false, sysScaled(hwmon+"temp1_input", 1000)},
		{"voltage", "V", 0, 60, false, sysScaled(hwmon+"in0_input", 1000)},
		{"power", "W", 0, 10000, false, sysScaled(hwmon+"power1_input", 1e6)},
		{"memory-ce", "corrected errors counted", 0, 1e9, true, sysScaled(mc+"ce_count", 1)},
		{"memory-ue", "uncorrected errors counted", 0, 1e9, true, sysScaled(mc+"ue_count", 1)},
		{"peripheral/0", "0 normal, 1 sick, 2 failed", 0, 2, true, peripheralFile(0)},
		{"peripheral/1", "0 normal, 1 sick, 2 failed", 0, 2, true, peripheralFile(1)},
		{carrierSensor, "1 up, 0 down", 0, 1, true, carrierFiles},
	}
}

// SensorNames lists the sensors for sensor faults.
func SensorNames() []string {
	var out []string
	for _, s := range sensorInputs() {
		out = append(out, s.name)
	}
	return out
}

func findSensor(name string) (sensorInput, error) {
	for _, s := range sensorInputs() {
		if s.name == name {
			return s, nil
		}
	}
	return sensorInput{}, fmt.Errorf("sensor %q: want one of %s", name, strings.Join(SensorNames(), ", "))
}

func (s sensorInput) check(v float64) error {
	// Written so that NaN is refused too.
	if !(v >= s.min && v <= s.max) {
		return fmt.Errorf("sensor %s: value %v: want %v to %v (%s)", s.name, v, s.min, s.max, s.unit)
	}
	if s.whole && v != math.Trunc(v) {
		return fmt.Errorf("sensor %s: value %v: want a whole number (%s)", s.name, v, s.unit)
	}
	return nil
}

// initialSensorFiles returns the content of every file that some sensor fault may change, by path inside the
// node's directory.
func initialSensorFiles() map[string]string {
	out := map[string]string{"peripheral0": "0", "peripheral1": "0"}
	for name, v := range sysFiles() {
		out["sys/"+name] = v
	}
	for name, v := range procFiles() {
		out["proc/"+name] = v
	}
	return out
}

// writeFiles writes small files inside dir. A reader sees the old or the new content.
func writeFiles(dir string, files map[string]string) error {
	for name, content := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if err := os.WriteFile(path+".new~", []byte(content+"\n"), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		if err := os.Rename(path+".new~", path); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}

// writeSensors creates the input files of a node's sensors. A real network interface is a link to the kernel's own
// tree.
func writeSensors(dir string, n NodeInfo) error {
	files := initialSensorFiles()
	if n.Interface == "" {
		return writeFiles(dir, files)
	}
	for name := range files {
		if strings.HasPrefix(name, "sys/class/net/") {
			delete(files, name)
		}
	}
	if err := writeFiles(dir, files); err != nil {
		return err
	}
	return os.Symlink("/sys/class/net", filepath.Join(dir, "sys", "class", "net"))
}

// pretended refuses a sensor of the node that shows something real.
func pretended(n NodeInfo, sensor string) error {
	if sensor == carrierSensor && n.Interface != "" {
		return fmt.Errorf("sensor %s of node %s: it shows the real interface %s: pull that one's cable instead", sensor, n.ID, n.Interface)
	}
	return nil
}

func (c *Cluster) setSensor(n NodeInfo, name string, v float64) error {
	s, err := findSensor(name)
	if err != nil {
		return err
	}
	if err := pretended(n, name); err != nil {
		return err
	}
	if err := s.check(v); err != nil {
		return err
	}
	return writeFiles(c.nodeDir(n.ID), s.files(v))
}

// resetSensor resets the sensor of that name to its first value; all sensors when name is empty.
func (c *Cluster) resetSensor(n NodeInfo, name string) error {
	first := initialSensorFiles()
	back := map[string]string{}
	for _, s := range sensorInputs() {
		if name != "" && s.name != name || pretended(n, s.name) != nil {
			continue
		}
		for file := range s.files(0) {
			back[file] = first[file]
		}
	}
	return writeFiles(c.nodeDir(n.ID), back)
}

// sensorConfig points a node's sensors at its own synthetic trees.
func (c *Cluster) sensorConfig(n NodeInfo, interval sensor.Duration) sensor.Config {
	dir := c.nodeDir(n.ID)
	cfg := sensor.DefaultConfig()
	cfg.Sysfs, cfg.Procfs = filepath.Join(dir, "sys"), filepath.Join(dir, "proc")
	cfg.ServiceInterface = cmp.Or(n.Interface, serviceInterface)
	// Short, so that a healed memory or interface is called normal again while one is watching.
	cfg.Memory.CorrectedWindow, cfg.Memory.OOMHold = memoryWindow, memoryWindow
	cfg.Interface.Window = interfaceWindow
	for i := range cfg.Peripherals {
		cfg.Peripherals[i] = sensor.PeripheralConfig{
			Kind:     sensor.PeripheralScript,
			Command:  []string{filepath.Join(dir, "check-peripheral"), filepath.Join(dir, fmt.Sprintf("peripheral%d", i))},
			Interval: interval,
		}
	}
	return cfg
}

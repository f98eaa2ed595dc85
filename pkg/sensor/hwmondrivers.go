package sensor

import (
	"math"
	"path"
	"slices"
)

// This file decides which inputs are judged. The limits of many chips are what the chip has at power-on, and their inputs may be open: a
// board's maker connects some of them and programs few. So only drivers whose inputs and limits come from the measured part itself are
// judged. The others are listed, unless the configuration names them (ADR 86).

// processors are the drivers of processors' own sensors, and their thermal zones.
var processors = []string{"coretemp", "k8temp", "k10temp", "zenpower*", "via_cputemp", "x86_pkg_temp", "cpu*thermal", "soc*thermal",
	"TCPU*",
	"CPU-therm*", "bigcore*thermal", "littlecore*thermal", "package?thermal", "smpro_hwmon"}

// regulators are the drivers of power supplies and of chips that watch a supply, most of them by PMBus.
var regulators = []string{"pmbus", "acbel*", "adm107*", "adm12*", "bel-pfe", "dps*", "fsp*", "ibm-cffps*", "ibmpowernv", "ina[23]*",
	"inspur*", "ir3*",
	"isl6*", "lm25066", "lm5064", "lm5066*", "ltc*", "max15*", "max16???", "max20*", "max34*", "mp2*", "mp5*", "power_meter", "raa*", "tps*",
	"ucd9*",
	"xdp*", "zl*"}

// boards are the drivers of board controllers (super I/O): only voltages for which somebody has programmed a window are judged.
var boards = []string{"asb100", "dme1737", "f71*", "f8*", "it8*", "lm7[89]", "lm8*", "lm9[36]*", "adt74*", "nct6*", "nct7*", "pc87*",
	"sch5*", "smsc47*",
	"via686a", "vt1211", "vt8231", "w83*"}

// trusted lists the drivers that are judged, by quantity.
var trusted = map[Quantity][]string{
	Temperature: slices.Concat(processors, regulators, []string{"amdgpu", "bnxt_en", "drivetemp", "i350bb", "ice", "lm75", "mlx*", "nouveau",
		"nvme",
		"radeon", "xe"}),
	Voltage: slices.Concat(regulators, boards),
	Power:   slices.Concat(regulators, []string{"amdgpu", "nouveau", "xe"}),
}

// matches reports whether a name matches one of the patterns.
func matches(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // the patterns are well-formed
		return ok
	})
}

// possible is the range of what a part that works can have. Open and broken inputs read something else: -128, -61, -55, exactly 0, 127,
// 127.5 or 255 °C.
func (k kind) possible(v float64) bool {
	return v > k.lowest && v < k.highest && (v != 0 || !k.neverZero)
}

// programmed drops the limits that nobody programmed: 0, outside the possible range, an upper one of less than 0, and a pair that admits no
// value. Limits of a voltage that a board controller measures are a window around its nominal value.
func (b *Bounds) programmed(k kind, driver string) {
	if driver == "k10temp" {
		b.WarnHigh = math.NaN() // 70 °C, a constant of the driver
	}
	for _, pair := range [2][2]*float64{{&b.WarnLow, &b.WarnHigh}, {&b.AlarmLow, &b.AlarmHigh}} {
		low, high := pair[0], pair[1]
		if *low == 0 || !k.possible(*low) {
			*low = math.NaN()
		}
		if *high <= 0 || !k.possible(*high) {
			*high = math.NaN()
		}
		window := *low > 0 && *low < *high && *high <= widest**low // false with NaN
		if *low >= *high || matches(driver, k.windows) && !window {
			*low, *high = math.NaN(), math.NaN()
		}
	}
}

// widest is the greatest ratio of the two limits of a voltage.
const widest = 1.5

// open reports whether a voltage is that of an input that is connected to nothing: so far from its window that the machine could not run.
func (b Bounds) open(v float64) bool {
	nominal := (b.WarnLow + b.WarnHigh) / 2 // no comparison is true with NaN
	return v < nominal/2 || v > nominal*widest
}

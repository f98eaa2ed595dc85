package watchdog

import (
	"cmp"
	"fmt"
	"math"
)

// Code 0 means no reading in all three sensor registers: Table VII begins at 0x3a, and the encoders for power and
// voltage, whose tables the paper does not define, never emit it.
const noReading byte = 0

// AbsentSensor stands beside a sensor register without a reading, in place of the value in thousandths: the node has no
// such sensor. Halves of earlier versions neither write nor read it.
const AbsentSensor = math.MinInt32

// The range of Table VII, in degrees Celsius.
const (
	MinCelsius = -70
	MaxCelsius = 127
)

// The units of the power and voltage registers, chosen here: 8 bits reach 510 W and 15.9375 V.
const (
	WattsPerUnit = 2.0
	VoltsPerUnit = 1.0 / 16
)

// EncodeCelsius returns the temperature code of Table VII, excess 128, rounded to whole degrees and clamped to the
// table's range. NaN becomes 0, no reading.
func EncodeCelsius(c float64) byte {
	if math.IsNaN(c) {
		return noReading
	}
	return byte(int(math.Round(min(max(c, MinCelsius), MaxCelsius))) + 128)
}

// DecodeCelsius returns the temperature of a code in degrees Celsius. Codes below 0x3a lie outside Table VII and are no
// readings; see CelsiusCodeValid.
func DecodeCelsius(code byte) int { return int(code) - 128 }

// CelsiusCodeValid reports whether a code lies within Table VII.
func CelsiusCodeValid(code byte) bool { return DecodeCelsius(code) >= MinCelsius }

// EncodeWatts returns the power code: units of 2 W, clamped to 1 to 255. NaN becomes 0, no reading.
func EncodeWatts(w float64) byte { return encodeUnits(w / WattsPerUnit) }

// DecodeWatts returns the power of a code in watts.
func DecodeWatts(code byte) float64 { return float64(code) * WattsPerUnit }

// EncodeVolts returns the voltage code: units of 1/16 V, clamped to 1 to 255. NaN becomes 0, no reading.
func EncodeVolts(v float64) byte { return encodeUnits(v / VoltsPerUnit) }

// DecodeVolts returns the voltage of a code in volts.
func DecodeVolts(code byte) float64 { return float64(code) * VoltsPerUnit }

func encodeUnits(u float64) byte {
	if math.IsNaN(u) {
		return noReading
	}
	return byte(math.Round(min(max(u, 1), math.MaxUint8)))
}

// Thresholds are the four bounds of a threshold register, as codes of the sensor's own register: "the boundaries for
// the ranges of normal, warning and alarm" (§IV-B). A bound belongs to the better of the two ranges that it separates.
// A bound of 0 is no bound.
type Thresholds struct {
	AlarmLow, WarnLow, WarnHigh, AlarmHigh byte
}

// Encode returns the word: AlarmLow in the lowest byte, AlarmHigh in the highest.
func (t Thresholds) Encode() uint32 {
	return uint32(t.AlarmLow) | uint32(t.WarnLow)<<8 | uint32(t.WarnHigh)<<16 | uint32(t.AlarmHigh)<<24
}

// DecodeThresholds is the inverse of Encode. It refuses bounds that are out of order.
func DecodeThresholds(v uint32) (Thresholds, error) {
	t := Thresholds{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
	if err := t.Validate(); err != nil {
		return Thresholds{}, fmt.Errorf("thresholds 0x%08x: %w", v, err)
	}
	return t, nil
}

// Over returns t, with the bounds of own where t has none.
func (t Thresholds) Over(own Thresholds) Thresholds {
	return Thresholds{
		AlarmLow: cmp.Or(t.AlarmLow, own.AlarmLow), WarnLow: cmp.Or(t.WarnLow, own.WarnLow),
		WarnHigh: cmp.Or(t.WarnHigh, own.WarnHigh), AlarmHigh: cmp.Or(t.AlarmHigh, own.AlarmHigh),
	}
}

// Validate refuses bounds that are out of order; it ignores absent ones.
func (t Thresholds) Validate() error {
	names := [...]string{"AlarmLow", "WarnLow", "WarnHigh", "AlarmHigh"}
	last := 0
	bounds := [...]byte{t.AlarmLow, t.WarnLow, t.WarnHigh, t.AlarmHigh}
	for i, b := range bounds {
		if b == 0 {
			continue
		}
		if b < bounds[last] {
			return fmt.Errorf("%s is code %d: want at least %s, which is %d", names[i], b, names[last], bounds[last])
		}
		last = i
	}
	return nil
}

// Classify returns the health of a sensor's code: normal, sick (warning) or broken (alarm). No reading is normal here:
// the word cannot express unknown, the reports do.
func (t Thresholds) Classify(code byte) Health {
	switch {
	case code == noReading:
		return HealthNormal
	case code < t.AlarmLow, t.AlarmHigh != 0 && code > t.AlarmHigh:
		return HealthBroken
	case code < t.WarnLow, t.WarnHigh != 0 && code > t.WarnHigh:
		return HealthSick
	}
	return HealthNormal
}

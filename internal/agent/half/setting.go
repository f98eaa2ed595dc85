package half

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// Setting is a value that the host half sets in a register of the DNP half (seed 001 Table VI). Where the two halves have
// two kernels, each has a configuration of its own, and the host half's overrules the DNP half's.
type Setting struct {
	Addr  watchdog.Addr
	Value uint32
}

// Settings returns what this half's configuration sets: the maximum number of hops if it is not 0, and the bounds of
// sensors that it names. Bounds that it does not name stay the DNP half's.
func (c *Common) Settings() (out []Setting) {
	if c.Config.MaxHops > 0 {
		out = append(out, Setting{watchdog.AddrMaxHops, uint32(c.MaxHops())})
	}
	for _, q := range []struct {
		addr   watchdog.Addr
		cfg    sensor.ThresholdConfig
		encode func(float64) byte
	}{
		{watchdog.AddrTemperatureThresholds, c.Config.Sensors.Temperature, watchdog.EncodeCelsius},
		{watchdog.AddrPowerThresholds, c.Config.Sensors.Power, watchdog.EncodeWatts},
		{watchdog.AddrVoltageThresholds, c.Config.Sensors.Voltage, watchdog.EncodeVolts},
	} {
		code := func(v *float64) byte {
			if v == nil {
				return q.encode(math.NaN())
			}
			return q.encode(*v)
		}
		t := watchdog.Thresholds{AlarmLow: code(q.cfg.AlarmLow), WarnLow: code(q.cfg.WarnLow), WarnHigh: code(q.cfg.WarnHigh),
			AlarmHigh: code(q.cfg.AlarmHigh)}
		if t != (watchdog.Thresholds{}) {
			out = append(out, Setting{q.addr, t.Encode()})
		}
	}
	return out
}

// In reports whether a register's value has the setting: for thresholds, all bounds that the setting has.
func (s Setting) In(value uint32) bool {
	mask := uint32(math.MaxUint32)
	if s.Addr != watchdog.AddrMaxHops {
		for shift := 0; shift < 32; shift += 8 {
			if s.Value>>shift&0xff == 0 { // no bound
				mask &^= 0xff << shift
			}
		}
	}
	return value&mask == s.Value
}

// AppendSettings appends the payload of a mailbox.Setting: address and value of each register, 4 bytes each, big-endian.
func AppendSettings(dst []byte, settings []Setting) []byte {
	for _, s := range settings {
		dst = binary.BigEndian.AppendUint32(dst, uint32(s.Addr))
		dst = binary.BigEndian.AppendUint32(dst, s.Value)
	}
	return dst
}

// AppendDirections appends the payload of a mailbox.DeadHosts: one byte with a bit for each direction.
func AppendDirections(dst []byte, dirs [grid.NumDirections]bool) []byte {
	var b byte
	for i, on := range dirs {
		if on {
			b |= 1 << i
		}
	}
	return append(dst, b)
}

// ReadDirections is the inverse of AppendDirections. It reports false for other lengths.
func ReadDirections(b []byte) (dirs [grid.NumDirections]bool, ok bool) {
	if len(b) != 1 {
		return dirs, false
	}
	for i := range dirs {
		dirs[i] = b[0]>>i&1 != 0
	}
	return dirs, true
}

// AppendRestart appends the payload of a mailbox.Restart: the milliseconds until the DNP half is back, 4 bytes, big-endian; 0: it is.
func AppendRestart(dst []byte, within time.Duration) []byte {
	return binary.BigEndian.AppendUint32(dst, uint32(max(0, within)/time.Millisecond))
}

// ReadRestart is the inverse of AppendRestart. It refuses other lengths, and more than fault.MaxRestart.
func ReadRestart(b []byte) (within time.Duration, err error) {
	if len(b) != 4 {
		return 0, fmt.Errorf("restart notice of %d bytes: want 4", len(b))
	}
	if within = time.Duration(binary.BigEndian.Uint32(b)) * time.Millisecond; within > fault.MaxRestart {
		return 0, fmt.Errorf("restart notice of %s: want at most %s", within, fault.MaxRestart)
	}
	return within, nil
}

// maxReadSettings is the largest number of settings that a message may have: a later version may set more registers.
const maxReadSettings = 64

// ReadSettings is the inverse of AppendSettings. It does not judge addresses and values.
func ReadSettings(b []byte) ([]Setting, error) {
	if len(b) == 0 || len(b)%8 != 0 || len(b) > 8*maxReadSettings {
		return nil, fmt.Errorf("settings of %d bytes: want 8 for each of 1 to %d registers", len(b), maxReadSettings)
	}
	var out []Setting
	for ; len(b) > 0; b = b[8:] {
		addr := binary.BigEndian.Uint32(b)
		if addr > math.MaxUint16 {
			return nil, fmt.Errorf("settings: address 0x%x: want at most 0xffff", addr)
		}
		out = append(out, Setting{watchdog.Addr(addr), binary.BigEndian.Uint32(b[4:])})
	}
	return out, nil
}

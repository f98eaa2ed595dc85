package sensor

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"
)

// Validate returns an error for every bad field at once, each with the prefix.
func (c Config) Validate(prefix string) error {
	v := &validation{prefix: prefix}
	v.absolute("procfs", c.Procfs)
	v.absolute("sysfs", c.Sysfs)
	if n := c.ServiceInterface; n != "" && !fileName(n) || len(n) > 15 {
		v.bad("serviceInterface", c.ServiceInterface, "a network interface's name, at most 15 characters")
	}
	v.positive("interface.sickErrorsPerSecond", c.Interface.SickErrorsPerSecond, math.Inf(1))
	v.positive("interface.sickDropsPerSecond", c.Interface.SickDropsPerSecond, math.Inf(1))
	v.between("interface.window", c.Interface.Window, time.Second, time.Hour)
	if c.Memory.SickCorrected < 0 {
		v.bad("memory.sickCorrected", c.Memory.SickCorrected, "0 or more")
	}
	v.between("memory.correctedWindow", c.Memory.CorrectedWindow, time.Second, 24*time.Hour)
	v.between("memory.oomHold", c.Memory.OOMHold, time.Second, 24*time.Hour)
	v.positive("memory.sickPressurePercent", c.Memory.SickPressurePercent, 100)
	v.thresholds("temperature", c.Temperature)
	v.thresholds("power", c.Power)
	v.thresholds("voltage", c.Voltage)
	for i, p := range c.Peripherals {
		v.peripheral(fmt.Sprintf("peripherals[%d]", i), p)
	}
	return errors.Join(v.errs...)
}

// fileName reports whether s names one entry of a directory in sysfs.
func fileName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/ \t\n")
}

type validation struct {
	prefix string
	errs   []error
}

func (v *validation) bad(field string, given any, want string) {
	v.errs = append(v.errs, fmt.Errorf("%s%s: given %v: want %s", v.prefix, field, given, want))
}

func (v *validation) absolute(field, path string) {
	if !filepath.IsAbs(path) {
		v.bad(field, fmt.Sprintf("%q", path), "an absolute path")
	}
}

func (v *validation) positive(field string, x, limit float64) {
	if !(x > 0 && x <= limit) || math.IsInf(x, 1) {
		want := "more than 0"
		if !math.IsInf(limit, 1) {
			want = fmt.Sprintf("more than 0, at most %v", limit)
		}
		v.bad(field, x, want)
	}
}

func (v *validation) between(field string, d Duration, lo, hi time.Duration) {
	if d.D() < lo || d.D() > hi {
		v.bad(field, d, fmt.Sprintf("%v to %v", lo, hi))
	}
}

func (v *validation) thresholds(field string, t ThresholdConfig) {
	last, lastName := math.Inf(-1), ""
	for _, b := range []struct {
		name string
		p    *float64
	}{{"alarmLow", t.AlarmLow}, {"warnLow", t.WarnLow}, {"warnHigh", t.WarnHigh}, {"alarmHigh", t.AlarmHigh}} {
		if b.p == nil {
			continue
		}
		switch {
		case math.IsNaN(*b.p) || math.IsInf(*b.p, 0):
			v.bad(field+"."+b.name, *b.p, "a finite number")
		case *b.p < last:
			v.bad(field+"."+b.name, *b.p, fmt.Sprintf("at least %s%s.%s (%v)", v.prefix, field, lastName, last))
		default:
			last, lastName = *b.p, b.name
		}
	}
}

func (v *validation) peripheral(field string, p PeripheralConfig) {
	switch p.Kind {
	case "", PeripheralNone:
	case PeripheralBlock:
		if !fileName(p.Device) {
			v.bad(field+".device", fmt.Sprintf("%q", p.Device), "a block device's kernel name, such as nvme0n1")
		}
	case PeripheralRDMA:
		if !fileName(p.Device) {
			v.bad(field+".device", fmt.Sprintf("%q", p.Device), "an RDMA device's kernel name, such as mlx5_0")
		}
	case PeripheralScript:
		if len(p.Command) == 0 || !filepath.IsAbs(p.Command[0]) {
			v.bad(field+".command", fmt.Sprintf("%q", p.Command), "a program's absolute path and its arguments")
		}
	default:
		v.bad(field+".kind", p.Kind, "one of none, block, rdma, script")
	}
	switch {
	case p.Port < 0 || p.Port > 255:
		v.bad(field+".port", p.Port, "1 to 255")
	case p.Port != 0 && p.Kind != PeripheralRDMA:
		v.bad(field+".port", p.Port, "no port, except for kind rdma")
	}
	if p.Interval != 0 {
		v.between(field+".interval", p.Interval, 100*time.Millisecond, 24*time.Hour)
	}
	if p.Timeout != 0 {
		v.between(field+".timeout", p.Timeout, 10*time.Millisecond, 10*time.Minute)
		interval := p.Interval.D()
		if interval == 0 {
			interval = defaultScriptInterval
		}
		if p.Timeout.D() > interval {
			v.bad(field+".timeout", p.Timeout, fmt.Sprintf("at most %s%s.interval (%v)", v.prefix, field, interval))
		}
	}
}

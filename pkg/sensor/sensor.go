// Package sensor measures what the two halves of a node know of their own machine: memory, the
// service network's interface and the peripherals for the host half; temperature, power and
// voltage for the DNP half (seed 001 §III-B, Table II).
//
// It turns measurements into states by thresholds and nothing more: it reports to nobody, votes on
// nothing and writes no register. Each source is a small package below this one; this one chooses
// them by configuration and polls them so that one that hangs does not hold up the others.
package sensor

import (
	"context"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/blockdev"
	"github.com/lofamo/lofamo/pkg/sensor/hwmon"
	"github.com/lofamo/lofamo/pkg/sensor/memory"
	"github.com/lofamo/lofamo/pkg/sensor/netif"
	"github.com/lofamo/lofamo/pkg/sensor/script"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Defaults of a script's times.
const (
	defaultScriptInterval = 5 * time.Second
	defaultScriptTimeout  = 2 * time.Second
)

// HostSources returns what the host half measures: memory, the service network's interface, and
// peripherals 0 and 1, in this order. What is not configured is there as a source that is always
// unknown.
func HostSources(cfg Config) ([]Source, error) {
	if err := cfg.Validate(""); err != nil {
		return nil, err
	}
	out := []Source{
		memory.New(memory.Config{
			Procfs: cfg.Procfs, Sysfs: cfg.Sysfs,
			SickCorrected: cfg.Memory.SickCorrected, CorrectedWindow: cfg.Memory.CorrectedWindow.D(),
			OOMHold: cfg.Memory.OOMHold.D(), SickPressure: cfg.Memory.SickPressurePercent,
			Clock: time.Now,
		}),
	}
	if cfg.ServiceInterface == "" {
		out = append(out, none{fault.ComponentServiceNetwork, "no interface configured"})
	} else {
		out = append(out, netif.New(netif.Config{
			Sysfs: cfg.Sysfs, Interface: cfg.ServiceInterface,
			SickErrors: cfg.Interface.SickErrorsPerSecond, SickDrops: cfg.Interface.SickDropsPerSecond,
			Window: cfg.Interface.Window.D(), Clock: time.Now,
		}))
	}
	for i, c := range [2]fault.Component{fault.ComponentPeripheral0, fault.ComponentPeripheral1} {
		out = append(out, peripheral(cfg, c, cfg.Peripherals[i]))
	}
	return out, nil
}

// DNPSources returns what the DNP half measures: temperature, power and voltage, in this order.
func DNPSources(cfg Config) ([]Source, error) {
	if err := cfg.Validate(""); err != nil {
		return nil, err
	}
	var out []Source
	for _, q := range []struct {
		quantity hwmon.Quantity
		cfg      ThresholdConfig
	}{{hwmon.Temperature, cfg.Temperature}, {hwmon.Power, cfg.Power}, {hwmon.Voltage, cfg.Voltage}} {
		out = append(out, hwmon.New(hwmon.Config{
			Sysfs: cfg.Sysfs, Quantity: q.quantity, Chip: q.cfg.Chip, Label: q.cfg.Label, Bounds: bounds(q.cfg),
		}))
	}
	return out, nil
}

func peripheral(cfg Config, c fault.Component, p PeripheralConfig) Source {
	switch p.Kind {
	case PeripheralBlock:
		var s Source = blockdev.New(blockdev.Config{Sysfs: cfg.Sysfs, Device: p.Device, Component: c, Clock: time.Now})
		if p.Interval > 0 {
			s = every{s, p.Interval.D()}
		}
		return s
	case PeripheralScript:
		sc := script.Config{Component: c, Command: p.Command, Interval: p.Interval.D(), Timeout: p.Timeout.D()}
		if sc.Interval == 0 {
			sc.Interval = defaultScriptInterval
		}
		if sc.Timeout == 0 {
			sc.Timeout = min(defaultScriptTimeout, sc.Interval)
		}
		return script.New(sc)
	}
	return none{c, "no peripheral configured"}
}

func bounds(t ThresholdConfig) hwmon.Bounds {
	b := hwmon.NoBounds()
	for _, s := range []struct {
		from *float64
		to   *float64
	}{{t.AlarmLow, &b.AlarmLow}, {t.WarnLow, &b.WarnLow}, {t.WarnHigh, &b.WarnHigh}, {t.AlarmHigh, &b.AlarmHigh}} {
		if s.from != nil {
			*s.to = *s.from
		}
	}
	return b
}

// Periodic is a source with an interval of its own.
type Periodic interface {
	Source
	Interval() time.Duration
}

// every gives a source an interval of its own.
type every struct {
	Source
	interval time.Duration
}

// Interval returns the time between two readings.
func (e every) Interval() time.Duration { return e.interval }

// none is a source that the node was not given.
type none struct {
	component fault.Component
	reason    string
}

func (n none) Name() string               { return "none:" + n.component.String() }
func (n none) Component() fault.Component { return n.component }

func (n none) Read(context.Context) (source.Reading, error) {
	return source.Reading{Component: n.component, State: fault.Unknown, Detail: n.reason, Source: n.Name()}, nil
}

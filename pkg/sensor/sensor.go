// Package sensor measures the components of a node's own machine for its two halves: memory, the service network's
// interface and the peripherals for the host half; temperature, power and voltage for the DNP half (seed 001 §III-B,
// Table II).
//
// It only turns measurements into states by thresholds: it sends no reports, casts no votes and writes no registers.
// Each source is a file here. This package selects sources by configuration and polls them so
// that one that hangs does not delay the others. It does not start processes either: another process runs check
// programs (pkg/sensor/script) at the host half's request.
package sensor

import (
	"context"
	"errors"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Default times of a script.
const (
	defaultScriptInterval = 5 * time.Second
	defaultScriptTimeout  = 2 * time.Second
)

// ErrUnavailable is in the chain of a source's error when the measuring process was absent, or ended early. The source
// is read again at the next period, regardless of its own interval.
var ErrUnavailable = errors.New("no answer")

// Check makes another process run the check program of a peripheral, and returns the result. It blocks until then, or
// until ctx ends. Its error has ErrUnavailable in its chain if that process is absent.
type Check func(ctx context.Context, c fault.Component) (Reading, error)

// HostSources returns the host half's sources: memory, the service network's interface, and peripherals 0 and 1, in
// this order. A component without configuration has a source that is always unknown.
func HostSources(cfg Config, check Check) ([]Source, error) {
	if err := cfg.Validate(""); err != nil {
		return nil, err
	}
	out := []Source{
		newMemory(memoryConfig{
			Procfs: cfg.Procfs, Sysfs: cfg.Sysfs,
			SickCorrected: cfg.Memory.SickCorrected, CorrectedWindow: cfg.Memory.CorrectedWindow.D(),
			OOMHold: cfg.Memory.OOMHold.D(), SickPressure: cfg.Memory.SickPressurePercent,
			Clock: time.Now,
		}),
	}
	if cfg.ServiceInterface == "" {
		out = append(out, none{fault.ComponentServiceNetwork, "no interface configured"})
	} else {
		out = append(out, newNetif(netifConfig{
			Sysfs: cfg.Sysfs, Interface: cfg.ServiceInterface,
			SickErrors: cfg.Interface.SickErrorsPerSecond, SickDrops: cfg.Interface.SickDropsPerSecond,
			Window: cfg.Interface.Window.D(), Clock: time.Now,
		}))
	}
	for i, c := range [2]fault.Component{fault.ComponentPeripheral0, fault.ComponentPeripheral1} {
		out = append(out, peripheral(cfg, c, cfg.Peripherals[i], check))
	}
	return out, nil
}

// DNPSources returns the DNP half's sources: temperature, power and voltage, in this order.
func DNPSources(cfg Config) ([]Source, error) {
	if err := cfg.Validate(""); err != nil {
		return nil, err
	}
	all := &chips{sys: source.Root(cfg.Sysfs), every: listEvery, clock: time.Now}
	var out []Source
	for _, q := range []struct {
		quantity Quantity
		cfg      ThresholdConfig
	}{{Temperature, cfg.Temperature}, {Power, cfg.Power}, {Voltage, cfg.Voltage}} {
		out = append(out, newHwmon(HwmonConfig{
			Sysfs: cfg.Sysfs, Quantity: q.quantity, Chip: q.cfg.Chip, Label: q.cfg.Label, Bounds: bounds(q.cfg),
		}, all))
	}
	return out, nil
}

func peripheral(cfg Config, c fault.Component, p PeripheralConfig, check Check) Source {
	switch p.Kind {
	case PeripheralBlock:
		return p.each(newBlockdev(blockdevConfig{Sysfs: cfg.Sysfs, Device: p.Device, Component: c, Clock: time.Now}))
	case PeripheralRDMA:
		return p.each(newRDMA(rdmaConfig{Sysfs: cfg.Sysfs, Device: p.Device, Port: max(p.Port, 1), Component: c}))
	case PeripheralScript:
		interval, timeout := p.ScriptTimes()
		return asked{c, check, interval, timeout + answerMargin}
	}
	return none{c, "no peripheral configured"}
}

// each limits a source to one reading per configured interval. Without an interval it returns the source itself.
func (p PeripheralConfig) each(s Source) Source {
	if p.Interval > 0 {
		return every{s, p.Interval.D()}
	}
	return s
}

// ScriptTimes returns the time between two checks and the timeout of one, with defaults filled in.
func (p PeripheralConfig) ScriptTimes() (interval, timeout time.Duration) {
	interval, timeout = p.Interval.D(), p.Timeout.D()
	if interval == 0 {
		interval = defaultScriptInterval
	}
	if timeout == 0 {
		timeout = min(defaultScriptTimeout, interval)
	}
	return interval, timeout
}

func bounds(t ThresholdConfig) Bounds {
	b := NoBounds()
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

// asked is a peripheral whose check program runs in another process.
type asked struct {
	component fault.Component
	check     Check
	interval  time.Duration
	within    time.Duration
}

// answerMargin extends the wait for a check's reading beyond the check's timeout: the other process has the ordinary
// class, and may have to wait on a loaded machine.
const answerMargin = 5 * time.Second

func (a asked) Name() string               { return "script:" + a.component.String() }
func (a asked) Component() fault.Component { return a.component }

// Interval returns the time between two checks.
func (a asked) Interval() time.Duration { return a.interval }

// Read waits for the check's end.
func (a asked) Read(ctx context.Context) (source.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, a.within)
	defer cancel()
	r, err := a.check(ctx, a.component)
	r.Component, r.Source = a.component, a.Name()
	return r, err
}

// none is a source without configuration.
type none struct {
	component fault.Component
	reason    string
}

func (n none) Name() string               { return "none:" + n.component.String() }
func (n none) Component() fault.Component { return n.component }

func (n none) Read(context.Context) (source.Reading, error) {
	return source.Reading{Component: n.component, State: fault.Unknown, Absent: true, Detail: n.reason, Source: n.Name()}, nil
}

package sensor

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// Quantity is the measured quantity. The zero value is invalid.
type Quantity uint8

// The quantities.
const (
	Temperature Quantity = iota + 1
	Voltage
	Power
)

// String returns the quantity's name.
func (q Quantity) String() string {
	switch q {
	case Temperature:
		return "temperature"
	case Voltage:
		return "voltage"
	case Power:
		return "power"
	}
	return fmt.Sprintf("Quantity(%d)", uint8(q))
}

// kind describes the kernel's files for a quantity (Documentation/hwmon/sysfs-interface.rst).
type kind struct {
	component fault.Component
	prefix    string // of the files: temp1_input
	unit      string
	scale     float64 // factor from the files' numbers to the unit
	// slack is the hysteresis: how far inside a bound a value must be before its state improves, so that a value that
	// oscillates around the bound causes one change. It is in units; relative is a share of the bound.
	slack, relative float64
	// lowest and highest bound what a part that works can have; see possible.
	lowest, highest float64
	neverZero       bool     // exactly 0 is no value
	windows         []string // drivers of which a single limit is none
}

func (q Quantity) kind() kind {
	switch q {
	case Temperature: // millidegrees Celsius
		return kind{component: fault.ComponentTemperature, prefix: "temp", unit: "°C", scale: 1e-3, slack: 2, lowest: -40, highest: 127,
			neverZero: true}
	case Voltage: // millivolts
		return kind{component: fault.ComponentVoltage, prefix: "in", unit: "V", scale: 1e-3, relative: 0.01, lowest: -1e3, highest: 1e3,
			windows: boards}
	default: // microwatts
		return kind{component: fault.ComponentPower, prefix: "power", unit: "W", scale: 1e-6, relative: 0.01, lowest: -1, highest: 1e5}
	}
}

// Bounds are the four limits; NaN means none.
type Bounds struct{ AlarmLow, WarnLow, WarnHigh, AlarmHigh float64 }

// NoBounds returns Bounds without any limit.
func NoBounds() Bounds {
	n := math.NaN()
	return Bounds{n, n, n, n}
}

// none reports whether there are no limits.
func (b Bounds) none() bool {
	return math.IsNaN(b.AlarmLow) && math.IsNaN(b.WarnLow) && math.IsNaN(b.WarnHigh) && math.IsNaN(b.AlarmHigh)
}

// over returns b, with its limits replaced by those that o has.
func (b Bounds) over(o Bounds) Bounds {
	pick := func(own, other float64) float64 {
		if math.IsNaN(other) {
			return own
		}
		return other
	}
	return Bounds{pick(b.AlarmLow, o.AlarmLow), pick(b.WarnLow, o.WarnLow), pick(b.WarnHigh, o.WarnHigh), pick(b.AlarmHigh, o.AlarmHigh)}
}

// Classify judges a value: outside the alarm limits Failed, outside the warning limits Sick. A value on a limit is
// inside. Comparison with NaN is false, so an absent limit is never exceeded.
func (b Bounds) Classify(v float64) fault.State {
	switch {
	case math.IsNaN(v):
		return fault.Unknown
	case v < b.AlarmLow || v > b.AlarmHigh:
		return fault.Failed
	case v < b.WarnLow || v > b.WarnHigh:
		return fault.Sick
	}
	return fault.Normal
}

// classifyFrom is Classify with hysteresis: a state better than last needs a value inside the bounds narrowed by k's
// slack.
func (b Bounds) classifyFrom(last fault.State, v float64, k kind) fault.State {
	now := b.Classify(v)
	if now >= last || last <= fault.Normal {
		return now
	}
	var closer Bounds
	closer.AlarmLow, closer.AlarmHigh = k.narrow(b.AlarmLow, b.AlarmHigh)
	closer.WarnLow, closer.WarnHigh = k.narrow(b.WarnLow, b.WarnHigh)
	return min(last, closer.Classify(v))
}

// narrow moves two bounds together by the slack, but each by no more than a quarter of their distance, so that an
// interval always remains.
func (k kind) narrow(low, high float64) (float64, float64) {
	by := func(bound float64) float64 {
		d := k.slack + k.relative*math.Abs(bound)
		if quarter := (high - low) / 4; quarter < d { // false when either is NaN
			d = quarter
		}
		return d
	}
	return low + by(low), high - by(high)
}

// HwmonConfig selects the inputs, and bounds that replace the chips' own limits.
type HwmonConfig struct {
	Sysfs    string
	Quantity Quantity
	Chip     string // restricts to chips or thermal zones of this name; empty: all
	Label    string // restricts to inputs of this label or file name, "temp1"; empty: all
	Bounds   Bounds // NaN: the chip's own
}

// Hwmon judges temperature, voltage or power by the kernel's hardware monitoring chips and their four limits. If no
// chip that is judged measures temperature, it uses thermal zones and their trip points: the processor's own if there are such zones.
//
// The four limits are those of the register map (seed 001 Table VI): alarm low, warning low, warning high, alarm high.
// A value outside the inner two is SICK, outside the outer two FAILED. It controls nothing: no fan, no cap.
type Hwmon struct {
	cfg   HwmonConfig
	kind  kind
	sys   source.Root
	chips *chips
	last  map[string]fault.State // of each input, for the slack
	was   source.Reading         // before a restart
	seen  bool                   // an input of the quantity has given a value

	applied atomic.Pointer[Bounds] // of the input that decided the last reading
}

// NewHwmon returns the source. It lists the chips at each reading.
func NewHwmon(cfg HwmonConfig) *Hwmon {
	return newHwmon(cfg, &chips{sys: source.Root(cfg.Sysfs), clock: time.Now})
}

// newHwmon returns a source that shares the list of chips with others.
func newHwmon(cfg HwmonConfig, all *chips) *Hwmon {
	s := &Hwmon{cfg: cfg, kind: cfg.Quantity.kind(), sys: source.Root(cfg.Sysfs), chips: all, last: map[string]fault.State{}}
	s.applied.Store(&cfg.Bounds)
	return s
}

// Name returns "hwmon:" and the quantity's name.
func (s *Hwmon) Name() string { return "hwmon:" + s.cfg.Quantity.String() }

// Component returns the component of the quantity.
func (s *Hwmon) Component() fault.Component { return s.kind.component }

// Bounds returns the limits behind the last reading: those of the deciding input, with the configured ones in place of
// the chip's own. Before the first judgement they are the configured ones. It may be called while Read runs.
func (s *Hwmon) Bounds() Bounds { return *s.applied.Load() }

// resume implements resumer.
func (s *Hwmon) resume(was source.Reading) { s.was = was }

// input is one measuring point.
type input struct {
	name   string // for people: "k10temp Tctl"
	key    string // unique
	value  float64
	bounds Bounds
}

// Read measures now. The reading's value is that of the deciding input: the one with the worst state, and among equals
// the one nearest to its upper bound.
func (s *Hwmon) Read(context.Context) (source.Reading, error) {
	l := look{Judge: source.NewJudge(s.kind.component, s.Name())}
	s.inputs(&l)
	if len(l.inputs) == 0 && s.cfg.Quantity == Temperature {
		s.zones(&l)
	}
	l.noteLeftOut()
	var worst *input
	state := fault.State(0)
	for i := range l.inputs {
		in := &l.inputs[i]
		if in.bounds.none() {
			continue
		}
		st := in.bounds.classifyFrom(s.before(*in), in.value, s.kind)
		s.last[in.key] = st
		if worst == nil || st > state || st == state && in.headroom() < worst.headroom() {
			worst, state = in, st
		}
	}
	if worst != nil {
		b := worst.bounds
		s.applied.Store(&b)
		l.Say(state, worst.value, s.kind.unit, "%s", s.describe(*worst))
	}
	r, err := l.Reading(s.absent(l.inputs))
	r.Absent = !s.seen && err == nil && s.cfg.Chip == "" && s.cfg.Label == ""
	if worst == nil && len(l.inputs) > 0 && err == nil {
		r.Value, r.Unit = l.inputs[0].value, s.kind.unit // known, though not judged
	}
	return r, err
}

// before returns an input's last state, which may be from before a restart.
func (s *Hwmon) before(in input) fault.State {
	if last, known := s.last[in.key]; known {
		return last
	}
	if strings.HasPrefix(s.was.Detail, in.name+" is ") {
		return s.was.State
	}
	return 0
}

// unread notes the error of an input, and reports whether the input was wrong before it lost its value or its limits. Such an input then
// stays wrong.
func (s *Hwmon) unread(l *look, in input, err error) bool {
	l.Fail(err)
	last := s.before(in)
	if err == nil || last <= fault.Normal || !math.IsNaN(in.value) && !in.bounds.none() {
		return false
	}
	s.last[in.key] = last
	l.Say(last, 0, "", "%s is not readable, and was %s", in.name, last)
	return true
}

// headroom returns the distance to the nearest upper bound; inputs without one sort last.
func (in input) headroom() float64 {
	h := math.Inf(1)
	for _, b := range []float64{in.bounds.WarnHigh, in.bounds.AlarmHigh} {
		if b-in.value < h {
			h = b - in.value
		}
	}
	return h
}

// absent returns why there is nothing to judge.
func (s *Hwmon) absent(inputs []input) string {
	if len(inputs) > 0 {
		in := inputs[0]
		return fmt.Sprintf("%s is %.4g %s, but neither chip nor configuration has plausible limits for it", in.name, in.value, s.kind.unit)
	}
	what := s.cfg.Quantity.String() + " sensor"
	if s.cfg.Chip != "" {
		what += " of chip " + s.cfg.Chip
	}
	if s.cfg.Label != "" {
		what += " named " + s.cfg.Label
	}
	if s.seen {
		return "the " + what + " gives no value that can be judged"
	}
	return "no " + what + " on this machine"
}

func (s *Hwmon) describe(in input) string {
	text := fmt.Sprintf("%s is %.4g %s", in.name, in.value, s.kind.unit)
	b := in.bounds
	switch {
	case in.value > b.AlarmHigh:
		return fmt.Sprintf("%s: above the alarm limit %.4g", text, b.AlarmHigh)
	case in.value < b.AlarmLow:
		return fmt.Sprintf("%s: below the alarm limit %.4g", text, b.AlarmLow)
	case in.value > b.WarnHigh:
		return fmt.Sprintf("%s: above the warning limit %.4g", text, b.WarnHigh)
	case in.value < b.WarnLow:
		return fmt.Sprintf("%s: below the warning limit %.4g", text, b.WarnLow)
	}
	return text
}

func (s *Hwmon) wanted(label, file string) bool {
	return s.cfg.Label == "" || s.cfg.Label == label || s.cfg.Label == strings.TrimSuffix(file, "_input")
}

// judged reports whether a driver's inputs count: it is known to be good, or the configuration names it or one of its inputs.
func (s *Hwmon) judged(driver string) bool {
	return s.cfg.Chip != "" || s.cfg.Label != "" || matches(driver, trusted[s.cfg.Quantity])
}

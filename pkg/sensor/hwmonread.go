package sensor

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"

	"github.com/lofamo/lofamo/pkg/sensor/source"
)

const (
	hwmonDir   = "class/hwmon"
	thermalDir = "class/thermal"
)

// look collects what one reading finds.
type look struct {
	*source.Judge
	inputs      []input  // that are judged
	implausible []string // names of inputs with a value that no part has
	listed      []string // names of inputs that are not judged
}

// noteLeftOut names the inputs that are not judged.
func (l *look) noteLeftOut() {
	for _, n := range []struct {
		what  string
		names []string
	}{{"implausible", l.implausible}, {"not judged", l.listed}} {
		more := ""
		if len(n.names) > namedLeftOut {
			more = fmt.Sprintf(" and %d more", len(n.names)-namedLeftOut)
			n.names = n.names[:namedLeftOut]
		}
		if len(n.names) > 0 {
			l.Note("%s: %s%s", n.what, strings.Join(n.names, ", "), more)
		}
	}
}

// namedLeftOut is how many inputs a note names: a detail has little room.
const namedLeftOut = 2

// inputs reads all hwmon inputs of the quantity (Documentation/ABI/testing/sysfs-class-hwmon). It omits inputs that the
// driver reports as absent.
func (s *Hwmon) inputs(l *look) {
	chips, errs := s.chips.list()
	for _, err := range errs {
		l.Fail(err)
	}
	for i := range chips {
		if s.cfg.Chip == "" || s.cfg.Chip == chips[i].name {
			s.chipInputs(l, &chips[i])
		}
	}
}

func (s *Hwmon) chipInputs(l *look, c *chip) {
	files := c.inputs(s.kind.prefix, "_input")
	if s.cfg.Quantity == Power && len(files) == 0 { // ACPI power meters give averages only
		files = c.inputs(s.kind.prefix, "_average")
	}
	for _, f := range files {
		point := f[:strings.LastIndexByte(f, '_')]
		label := point
		if read, ok := c.labels[point]; ok {
			label = read()
		}
		if !s.wanted(label, point) {
			continue
		}
		in := input{name: c.name + " " + label, key: c.dir + "/" + point}
		if err := s.read(c, point, f, &in); !s.unread(l, in, err) && !math.IsNaN(in.value) {
			s.sort(l, c.name, in)
		}
	}
}

// sort puts an input where it belongs: to those that are judged, or to those that are only named.
func (s *Hwmon) sort(l *look, driver string, in input) {
	s.seen = true
	in.bounds.programmed(s.kind, driver)
	switch {
	case !s.kind.possible(in.value) || matches(driver, s.kind.windows) && in.bounds.open(in.value):
		l.implausible = append(l.implausible, fmt.Sprintf("%s %.4g %s", in.name, in.value, s.kind.unit))
	case s.judged(driver):
		in.bounds = in.bounds.over(s.cfg.Bounds)
		l.inputs = append(l.inputs, in)
	default:
		l.listed = append(l.listed, in.name)
	}
}

// read reads one input and its limits. The value of an input that is unreadable, disabled, or marked useless by its own fault flag is NaN.
// The error names the files that are unreadable.
func (s *Hwmon) read(c *chip, point, file string, in *input) (failed error) {
	number := func(file string) float64 {
		v, err := s.listed(c, file)
		failed = errors.Join(failed, err)
		return v
	}
	if number(point+"_enable") == 0 || number(point+"_fault") == 1 {
		in.value = math.NaN()
		return failed
	}
	in.value = number(file) * s.kind.scale
	in.bounds = Bounds{AlarmLow: number(point+"_lcrit") * s.kind.scale, WarnLow: number(point+"_min") * s.kind.scale,
		WarnHigh: number(point+"_max") * s.kind.scale, AlarmHigh: number(point+"_crit") * s.kind.scale}
	return failed
}

// listed is optional for a file of a chip. It opens only files that the chip has.
func (s *Hwmon) listed(c *chip, file string) (float64, error) {
	if !c.has(file) {
		return math.NaN(), nil
	}
	v, err := s.sys.Int(c.dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		s.chips.forget()
	}
	return orNaN(v, err)
}

// optional reads a number that the driver may not have; it then returns NaN.
func (s *Hwmon) optional(dir, file string) (float64, error) {
	return orNaN(s.sys.Int(dir, file))
}

// orNaN returns NaN for a number that is unreadable. That the driver does not have it is no error.
func orNaN(v int64, err error) (float64, error) {
	switch {
	case err == nil:
		return float64(v), nil
	case source.Missing(err):
		return math.NaN(), nil
	}
	return math.NaN(), err
}

// zones reads the thermal zones (Documentation/ABI/testing/sysfs-class-thermal). Trip points of type critical are
// alarms, hot ones are warnings. At passive ones the kernel throttles, which is normal use, and active ones only start fans. If the
// processor has zones of its own with limits, they decide.
func (s *Hwmon) zones(l *look) {
	zones, err := s.sys.Glob(thermalDir, "thermal_zone[0-9]*")
	l.Fail(err)
	var own, others []input
	for _, z := range zones {
		dir := thermalDir + "/" + z
		name, err := s.sys.Text(dir, "type")
		if err != nil {
			l.Fail(err)
			name = z
		}
		if s.cfg.Chip != "" && s.cfg.Chip != name || !s.wanted(z, z) {
			continue
		}
		in := input{name: name, key: z}
		v, err := s.optional(dir, "temp")
		in.value = v * s.kind.scale
		err = errors.Join(err, s.trips(dir, &in.bounds))
		if s.unread(l, in, err) || math.IsNaN(in.value) {
			continue
		}
		s.seen = true
		in.bounds.programmed(s.kind, name)
		in.bounds = in.bounds.over(s.cfg.Bounds)
		switch {
		case !s.kind.possible(in.value):
			l.implausible = append(l.implausible, fmt.Sprintf("%s %.4g %s", in.name, in.value, s.kind.unit))
		case matches(name, processors) && !in.bounds.none():
			own = append(own, in)
		default:
			others = append(others, in)
		}
	}
	if l.inputs = own; len(own) == 0 {
		l.inputs = others
	}
}

// trips reads the trip points of a zone. The error names the files that are unreadable.
func (s *Hwmon) trips(dir string, b *Bounds) error {
	*b = NoBounds()
	files, failed := s.sys.Glob(dir, "trip_point_[0-9]*_type")
	for _, f := range files {
		kind, kindErr := s.sys.Text(dir, f)
		t, err := s.optional(dir, strings.TrimSuffix(f, "_type")+"_temp")
		failed = errors.Join(failed, kindErr, err)
		if t *= s.kind.scale; t <= 0 { // not programmed: firmware writes 0 or -274
			continue
		}
		switch kind {
		case "critical":
			b.AlarmHigh = lower(b.AlarmHigh, t)
		case "hot":
			b.WarnHigh = lower(b.WarnHigh, t)
		}
	}
	return failed
}

// lower returns the smaller of two numbers, each of which may be NaN.
func lower(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

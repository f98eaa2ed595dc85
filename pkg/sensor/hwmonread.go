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
	implausible []string // names of inputs with a value or limits that no part has
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
		if in, ok := s.read(l, c, point, f); ok {
			in.name, in.key = c.name+" "+label, c.dir+"/"+point
			s.sort(l, c.name, in)
		}
	}
}

// sort puts an input where it belongs: to those that are judged, or to those that are only named.
func (s *Hwmon) sort(l *look, driver string, in input) {
	s.seen = true
	dropped := in.bounds.programmed(s.kind)
	switch {
	case !s.kind.possible(in.value) || matches(driver, boards) && in.bounds.open(in.value):
		l.implausible = append(l.implausible, fmt.Sprintf("%s %.4g %s", in.name, in.value, s.kind.unit))
		return
	case dropped && in.bounds.none():
		l.implausible = append(l.implausible, "limits of "+in.name)
	case !s.judged(driver):
		l.listed = append(l.listed, in.name)
	}
	if s.judged(driver) {
		l.inputs = append(l.inputs, in)
	}
}

// read reads one input and its limits. It returns false for an input that is unreadable, disabled, or marked useless by its own
// fault flag.
func (s *Hwmon) read(l *look, c *chip, point, file string) (input, bool) {
	number := func(file string) float64 {
		v, err := s.listed(c, file)
		l.Fail(err)
		return v
	}
	if number(point+"_enable") == 0 || number(point+"_fault") == 1 {
		return input{}, false
	}
	v := number(file)
	if math.IsNaN(v) {
		return input{}, false
	}
	return input{value: v * s.kind.scale, bounds: Bounds{AlarmLow: number(point+"_lcrit") * s.kind.scale, WarnLow: number(point+"_min") * s.kind.scale,
		WarnHigh: number(point+"_max") * s.kind.scale, AlarmHigh: number(point+"_crit") * s.kind.scale}}, true
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
// alarms. Hot and passive ones, at which the kernel begins to act, are warnings. Active ones only start fans. If the processor has zones
// of its own, they decide.
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
		v, err := s.optional(dir, "temp")
		l.Fail(err)
		if math.IsNaN(v) {
			continue
		}
		s.seen = true
		in := input{name: name, key: z, value: v * s.kind.scale, bounds: s.trips(l, dir)}
		in.bounds.programmed(s.kind)
		switch {
		case !s.kind.possible(in.value):
			l.implausible = append(l.implausible, fmt.Sprintf("%s %.4g %s", in.name, in.value, s.kind.unit))
		case matches(name, processors):
			own = append(own, in)
		default:
			others = append(others, in)
		}
	}
	if l.inputs = own; len(own) == 0 {
		l.inputs = others
	}
}

func (s *Hwmon) trips(l *look, dir string) Bounds {
	b := NoBounds()
	files, err := s.sys.Glob(dir, "trip_point_[0-9]*_type")
	l.Fail(err)
	for _, f := range files {
		kind, err := s.sys.Text(dir, f)
		l.Fail(err)
		t, err := s.optional(dir, strings.TrimSuffix(f, "_type")+"_temp")
		l.Fail(err)
		if t *= s.kind.scale; t <= 0 { // not programmed: firmware writes 0 or -274
			continue
		}
		switch kind {
		case "critical":
			b.AlarmHigh = lower(b.AlarmHigh, t)
		case "hot", "passive":
			b.WarnHigh = lower(b.WarnHigh, t)
		}
	}
	return b
}

// lower returns the smaller of two numbers, each of which may be NaN.
func lower(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

package sensor

import (
	"errors"
	"io/fs"
	"math"
	"strings"

	"github.com/lofamo/lofamo/pkg/sensor/source"
)

const (
	hwmonDir   = "class/hwmon"
	thermalDir = "class/thermal"
)

// inputs reads all hwmon inputs of the quantity (Documentation/ABI/testing/sysfs-class-hwmon). It omits inputs that the
// driver reports as absent; an unreadable input is an error beside the other inputs.
func (s *Hwmon) inputs() ([]input, error) {
	chips, err := s.chips.list()
	errs := []error{err}
	var out []input
	for i := range chips {
		if s.cfg.Chip != "" && s.cfg.Chip != chips[i].name {
			continue
		}
		found, err := s.chipInputs(&chips[i])
		out, errs = append(out, found...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

func (s *Hwmon) chipInputs(c *chip) ([]input, error) {
	files := c.inputs(s.kind.prefix, "_input")
	if s.cfg.Quantity == Power && len(files) == 0 { // ACPI power meters give averages only
		files = c.inputs(s.kind.prefix, "_average")
	}
	var out []input
	var errs []error
	for _, f := range files {
		point := f[:strings.LastIndexByte(f, '_')]
		label := point
		if read, ok := c.labels[point]; ok {
			label = read()
		}
		if !s.wanted(label, point) {
			continue
		}
		in, ok, err := s.read(c, point, f)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !ok {
			continue
		}
		s.seen = true
		in.name, in.key = c.name+" "+label, c.dir+"/"+point
		out = append(out, in)
	}
	return out, errors.Join(errs...)
}

// read reads one input and its limits. It returns false for an input that is disabled, or marked useless by its own
// fault flag.
func (s *Hwmon) read(c *chip, point, file string) (input, bool, error) {
	for _, flag := range []struct {
		suffix string
		off    int64
	}{{"_enable", 0}, {"_fault", 1}} {
		v, err := s.listed(c, point+flag.suffix)
		if err != nil {
			return input{}, false, err
		}
		if v == float64(flag.off) {
			return input{}, false, nil
		}
	}
	v, err := s.listed(c, file)
	if err != nil || math.IsNaN(v) {
		return input{}, false, err
	}
	in := input{value: v * s.kind.scale, bounds: NoBounds()}
	for _, l := range []struct {
		suffix string
		bound  *float64
	}{{"_lcrit", &in.bounds.AlarmLow}, {"_min", &in.bounds.WarnLow}, {"_max", &in.bounds.WarnHigh}, {"_crit", &in.bounds.AlarmHigh}} {
		v, err := s.listed(c, point+l.suffix)
		if err != nil {
			return input{}, false, err
		}
		*l.bound = v * s.kind.scale
	}
	in.bounds = sane(in.bounds)
	return in, true, nil
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

// orNaN returns NaN for a number that the driver does not have.
func orNaN(v int64, err error) (float64, error) {
	switch {
	case err == nil:
		return float64(v), nil
	case source.Missing(err):
		return math.NaN(), nil
	}
	return 0, err
}

// sane drops the limits of chips that were never programmed: a pair that admits no value, and an upper limit of 0 or
// less without a lower one.
func sane(b Bounds) Bounds {
	drop := func(low, high *float64) {
		if *low >= *high {
			*low, *high = math.NaN(), math.NaN()
		}
		if math.IsNaN(*low) && *high <= 0 {
			*high = math.NaN()
		}
	}
	drop(&b.WarnLow, &b.WarnHigh)
	drop(&b.AlarmLow, &b.AlarmHigh)
	return b
}

// zones reads the thermal zones (Documentation/ABI/testing/sysfs-class-thermal). Trip points of type critical are
// alarms. Hot and passive ones, at which the kernel begins to act, are warnings. Active ones only start fans.
func (s *Hwmon) zones() ([]input, error) {
	zones, err := s.sys.Glob(thermalDir, "thermal_zone[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []input
	var errs []error
	for _, z := range zones {
		dir := thermalDir + "/" + z
		name, err := s.sys.Text(dir, "type")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if s.cfg.Chip != "" && s.cfg.Chip != name || !s.wanted(z, z) {
			continue
		}
		v, err := s.optional(dir, "temp")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if math.IsNaN(v) {
			continue
		}
		bounds, err := s.trips(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.seen = true
		out = append(out, input{name: name, key: z, value: v * s.kind.scale, bounds: bounds})
	}
	return out, errors.Join(errs...)
}

func (s *Hwmon) trips(dir string) (Bounds, error) {
	b := NoBounds()
	files, err := s.sys.Glob(dir, "trip_point_[0-9]*_type")
	if err != nil {
		return b, err
	}
	for _, f := range files {
		kind, err := s.sys.Text(dir, f)
		if err != nil {
			return b, err
		}
		t, err := s.optional(dir, strings.TrimSuffix(f, "_type")+"_temp")
		if err != nil {
			return b, err
		}
		t *= s.kind.scale
		if t <= 0 { // not programmed: firmware writes 0 or -274
			continue
		}
		switch kind {
		case "critical":
			b.AlarmHigh = lower(b.AlarmHigh, t)
		case "hot", "passive":
			b.WarnHigh = lower(b.WarnHigh, t)
		}
	}
	return b, nil
}

// lower returns the smaller of two numbers, each of which may be NaN.
func lower(a, b float64) float64 {
	if math.IsNaN(a) || b < a {
		return b
	}
	return a
}

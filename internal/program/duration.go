package program

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// DurationVar adds a flag for a duration that a person types: as time.ParseDuration reads it, and with days in front, such as 2d or 7d12h.
func DurationVar(f *pflag.FlagSet, to *time.Duration, name string, value time.Duration, usage string) {
	*to = value
	f.Var((*duration)(to), name, usage)
}

// duration is a flag's value.
type duration time.Duration

// String returns "0" for none, which help texts do not show as a default.
func (d *duration) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

// Type names the flag's values in help texts.
func (d *duration) Type() string { return "duration" }

// Set parses a value.
func (d *duration) Set(s string) error {
	v, err := ParseDuration(s)
	if err == nil {
		*d = duration(v)
	}
	return err
}

// day is the length of "1d": days of a calendar differ from it when clocks change.
const day = 24 * time.Hour

var errDuration = errors.New("want a time with a unit, such as 10s, 90m or 7d12h")

// ParseDuration parses a duration with whole days in front of the units of time.ParseDuration, such as 2d, -1d or 7d12h.
func ParseDuration(s string) (time.Duration, error) {
	unsigned := strings.TrimLeft(s, "+-")
	sign := s[:len(s)-len(unsigned)]
	days, rest, ok := strings.Cut(unsigned, "d")
	if !ok {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, errDuration
		}
		return d, nil
	}
	n, err := strconv.ParseUint(days, 10, 32)
	if err != nil || len(sign) > 1 {
		return 0, errDuration
	}
	var d time.Duration
	if rest != "" {
		if d, err = time.ParseDuration(rest); err != nil || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") {
			return 0, errDuration
		}
	}
	if n > uint64((math.MaxInt64-d)/day) { //nolint:gosec // d is not negative
		return 0, errDuration
	}
	d += time.Duration(n) * day //nolint:gosec // bounded above
	if sign == "-" {
		d = -d
	}
	return d, nil
}

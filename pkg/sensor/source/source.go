// Package source is the common part of all sensor sources: the reading that they return, the interface that they
// satisfy, and careful access to the kernel's small text files.
//
// Both the sources (those of pkg/sensor, and hwmon and script) and pkg/sensor, which assembles them, import it. It
// measures nothing itself and has no schedule.
package source

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Reading is a source's result for its component at one moment.
type Reading struct {
	Component fault.Component
	// State is Unknown if the machine lacks the source or it was unreadable: a silent sensor is never normal.
	State fault.State
	// Absent: the machine has no such part, and the configuration names none. State is Unknown.
	Absent bool
	Value  float64 // the deciding measurement, in Unit; 0 if there is none
	Unit   string  // "°C", "V", "W", "/s", "%", or empty
	Detail string  // for people, at most fault.MaxDetail bytes: why it is not normal, or the value
	Source string  // the source's name
	// Trend is a value that may move towards a threshold before there is a fault; zero: none.
	Trend Measure
	// Window is the time over which the deciding sign looks back; 0: it shows the present. After a restart, nothing wrong must be seen
	// for as long before the state is better.
	Window time.Duration
	// Until is the end of that time for a reading from before a restart; zero: the reading is of this process.
	Until time.Time
}

// Measure is a measured quantity and the threshold above which its component is SICK.
type Measure struct {
	Quantity  fault.Quantity
	Value     float64 // in the quantity's unit
	Threshold float64
}

// Source measures one component.
type Source interface {
	// Name is unique within a half, such as "memory" or "script:peripheral/0".
	Name() string
	// Component is the subject of the readings.
	Component() fault.Component
	// Read measures now. It may block, up to ctx's end. The reading is complete even with an error, which says that nothing could be
	// read, or not in time: its State is then never Normal. One caller at a time.
	Read(ctx context.Context) (Reading, error)
}

// Clock returns the time, for rates and hold times. Tests replace it so that they need not wait.
type Clock func() time.Time

// Duration is a time.Duration with the form "25ms" in YAML and JSON.
type Duration time.Duration

// MarshalJSON writes the duration as a string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON parses a string such as "25ms"; it refuses a bare number, which has no unit.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: want a string with a unit, such as \"25ms\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit, such as \"25ms\"", s)
	}
	*d = Duration(v)
	return nil
}

// D returns the plain duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String prints as time.Duration does.
func (d Duration) String() string { return time.Duration(d).String() }

// Judge collects several signs about one component and keeps the gravest. The readable signs decide, and a note in the detail
// names the others. The result is Unknown if there is no readable sign.
type Judge struct {
	reading Reading // State is 0 before the first sign
	err     error   // of the first unreadable sign
	notes   []string
}

// NewJudge returns a Judge without any signs.
func NewJudge(c fault.Component, name string) *Judge {
	return &Judge{reading: Reading{Component: c, Source: name}}
}

// Say adds a sign: Normal, Sick or Failed. Among signs of equal gravity the first counts. For an unknown state, add no
// sign, or call Fail.
func (j *Judge) Say(s fault.State, value float64, unit, format string, args ...any) {
	j.Within(0, s, value, unit, format, args...)
}

// Within is Say for a sign that looks back over a window.
func (j *Judge) Within(window time.Duration, s fault.State, value float64, unit, format string, args ...any) {
	if s > j.reading.State {
		j.reading.State, j.reading.Value, j.reading.Unit, j.reading.Window = s, value, unit, window
		j.reading.Detail = fmt.Sprintf(format, args...)
	}
}

// Trend records a value that may move towards a threshold.
func (j *Judge) Trend(m Measure) { j.reading.Trend = m }

// Fail adds a sign that exists but was unreadable.
func (j *Judge) Fail(err error) {
	if err == nil {
		return
	}
	if j.err == nil {
		j.err = err
	}
	j.notes = append(j.notes, short(err))
}

// Note adds a remark that does not count as a sign.
func (j *Judge) Note(format string, args ...any) {
	j.notes = append(j.notes, fmt.Sprintf(format, args...))
}

// Reading returns the verdict. absent is the detail for a component without any signs.
func (j *Judge) Reading(absent string) (Reading, error) {
	r := j.reading
	if r.State == 0 && j.err != nil {
		r.State, r.Detail = fault.Unknown, Detail(j.err.Error())
		return r, j.err
	}
	if r.State == 0 {
		r.State, r.Detail = fault.Unknown, absent
	}
	r.Detail = Detail(strings.Join(append([]string{r.Detail}, j.notes...), "; "))
	return r, nil
}

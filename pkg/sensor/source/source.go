// Package source is what every sensor source has in common: the reading that it returns, the
// interface that it satisfies, and careful access to the kernel's small text files.
//
// It stands below the sources (those of pkg/sensor, and hwmon and script) and below
// pkg/sensor, which puts them together. It measures nothing itself and keeps no schedule.
package source

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Reading is what a source says of its component at one moment.
type Reading struct {
	Component fault.Component
	// State is Unknown when the machine lacks the source or it could not be read: silence of a
	// sensor is never called normal.
	State  fault.State
	Value  float64 // the measurement that decided, in Unit; 0 where there is none
	Unit   string  // "°C", "V", "W", "/s", "%", or empty
	Detail string  // for people, at most fault.MaxDetail bytes: why it is not normal, or what was read
	Source string  // the source's name
	// Trend is what of it may move towards a threshold before anything is wrong; zero: nothing.
	Trend Measure
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
	// Component is what the readings are about.
	Component() fault.Component
	// Read measures now. It may block, up to ctx's end. The reading is complete even with an error:
	// its State is then Unknown and its Detail the error, which is returned besides for logs.
	// One caller at a time.
	Read(ctx context.Context) (Reading, error)
}

// Clock tells the time, for rates and hold times. Sources get one so that tests need not wait.
type Clock func() time.Time

// Duration is a time.Duration that is written "25ms" in YAML and JSON.
type Duration time.Duration

// MarshalJSON writes the duration as a string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads a string such as "25ms"; a bare number is refused, for it has no unit.
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

// Judge gathers several signs about one component and keeps the gravest. A sign that could not be
// read makes the whole Unknown, unless another already says Sick or Failed.
type Judge struct {
	reading Reading // State is 0 until a sign was said
	err     error   // the first sign that could not be read
}

// NewJudge returns a Judge on which nothing was said yet.
func NewJudge(c fault.Component, name string) *Judge {
	return &Judge{reading: Reading{Component: c, Source: name}}
}

// Say adds a sign: Normal, Sick or Failed. Among signs of one gravity the first counts. What is not
// known is not a sign: say nothing, or Fail.
func (j *Judge) Say(s fault.State, value float64, unit, format string, args ...any) {
	if s > j.reading.State {
		j.reading.State, j.reading.Value, j.reading.Unit = s, value, unit
		j.reading.Detail = Detail(fmt.Sprintf(format, args...))
	}
}

// Trend notes what may move towards a threshold.
func (j *Judge) Trend(m Measure) { j.reading.Trend = m }

// Fail adds a sign that was there and could not be read.
func (j *Judge) Fail(err error) {
	if err != nil && j.err == nil {
		j.err = err
	}
}

// Reading returns the verdict. absent is the detail for when nothing was there to be judged.
func (j *Judge) Reading(absent string) (Reading, error) {
	r := j.reading
	switch {
	case j.err != nil && r.State <= fault.Normal:
		r.State, r.Value, r.Unit, r.Detail = fault.Unknown, 0, "", Detail(j.err.Error())
	case r.State == 0:
		r.State, r.Detail = fault.Unknown, Detail(absent)
	}
	return r, j.err
}

package sensor

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
)

// This file carries states over a restart of the process. The windows of a new process are empty, so its first readings would call a part
// NORMAL that was SICK a moment ago.

// resumer is a source that continues from its last reading before a restart.
type resumer interface{ resume(was Reading) }

// resume implements resumer.
func (e every) resume(was Reading) {
	if r, ok := e.Source.(resumer); ok {
		r.resume(was)
	}
}

// Resume makes the next Run continue from the readings before a restart. A source that was SICK or FAILED stays so until the window of
// that reading has passed without a fault. Readings of sources that are not in the set do not count.
func (s *Set) Resume(was []Reading) { s.was = was }

// resume prepares a source that starts at this time.
func (p *poll) resume(now time.Time, all []Reading) {
	for _, was := range all {
		if was.Source != p.src.Name() || was.Component != p.src.Component() {
			continue
		}
		if r, ok := p.src.(resumer); ok {
			r.resume(was)
		}
		if was.State <= fault.Normal {
			continue
		}
		if p.was = was; was.Until.IsZero() { // its errors may have gone on until now
			p.was.Until = now.Add(was.Window)
		}
	}
}

// hold returns the reading, or the one before the restart while that still counts.
func (p *poll) hold(r Reading, at time.Time) Reading {
	if r.State < p.was.State && at.Before(p.was.Until) {
		return p.was
	}
	p.was = Reading{}
	return r
}

// kept is a reading in the form in which it is stored.
type kept struct {
	Source    string          `json:"source"`
	Component fault.Component `json:"component"`
	State     fault.State     `json:"state"`
	Value     float64         `json:"value,omitempty"`
	Unit      string          `json:"unit,omitempty"`
	Detail    string          `json:"detail,omitempty"`
	Window    time.Duration   `json:"window,omitempty"`
	Until     time.Duration   `json:"until,omitempty"` // since the machine's boot; 0: the reading has no Until
}

// EncodeReadings returns what Resume needs of readings. boot is when the machine started, by the process's own
// monotonic clock.
func EncodeReadings(readings []Reading, boot time.Time) ([]byte, error) {
	out := []kept{}
	for _, r := range readings {
		switch {
		case r.State > fault.Normal:
			k := kept{r.Source, r.Component, r.State, r.Value, r.Unit, r.Detail, r.Window, 0}
			if !r.Until.IsZero() {
				k.Until = r.Until.Sub(boot)
			}
			out = append(out, k)
		case r.State == fault.Normal:
			out = append(out, kept{Source: r.Source, Component: r.Component, State: r.State})
		}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("keep sensors' states: %w", err)
	}
	return b, nil
}

// maxWindow bounds the window of a stored reading: the longest that a configuration may have.
const maxWindow = 24 * time.Hour

// DecodeReadings is the inverse of EncodeReadings. It leaves out readings that no source gives.
func DecodeReadings(b []byte, boot time.Time) ([]Reading, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var in []kept
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, fmt.Errorf("stored sensors' states: %w", err)
	}
	var out []Reading
	for _, k := range in {
		r := Reading{Source: k.Source, Component: k.Component, State: k.State, Value: k.Value, Unit: k.Unit,
			Detail: source.Detail(k.Detail), Window: k.Window}
		if k.Until != 0 {
			r.Until = boot.Add(k.Until)
		}
		if !k.State.Valid() || k.State == fault.Unknown || k.Window < 0 || k.Window > maxWindow || time.Until(r.Until) > maxWindow {
			continue
		}
		out = append(out, r)
	}
	return out, nil
}

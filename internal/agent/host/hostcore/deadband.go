package hostcore

import (
	"math"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// This file selects the measured values to send: those that moved out of their deadband. The supervisors' foresight
// makes trends from them (pkg/awareness). A constant value costs nothing. States are the sensors' task, not this
// file's.

// Parameters of the rule: a value moves when it has left its last resting place by a step, and it counts as moving
// for a while after.
const (
	step    = 0.01             // of the threshold
	holds   = 2 * time.Minute  // after the last step
	between = 5 * time.Second  // two readings that are sent
	stale   = 30 * time.Second // older values are not sent
)

// Limits are the thresholds of a quantity, at which its component becomes SICK; NaN where there is none.
type Limits struct{ Low, High float64 }

// Above is a single upper threshold.
func Above(high float64) Limits { return Limits{Low: math.NaN(), High: high} }

// quantity is one that is measured.
type quantity struct {
	component fault.Component
	quantity  fault.Quantity
	value     float64
	at        time.Time // of the measurement
	rest      float64   // where it last came to rest, or took a step
	rising    bool      // the last step was upwards
	limits    Limits
	moved     time.Time // the last step; zero for none
	sent      time.Time
}

// deadbands follows the quantities of one node.
type deadbands struct{ all []quantity }

// Measure takes a measurement in.
func (t *deadbands) Measure(now time.Time, c fault.Component, q fault.Quantity, value float64, l Limits) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	m := t.find(c, q, value)
	m.value, m.at, m.limits = value, now, l
	if d := value - m.rest; d != 0 && math.Abs(d) >= step*math.Abs(l.towards(d > 0)) {
		m.rest, m.rising, m.moved = value, d > 0, now
	}
}

// find returns the quantity, new at rest at the value.
func (t *deadbands) find(c fault.Component, q fault.Quantity, value float64) *quantity {
	i := slices.IndexFunc(t.all, func(m quantity) bool { return m.component == c && m.quantity == q })
	if i < 0 {
		i = len(t.all)
		t.all = append(t.all, quantity{component: c, quantity: q, rest: value})
	}
	return &t.all[i]
}

// towards returns the threshold in a direction, or NaN without one: a value then moves towards no threshold.
func (l Limits) towards(rising bool) float64 {
	if rising {
		return l.High
	}
	return l.Low
}

// Due returns up to limit readings of moving values, those first that have waited longest.
func (t *deadbands) Due(now time.Time, limit int) []fault.Reading {
	var due []*quantity
	for i := range t.all {
		m := &t.all[i]
		moving := !m.moved.IsZero() && now.Sub(m.moved) < holds
		if moving && now.Sub(m.at) < stale && (m.sent.IsZero() || now.Sub(m.sent) >= between) {
			due = append(due, m)
		}
	}
	slices.SortStableFunc(due, func(a, b *quantity) int { return a.sent.Compare(b.sent) })
	var out []fault.Reading
	for _, m := range due {
		r := fault.Reading{
			Component: m.component, Quantity: m.quantity, Value: float32(m.value), Threshold: float32(m.limits.towards(m.rising)),
			Age: now.Sub(m.at),
		}
		if len(out) == limit || r.Check() != nil { // the threshold may be gone; with such a reading no report could be sent
			continue
		}
		m.sent = now
		out = append(out, r)
	}
	return out
}

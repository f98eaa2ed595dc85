package awareness

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// WarningStatus is a trend that leads to a fault: a quantity that will reach its threshold if its trend continues.
type WarningStatus struct {
	Node      fault.NodeID
	Component fault.Component
	Quantity  fault.Quantity
	Value     float64       // by the fit, at the newest reading, in the quantity's unit
	Threshold float64       // at which the component becomes SICK
	Slope     float64       // a second
	Left      time.Duration // from the newest reading until the threshold
	Since     time.Time
	Rule      string // in words
	Ended     bool   // in Output.Warnings: it no longer holds
}

// Parameters of trend warnings. A trend is believed when it exceeds its own scatter. A standing warning needs weaker
// evidence than a new one, so that it does not come and go.
const (
	trendPoints   = 16               // newest readings that are kept; trend.line selects those that count
	trendLeast    = 5                // minimum number of readings for a warning
	trendSpan     = 10 * time.Second // minimum span of these readings
	trendQuiet    = 2 * time.Minute  // without a reading: the value no longer moves
	believeErrors = 4                // standard errors between the slope and zero, to warn
	keepErrors    = 2                // to keep warning
)

// point is one reading.
type point struct {
	epoch fault.Epoch
	seq   fault.Seq
	at    time.Time
	value float64
}

// trend is one quantity of a component over its newest readings. Only a moving quantity has one: a half sends no
// readings of others.
type trend struct {
	component fault.Component
	quantity  fault.Quantity
	threshold float64
	points    []point // by (epoch, seq), oldest first
	warning   *WarningStatus
}

// foresees processes the readings of a report. The newest count, in any order of arrival.
func (m *Machine) foresees(n *node, del fault.Delivery, now time.Time) {
	if id := del.Report.ID; m.cfg.Horizon == 0 || id.Epoch < n.voice(id.Origin.Half).floor {
		return
	}
	for _, r := range del.Report.Readings {
		if r.Check() != nil || !n.has(r.Component) {
			continue
		}
		if d, link := r.Component.LinkDirection(); link && m.waiting(n, d, now) {
			continue // it may be of the former link at this end
		}
		at := sent(del, now).Add(-max(0, r.Age))
		p := point{epoch: del.Report.ID.Epoch, seq: del.Report.ID.Seq, at: at, value: float64(r.Value)}
		n.trend(r.Component, r.Quantity).add(p, float64(r.Threshold))
		n.read(r, m.clock.instant(p.at))
	}
}

// newest is the newest reading of a component, which stays valid while the value does not move.
type newest struct {
	component        fault.Component
	quantity         fault.Quantity
	value, threshold float32
	at               instant
}

// read records a reading, unless there is a newer one.
func (n *node) read(r fault.Reading, at instant) {
	now := newest{component: r.Component, quantity: r.Quantity, value: r.Value, threshold: r.Threshold, at: at}
	i := slices.IndexFunc(n.readings, func(o newest) bool { return o.component == r.Component })
	switch {
	case i < 0:
		n.readings = append(n.readings, now)
	case n.readings[i].at < at || n.readings[i].at == at && n.readings[i].value < r.Value: // in any order of arrival
		n.readings[i] = now
	}
}

// trend returns the trend of a quantity and creates it if necessary. Trends are in the order of components.
func (n *node) trend(c fault.Component, q fault.Quantity) *trend {
	i, found := slices.BinarySearchFunc(n.trends, c, func(t *trend, c fault.Component) int { return int(t.component) - int(c) })
	if !found {
		n.trends = slices.Insert(n.trends, i, &trend{component: c, quantity: q})
	}
	return n.trends[i]
}

func (t *trend) add(p point, threshold float64) {
	i, found := slices.BinarySearchFunc(t.points, p, func(a, b point) int {
		if a.epoch != b.epoch {
			return compare(a.epoch, b.epoch)
		}
		return compare(a.seq, b.seq)
	})
	switch {
	case found: // a duplicate
		return
	case i == len(t.points):
		t.threshold = threshold
	}
	t.points = slices.Insert(t.points, i, p)
	if extra := len(t.points) - trendPoints; extra > 0 {
		t.points = slices.Delete(t.points, 0, extra)
	}
}

func compare[T ~uint64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (t *trend) newest() time.Time {
	if len(t.points) == 0 {
		return time.Time{}
	}
	return t.points[len(t.points)-1].at
}

// quiet reports whether the last reading is so old that the value no longer moves.
func (t *trend) quiet(now time.Time) bool { return !now.Before(t.newest().Add(trendQuiet)) }

// line is a straight line through readings.
type line struct {
	value float64 // at the newest
	slope float64 // a second
	err   float64 // standard error of the slope
	span  time.Duration
}

// fit returns the ordinary least squares line.
func fit(points []point) line {
	last := points[len(points)-1].at
	var sx, sy, sxx, sxy float64
	x := func(p point) float64 { return p.at.Sub(last).Seconds() }
	n := float64(len(points))
	for _, p := range points {
		sx, sy = sx+x(p), sy+p.value
	}
	mx, my := sx/n, sy/n
	for _, p := range points {
		sxx += (x(p) - mx) * (x(p) - mx)
		sxy += (x(p) - mx) * (p.value - my)
	}
	l := line{value: my, span: last.Sub(points[0].at)}
	if sxx == 0 {
		return l
	}
	l.slope = sxy / sxx
	l.value = my - l.slope*mx
	var rest float64
	for _, p := range points {
		e := p.value - l.value - l.slope*x(p)
		rest += e * e
	}
	if n > 2 {
		l.err = math.Sqrt(rest / (n - 2) / sxx)
	}
	return l
}

// believed reports whether the slope is at least that many standard errors from zero.
func (l line) believed(errors float64) bool {
	return l.span >= trendSpan && l.slope != 0 && math.Abs(l.slope) > errors*l.err
}

// line returns the straight line through the newest readings, and how many readings it covers. A value that fell and
// now rises does not fit its earlier line, and a value that rises ever faster does not fit its slow beginning. So line
// chooses the shortest stretch of the newest readings that is a line beyond doubt. Few readings may look like a line by
// chance, so shorter stretches need more standard errors: only one in ten thousand sets of scattered readings passes.
// If no stretch qualifies, all readings count, on weaker grounds. errors scales both.
func (t *trend) line(errors float64) (l line, readings int, ok bool) {
	for readings = trendLeast; readings < len(t.points); readings++ {
		free := float64(readings - 2)
		if l = fit(t.points[len(t.points)-readings:]); l.believed(errors * (1 + 40/(free*free))) {
			return l, readings, true
		}
	}
	l = fit(t.points)
	return l, readings, l.believed(errors)
}

// foresee returns the warning that a trend calls for now; nil for none.
func (m *Machine) foresee(n *node, t *trend, now time.Time) *WarningStatus {
	if len(t.points) < trendLeast || t.quiet(now) {
		return nil
	}
	errors, horizon := float64(believeErrors), m.cfg.Horizon
	if t.warning != nil {
		errors, horizon = keepErrors, 2*m.cfg.Horizon
	}
	l, readings, ok := t.line(errors)
	away := t.threshold - l.value
	if !ok || (away > 0) != (l.slope > 0) {
		return nil
	}
	left := away / l.slope
	if left > horizon.Seconds() {
		return nil
	}
	w := &WarningStatus{
		Node: n.id, Component: t.component, Quantity: t.quantity, Value: l.value, Threshold: t.threshold, Slope: l.slope,
		Left: time.Duration(left * float64(time.Second)), Since: now,
	}
	if t.warning != nil {
		w.Since = t.warning.Since
	}
	verb := "rises"
	if l.slope < 0 {
		verb = "falls"
	}
	unit := t.quantity.Unit()
	w.Rule = fmt.Sprintf("%s is %s%s and %s by %s%s a minute: %s%s, where it is SICK, in about %s; %d readings over %s",
		t.quantity, figure(l.value), unit, verb, figure(60*math.Abs(l.slope)), unit, figure(t.threshold), unit, w.Left.Round(time.Second),
		readings, l.span.Round(time.Second))
	return w
}

// figure formats a value with three significant digits, and all digits before the decimal point.
func figure(v float64) string {
	if math.Abs(v) >= 999.5 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// publishWarnings compares the trends of a node with its standing warnings.
func (m *Machine) publishWarnings(n *node, now time.Time) {
	for _, t := range n.trends {
		state := n.components[t.component].state
		there := state == fault.Sick || state == fault.Failed
		if there {
			t.points = nil // an existing fault needs no warning, and the trend that led to it is over
		}
		w := m.foresee(n, t, now)
		switch {
		case w == nil && t.warning != nil && !there && len(t.points) < trendLeast && now.Before(m.started.Add(trendQuiet)):
			n.wakeAt(m.started.Add(trendQuiet), now) // restored: new readings have yet to come in
		case w == nil && t.warning != nil:
			m.endWarning(t, t.ended(there, state, now))
		case w != nil && (t.warning == nil || news(*t.warning, *w)):
			t.warning = w
			m.out.Warnings = append(m.out.Warnings, *w)
		}
		if len(t.points) > 0 {
			n.wakeAt(t.newest().Add(trendQuiet), now)
		}
	}
	n.trends = slices.DeleteFunc(n.trends, func(t *trend) bool {
		return t.warning == nil && t.quiet(now)
	})
}

// endWarning ends the warning of a trend, if it has one.
func (m *Machine) endWarning(t *trend, why string) {
	if t.warning == nil {
		return
	}
	ended := *t.warning
	ended.Ended, ended.Rule = true, why
	m.out.Warnings = append(m.out.Warnings, ended)
	t.warning = nil
}

// forgetReadings forgets the readings of a component, and ends its warning.
func (m *Machine) forgetReadings(n *node, c fault.Component, why string) {
	for _, t := range n.trends {
		if t.component == c {
			m.endWarning(t, why)
		}
	}
	n.trends = slices.DeleteFunc(n.trends, func(t *trend) bool { return t.component == c })
	n.readings = slices.DeleteFunc(n.readings, func(r newest) bool { return r.component == c })
}

// ended returns why a warning no longer holds.
func (t *trend) ended(there bool, state fault.State, now time.Time) string {
	switch {
	case there:
		return fmt.Sprintf("%s is %s now", t.component, state)
	case t.quiet(now):
		return fmt.Sprintf("%s has not moved for %s", t.quantity, trendQuiet)
	}
	return fmt.Sprintf("%s no longer approaches its threshold", t.quantity)
}

// news reports whether a warning differs enough to be published again: the time left has halved or doubled, or the
// threshold has changed.
func news(old, now WarningStatus) bool {
	return now.Threshold != old.Threshold || 2*now.Left <= old.Left || now.Left >= 2*old.Left
}

// RestoreWarning restores a committed warning, after New. It holds until readings contradict it, or readings stop.
func (m *Machine) RestoreWarning(w WarningStatus) error {
	rank, ok := m.ranks[w.Node]
	if !ok || !w.Quantity.Of(w.Component) || !m.nodes[rank].has(w.Component) {
		return fmt.Errorf("restore warning on %s %s (%s): want a node of the torus and a quantity of a component that it has", w.Node,
			w.Component, w.Quantity)
	}
	m.nodes[rank].trend(w.Component, w.Quantity).warning = &w
	m.touch(m.nodes[rank])
	return nil
}

// Warnings returns all standing warnings, by rank and component, as last published.
func (m *Machine) Warnings() []WarningStatus {
	var out []WarningStatus
	for _, n := range m.own {
		for _, t := range n.trends {
			if t.warning != nil {
				out = append(out, *t.warning)
			}
		}
	}
	return out
}

package awareness

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// WarningStatus is a trend that leads to a fault: a quantity that will reach its threshold if it goes on
// as it does.
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
	Ended     bool   // in Output.Warnings: it holds no longer
}

// The foresight's numbers. A trend is believed when it stands out of its own scatter; a warning that was
// given is kept on weaker grounds, so that it does not come and go.
const (
	trendPoints   = 16               // readings that are kept, the newest; see trend.line for which of them count
	trendLeast    = 5                // readings below which nothing is said
	trendSpan     = 10 * time.Second // that they must cover at least
	trendQuiet    = 2 * time.Minute  // without a reading: it moves no more
	believeErrors = 4                // standard errors by which a slope must differ from none, to warn
	keepErrors    = 2                // to go on warning
)

// point is one reading.
type point struct {
	epoch fault.Epoch
	seq   fault.Seq
	at    time.Time
	value float64
}

// trend is one quantity of a component over its newest readings. Only what moves has one: a half sends
// readings of nothing else.
type trend struct {
	component fault.Component
	quantity  fault.Quantity
	threshold float64
	points    []point // by (epoch, seq), oldest first
	warning   *WarningStatus
}

// foresees takes the readings of a report. The newest count, in whatever order they come.
func (m *Machine) foresees(n *node, d fault.Delivery, now time.Time) {
	if id := d.Report.ID; m.cfg.Horizon == 0 || id.Epoch < n.voice(id.Origin.Half).floor {
		return
	}
	for _, r := range d.Report.Readings {
		if r.Check() != nil || !n.has(r.Component) {
			continue
		}
		p := point{epoch: d.Report.ID.Epoch, seq: d.Report.ID.Seq, at: made(d, now).Add(-max(0, r.Age)), value: float64(r.Value)}
		n.trend(r.Component, r.Quantity).add(p, float64(r.Threshold))
		n.read(r, m.clock.instant(p.at))
	}
}

// newest is the newest reading of a component: what is known of it when it moves no more.
type newest struct {
	component        fault.Component
	quantity         fault.Quantity
	value, threshold float32
	at               instant
}

// read notes a reading, unless there is a newer one.
func (n *node) read(r fault.Reading, at instant) {
	now := newest{component: r.Component, quantity: r.Quantity, value: r.Value, threshold: r.Threshold, at: at}
	i := slices.IndexFunc(n.readings, func(o newest) bool { return o.component == r.Component })
	switch {
	case i < 0:
		n.readings = append(n.readings, now)
	case n.readings[i].at < at || n.readings[i].at == at && n.readings[i].value < r.Value: // in whatever order they come
		n.readings[i] = now
	}
}

// trend returns that of a quantity, new if need be, in the order of components.
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

// quiet says that nothing has been read for so long that nothing moves.
func (t *trend) quiet(now time.Time) bool { return !now.Before(t.newest().Add(trendQuiet)) }

// line is a straight line through readings.
type line struct {
	value float64 // at the newest
	slope float64 // a second
	err   float64 // standard error of the slope
	span  time.Duration
}

// fit is ordinary least squares.
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

// believed says whether the slope is so many standard errors from none.
func (l line) believed(errors float64) bool {
	return l.span >= trendSpan && l.slope != 0 && math.Abs(l.slope) > errors*l.err
}

// line is the straight line that the readings are on, and how many of them. What fell and rises now is on no line with what
// was before, and what rises ever faster is not on that of its slow beginning: so the shortest stretch of the newest readings
// counts that is a line beyond doubt. Few readings look like one by chance: there, of those that only scatter one in ten
// thousand does. Where there is none such, all readings count, on weaker grounds. errors scales both.
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

// foresee says what a trend means now: nil is nothing.
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
		t.quantity, figure(l.value), unit, verb, figure(60*math.Abs(l.slope)), unit, figure(t.threshold), unit, w.Left.Round(time.Second), readings, l.span.Round(time.Second))
	return w
}

// figure writes a value with three figures, and all before the point.
func figure(v float64) string {
	if math.Abs(v) >= 999.5 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// publishWarnings compares what the trends of a node say with the warnings that were given.
func (m *Machine) publishWarnings(n *node, now time.Time) {
	for _, t := range n.trends {
		state := n.components[t.component].state
		there := state == fault.Sick || state == fault.Failed
		if there {
			t.points = nil // a fault that is there needs no warning, and what led to it is over
		}
		w := m.foresee(n, t, now)
		switch {
		case w == nil && t.warning != nil && !there && len(t.points) < trendLeast && now.Before(m.started.Add(trendQuiet)):
			n.wakeAt(m.started.Add(trendQuiet), now) // as restored: the readings begin anew
		case w == nil && t.warning != nil:
			ended := *t.warning
			ended.Ended, ended.Rule = true, t.ended(there, state, now)
			m.out.Warnings = append(m.out.Warnings, ended)
			t.warning = nil
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

// ended says why a warning holds no longer.
func (t *trend) ended(there bool, state fault.State, now time.Time) string {
	switch {
	case there:
		return fmt.Sprintf("%s is %s now", t.component, state)
	case t.quiet(now):
		return fmt.Sprintf("%s has not moved for %s", t.quantity, trendQuiet)
	}
	return fmt.Sprintf("%s no longer heads for its threshold", t.quantity)
}

// news says whether a warning is so different that it is told again: half the time is left, or twice.
func news(old, now WarningStatus) bool {
	return now.Threshold != old.Threshold || 2*now.Left <= old.Left || now.Left >= 2*old.Left
}

// RestoreWarnings puts back the warnings that were committed, after New. They hold until the readings say
// otherwise, or there are none.
func (m *Machine) RestoreWarnings(list []WarningStatus) error {
	for _, w := range list {
		rank, ok := m.ranks[w.Node]
		if !ok || !w.Quantity.Of(w.Component) || !m.nodes[rank].has(w.Component) {
			return fmt.Errorf("restore warning on %s %s (%s): want a node of the torus and a quantity of a component that it has", w.Node,
				w.Component, w.Quantity)
		}
		m.nodes[rank].trend(w.Component, w.Quantity).warning = &w
		m.touch(m.nodes[rank])
	}
	return nil
}

// Warnings returns all that hold, by rank and component, as they were last told.
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

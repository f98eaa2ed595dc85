package servicenet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
)

// statement is the unit of coalescing: a component of a node, or a notice. A notice has no node; c is the component of the half that
// restarts, or 0 for a stop.
type statement struct {
	node fault.NodeID
	c    fault.Component
}

// statements returns a report's components and notices.
func statements(r *fault.Report) []statement {
	out := make([]statement, 0, len(r.Observations)+1)
	for _, ob := range r.Observations {
		out = append(out, statement{ob.Node, ob.Component})
	}
	if r.Restart.Half != 0 {
		out = append(out, statement{c: r.Restart.Half.Component()})
	}
	if r.Stop != 0 {
		out = append(out, statement{})
	}
	return out
}

// shorten drops every report whose observations and notices are all restated by newer reports, including r. A report is dropped
// whole or not at all: the content of an id never changes.
func (o *Outbox) shorten(r fault.Report, out *Output) {
	out.DroppedWhat = o.whatFills()
	restated := make(map[statement]bool)
	states := func(all []statement) {
		for _, s := range all {
			restated[s] = true
		}
	}
	states(statements(&r))
	for i := len(o.log) - 1; i >= 0; i-- {
		e := o.log[i]
		if e.report.Digest {
			continue
		}
		if all := statements(&e.report); slices.ContainsFunc(all, func(s statement) bool { return !restated[s] }) {
			states(all)
			continue
		}
		o.leaveOut(i, out)
	}
}

// leaveOut drops a report for which there is no room. The next one on the same component mentions it, and also the
// dropped reports that this one mentioned.
func (o *Outbox) leaveOut(i int, out *Output) {
	e := o.log[i]
	for _, ob := range e.report.Observations {
		s := statement{ob.Node, ob.Component}
		o.leftOut[s] += 1 + e.said[s]
	}
	out.Replaced = append(out.Replaced, e.report.ID)
	o.forget(i, out)
	out.Dropped++
}

// sayLeftOut adds to r's details how many earlier statements on a component were dropped since the last such note,
// and returns the numbers; nil means none.
func (o *Outbox) sayLeftOut(r fault.Report) map[statement]int {
	var said map[statement]int
	for i, ob := range r.Observations {
		s := statement{ob.Node, ob.Component}
		n := o.leftOut[s]
		if n == 0 {
			continue
		}
		r.Observations[i].Detail = fault.Clean(strings.TrimSpace(fmt.Sprintf("[%d earlier left out] %s", n, ob.Detail)), fault.MaxDetail)
		delete(o.leftOut, s)
		if said == nil {
			said = make(map[statement]int)
		}
		said[s] = n
	}
	return said
}

// whatFills names the component of which most reports in the log speak.
func (o *Outbox) whatFills() string {
	var counts [fault.NumComponents]int
	for _, e := range o.log {
		var seen [fault.NumComponents]bool
		for _, ob := range e.report.Observations {
			if c := ob.Component; !e.report.Digest && int(c) < len(counts) && !seen[c] {
				seen[c] = true
				counts[c]++
			}
		}
	}
	most := 0
	for c, n := range counts {
		if n > counts[most] {
			most = c
		}
	}
	if counts[most] == 0 {
		return ""
	}
	return fmt.Sprintf("%s in %d of %d", fault.Component(most), counts[most], o.reports)
}

// noteDropped counts the reports dropped from the log in this step.
func (o *Outbox) noteDropped(out *Output) {
	o.stats.Shortened += uint64(out.Dropped)
	if out.Dropped > 0 && out.DroppedWhat == "" {
		out.DroppedWhat = o.whatFills()
	}
}

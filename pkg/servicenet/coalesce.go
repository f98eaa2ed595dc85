package servicenet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lofamo/lofamo/pkg/fault"
)

// statement is what coalescing compares: a component of a node.
type statement struct {
	node fault.NodeID
	c    fault.Component
}

// shorten leaves out every report whose observations newer reports, r among them, all restate, and
// notes in r's details how many earlier statements on a component went. A report goes whole or not at
// all: what an id stands for never changes.
func (o *Outbox) shorten(r fault.Report, out *Output) {
	out.DroppedWhat = o.whatFills()
	restated := make(map[statement]bool)
	gone := make(map[statement]int)
	for _, ob := range r.Observations {
		restated[statement{ob.Node, ob.Component}] = true
	}
	for i := len(o.log) - 1; i >= 0; i-- {
		e := o.log[i]
		if e.report.Digest {
			continue
		}
		if slices.ContainsFunc(e.report.Observations, func(ob fault.Observation) bool { return !restated[statement{ob.Node, ob.Component}] }) {
			for _, ob := range e.report.Observations {
				restated[statement{ob.Node, ob.Component}] = true
			}
			continue
		}
		for _, ob := range e.report.Observations {
			gone[statement{ob.Node, ob.Component}]++
		}
		o.forget(i, out)
		out.Dropped++
	}
	for i, ob := range r.Observations {
		if g := gone[statement{ob.Node, ob.Component}]; g > 0 {
			r.Observations[i].Detail = cutDetail(strings.TrimSpace(fmt.Sprintf("[%d earlier left out] %s", g, ob.Detail)), fault.MaxDetail)
		}
	}
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

// noteDropped counts what was left out of the log in this step.
func (o *Outbox) noteDropped(out *Output) {
	o.stats.Shortened += uint64(out.Dropped)
	if out.Dropped > 0 && out.DroppedWhat == "" {
		out.DroppedWhat = o.whatFills()
	}
}

package sim

import (
	"time"

	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// witness is the evidence of a term, recorded as simply as possible: the checks compare the machine's conclusions from
// the same evidence with it.
type witness struct {
	heard  map[fault.NodeID]bool
	silent map[linkEnd]silence
	asked  map[fault.NodeID]awareness.Challenge // the newest of each node
	moved  map[part][]time.Time
	causes map[part]fault.Cause // of a link, as it was last
	stops  map[part]bool        // of a link: an announced stop explained its last state
	rosy   map[part]bool        // called NORMAL for a planted bug
}

// linkEnd is a link as reported by one half of a node.
type linkEnd struct {
	by  fault.Origin
	dir grid.Direction
}

type silence struct {
	id fault.ReportID
	on bool
}

type part struct {
	node      fault.NodeID
	component fault.Component
}

func newWitness() witness {
	return witness{
		heard: make(map[fault.NodeID]bool), silent: make(map[linkEnd]silence),
		asked: make(map[fault.NodeID]awareness.Challenge), moved: make(map[part][]time.Time), rosy: make(map[part]bool),
		causes: make(map[part]fault.Cause),
		stops:  make(map[part]bool),
	}
}

func (x *witness) hears(n fault.NodeID) { x.heard[n] = true }

func (x *witness) asks(c awareness.Challenge) { x.asked[c.Node] = c }

func (x *witness) takes(rep *fault.Report) {
	x.hears(rep.ID.Origin.Node)
	for _, o := range rep.Observations {
		d, ok := o.Component.LinkDirection()
		if !ok || o.Node != rep.ID.Origin.Node {
			continue
		}
		end := linkEnd{rep.ID.Origin, d}
		if was := x.silent[end]; !was.id.Newer(rep.ID) {
			x.silent[end] = silence{rep.ID, o.State == fault.Failed && o.Kind == fault.KindSilence}
		}
	}
}

// accusers counts the distinct neighbours with a half that has reported silence from n on all of the links between
// them. A link that leads there only since a change of the topology may be silent or not.
func (x *witness) accusers(n *node) int {
	total := 0
	for _, nb := range n.topo.Neighbours {
		all, any := true, false
		for _, d := range nb.Dirs {
			back := d.Opposite()
			on := x.silent[linkEnd{fault.Origin{Node: nb.ID, Half: fault.HalfHost}, back}].on ||
				x.silent[linkEnd{fault.Origin{Node: nb.ID, Half: fault.HalfDNP}, back}].on
			all, any = all && (on || n.movedSince(d, relinkTime)), any || on
		}
		total += count(all && any)
	}
	return total
}

// flaps reports whether a link changes more often than the hold-off allows: two changes, and then one per hold-off
// time. Consequences of the peer's death and of an announced stop are exempt, because they are reported at once. stop reports
// whether an announced stop explains the new state.
func (x *witness) flaps(c awareness.Change, stop bool, now time.Time, holdOff time.Duration) bool {
	p := part{c.Node, c.Component}
	was, stopped := x.causes[p], x.stops[p]
	x.causes[p], x.stops[p] = c.Cause, stop
	if c.From == c.To || ofPeer(c.Cause) || ofPeer(was) || stop || stopped {
		return false
	}
	times := x.moved[p]
	times = append(times, now)
	for len(times) > 0 && now.Sub(times[0]) >= holdOff {
		times = times[1:]
	}
	x.moved[p] = times
	return len(times) > 3
}

func ofPeer(c fault.Cause) bool { return c == fault.CauseDNP || c == fault.CauseNode }

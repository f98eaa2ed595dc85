package trial

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Checker compares the watched events with the truth. It replays them, so that the watch can be compared with a list
// of the nodes. It is not safe for concurrent use.
type Checker struct {
	truth *Truth
	// initial and now are the states of the components before the first event and after the newest one.
	initial, now map[part]lofamov1.State
	seen         map[part]aspect
	revision     uint64
	index        uint32            // of the newest event in its revision
	watched      []*lofamov1.Event // since the last Forget
	// Sick counts changes to SICK that no fault explains: allowed under load, but worth a number.
	Sick int
	// Events counts all events.
	Events int
}

// aspect is what a reader sees of a component beside its state.
type aspect struct {
	cause         lofamov1.Cause
	singleWitness bool
}

// part is a component of a node.
type part struct{ node, component string }

// String returns "n0-0-0 host".
func (p part) String() string { return p.node + " " + p.component }

// statesOf returns the states of all components in a list, the nodes themselves included.
func statesOf(nodes []*lofamov1.Node) map[part]lofamov1.State {
	out := make(map[part]lofamov1.State)
	for _, n := range nodes {
		out[part{n.GetId(), "node"}] = n.GetState()
		for _, c := range n.GetComponents() {
			s := c.GetState()
			if s == lofamov1.State_ABSENT { // in events, that is UNKNOWN
				s = lofamov1.State_UNKNOWN
			}
			out[part{n.GetId(), c.GetName()}] = s
		}
	}
	return out
}

// NewChecker begins with a list of all nodes at a revision. All later events go to Event.
func NewChecker(t *Truth, nodes []*lofamov1.Node, revision uint64) *Checker {
	seen := make(map[part]aspect)
	for _, n := range nodes {
		seen[part{n.GetId(), "node"}] = aspect{n.GetCause(), n.GetSingleWitness()}
		for _, c := range n.GetComponents() {
			seen[part{n.GetId(), c.GetName()}] = aspect{cause: c.GetCause()}
		}
	}
	return &Checker{truth: t, initial: statesOf(nodes), now: statesOf(nodes), seen: seen, revision: revision}
}

// Revision returns the revision of the newest event.
func (c *Checker) Revision() uint64 { return c.revision }

// Event takes the next event and returns its violations.
func (c *Checker) Event(e *lofamov1.Event) (bad []string) {
	if e.GetRevision() == 0 || e.GetAsSeen() {
		return []string{"watch: an event is not committed: " + line(e)}
	}
	if e.GetRevision() > c.revision {
		c.revision, c.index = e.GetRevision(), 0
	}
	switch next := c.index + 1; {
	case e.GetRevision() < c.revision:
		bad = append(bad, fmt.Sprintf("watch: revision %d comes after %d: %s", e.GetRevision(), c.revision, line(e)))
	case e.GetIndex() != next:
		bad = append(bad, fmt.Sprintf("watch: want index %d: %s", next, line(e)))
		fallthrough
	default:
		c.index = e.GetIndex()
	}
	c.Events++
	c.watched = append(c.watched, e)
	switch e.GetKind() {
	case lofamov1.EventKind_COMPONENT_CHANGED:
		bad = append(bad, c.component(e)...)
	case lofamov1.EventKind_GROUP_CHANGED:
		if g := e.GetGroup(); g.GetState() == lofamov1.State_FAILED {
			for _, m := range g.GetMembers() {
				if !c.truth.MayBelong(m) {
					bad = append(bad, fmt.Sprintf("false FAILED: group %s has the healthy member %s", g.GetId(), m))
				}
			}
		}
	default:
	}
	return bad
}

func (c *Checker) component(e *lofamov1.Event) (bad []string) {
	p := part{e.GetNode(), e.GetComponent()}
	if known, ok := c.now[p]; ok && known != e.GetFrom() {
		bad = append(bad, fmt.Sprintf("watch: gap: %s is %s by the events so far: %s", p, known, line(e)))
	}
	was, known := c.seen[p]
	c.now[p], c.seen[p] = e.GetTo(), aspect{e.GetCause(), e.GetSingleWitness()}
	if e.GetTo() == e.GetFrom() {
		// An event has no flags of a node. They change only while it is UNKNOWN.
		flagged := p.component == "node" && e.GetTo() == lofamov1.State_UNKNOWN
		if known && was == c.seen[p] && !flagged {
			bad = append(bad, "watch: nothing changed: "+line(e))
		}
		return bad
	}
	switch e.GetTo() {
	case lofamov1.State_FAILED:
		if !c.truth.MayFail(p.node, p.component) {
			bad = append(bad, "false FAILED: "+line(e))
		}
	case lofamov1.State_SICK:
		if !c.truth.MayDiffer(p.node, p.component) {
			c.Sick++
		}
	default:
	}
	return bad
}

// line prints an event in one line, with its revision and index.
func line(e *lofamov1.Event) string {
	if e.GetKind() != lofamov1.EventKind_COMPONENT_CHANGED {
		return fmt.Sprintf("revision %d.%d: %s %s %s %s", e.GetRevision(), e.GetIndex(), e.GetKind(), e.GetNode(), e.GetComponent(),
			e.GetReason())
	}
	return fmt.Sprintf("revision %d.%d: %s %s %s→%s cause %s by %s: %s", e.GetRevision(), e.GetIndex(), e.GetNode(), e.GetComponent(),
		e.GetFrom(), e.GetTo(), e.GetCause(), e.GetObserver(), e.GetReason())
}

// Unsettled lists the components that are not as they were at the beginning of the trial, which was healthy.
func (c *Checker) Unsettled(nodes []*lofamov1.Node) []string {
	var out []string
	now := statesOf(nodes)
	for _, p := range sorted(c.initial) {
		if now[p] != c.initial[p] && now[p] != lofamov1.State_NORMAL {
			out = append(out, fmt.Sprintf("%s is %s", p, now[p]))
		}
	}
	return out
}

func sorted(m map[part]lofamov1.State) []part {
	return slices.SortedFunc(maps.Keys(m), func(a, b part) int { return strings.Compare(a.String(), b.String()) })
}

// CompareList compares the replayed events with a list of all nodes. Call it when the list has the revision of the
// newest event, or a later one without events in between.
func (c *Checker) CompareList(nodes []*lofamov1.Node) (bad []string) {
	listed := statesOf(nodes)
	for _, p := range sorted(listed) {
		if c.now[p] != listed[p] {
			bad = append(bad, fmt.Sprintf("watch: %s is %s in the list, and %s by the events", p, listed[p], c.now[p]))
		}
	}
	return bad
}

// CompareKept compares the watched events since the last Forget with the kept ones, oldest first.
func (c *Checker) CompareKept(kept []*lofamov1.Event) []string {
	return differ("events", c.watched, kept)
}

// CompareHistory compares the watched events of a node with its history, newest first.
func (c *Checker) CompareHistory(node string, history []*lofamov1.Event) []string {
	var own, kept []*lofamov1.Event
	for _, e := range c.watched {
		if e.GetNode() == node && e.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED {
			own = append(own, e)
		}
	}
	for _, e := range history {
		if e.GetNode() == node && e.GetKind() == lofamov1.EventKind_COMPONENT_CHANGED && len(kept) < len(own) {
			kept = append(kept, e)
		}
	}
	slices.Reverse(kept)
	return differ("history of "+node, own, kept)
}

// differ describes the first difference between the watch and another record of the same events.
func differ(what string, watched, kept []*lofamov1.Event) []string {
	for i := range max(len(watched), len(kept)) {
		switch {
		case i >= len(watched):
			return []string{fmt.Sprintf("watch: gap: the %s have this event, and the watch does not: %s", what, line(kept[i]))}
		case i >= len(kept):
			return []string{fmt.Sprintf("watch: the %s do not have this event: %s", what, line(watched[i]))}
		case line(watched[i]) != line(kept[i]):
			return []string{fmt.Sprintf("watch: the %s differ: watched %s; kept %s", what, line(watched[i]), line(kept[i]))}
		}
	}
	return nil
}

// Forget drops the watched events up to now, which were compared.
func (c *Checker) Forget() { c.watched = nil }

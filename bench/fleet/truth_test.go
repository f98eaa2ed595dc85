package fleet

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/bench/measure"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Times of the ground truth.
const (
	// aftermath is how long a fault that is over explains states that come late.
	aftermath = 25 * time.Second
	// slack is the time that a busy machine adds to the bound of a verdict, and failover the time that a dead leader adds.
	slack, failover = 3 * time.Second, 15 * time.Second
	// stallExcuses is the shortest stall of the emulated agents that explains a verdict: they answered no challenge meanwhile.
	stallExcuses = 150 * time.Millisecond
)

// member is an agent with its real history.
type member struct {
	*Agent
	begun  time.Time // its request to enrol
	normal bool      // the map has called it NORMAL since
	busy   bool      // something happens to it: no other fault hits it, and it does not leave
	leaves bool
	gone   bool // it has left
	dead   bool
	killed time.Time // the last time
	bad    time.Time // when its last fault was over; zero: it had none
	named  chan struct{}
	near   []fault.NodeID // its peers when it was killed; nil: not all links had settled
}

// truth is the real history of all agents, beside that of the map.
type truth struct {
	f *Fleet

	mu      sync.Mutex
	members map[fault.NodeID]*member
	cuts    map[[2]fault.NodeID]time.Time // when a cable was mended; zero: it is cut
	leaders []time.Time                   // deaths of leaders
	joins   measure.Latencies
	known   measure.Latencies // deaths
	lies    []string
	excused int // verdicts after a stall of the agents
}

func newTruth(f *Fleet) *truth {
	return &truth{f: f, members: make(map[fault.NodeID]*member), cuts: make(map[[2]fault.NodeID]time.Time)}
}

// sick reports whether a node has a fault, or had one lately.
func (m *member) sick(now time.Time) bool {
	return m.dead || m.gone || m.leaves || !m.bad.IsZero() && now.Sub(m.bad) < aftermath
}

// badBetween reports whether one of two nodes, or the cable between them, has or had a fault.
func (t *truth) badBetween(m *member, peer fault.NodeID, now time.Time) bool {
	p := t.members[peer]
	mended, cut := t.cuts[pair(m.id, peer)]
	return p == nil || p.sick(now) || cut && (mended.IsZero() || now.Sub(mended) < aftermath)
}

// event judges an event of the map.
func (t *truth) event(ev *lofamov1.Event) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.members[fault.NodeID(ev.GetNode())]
	if m == nil || ev.GetKind() != lofamov1.EventKind_COMPONENT_CHANGED || ev.GetFrom() == ev.GetTo() {
		return
	}
	c, err := fault.ParseComponent(ev.GetComponent())
	if err != nil {
		return
	}
	if c == fault.ComponentNode {
		t.ofNode(m, ev.GetTo(), now)
	}
	if to := ev.GetTo(); to != lofamov1.State_FAILED && to != lofamov1.State_SICK || m.dead ||
		!m.bad.IsZero() && now.Sub(m.bad) < aftermath && !m.gone {
		return
	}
	d, link := c.LinkDirection()
	explained := false
	switch {
	case link && ev.GetTo() == lofamov1.State_SICK: // the peer has announced that it leaves
		explained = true
	case link && ofPeer(ev.GetCause()): // which may have been another peer than the end leads to by its order
		explained = slices.ContainsFunc(strings.Fields(ev.GetReason()), func(word string) bool {
			p := t.members[fault.NodeID(word)]
			return p != nil && p.sick(now)
		})
	case link:
		explained = m.leaves || slices.ContainsFunc(m.Led(d), func(p fault.NodeID) bool { return t.badBetween(m, p, now) })
	case c == fault.ComponentNode && ev.GetTo() == lofamov1.State_SICK:
		explained = slices.ContainsFunc(m.Peers(), func(p fault.NodeID) bool { return t.badBetween(m, p, now) })
	}
	switch {
	case explained:
	case t.f.Stalled(now.Add(-5*time.Second)) >= stallExcuses:
		t.excused++
	default:
		t.lies = append(t.lies, fmt.Sprintf("%s %s %s %s→%s: %s (by %s, at %s)", now.UTC().Format("15:04:05.000"), ev.GetNode(),
			ev.GetComponent(), ev.GetFrom(), ev.GetTo(), ev.GetReason(), ev.GetObserver(), ev.GetCoord()))
	}
}

// ofPeer reports whether a link is FAILED because its peer is dead.
func ofPeer(c lofamov1.Cause) bool {
	return c == lofamov1.Cause_NODE || c == lofamov1.Cause_HOST || c == lofamov1.Cause_DNP
}

// ofNode notes an event about a node as a whole.
func (t *truth) ofNode(m *member, to lofamov1.State, now time.Time) {
	switch {
	case to == lofamov1.State_NORMAL && !m.normal && !m.dead:
		m.normal = true
		t.joins = append(t.joins, now.Sub(m.begun))
	case (to == lofamov1.State_FAILED || to == lofamov1.State_UNKNOWN) && m.dead && m.named != nil:
		took := now.Sub(m.killed)
		t.known = append(t.known, took)
		close(m.named)
		m.named = nil
		if bound := t.bound(m, now); took > bound {
			t.lies = append(t.lies, fmt.Sprintf("%s %s was named %s after its death: want %s", now.UTC().Format("15:04:05.000"), m.id, took, bound))
		}
	}
}

// bound is the longest time until the map knows of a death.
func (t *truth) bound(m *member, now time.Time) time.Duration {
	b := t.f.periods.SingleBound() + slack + t.f.Stalled(m.killed)
	still := m.near != nil
	for _, p := range m.near { // do its neighbours still lead to it?
		n := t.members[p]
		still = still && n != nil && !n.sick(now) && n.LeadsTo(m.id)
	}
	if !still {
		b += awareness.DefaultRelinkBound
	}
	if slices.ContainsFunc(t.leaders, func(at time.Time) bool { return at.After(m.killed.Add(-failover)) }) {
		b += failover
	}
	return b
}

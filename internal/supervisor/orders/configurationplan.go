package orders

import (
	"maps"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/order"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// configurationTiming configures a configurationMachine.
type configurationTiming struct {
	Rest    time.Duration // minimum time without changes
	Slowest time.Duration // maximum time between two configurations under continuous changes
	Again   time.Duration // delay before the next node gets the order
	Every   time.Duration
}

// rankMask is the supervisors' channel mask of the node at a rank.
type rankMask struct {
	Rank uint32
	Mask chanmask.Mask
}

// torusContent is the configuration that all nodes need.
type torusContent struct {
	Dims   string
	Absent []uint32 // ranks, ascending
	Delay  time.Duration
	Masks  []rankMask // masks with unusable channels, by rank
}

func (c torusContent) equal(o torusContent) bool {
	return c.Dims == o.Dims && c.Delay == o.Delay && slices.Equal(c.Absent, o.Absent) && slices.Equal(c.Masks, o.Masks)
}

// configurationOrder is an order to send a node the configuration.
type configurationOrder struct {
	Node   fault.NodeID
	Number uint64
	Parts  []*lofamov1.TorusConfiguration
	Try    int // counts from 1 since the last node's confirmation
}

// configurationMachine decides when the leader sends the torus its start-up configuration (seed 003 §4.4.1), and which node
// gets it and broadcasts it to all others.
//
//	settled ──new content──► waiting ──no more changes──► sent ──a node has it──► settled
//	   ▲                        ▲                         │  ▲
//	   └──sent to another node──┼──once in Every──────────┘  └──no answer: another node
//	                            └──changes again: ever more slowly
//
// The configuration is sent again once in Every, each time to another node. This reaches nodes that the first broadcast
// did not: those in other parts of a split torus, and nodes that were all switched off together.
//
// It serves one term of leadership. It is not safe for concurrent use.
type configurationMachine struct {
	cfg      configurationTiming
	revision uint64
	content  torusContent
	nodes    []fault.NodeID

	changed bool      // content differs from the numbered one
	since   time.Time // of the first change, if changed
	makeAt  time.Time // when it gets a number, if changed
	pause   time.Duration
	made    time.Time

	number uint64
	parts  []*lofamov1.TorusConfiguration
	next   int          // of nodes
	asked  fault.NodeID // the node that got the newest order
	timer  order.Timer
	has    uint64 // the highest number that nodes are believed to have
	claims map[fault.NodeID]uint64
}

// quickTries is the number of nodes that get the order at intervals of Again, before the intervals grow. If many nodes
// do not answer, all may be of an earlier version.
const quickTries = 3

// maxNumber bounds the credible numbers of nodes. Revisions never get that high.
const maxNumber = math.MaxUint64 >> 8

// vouchers is the number of nodes that must report a number before this leader exceeds it, unless there are fewer
// nodes. All nodes have a number that was broadcast, but a single node may have invented one. Numbers that all
// nodes have accepted are used up for good, also for the mask orders, which share them.
const vouchers = 2

// newConfigurationMachine returns a machine without content. Numbers are at least term, the revision of its leader's election.
func newConfigurationMachine(cfg configurationTiming, term uint64) *configurationMachine {
	return &configurationMachine{cfg: cfg, revision: term, pause: cfg.Rest, claims: make(map[fault.NodeID]uint64)}
}

// Wanted sets the content to send, as of a revision of the store, and the candidate nodes, in order.
func (m *configurationMachine) Wanted(now time.Time, c torusContent, revision uint64, nodes []fault.NodeID) {
	m.revision, m.nodes = max(m.revision, revision), nodes
	if m.content.Dims != "" && c.equal(m.content) {
		return
	}
	if m.content = c; !m.changed {
		m.changed, m.since = true, now
	}
	m.makeAt = now.Add(m.cfg.Rest)
	if at := m.made.Add(m.pause); !m.made.IsZero() && at.After(m.makeAt) {
		m.makeAt = at
	}
	if at := m.since.Add(m.cfg.Slowest); at.Before(m.makeAt) {
		m.makeAt = at
	}
}

// Heard processes a node's status. Only an answer to the newest order, and only its first one, delays the next order.
func (m *configurationMachine) Heard(now time.Time, st *lofamov1.ConfigurationStatus) {
	n := st.GetNumber()
	switch {
	case m.number == 0 || n < m.number:
	case n == m.number:
		if m.timer.Try > 0 && fault.NodeID(st.GetNode()) == m.asked {
			m.timer.Restart(now.Add(m.cfg.Every))
		}
	case n < maxNumber: // of an earlier store, or a deposed leader: this leader's content takes precedence
		m.claims[fault.NodeID(st.GetNode())] = n
		if n = m.believed(); n <= max(m.has, m.number) {
			return
		}
		m.has = n
		if !m.changed {
			m.changed, m.since, m.makeAt = true, now, now
		}
	}
}

// believed returns the highest number that enough nodes report.
func (m *configurationMachine) believed() uint64 {
	maps.DeleteFunc(m.claims, func(id fault.NodeID, n uint64) bool { return n <= m.number || !slices.Contains(m.nodes, id) })
	need := max(1, min(vouchers, len(m.nodes)))
	if len(m.claims) < need {
		return 0
	}
	all := slices.Sorted(maps.Values(m.claims))
	return all[len(all)-need]
}

// Tick returns the due orders and the time of the next tick. A zero time means after the next change.
func (m *configurationMachine) Tick(now time.Time) (orders []configurationOrder, wake time.Time) {
	if m.changed && !now.Before(m.makeAt) {
		m.give(now)
	}
	if m.number > 0 && len(m.nodes) > 0 {
		if m.timer.Due(now, order.Retry{First: m.cfg.Again, Most: m.cfg.Every, Steady: quickTries}) {
			m.next = (m.next + 1) % len(m.nodes)
			m.asked = m.nodes[m.next]
			orders = append(orders, configurationOrder{m.asked, m.number, m.parts, m.timer.Try})
		}
		wake = m.timer.At
	}
	if m.changed {
		wake = fault.Earliest(wake, m.makeAt)
	}
	return orders, wake
}

// give makes a configuration of the wanted content.
func (m *configurationMachine) give(now time.Time) {
	if !m.made.IsZero() && now.Sub(m.made) < 2*m.pause {
		m.pause = min(2*m.pause, m.cfg.Slowest)
	} else {
		m.pause = m.cfg.Rest
	}
	m.changed, m.made = false, now
	m.number = max(m.revision, m.number+1, m.has+1)
	m.parts = m.content.parts(m.number)
	m.timer.Restart(now)
}

// partSize is the maximum size of an unsigned part, in bytes: with certificate and signature it fits a relayed
// message.
const partSize = 400

// parts splits a content into messages.
func (c torusContent) parts(number uint64) []*lofamov1.TorusConfiguration {
	fresh := func() *lofamov1.TorusConfiguration {
		return &lofamov1.TorusConfiguration{Number: number, Dims: c.Dims, DelayUs: uint32(c.Delay.Microseconds()), Part: math.MaxUint16,
			Parts: math.MaxUint16}
	}
	out := []*lofamov1.TorusConfiguration{fresh()}
	add := func(put func(*lofamov1.TorusConfiguration)) {
		last := out[len(out)-1]
		if proto.Size(last) > partSize {
			last = fresh()
			out = append(out, last)
		}
		put(last)
	}
	for _, rank := range c.Absent[:min(len(c.Absent), servicenet.MaxConfigurationAbsent)] {
		add(func(p *lofamov1.TorusConfiguration) { p.Absent = append(p.Absent, rank) })
	}
	for _, k := range c.Masks[:min(len(c.Masks), servicenet.MaxConfigurationMasks)] {
		add(func(p *lofamov1.TorusConfiguration) {
			p.Masks = append(p.Masks, &lofamov1.TorusMask{Rank: k.Rank, Mask: uint32(k.Mask)})
		})
	}
	for i, p := range out {
		p.Part, p.Parts = uint32(i), uint32(len(out))
	}
	return out
}

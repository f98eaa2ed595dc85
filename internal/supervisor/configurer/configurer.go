// Package configurer decides when the leader tells the torus its start-up configuration (seed 003 §4.4.1), and which node is given it to
// broadcast to all others.
//
//	settled ──what is to be told changes──► waiting ──it has rested──► given ──the node says that it has it──► settled
//	   ▲                                       ▲                        │  ▲
//	   └─────another node is given it──────────┼──once in Every──       └──┘ no answer: another node
//	                                           └──changes again: ever more slowly
//
// That it is given again once in Every, each time to another node, is for those that the first one does not reach: parts that the
// torus has fallen into, and nodes that were all switched off together.
//
// It is pure. It seals and sends nothing, and knows no map.
package configurer

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

// Config of a Machine.
type Config struct {
	Rest    time.Duration // for so long nothing must have changed
	Slowest time.Duration // bounds the time between two configurations when they follow each other
	Again   time.Duration // after it another node is asked
	Every   time.Duration
}

// Mask is the supervisors' word on the channel mask of the node at a rank.
type Mask struct {
	Rank uint32
	Mask chanmask.Mask
}

// Content is what all nodes are to know.
type Content struct {
	Dims   string
	Absent []uint32 // ranks, ascending
	Delay  time.Duration
	Masks  []Mask // of those that are not all usable, by rank
}

func (c Content) equal(o Content) bool {
	return c.Dims == o.Dims && c.Delay == o.Delay && slices.Equal(c.Absent, o.Absent) && slices.Equal(c.Masks, o.Masks)
}

// Order has a node given a configuration.
type Order struct {
	Node   fault.NodeID
	Number uint64
	Parts  []*lofamov1.TorusConfiguration
	Try    int // from 1, since anybody has said that he has it
}

// Machine is for one goroutine, and for one term of leadership.
type Machine struct {
	cfg      Config
	revision uint64
	content  Content
	nodes    []fault.NodeID

	changed bool      // content is not what the number stands for
	since   time.Time // of the first change, if changed
	makeAt  time.Time // when it gets a number, if changed
	pause   time.Duration
	made    time.Time

	number uint64
	parts  []*lofamov1.TorusConfiguration
	next   int // of nodes
	timer  order.Timer
	has    uint64 // the highest number that nodes are believed to have
	claims map[fault.NodeID]uint64
}

// quickTries is how many nodes are asked Again after each other, before the others are ever more slowly: where many do not answer
// they may all be of an earlier version.
const quickTries = 3

// maxNumber bounds what is believed of nodes' numbers. Revisions do not get that far.
const maxNumber = math.MaxUint64 >> 8

// vouchers is how many nodes must say that they have a number before this leader goes above it, unless there are fewer. What is
// broadcast all have; one alone may have made it up, and numbers that all nodes have taken are used up for good: for the words on
// masks too, which are by the same numbers.
const vouchers = 2

// New returns a machine that tells nothing. Numbers are at least term, the revision at which its leader was elected.
func New(cfg Config, term uint64) *Machine {
	return &Machine{cfg: cfg, revision: term, pause: cfg.Rest, claims: make(map[fault.NodeID]uint64)}
}

// Wanted takes what is to be told, as of a revision of the store, and the nodes that can be given it, in order.
func (m *Machine) Wanted(now time.Time, c Content, revision uint64, nodes []fault.NodeID) {
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

// Heard takes what a node says that it has.
func (m *Machine) Heard(now time.Time, st *lofamov1.ConfigurationStatus) {
	n := st.GetNumber()
	switch {
	case m.number == 0 || n < m.number:
	case n == m.number:
		m.timer.Restart(now.Add(m.cfg.Every))
	case n < maxNumber: // of an earlier store, or a leader that was deposed: this one's word counts
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

// believed is the highest number that enough nodes say that they have.
func (m *Machine) believed() uint64 {
	maps.DeleteFunc(m.claims, func(id fault.NodeID, n uint64) bool { return n <= m.number || !slices.Contains(m.nodes, id) })
	need := max(1, min(vouchers, len(m.nodes)))
	if len(m.claims) < need {
		return 0
	}
	all := slices.Sorted(maps.Values(m.claims))
	return all[len(all)-need]
}

// Tick returns what is due, and when to look again; zero: when something else is wanted.
func (m *Machine) Tick(now time.Time) (orders []Order, wake time.Time) {
	if m.changed && !now.Before(m.makeAt) {
		m.give(now)
	}
	if m.number > 0 && len(m.nodes) > 0 {
		if m.timer.Due(now, order.Retry{First: m.cfg.Again, Most: m.cfg.Every, Steady: quickTries}) {
			m.next = (m.next + 1) % len(m.nodes)
			orders = append(orders, Order{m.nodes[m.next], m.number, m.parts, m.timer.Try})
		}
		wake = m.timer.At
	}
	if m.changed && (wake.IsZero() || m.makeAt.Before(wake)) {
		wake = m.makeAt
	}
	return orders, wake
}

// give makes a configuration of what is wanted.
func (m *Machine) give(now time.Time) {
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

// partSize is how long a part may be, in bytes, before it is signed: with certificate and signature it fits a relayed message.
const partSize = 400

// parts puts a content into as many messages as it takes.
func (c Content) parts(number uint64) []*lofamov1.TorusConfiguration {
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

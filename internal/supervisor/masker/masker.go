// Package masker decides which nodes the leader sends the supervisors' word on their channel masks to, and when again (seed 003
// §5.2.3.2: "the central controller can send messages telling the appropriate nodes to mark certain links as dead").
//
//	settled ──wanted changes, or the node says otherwise──► ordered ──the node says that it has it──► settled
//	                                                          │  ▲
//	                                                          └──┘ again, ever more rarely
//
// It is pure. It knows no links, only what each node's mask is to be; it seals and sends nothing.
package masker

import (
	"maps"
	"math"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
)

// Config of a Machine.
type Config struct {
	Again time.Duration // between the first two orders to a node; doubled each time
	Most  time.Duration // and no longer than this
}

// Order is to be sent.
type Order struct {
	Node   fault.NodeID
	Number uint64
	Mask   chanmask.Mask
	Try    int // from 1
}

// node is one whose mask is not a matter of course.
type node struct {
	want  chanmask.Mask
	said  *lofamov1.MaskStatus // nil: it has not spoken to this leader
	try   int
	again time.Time // when it is ordered; of no meaning when it is settled
}

func (n *node) settled() bool {
	return n.said != nil && !n.said.GetLost() && chanmask.Mask(n.said.GetOrdered()) == n.want
}

// number is that of an order of a revision: one more than the node has, if it has got that far, or it would refuse whatever it is told for
// as long as a store that began anew has lower revisions.
func (n *node) number(revision uint64) uint64 {
	if has := n.said.GetNumber(); has < math.MaxUint64 {
		return max(revision, has+1)
	}
	return revision
}

// Machine is for one goroutine, and for one term of leadership.
type Machine struct {
	cfg    Config
	number uint64
	nodes  map[fault.NodeID]*node
}

// New returns a machine that wants nothing of anybody.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, nodes: make(map[fault.NodeID]*node)}
}

// Wanted takes what the masks of nodes are to be, as of a revision of the store; those that are not named have all channels
// usable.
func (m *Machine) Wanted(now time.Time, masks map[fault.NodeID]chanmask.Mask, revision uint64) {
	m.number = revision
	for id, want := range masks {
		if m.nodes[id] == nil && want != chanmask.All {
			m.nodes[id] = &node{want: want, again: now}
		}
	}
	for id, n := range m.nodes {
		want, ok := masks[id]
		if !ok {
			want = chanmask.All
		}
		if want != n.want {
			n.want, n.try, n.again = want, 0, now
		}
	}
}

// Heard takes what a node says. What is older than what it said before is passed over, unless it is that it has lost its
// mask: then its numbers begin anew, in the same boot epoch even, and another order does no harm.
func (m *Machine) Heard(now time.Time, st *lofamov1.MaskStatus) {
	id := fault.NodeID(st.GetNode())
	n := m.nodes[id]
	if n == nil {
		n = &node{want: chanmask.All, again: now}
		m.nodes[id] = n
	}
	if was := n.said; was != nil && !st.GetLost() && (st.GetEpoch() < was.GetEpoch() || st.GetEpoch() == was.GetEpoch() && st.GetNumber() < was.GetNumber()) {
		return
	}
	was := n.settled()
	n.said = st
	if was && !n.settled() {
		n.try, n.again = 0, now
	}
}

// Forget drops a node that is not in the torus any more.
func (m *Machine) Forget(gone func(fault.NodeID) bool) {
	maps.DeleteFunc(m.nodes, func(id fault.NodeID, _ *node) bool { return gone(id) })
}

// Tick returns the orders that are due, by node, and when the next one is; zero: everybody has what he is to have.
func (m *Machine) Tick(now time.Time) (out []Order, wake time.Time) {
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[id]
		if n.settled() {
			continue
		}
		if !now.Before(n.again) {
			n.try++
			n.again = now.Add(min(m.cfg.Again<<min(n.try-1, 16), m.cfg.Most))
			out = append(out, Order{id, n.number(m.number), n.want, n.try})
		}
		if wake.IsZero() || n.again.Before(wake) {
			wake = n.again
		}
	}
	return out, wake
}

// Said returns what nodes said, by node.
func (m *Machine) Said() []*lofamov1.MaskStatus {
	var out []*lofamov1.MaskStatus
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		if st := m.nodes[id].said; st != nil {
			out = append(out, st)
		}
	}
	return out
}

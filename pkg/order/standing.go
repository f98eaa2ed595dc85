package order

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Status is an answer to a standing order: what the node says that it holds.
type Status interface {
	GetNode() string
	GetEpoch() uint64  // its boot epoch
	GetNumber() uint64 // of the order that it holds
}

// Config of a Standing for contents W of orders and the answers S.
type Config[W comparable, S Status] struct {
	Retry Retry
	Usual W // what nodes are to hold of which nothing else is wanted
	// Holds reports whether a node says that it holds a content. A node that says that it has lost its content holds none.
	Holds func(S, W) bool
	// Anew says that a node's numbers and epochs may be lower than they were.
	Anew func(S) bool
	// Life is what a node's life is called, which never comes again; nil: by its boot epoch.
	Life func(S) uint64
	// Asks is how often a node that says nothing is asked what it holds (Ask) until it is left alone.
	Asks int
}

// Order is to be sent.
type Order[W comparable] struct {
	Node   fault.NodeID
	Number uint64
	Want   W
	Try    int    // from 1
	Asked  bool   // it is a question: nothing but the usual was ever wanted of the node
	Life   uint64 // of the node, as it said last; 0: it has not spoken to this leader
}

// node is one that does not hold what is usual as a matter of course.
type node[W comparable, S Status] struct {
	want  W
	said  S
	spoke bool // to this leader
	asked bool // nothing else than the usual was ever wanted of it, but an answer
	timer Timer
}

// Standing has nodes hold what is wanted of them: it decides whom the leader sends an order, and when again, until each node has said
// that it holds the content (seed 003 §5.2.3.2: "the central controller can send messages telling the appropriate nodes to mark certain
// links as dead").
//
//	settled ──other content wanted, or the node says otherwise──► ordered ──the node says that it holds it──► settled
//	                                                                │  ▲
//	                                                                └──┘ again, by Config.Retry
//
// It knows no links, only what each node is to hold. A Standing is for one goroutine and for one term of leadership.
type Standing[W comparable, S Status] struct {
	cfg    Config[W, S]
	number uint64
	nodes  map[fault.NodeID]*node[W, S]
	// What is looked at is few, however many have spoken: who is not settled, and of whom something else than the usual is wanted.
	open, special map[fault.NodeID]bool
}

// NewStanding returns a machine that wants nothing of anybody.
func NewStanding[W comparable, S Status](cfg Config[W, S]) *Standing[W, S] {
	return &Standing[W, S]{cfg: cfg, nodes: make(map[fault.NodeID]*node[W, S]), open: make(map[fault.NodeID]bool),
		special: make(map[fault.NodeID]bool)}
}

func (m *Standing[W, S]) settled(n *node[W, S]) bool {
	if !n.spoke {
		return n.asked && n.timer.Try >= m.cfg.Asks
	}
	return m.cfg.Holds(n.said, n.want)
}

// numberFor is that of an order to a node: one more than the node has, if it has got that far, or it would refuse whatever it is told for
// as long as a store that began anew has lower revisions.
func (m *Standing[W, S]) numberFor(n *node[W, S]) uint64 {
	if !n.spoke {
		return m.number
	}
	if has := n.said.GetNumber(); has < math.MaxUint64 {
		return max(m.number, has+1)
	}
	return m.number
}

// Wanted takes what nodes are to hold, as of a revision of the store; those that are not named what is usual.
func (m *Standing[W, S]) Wanted(now time.Time, words map[fault.NodeID]W, revision uint64) {
	m.number = revision
	for id, want := range words {
		m.want(now, id, want)
	}
	for id := range m.special {
		if _, ok := words[id]; !ok {
			m.want(now, id, m.cfg.Usual)
		}
	}
}

func (m *Standing[W, S]) want(now time.Time, id fault.NodeID, word W) {
	n := m.nodes[id]
	switch {
	case n == nil && word == m.cfg.Usual:
		return
	case n == nil:
		n = &node[W, S]{want: word, timer: Timer{At: now}}
		m.nodes[id] = n
	case n.want != word:
		n.want, n.asked = word, false
		n.timer.Restart(now)
	}
	if word == m.cfg.Usual {
		delete(m.special, id)
	} else {
		m.special[id] = true
	}
	m.note(id, n)
}

// note remembers whether a node is to be looked at.
func (m *Standing[W, S]) note(id fault.NodeID, n *node[W, S]) {
	if m.settled(n) {
		delete(m.open, id)
	} else {
		m.open[id] = true
	}
}

// Ask has a node that has not spoken asked what it holds, from a time on, by an order of what is wanted of it.
func (m *Standing[W, S]) Ask(id fault.NodeID, from time.Time) {
	if m.nodes[id] == nil {
		m.nodes[id] = &node[W, S]{want: m.cfg.Usual, asked: true, timer: Timer{At: from}}
		m.note(id, m.nodes[id])
	}
}

// Heard takes what a node says. What is older than what it said before is passed over, unless its numbers may have begun anew, in the same
// boot epoch even: another order does no harm.
func (m *Standing[W, S]) Heard(now time.Time, st S) {
	id := fault.NodeID(st.GetNode())
	n := m.nodes[id]
	if n == nil {
		n = &node[W, S]{want: m.cfg.Usual, timer: Timer{At: now}}
		m.nodes[id] = n
	}
	if was := n.said; n.spoke && !m.cfg.Anew(st) && (st.GetEpoch() < was.GetEpoch() || st.GetEpoch() == was.GetEpoch() &&
		st.GetNumber() < was.GetNumber()) {
		return
	}
	was := !n.spoke || m.settled(n) || m.life(n.said) != m.life(st)
	n.said, n.spoke = st, true
	if was && !m.settled(n) { // one that holds no word takes an order that names its life, which is known by now
		n.timer.Restart(now)
	}
	m.note(id, n)
}

// life is what a node's life is called.
func (m *Standing[W, S]) life(st S) uint64 {
	if m.cfg.Life != nil {
		return m.cfg.Life(st)
	}
	return st.GetEpoch()
}

// Forget drops nodes that are not in the torus any more.
func (m *Standing[W, S]) Forget(gone func(fault.NodeID) bool) {
	for id := range m.nodes {
		if gone(id) {
			delete(m.nodes, id)
			delete(m.open, id)
			delete(m.special, id)
		}
	}
}

// Tick returns the orders that are due, by node, and when the next one is; zero: everybody has what he is to have.
func (m *Standing[W, S]) Tick(now time.Time) (out []Order[W], wake time.Time) {
	for _, id := range slices.Sorted(maps.Keys(m.open)) {
		n := m.nodes[id]
		if n.timer.Due(now, m.cfg.Retry) {
			o := Order[W]{Node: id, Number: m.numberFor(n), Want: n.want, Try: n.timer.Try, Asked: n.asked}
			if n.spoke {
				o.Life = m.life(n.said)
			}
			out = append(out, o)
			if m.note(id, n); m.settled(n) { // asked for the last time
				continue
			}
		}
		if wake.IsZero() || n.timer.At.Before(wake) {
			wake = n.timer.At
		}
	}
	return out, wake
}

// Said returns what nodes said, by node.
func (m *Standing[W, S]) Said() []S {
	var out []S
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		if n := m.nodes[id]; n.spoke {
			out = append(out, n.said)
		}
	}
	return out
}

package order

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Status is an answer to a standing order: the node's report of its content.
type Status interface {
	GetNode() string
	GetEpoch() uint64  // its boot epoch
	GetNumber() uint64 // of the order that the node holds
}

// Config is the configuration of a Standing for contents W of orders and answers S.
type Config[W comparable, S Status] struct {
	Retry Retry
	Usual W // default content of nodes
	// Holds reports whether a node's answer confirms a content. A node that reports its content lost holds none.
	Holds func(S, W) bool
	// Anew reports that a node's numbers and epochs may be lower than before.
	Anew func(S) bool
	// Life returns the unique name of a node's life; nil: its boot epoch.
	Life func(S) uint64
	// Taken is called with each answer that Heard does not skip; nil: no other code reads the answers.
	Taken func(S)
	// Asks is the number of questions to a silent node (Ask) before the leader gives up.
	Asks int
}

// Order is an order to send.
type Order[W comparable] struct {
	Node   fault.NodeID
	Number uint64
	Want   W
	Try    int    // from 1
	Asked  bool   // a question: the leader never wanted any but the default content
	Life   uint64 // of the node, by its last answer; 0: it has not answered this leader
}

// node is a node that the leader must track.
type node[W comparable, S Status] struct {
	want  W
	said  S
	spoke bool // has answered this leader
	asked bool // it owes only an answer: its content was always the default
	timer Timer
	// unanswered is the highest number among unconfirmed orders. other is the highest number among those with a content other than want: the
	// node may hold that content. 0: none.
	unanswered, other uint64
}

// Standing is the leader's machine for a standing order. It decides which nodes get an order, and when to repeat it,
// until each node has reported the wanted content (seed 003 §5.2.3.2: "the central controller can send messages telling
// the appropriate nodes to mark certain links as dead").
//
//	settled ──other content wanted, or the node says otherwise──► ordered ──the node says that it holds it──► settled
//	                                                                │  ▲
//	                                                                └──┘ again, by Config.Retry
//
// It does not know links, only the content of each node. A Standing is for one goroutine and for one term of
// leadership.
type Standing[W comparable, S Status] struct {
	cfg    Config[W, S]
	number uint64
	nodes  map[fault.NodeID]*node[W, S]
	// Few nodes need work, however many have answered: open are those that are not settled, special are those with
	// another content than the default.
	open, special map[fault.NodeID]bool
}

// NewStanding returns a machine without any orders.
func NewStanding[W comparable, S Status](cfg Config[W, S]) *Standing[W, S] {
	return &Standing[W, S]{cfg: cfg, nodes: make(map[fault.NodeID]*node[W, S]), open: make(map[fault.NodeID]bool),
		special: make(map[fault.NodeID]bool)}
}

func (m *Standing[W, S]) settled(n *node[W, S]) bool {
	if !n.spoke {
		return n.asked && n.timer.Try >= m.cfg.Asks
	}
	return n.other == 0 && m.cfg.Holds(n.said, n.want)
}

// numberFor returns the number of an order to a node. It is at least one more than the node's own number. Otherwise the
// node would refuse every order while a recreated store has lower revisions.
func (m *Standing[W, S]) numberFor(n *node[W, S]) uint64 {
	if !n.spoke {
		return m.number
	}
	if has := n.said.GetNumber(); has < math.MaxUint64 {
		return max(m.number, has+1)
	}
	return m.number
}

// Wanted sets the contents of nodes, as of a revision of the store; nodes that are not in words have the default.
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
		n.want, n.asked, n.other = word, false, n.unanswered
		n.timer.Restart(now)
	}
	if word == m.cfg.Usual {
		delete(m.special, id)
	} else {
		m.special[id] = true
	}
	m.note(id, n)
}

// note records whether a node needs work.
func (m *Standing[W, S]) note(id fault.NodeID, n *node[W, S]) {
	if m.settled(n) {
		delete(m.open, id)
	} else {
		m.open[id] = true
	}
}

// Ask schedules a question to a node that has not answered, by an order with its wanted content, from the given time
// on.
func (m *Standing[W, S]) Ask(id fault.NodeID, from time.Time) {
	if m.nodes[id] == nil {
		m.nodes[id] = &node[W, S]{want: m.cfg.Usual, asked: true, timer: Timer{At: from}}
		m.note(id, m.nodes[id])
	}
}

// Heard processes a node's answer. It skips an answer that is older than the last one, unless the node's numbers may
// have restarted, even within the same boot epoch: another order does no harm.
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
	reborn := n.spoke && m.life(n.said) != m.life(st)
	was := !n.spoke || m.settled(n) || reborn
	n.said, n.spoke = st, true
	if reborn || m.cfg.Anew(st) || st.GetNumber() >= n.unanswered {
		n.unanswered, n.other = 0, 0
	}
	if m.cfg.Taken != nil {
		m.cfg.Taken(st)
	}
	if was && !m.settled(n) { // a node without a content accepts an order that names its life, which is now known
		n.timer.Restart(now)
	}
	m.note(id, n)
}

// life returns the name of a node's life.
func (m *Standing[W, S]) life(st S) uint64 {
	if m.cfg.Life != nil {
		return m.cfg.Life(st)
	}
	return st.GetEpoch()
}

// Forget drops nodes that have left the torus.
func (m *Standing[W, S]) Forget(gone func(fault.NodeID) bool) {
	for id := range m.nodes {
		if gone(id) {
			delete(m.nodes, id)
			delete(m.open, id)
			delete(m.special, id)
		}
	}
}

// Tick returns the orders that are due, by node, and when the next one is; zero if every node has its content.
func (m *Standing[W, S]) Tick(now time.Time) (out []Order[W], wake time.Time) {
	for _, id := range slices.Sorted(maps.Keys(m.open)) {
		n := m.nodes[id]
		if n.timer.Due(now, m.cfg.Retry) {
			o := Order[W]{Node: id, Number: m.numberFor(n), Want: n.want, Try: n.timer.Try, Asked: n.asked}
			if n.spoke {
				o.Life = m.life(n.said)
			}
			n.unanswered = max(n.unanswered, o.Number)
			out = append(out, o)
			if m.note(id, n); m.settled(n) { // last question
				continue
			}
		}
		if wake.IsZero() || n.timer.At.Before(wake) {
			wake = n.timer.At
		}
	}
	return out, wake
}

// Said returns the nodes' last answers, by node.
func (m *Standing[W, S]) Said() []S {
	var out []S
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		if n := m.nodes[id]; n.spoke {
			out = append(out, n.said)
		}
	}
	return out
}

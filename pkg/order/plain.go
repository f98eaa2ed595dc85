package order

import (
	"hash/fnv"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Content is the content of an order of a plain kind, encoded as the kind defines. The empty one is for nodes without
// an order.
type Content string

// Sum is the 64-bit FNV-1a hash of a content, by which nodes report their content.
func Sum(c Content) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(c)) // never fails
	return h.Sum64()
}

// Plain is the leader's side of a plain kind: one that has no messages of its own and travels in Order and OrderStatus.
type Plain interface {
	// Kind returns the name of the kind, as the nodes have registered it.
	Kind() string
	// Wanted returns the content for each node and its store revision; nodes that are not in the map hold nothing. The
	// channel is closed when the contents change. Wanted does not block, and the caller does not change the map.
	Wanted() (contents map[fault.NodeID]Content, revision uint64, changed <-chan struct{})
	// Heard processes a node's report of its content, or of its reason for a refusal. Reports arrive in any order; the
	// leader drops one that is older than the node's last. Heard does not block.
	Heard(*lofamov1.OrderStatus)
}

// PlainConfig returns the configuration of a Standing for a plain kind. Taken is Plain.Heard.
func PlainConfig(taken func(*lofamov1.OrderStatus)) Config[Content, *lofamov1.OrderStatus] {
	return Config[Content, *lofamov1.OrderStatus]{
		Anew:  (*lofamov1.OrderStatus).GetLost,
		Taken: taken,
		Holds: func(st *lofamov1.OrderStatus, c Content) bool {
			return st.GetSum() == Sum(c) && !st.GetLost() && st.GetError() == ""
		},
	}
}

// PlainMessage encodes an order of a plain kind.
func PlainMessage(kind string, o Order[Content]) *lofamov1.Message {
	return &lofamov1.Message{Body: &lofamov1.Message_Order{Order: &lofamov1.Order{
		Kind: kind, Node: string(o.Node), Number: o.Number, Life: o.Life, Content: []byte(o.Want),
	}}}
}

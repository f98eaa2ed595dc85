package engine

import (
	"slices"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// maxStrays bounds the removed nodes whose inbox positions stay.
const maxStrays = 4096

// strays are the nodes that the topology does not have any more, and whose inbox positions stay, the newest last. A position
// refuses old reports of a removed node, should a node of that name join later. Nodes join and leave without end, so only a
// bounded number stays.
type strays struct {
	limit int
	ids   []fault.NodeID
}

// newStrays returns the strays among stored positions, by id, because nobody knows when they were removed.
func newStrays(limit int, saved []store.InboxPosition, now *topology.Topology) *strays {
	s := &strays{limit: limit}
	if now == nil {
		return s
	}
	for _, p := range saved {
		if _, ok := now.Node(p.Origin.Node); !ok {
			s.ids = append(s.ids, p.Origin.Node)
		}
	}
	slices.Sort(s.ids)
	s.ids = slices.Compact(s.ids)
	return s
}

// follow applies a change of the topology, and returns the nodes whose positions do not stay.
func (s *strays) follow(was, now *topology.Topology) (drop []fault.NodeID) {
	s.ids = slices.DeleteFunc(s.ids, func(id fault.NodeID) bool { _, back := now.Node(id); return back })
	for _, n := range was.Nodes {
		if _, ok := now.Node(n.ID); !ok {
			s.ids = append(s.ids, n.ID)
		}
	}
	return s.surplus()
}

// surplus takes the oldest strays beyond the limit away.
func (s *strays) surplus() []fault.NodeID {
	n := max(0, len(s.ids)-s.limit)
	drop := slices.Clone(s.ids[:n])
	s.ids = slices.Delete(s.ids, 0, n)
	return drop
}

// dropPositions forgets the inbox positions of nodes, and returns their keys.
func (t *term) dropPositions(ids []fault.NodeID) (keys []string) {
	for _, id := range ids {
		for _, h := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
			o := fault.Origin{Node: id, Half: h}
			t.inbox.Forget(o)
			keys = append(keys, store.InboxKey(o))
		}
	}
	return keys
}

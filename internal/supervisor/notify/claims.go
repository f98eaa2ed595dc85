package notify

import (
	"maps"
	"slices"
	"sync"

	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Known is what a node states about the store in its digests.
type Known struct {
	Revision uint64 // up to which it knows the map
	Denied   uint64 // version of its list of revoked certificates
}

// claims holds what nodes last stated, to any replica that forwards their digests to this one.
type claims struct {
	mu       sync.Mutex
	known    map[fault.NodeID]Known
	topology *topology.Topology // of the last majority, whose nodes alone are kept
}

func (c *claims) note(d Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[d.Node] = Known{Revision: d.Revision, Denied: d.Denied}
}

// majority returns the highest revision, and the highest version of the list of revoked certificates, that more than half of the managed
// nodes with a place have stated. A silent node knows nothing. Nodes that named themselves do not count, because one token makes many.
func (c *claims) majority(t *topology.Topology) Known {
	c.mu.Lock()
	if t != c.topology {
		c.topology = t
		maps.DeleteFunc(c.known, func(id fault.NodeID, _ Known) bool {
			_, is := t.Node(id)
			return !is
		})
	}
	known := maps.Clone(c.known) // the intake waits for the lock
	c.mu.Unlock()
	var revisions, versions []uint64
	for _, n := range t.Placed() {
		if fault.Managed(n.Labels) {
			revisions, versions = append(revisions, known[n.ID].Revision), append(versions, known[n.ID].Denied)
		}
	}
	if len(revisions) == 0 {
		return Known{}
	}
	slices.Sort(revisions)
	slices.Sort(versions)
	most := (len(revisions) - 1) / 2 // more than half know this much or more
	return Known{Revision: revisions[most], Denied: versions[most]}
}

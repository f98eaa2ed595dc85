package teller

import (
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/denylist"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Bounds of telling nodes the list of revoked certificates.
const (
	denyMost   = time.Minute      // the longest pause before the list is sent again to a node that does not have it: it may be of an earlier version
	denyForget = 10 * time.Minute // a node that was not heard for so long is forgotten
	// maxJump bounds how far ahead of this replica's list a node's version is believed.
	maxJump = 1 << 20
)

// denials has the nodes whose digests come here hold the newest list of revoked certificates. Each digest says which version its node has.
type denials struct {
	list    denylist.List
	nodes   map[fault.NodeID]*denied
	highest *atomic.Uint64 // version that any node has
	send    func(fault.NodeID, *lofamov1.DenyPart)
}

// denied is what one node has, and when it was told.
type denied struct {
	has   uint64
	heard time.Time
	again time.Time
	pause time.Duration
}

// heard takes the version that a node's digest names.
func (d *denials) heard(now time.Time, node fault.NodeID, version uint64, period time.Duration) {
	n := d.nodes[node]
	if n == nil {
		n = &denied{}
		d.nodes[node] = n
	}
	n.heard, n.has = now, version
	if version > d.highest.Load() && version <= d.list.GetVersion()+maxJump {
		d.highest.Store(version)
	}
	if version < d.list.GetVersion() && !now.Before(n.again) {
		d.tell(now, node, n, period)
	}
}

func (d *denials) tell(now time.Time, node fault.NodeID, n *denied, period time.Duration) {
	n.pause = min(max(2*n.pause, period), denyMost)
	n.again = now.Add(n.pause)
	for _, p := range d.list.Parts() {
		d.send(node, p)
	}
}

// replace takes a new list, and tells all nodes at once.
func (d *denials) replace(now time.Time, l denylist.List, period time.Duration) {
	d.list = l
	for node, n := range d.nodes {
		if now.Sub(n.heard) > denyForget {
			delete(d.nodes, node)
			continue
		}
		if n.pause = 0; n.has < l.GetVersion() {
			d.tell(now, node, n, period)
		}
	}
}

// Denied takes a newer list of revoked certificates. It does not block.
func (t *Teller) Denied(l denylist.List) {
	for {
		select {
		case t.lists <- l:
			return
		default:
		}
		select {
		case <-t.lists: // an older one
		default:
		}
	}
}

// HighestDenied returns the highest version of the list that a node says it has.
func (t *Teller) HighestDenied() uint64 { return t.highest.Load() }

package notify

import (
	"maps"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Limits for sending nodes the list of revoked certificates.
const (
	denyMost   = time.Minute      // longest pause before sending the list again to a node without it, which may run an earlier version
	denyForget = 10 * time.Minute // silence after which a node is forgotten
	// denyBurst is the number of parts sent to a node at once; the others follow with its next digests.
	denyBurst = 32
)

// denials sends the newest list of revoked certificates to the nodes whose digests arrive here. Each digest states its node's version.
type denials struct {
	version uint64               // of the list
	parts   []*lofamov1.DenyPart // of the list
	nodes   map[fault.NodeID]*denied
	highest *atomic.Uint64 // version that any node has
	send    func(fault.NodeID, *lofamov1.DenyPart)
}

// denied is the version that one node has, and the times of its digests and of the list's repetitions.
type denied struct {
	has   uint64
	heard time.Time
	again time.Time
	pause time.Duration
	next  int // part; above 0 while the list is being sent
}

// heard records the version in a node's digest.
func (d *denials) heard(now time.Time, node fault.NodeID, version uint64, period time.Duration) {
	n := d.nodes[node]
	if n == nil {
		n = &denied{}
		d.nodes[node] = n
	}
	n.heard, n.has = now, version
	// Replicas that have not heard this node must accept the next list, which has version+1. So version itself must be below the bound.
	if version > d.highest.Load() && version < d.version+pki.MaxVersionJump {
		d.highest.Store(version)
	}
	if version < d.version && (n.next > 0 || !now.Before(n.again)) {
		d.tell(now, node, n, period)
	}
}

// tell sends the next parts of the list.
func (d *denials) tell(now time.Time, node fault.NodeID, n *denied, period time.Duration) {
	if n.next == 0 {
		n.pause = min(max(2*n.pause, period), denyMost)
		n.again = now.Add(n.pause)
	}
	to := min(n.next+denyBurst, len(d.parts))
	for _, p := range d.parts[n.next:to] {
		d.send(node, p)
	}
	if n.next = to; to == len(d.parts) {
		n.next = 0
	}
}

// replace sets a new list, and sends it to all nodes at once.
func (d *denials) replace(now time.Time, version uint64, parts []*lofamov1.DenyPart, period time.Duration) {
	d.version, d.parts = version, parts
	for node, n := range d.nodes {
		if n.pause, n.next = 0, 0; n.has < version {
			d.tell(now, node, n, period)
		}
	}
}

// expire forgets silent nodes, such as those that have left the topology.
func (d *denials) expire(now time.Time) {
	maps.DeleteFunc(d.nodes, func(_ fault.NodeID, n *denied) bool { return now.Sub(n.heard) > denyForget })
}

// Denied sets a newer list of revoked certificates. It does not wait for the goroutine of Run, and compresses the list in its place.
func (t *Notifier) Denied(l pki.DenyList) {
	l.Parts()
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

// HighestDenied returns the highest version of the list that any node has reported.
func (t *Notifier) HighestDenied() uint64 { return t.highest.Load() }

// Package store keeps the committed fault map in etcd: the nodes, the history of events, and how
// far each half's reports were taken in.
//
// It knows the keys, the transactions and what is to be done when the outcome of one is not
// known. It does not decide what a change is, or who may read.
//
// Campaigner and Observer (lead.go) elect the leader. Leadership is a context that ends with the lease; the election key fences
// every write:
//
//	follower ──elected──► leader (context alive) ──lease lost, work ended, or stop──► follower
//
//	/lofamo/v1/meta                     whose store this is: JSON of Meta
//	/lofamo/v1/identity                 which store it is of those of the same cluster: JSON of storedIdentity
//	/lofamo/v1/head                     the last transaction: JSON of head, the key that every commit renews
//	/lofamo/v1/nodes/<id>               a Node, protobuf
//	/lofamo/v1/events/<20 digits>       an Event, protobuf, numbered without gaps in order of commit
//	/lofamo/v1/inbox/<node>/<half>      an InboxPosition, binary (before: JSON)
//	/lofamo/v1/groups/<id>              a Group with all of its members, protobuf
//	/lofamo/v1/warnings/<node>/<component>/<quantity>
//	                                    a Warning, protobuf
//	/lofamo/v1/topology/head            the topology's sizes, domain labels and generation, JSON of topologyHead
//	/lofamo/v1/topology/nodes/<20 digits>/<id>  a TopologyNode of a generation, protobuf
//	/lofamo/v1/maintenance/<id>         a Maintenance, protobuf
//	/lofamo/v1/masks/<x,y,z>/<direction>
//	                                    a LinkMask, protobuf: under the place of the link's lower end
//	/lofamo/v1/denied                   the list of revoked certificates, a SignedDenyList, protobuf
//	/lofamo/v1/managed/diagnosis        the report of the last diagnosis, a DiagnosisReport, protobuf
//	/lofamo/v1/managed/procedure        the report of the last procedure, a ProcedureReport, protobuf
//	/lofamo/v1/managed/ordered          a procedure that was ordered and has no report yet: JSON of Ordered
//	/lofamo/v1/peers/<node>             a PeerStatus, protobuf: where the node has said that its ends of links are
//	/lofamo/v1/supervisors/<id>         a Supervisor, protobuf: what a replica says of itself
//	/lofamo/v1/responses/head           the last transaction of responses, and where their audit stands: JSON of responseHead
//	/lofamo/v1/responses/records/<key>  a record of pkg/response, JSON of storedResponse or storedBreaker
//	/lofamo/v1/responses/audit/<20 digits>
//	                                    lines of the audit (pkg/response/audit), those of one transaction: by the number of the first
//	/lofamo/v1/leader/<lease>           the election (go.etcd.io/etcd/client/v3/concurrency)
//
// Every commit of a leader is a transaction guarded by two keys: its election key (it still leads)
// and the head (nothing was committed that it does not know of). The head names the commit, so
// that one whose answer was lost is recognised when it is tried again, and never done twice.
package store

import (
	"errors"
	"slices"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// The errors that callers branch on.
var (
	// ErrNotLeader: the fence no longer stands; somebody else leads, or nobody.
	ErrNotLeader = errors.New("no longer the leader")
	// ErrCompacted: the revision to watch from is no longer kept.
	ErrCompacted = errors.New("revision compacted")
	// ErrConflict: a guard of the batch does not hold.
	ErrConflict = errors.New("changed meanwhile")
	// ErrForeign: the store belongs to another cluster.
	ErrForeign = errors.New("store of another cluster")
)

// Fence is the proof of leadership that every commit carries: the election key and the revision at
// which it was made.
type Fence struct {
	Key string
	Rev int64
}

// Meta says whose store it is. A supervisor refuses to lead on another cluster's. Dims are those of the
// first leader's configuration; they count for nothing any more once the topology is stored.
type Meta struct {
	Cluster string `json:"cluster"`
	Dims    string `json:"dims"`
}

// Batch is what is committed together. Its events are in order; nodes, positions and keys are each
// present at most once.
type Batch struct {
	Events  []*lofamov1.Event
	Nodes   []*lofamov1.Node
	Inbox   []InboxPosition
	Puts    []KV
	Deletes []string // keys
	// Guards must all hold, or nothing is committed (ErrConflict). A batch with guards is never split.
	Guards []Guard
}

// KV is a key, which begins with Prefix, and its value.
type KV struct {
	Key   string
	Value []byte
}

// Guard says that a key was last written at a revision; 0: that there is none.
type Guard struct {
	Key      string
	Revision uint64
}

// Write is what an operator changes, with the events that tell of it. It is committed whole, in order with
// the batches of the leader.
type Write struct {
	Events  []*lofamov1.Event
	Puts    []KV
	Deletes []string
	Guards  []Guard
	// Topology is, of a write that makes another topology the one that counts, what is stored once it is committed;
	// without a revision.
	Topology *Topology
	// Term is the fencing token of the only leader who may commit it; 0: whoever leads when its turn comes.
	Term uint64
}

// Batch is the write as a batch of its own.
func (w Write) Batch() Batch {
	return Batch{Events: w.Events, Puts: w.Puts, Deletes: w.Deletes, Guards: w.Guards}
}

// Standing is how the store stands by the word of a quorum, asked after the question was put.
type Standing struct {
	Revision uint64 // the newest
	Head     uint64 // of the newest commit of any leader; 0: none yet
}

// Ops is the number of store operations that the batch takes.
func (b Batch) Ops() int {
	return len(b.Events) + len(b.Nodes) + len(b.Inbox) + len(b.Puts) + len(b.Deletes)
}

// Snapshot is the committed map at one revision.
type Snapshot struct {
	Revision uint64
	Meta     *Meta // nil in a fresh store
	Nodes    []*lofamov1.Node
	Inbox    []InboxPosition
	// Topology, Maintenance and Masks are what operators have set.
	Topology    Topology
	Maintenance []Mark
	Masks       []*lofamov1.LinkMask
	Groups      []*lofamov1.Group
	Warnings    []Warning

	head    head
	headRev int64
}

// Warning is a warning and the node that it is on.
type Warning struct {
	Node    fault.NodeID
	Warning *lofamov1.Warning
}

// Update is one step of a watch: the events of one revision, or a bookmark without events. Err
// ends the watch.
type Update struct {
	Revision uint64
	Events   []*lofamov1.Event
	Err      error
}

// InboxPosition says which reports of an origin were taken in.
type InboxPosition = servicenet.InboxPosition

// head is the last transaction. Term is the election key's revision, which no two leaders share.
type head struct {
	Term   int64  `json:"term"`
	Batch  uint64 `json:"batch"`
	Next   uint64 `json:"next"`   // number of the next event
	Oldest uint64 `json:"oldest"` // number of the oldest event kept
	Bytes  uint64 `json:"bytes"`  // that the events kept take, about
	Gaps   []Gap  `json:"gaps,omitempty"`
}

// Gap is where the store was put back to a snapshot: what was committed after From is lost, if anything was, and
// the revisions went on at To. Who has seen a revision between the two has seen what is not there.
type Gap struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// Lost says whether a revision lies in a gap.
func (g Gap) Lost(revision uint64) bool { return revision > g.From && revision < g.To }

// leap is more than the revision grows by between two commits unless the store was put back to a snapshot: that
// raises it by 10⁹ at least.
const leap = 500_000_000

// maxGaps is how many are remembered, the newest.
const maxGaps = 8

// gaps are those of a head that was written at a revision, with one that no commit has noted yet.
func (h head) gaps(written, now uint64) []Gap {
	if written == 0 || now-written < leap {
		return h.Gaps
	}
	all := append(slices.Clone(h.Gaps), Gap{written, now})
	return all[max(0, len(all)-maxGaps):]
}

// same says whether two heads are those of one commit.
func (h head) same(o head) bool { return h.Term == o.Term && h.Batch == o.Batch }

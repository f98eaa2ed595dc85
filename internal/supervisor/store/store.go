// Package store keeps the committed fault map in etcd: the nodes, the history of events, and the inbox position of
// each half's reports.
//
// It knows the keys, the transactions and how to handle a transaction with an unknown outcome. It does not decide
// what counts as a change, or who may read.
//
// Campaigner and Observer (lead.go) elect the leader. Leadership is a context that ends with the lease; the election
// key fences every write:
//
//	follower ──elected──► leader (context alive) ──lease lost, work ended, or stop──► follower
//
//	/lofamo/v1/meta                     whose store this is: JSON of Meta
//	/lofamo/v1/identity                 which store it is of those of the same cluster: JSON of storedIdentity
//	/lofamo/v1/rolledback               the revision that a rolled back store has lost, and its etcd cluster: text
//	/lofamo/v1/head                     the last transaction: JSON of head, the key that every commit renews
//	/lofamo/v1/nodes/<id>               a Node, protobuf
//	/lofamo/v1/events/<20 digits>       an Event, protobuf, numbered without gaps in order of commit
//	/lofamo/v1/inbox/<node>/<half>      an InboxPosition, binary (before: JSON); of removed nodes a bounded number
//	/lofamo/v1/groups/<id>              a Group with all of its members, protobuf
//	/lofamo/v1/warnings/<node>/<component>/<quantity>
//	                                    a Warning, protobuf
//	/lofamo/v1/incidents/records/<id>   an Incident without acknowledgement and notes, protobuf: only the leader's engine writes it
//	/lofamo/v1/incidents/notes/<id>     an Incident with nothing but acknowledgement and notes, protobuf: people write it
//	/lofamo/v1/incidents/responses/<id> an Incident with nothing but responses, protobuf: the leader's responder writes it
//	/lofamo/v1/incidents/trimmed        the bound of the incidents that are no longer kept: JSON of trimmedIncidents
//	/lofamo/v1/topology/head            the topology's sizes, domain labels and generation, JSON of topologyHead
//	/lofamo/v1/topology/nodes/<20 digits>/<id>  a TopologyNode of a generation, protobuf
//	/lofamo/v1/maintenance/<id>         a Maintenance, protobuf
//	/lofamo/v1/masks/<x,y,z>/<direction>
//	                                    a LinkMask, protobuf: under the place of the link's lower end
//	/lofamo/v1/denied                   the list of revoked certificates, a SignedDenyList, protobuf
//	/lofamo/v1/managed/diagnosis        the report of the last diagnosis, a DiagnosisReport, protobuf
//	/lofamo/v1/managed/procedure        the report of the last procedure, a ProcedureReport, protobuf
//	/lofamo/v1/managed/ordered          a procedure that was ordered and has no report yet: JSON of Ordered
//	/lofamo/v1/managed/policy           when the policy's last tests of links and last procedure ended: JSON, a list of PolicyRun
//	/lofamo/v1/peers/<node>             a PeerStatus, protobuf: where the node has said that its ends of links are
//	/lofamo/v1/supervisors/<id>         a Supervisor, protobuf: a replica's own description
//	/lofamo/v1/responses/head           the last transaction of responses, and where their audit stands: JSON of responseHead
//	/lofamo/v1/responses/records/<key>  a record of pkg/response, JSON of storedResponse or storedBreaker
//	/lofamo/v1/responses/audit/<20 digits>
//	                                    lines of the audit (pkg/response), those of one transaction: by the number of the first
//	/lofamo/v1/policies/head            guards the changes of any two policies against each other
//	/lofamo/v1/policies/current/<name>  a policy in force
//	/lofamo/v1/policies/former/<name>/<20 digits>  a former version of a policy, by its number
//	/lofamo/v1/tokens/<id>              a token with which nodes enrol: JSON of JoinToken
//	/lofamo/v1/regions/<region>/...     at a parent only: documents of a region (package federation)
//	/lofamo/v1/leader/<lease>           the election (go.etcd.io/etcd/client/v3/concurrency)
//
// Every commit of a leader is a transaction guarded by two keys: its election key (it still leads) and the head
// (there is no commit that it does not know). The head names the commit, so that a retry recognises a commit whose
// answer was lost, and never repeats it.
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
	// ErrNotLeader: the fence no longer stands; another replica leads, or none.
	ErrNotLeader = errors.New("no longer the leader")
	// ErrOvertaken: another replica leads and has written. Whether an earlier attempt at the batch, which had no answer, was committed is
	// not known.
	ErrOvertaken = errors.New("another leader has written since an attempt that had no answer")
	// ErrCompacted: the revision to watch from is no longer kept.
	ErrCompacted = errors.New("revision compacted")
	// ErrConflict: a guard of the batch does not hold.
	ErrConflict = errors.New("changed meanwhile")
	// ErrRefused: etcd can never accept the transaction, which is too large or malformed. It had no effect. The error holds for one
	// transaction: Commit splits batches without guards, and the parts before the refused one stay committed.
	ErrRefused = errors.New("the store can never accept this transaction")
	// ErrUndecodable: the store has answered, but this version cannot decode the value.
	ErrUndecodable = errors.New("cannot decode the stored value")
	// ErrForeign: the store belongs to another cluster.
	ErrForeign = errors.New("store of another cluster")
)

// Fence is the proof of leadership that every commit carries: the election key and the revision of its creation.
type Fence struct {
	Key string
	Rev int64
}

// Meta identifies the store's cluster. A supervisor refuses to lead on another cluster's store. Dims are those of the
// first leader's configuration; they no longer matter once the topology is stored.
type Meta struct {
	Cluster string `json:"cluster"`
	Dims    string `json:"dims"`
}

// Batch is committed together. Its events are in order; each node, position and key appears at most once.
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

// Guard requires that a key was last written at a revision; 0: that it does not exist.
type Guard struct {
	Key      string
	Revision uint64
}

// Write is an operator's change, with its events. It is committed whole, in order with the leader's batches.
type Write struct {
	Events  []*lofamov1.Event
	Puts    []KV
	Deletes []string
	Guards  []Guard
	// Topology is set in a write that puts another topology in force: the stored topology after the commit, without
	// its revision.
	Topology *Topology
	// Term is the fencing token of the only leader that may commit the write; 0: any leader.
	Term uint64
}

// Batch returns the write as a separate batch.
func (w Write) Batch() Batch {
	return Batch{Events: w.Events, Puts: w.Puts, Deletes: w.Deletes, Guards: w.Guards}
}

// Standing is the state of the store, confirmed by a quorum after the question.
type Standing struct {
	Revision uint64 // the newest
	Head     uint64 // revision of the newest commit of any leader; 0: none yet
}

// Ops returns the number of store operations in the batch.
func (b Batch) Ops() int {
	return len(b.Events) + len(b.Nodes) + len(b.Inbox) + len(b.Puts) + len(b.Deletes)
}

// Snapshot is the committed map at one revision.
type Snapshot struct {
	Revision uint64
	Meta     *Meta // nil in a fresh store
	Nodes    []*lofamov1.Node
	Inbox    []InboxPosition
	// Topology, Maintenance and Masks are set by operators.
	Topology    Topology
	Maintenance []Mark
	Masks       []*lofamov1.LinkMask
	Groups      []*lofamov1.Group
	Warnings    []Warning
	Incidents   []*lofamov1.Incident // without acknowledgements and notes

	head    head
	headRev int64
}

// Warning is a warning and its node.
type Warning struct {
	Node    fault.NodeID
	Warning *lofamov1.Warning
}

// Update is one step of a watch: the events of one revision, or a bookmark without events. Err
// ends the watch.
type Update struct {
	Revision uint64
	Events   []*lofamov1.Event
	// Values are the events as stored: encoded, without their revision. nil: the source does not have them encoded.
	Values [][]byte
	Err    error
}

// InboxPosition says which reports of an origin were accepted.
type InboxPosition = servicenet.InboxPosition

// head is the last transaction. Term is the election key's revision, which is unique to a leader's term.
type head struct {
	Term   int64  `json:"term"`
	Batch  uint64 `json:"batch"`
	Next   uint64 `json:"next"`   // number of the next event
	Oldest uint64 `json:"oldest"` // number of the oldest event kept
	Bytes  uint64 `json:"bytes"`  // approximate size of the kept events
	Gaps   []Gap  `json:"gaps,omitempty"`
}

// Gap is a restore of the store from a snapshot: commits after From are lost, if there were any, and revisions
// continued at To. A reader that saw a revision between the two saw data that no longer exists.
type Gap struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// Lost reports whether a revision lies in the gap.
func (g Gap) Lost(revision uint64) bool { return revision > g.From && revision < g.To }

// leap is larger than any growth of the revision between two commits, except for a restore from a snapshot, which
// raises it by 10⁹ at least.
const leap = 500_000_000

// maxGaps is the number of gaps remembered, the newest.
const maxGaps = 8

// gaps returns the gaps of a head written at a revision, including one that no commit has recorded yet.
func (h head) gaps(written, now uint64) []Gap {
	if written == 0 || now-written < leap {
		return h.Gaps
	}
	all := append(slices.Clone(h.Gaps), Gap{written, now})
	return all[max(0, len(all)-maxGaps):]
}

// same reports whether two heads belong to one commit.
func (h head) same(o head) bool { return h.Term == o.Term && h.Batch == o.Batch }

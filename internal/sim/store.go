package sim

import (
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Latencies of the store. Those of dials match internal/supervisor/replica. The others are etcd's, as internal/supervisor/embedded
// sets them.
const (
	leaseTTL                 = time.Second // stands for the silence after which other replicas end a leader's term
	keepAliveEvery           = leaseTTL / 3
	deadlineEvery            = leaseTTL / 2 // interval at which a client checks whether its lease has expired
	electionMin, electionMax = 500 * time.Millisecond, time.Second
	attemptTime              = 2 * time.Second // for one transaction, at first
	maxAttemptTime           = 16 * time.Second
	retryMin, retryMax       = 10 * time.Millisecond, 500 * time.Millisecond
	campaignRetry            = 200 * time.Millisecond
	dialPeriod               = 20 * time.Millisecond // of a replica that has lost its connection to the leader
	dialsFor                 = 3 * time.Second
)

// candidate is one key of the election; the oldest leads. It goes with its lease.
type candidate struct {
	replica *replica
	life    uint64
	rev     uint64 // at which it was made: the fence
	expires time.Time
}

// head is the last transaction of a leader: it identifies a transaction whose answer was lost.
type head struct{ term, batch uint64 }

// entry is one transaction in the log.
type entry struct {
	term     uint64
	statuses []awareness.NodeStatus
	evidence [][]view.FaultEvidence       // of each status
	stated   []*lofamov1.HardwareWatchdog // of each status' node
	gone     fault.NodeID                 // this node has left its place; empty: none
}

// store is the supervisors' etcd: one log of transactions with a quorum of members, one revision for each, leases and
// an election. Each member lives with its supervisor.
//
// Among a majority that is up and connected, one member is the raft leader; after its loss another one is elected, and
// all leases start again. Entries in the log stay, whichever member dies.
type store struct {
	w    *World
	log  []entry // of the revisions 1 to len(log); entries of the election are empty
	docs map[fault.NodeID]*lofamov1.Node
	// inbox is the position up to which each half's reports were accepted.
	inbox     map[fault.Origin]servicenet.InboxPosition
	pictures  copied                     // content of the documents
	normal    int                        // nodes that are NORMAL
	commits   uint64                     // of leaders
	groups    map[string]*lofamov1.Group // active ones
	incidents map[string]*lofamov1.Incident
	// mostIncidents is the most that were not CLOSED after any transaction.
	mostIncidents int
	failed        map[part]time.Time // when a part that is or was FAILED became so
	head          head
	candidates    []candidate // oldest first
	group         []int       // by replica: replicas of one group reach each other

	raft       *replica // nil: no majority
	servesFrom time.Time

	slow time.Duration // additional time of every write
	full bool
	// lame is the time until which transactions from a slow or full time may still be open: attempts wait twice as long
	// each time, so that a write of duration s is answered within 3s, and the next begins only then.
	lame time.Time
}

func newStore(w *World) *store {
	return &store{
		w: w, docs: make(map[fault.NodeID]*lofamov1.Node), inbox: make(map[fault.Origin]servicenet.InboxPosition),
		group: make([]int, w.cfg.Supervisors), pictures: make(copied), failed: make(map[part]time.Time), groups: make(map[string]*lofamov1.Group),
		incidents: make(map[string]*lofamov1.Incident),
	}
}

// holdsBack reports whether the store's present or recent condition may delay a commit.
func (s *store) holdsBack() bool { return s.full || s.w.now.Before(s.lame) }

// blank is the picture of a node without any commit.
func (s *store) blank(id fault.NodeID) (p picture) {
	links := s.w.ids[id].topo.Links
	for c := fault.ComponentNode; c < fault.ComponentBus; c++ { // each node has one kernel here
		if d, link := c.LinkDirection(); !link || slices.Contains(links, d) {
			p.state[c], p.cause[c] = fault.Unknown, fault.CauseNone
		}
	}
	return p
}

func (s *store) rev() uint64 { return uint64(len(s.log)) }

// connected reports whether two supervisors, both up, reach each other.
func (s *store) connected(a, b *replica) bool {
	return a == b || a.up() && b.up() && s.group[a.index] == s.group[b.index]
}

// look elects a raft leader when there was none, or when it is no longer that of a majority.
func (s *store) look() {
	if s.raft == nil || !s.majority(s.raft) {
		s.raft = nil
		for _, r := range s.w.replicas {
			if s.majority(r) {
				s.becomeServing(r)
				break
			}
		}
	}
	for _, r := range s.w.replicas {
		r.follow()
	}
}

func (s *store) majority(r *replica) bool {
	if !r.up() {
		return false
	}
	n := 0
	for _, o := range s.w.replicas {
		n += count(s.connected(r, o))
	}
	return 2*n > len(s.w.replicas)
}

func (s *store) becomeServing(r *replica) {
	s.raft, s.servesFrom = r, s.w.now.Add(s.w.between(electionMin, electionMax))
	for i := range s.candidates {
		c := &s.candidates[i]
		c.expires = s.servesFrom.Add(leaseTTL)
		s.w.at(c.expires, s.expire)
	}
}

// serves reports whether the store answers a supervisor now.
func (s *store) serves(r *replica) bool {
	return s.raft != nil && !s.w.now.Before(s.servesFrom) && s.connected(r, s.raft)
}

// expire ends the leases that are over.
func (s *store) expire() {
	if s.raft == nil || s.w.now.Before(s.servesFrom) {
		return // they start again with the next raft leader
	}
	n := len(s.candidates)
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return !s.w.now.Before(c.expires) })
	if len(s.candidates) < n {
		s.append(entry{})
		s.announce()
	}
}

// resign ends one lease at once.
func (s *store) resign(rev uint64) {
	n := len(s.candidates)
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return c.rev == rev })
	if len(s.candidates) < n {
		s.append(entry{})
		s.announce()
	}
}

// announce notifies every supervisor of a change in the election.
func (s *store) announce() {
	for _, r := range s.w.replicas {
		s.w.after(s.w.between(serviceDelayMin, serviceDelayMax), r.follow)
	}
}

func (s *store) append(e entry) { s.log = append(s.log, e) }

// campaign makes a candidate. Its earlier processes are no candidates any more.
func (s *store) campaign(r *replica) (rev uint64) {
	s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return c.replica == r && c.life != r.life })
	s.append(entry{})
	s.candidates = append(s.candidates, candidate{r, r.life, s.rev(), s.w.now.Add(leaseTTL)})
	s.w.after(leaseTTL, s.expire)
	s.announce()
	return s.rev()
}

// keepAlive renews a lease. False: it is gone.
func (s *store) keepAlive(rev uint64) bool {
	for i := range s.candidates {
		if c := &s.candidates[i]; c.rev == rev {
			c.expires = s.w.now.Add(leaseTTL)
			s.w.at(c.expires, s.expire)
			return true
		}
	}
	return false
}

// stands reports whether a fence still holds.
func (s *store) stands(rev uint64) bool {
	return slices.ContainsFunc(s.candidates, func(c candidate) bool { return c.rev == rev })
}

// leader returns the oldest candidate; nil if there is none.
func (s *store) leader() *candidate {
	if len(s.candidates) == 0 {
		return nil
	}
	return &s.candidates[0]
}

// commit is a leader's transaction in etcd: guarded by the election key and by the head. It returns the revision;
// false: refused.
func (s *store) commit(b *batch) (rev uint64, ok bool) {
	if s.head == b.head {
		return b.rev, true // an earlier attempt went through
	}
	if (!s.stands(b.head.term) || s.head != b.before) && s.w.cfg.bug != bugFence {
		return 0, false
	}
	s.w.checkCommit(b)
	s.head = b.head
	s.append(entry{term: b.head.term, statuses: b.statuses, evidence: b.evidence, stated: b.stated})
	b.rev = s.rev()
	s.commits++
	for _, d := range b.docs {
		s.docs[fault.NodeID(d.GetId())] = d
	}
	for _, p := range b.inbox {
		s.inbox[p.Origin] = p
	}
	s.w.committed(b)
	return b.rev, true
}

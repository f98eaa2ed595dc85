package jobs

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Periods and bounds of the waiting.
const (
	askAgain = 200 * time.Millisecond // between two Arrive mails for one barrier at which somebody waits
	// patience is how many Arrive mails may stay without an answer, and how many answers may report no live link,
	// before callers get that error. It takes 2 s, in which links come back while a neighbour is restarted. The half
	// counts mails instead of time, because a half that could not run has sent none.
	patience = 10
	// goneAfter is how long a member must have been FAILED in the map before it is called gone. If it arrived before
	// it died, all members have learned that by then (many Network Delays), and complete.
	goneAfter = time.Second
	maxGone   = 16              // members that are named to the DNP half at once
	keptFor   = time.Minute     // a barrier without waiting callers
	watchFor  = 5 * time.Minute // the members of a job are watched after its last barrier: lists of nodes that change are dear
	// The watch is gathered gatherBurst times at once, and then every gatherEvery: with long lists that takes 10 ms, and a program may call
	// hundreds of times a second.
	gatherEvery = 100 * time.Millisecond
	gatherBurst = 20
)

// Name identifies a barrier for people.
type Name struct {
	UID        uint32
	Job, Name  string
	Generation uint64
}

// Key returns the key of the barrier for those members, in order: callers with other members are at another barrier.
func (n Name) Key(members []fault.NodeID) Key {
	h := sha256.New()
	put := func(s string) {
		_, _ = h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(s)))) // a hash takes everything
		_, _ = h.Write([]byte(s))
	}
	put("lofamo.v1 barrier")
	_, _ = h.Write(binary.BigEndian.AppendUint32(nil, n.UID))
	put(n.Job)
	put(n.Name)
	for _, m := range members {
		put(string(m))
	}
	return Key{Hash: [32]byte(h.Sum(nil)), Generation: n.Generation}
}

// Event is an input to the barriers of a node.
type Event interface{ jobsEvent() }

// Tick means only that time has passed.
type Tick struct{}

// Call is one process that arrives, and waits. It ends by an Outcome or by Left.
type Call struct {
	ID           uint64 // of the call, each once
	Name         Name
	Members      []fault.NodeID // in order, each once
	Rank         int            // of this node among them, from 0
	Participants int            // of this node
	Participant  string
	Until        time.Time // zero: for as long as it takes
}

// Left reports that a call has ended by itself.
type Left struct{ ID uint64 }

// Answered is a Status of the DNP half.
type Answered struct{ Mail Mail }

// Fates lists the nodes of Output.Watch that are FAILED in the map; nil: none.
type Fates struct{ Failed []fault.NodeID }

func (Tick) jobsEvent()     {}
func (Call) jobsEvent()     {}
func (Left) jobsEvent()     {}
func (Answered) jobsEvent() {}
func (Fates) jobsEvent()    {}

// End is how a call ends.
type End uint8

// The ends.
const (
	Complete   End = iota + 1 // all members have arrived
	Late                      // Until has come: Nodes are missing, Here are participants of this node that have
	Gone                      // Nodes have not arrived, and are FAILED
	Silent                    // the DNP half does not answer
	Alone                     // no link of this node lives
	Overloaded                // the DNP half has too many barriers
	Unfit                     // the DNP half refuses it
	TooMany                   // barriers or calls on this node, or of this user
	Differs                   // from the count that other participants of this node gave, which is in Here
)

// Outcome ends a call.
type Outcome struct {
	ID    uint64
	End   End
	Nodes []fault.NodeID
	Here  int
}

// Output is what the shell is to do. Its slices are the caller's.
type Output struct {
	Mail     []Mail // to the DNP half; lost if its mailbox does not take it: it is sent again
	Outcomes []Outcome
	Watch    []fault.NodeID // the nodes whose fates matter, each once, the most important first
	Rewatch  bool           // Watch has changed
	Wake     time.Time      // Step again then at the latest; zero: no caller waits
}

// Barriers holds the barriers of one node.
//
//	gathering ──all participants here──► arrived ──all members──► complete
//	    └─────the last caller leaves──► (none)
//
// The DNP half's knowledge counts: if it knows that the node, or all nodes, have arrived, that holds even if this
// half was restarted meanwhile. One goroutine owns it.
type Barriers struct {
	all    map[Key]*barrier
	waited map[Key]*barrier // those at which somebody waits
	sweep  time.Time        // before then none is forgotten
	calls  map[uint64]Key
	users  map[uint32]int             // calls of each user; none: not in it
	failed map[fault.NodeID]time.Time // since when
	jobs   map[job]watched            // with recent barriers; watch holds all their members
	watch  []fault.NodeID
	// stale means that watch is to be gathered again, because members may be missing from it. short means that it has
	// no room for all members at whose barriers callers wait. The first job expires at runsOut or later; zero: no jobs.
	stale, short bool
	runsOut      time.Time
	gather       *rate.Limiter // of the watch

	out Output
}

type job struct {
	uid  uint32
	name string
}

type watched struct {
	members []fault.NodeID
	until   time.Time
}

type barrier struct {
	key          Key
	uid          uint32
	members      []fault.NodeID
	rank         int
	participants int
	here         map[string]int // participants that have arrived: how many calls of theirs wait
	waiting      map[uint64]Call
	arrived      bool // the node has
	complete     bool
	has          []bool         // members that arrived, by the DNP half's last status; nil: no status yet
	gone         []fault.NodeID // members that the DNP half reports gone: the barrier has failed
	askAt        time.Time
	silent       count // mails without an answer
	alone        count // answers without a link
	forgetAt     time.Time
}

// count counts events, at most once in askAgain.
type count struct {
	n    int
	last time.Time
}

func (c *count) add(now time.Time) {
	if c.n == 0 || now.Sub(c.last) >= askAgain {
		c.n, c.last = c.n+1, now
	}
}

// NewBarriers returns an empty set of barriers.
func NewBarriers() *Barriers {
	return &Barriers{all: make(map[Key]*barrier), waited: make(map[Key]*barrier), calls: make(map[uint64]Key),
		users: make(map[uint32]int), failed: make(map[fault.NodeID]time.Time), jobs: make(map[job]watched),
		gather: rate.NewLimiter(rate.Every(gatherEvery), gatherBurst)}
}

// Step handles one event.
func (s *Barriers) Step(now time.Time, ev Event) Output {
	s.out = Output{}
	switch ev := ev.(type) {
	case Tick:
	case Call:
		s.call(now, ev)
	case Left:
		s.leave(now, ev.ID)
	case Answered:
		s.answered(now, ev.Mail)
	case Fates:
		s.fates(now, ev.Failed)
	}
	for _, b := range ordered(s.waited) {
		s.settle(now, b)
	}
	s.forget(now)
	s.rewatch(now)
	s.out.Watch = s.watch
	return s.out
}

// ordered returns barriers in the order of their keys, so that output is deterministic.
func ordered(bs map[Key]*barrier) []*barrier {
	out := make([]*barrier, 0, len(bs))
	for _, b := range bs {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *barrier) int { return a.key.Compare(b.key) })
	return out
}

func (s *Barriers) call(now time.Time, c Call) {
	key := c.Name.Key(c.Members)
	b := s.all[key]
	switch {
	case !Room(MaxWaiting, len(s.calls), c.Name.UID, s.users[c.Name.UID]), b == nil && !s.makeRoom(c.Name.UID):
		s.out.Outcomes = append(s.out.Outcomes, Outcome{ID: c.ID, End: TooMany})
		return
	case b != nil && b.participants != c.Participants:
		s.out.Outcomes = append(s.out.Outcomes, Outcome{ID: c.ID, End: Differs, Here: b.participants})
		return
	case b == nil:
		b = &barrier{
			key: key, uid: c.Name.UID, members: c.Members, rank: c.Rank, participants: c.Participants,
			here: make(map[string]int), waiting: make(map[uint64]Call),
		}
		s.all[key] = b
	}
	s.waited[key] = b
	if len(b.waiting) == 0 { // no request was sent meanwhile
		b.silent, b.alone = count{}, count{}
	}
	b.here[c.Participant]++
	b.waiting[c.ID], s.calls[c.ID] = c, key
	s.users[c.Name.UID]++
	b.arrived = b.arrived || len(b.here) >= b.participants
	b.askAt = now
	s.use(now, c.Name, c.Members)
}

// makeRoom reports whether a user may have another barrier. If there is no room it forgets the barrier that has had
// no waiting caller for the longest time: one of the user's if his share is spent, else one of all.
func (s *Barriers) makeRoom(uid uint32) bool {
	mine := 0
	for _, b := range s.all {
		if b.uid == uid {
			mine++
		}
	}
	if Room(MaxBarriers, len(s.all), uid, mine) {
		return true
	}
	own := uid != 0 && mine >= MaxBarriers/2
	var oldest *barrier
	for _, b := range ordered(s.all) {
		if len(b.waiting) == 0 && (b.uid == uid || !own) && (oldest == nil || b.forgetAt.Before(oldest.forgetAt)) {
			oldest = b
		}
	}
	if oldest != nil {
		delete(s.all, oldest.key)
	}
	return oldest != nil
}

// leave removes a call, and its arrival unless the node has arrived. It keeps no names beyond the participants, because
// a process may call under a new name each time.
func (s *Barriers) leave(now time.Time, id uint64) {
	key, ok := s.calls[id]
	if !ok {
		return // it has ended already
	}
	delete(s.calls, id)
	b := s.all[key]
	if s.users[b.uid]--; s.users[b.uid] == 0 {
		delete(s.users, b.uid)
	}
	c := b.waiting[id]
	delete(b.waiting, id)
	if b.forgetAt = now.Add(keptFor); len(b.waiting) == 0 {
		delete(s.waited, b.key)
		if s.sweep.IsZero() {
			s.sweep = b.forgetAt
		}
		s.out.Mail = append(s.out.Mail, Mail{Kind: Leave, Key: b.key})
		s.use(now, c.Name, b.members)
		s.stale = s.stale || s.short
	}
	if b.here[c.Participant]--; b.here[c.Participant] == 0 && (!b.arrived || len(b.here) > b.participants) {
		delete(b.here, c.Participant)
	}
	if len(b.here) == 0 && !b.arrived {
		delete(s.all, key)
	}
}

func (s *Barriers) end(now time.Time, c Call, o Outcome) {
	o.ID = c.ID
	s.out.Outcomes = append(s.out.Outcomes, o)
	s.leave(now, c.ID)
}

// endAll ends all calls of a barrier alike, the oldest first.
func (s *Barriers) endAll(now time.Time, b *barrier, o Outcome) {
	for _, c := range b.callers() {
		s.end(now, c, o)
	}
}

func (b *barrier) callers() []Call {
	out := make([]Call, 0, len(b.waiting))
	for _, c := range b.waiting {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Call) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// answered handles the DNP half's status of a barrier. It ignores answers that no caller waits for.
func (s *Barriers) answered(now time.Time, m Mail) {
	b := s.all[m.Key]
	if m.Kind != Status || b == nil {
		return
	}
	b.silent = count{}
	switch m.Result {
	case OK, NoLinks:
	case Busy:
		s.endAll(now, b, Outcome{End: Overloaded})
		return
	default:
		s.endAll(now, b, Outcome{End: Unfit})
		return
	}
	if b.alone.add(now); m.Links > 0 || len(b.members) == 1 {
		b.alone = count{}
	}
	if len(m.Arrived) == len(b.members) {
		b.has = m.Arrived
		b.arrived = b.arrived || b.has[b.rank]
	}
	b.complete = b.complete || m.Flag
	b.arrived = b.arrived || b.complete
	b.gone = nil
	for _, r := range m.Gone {
		if r < len(b.members) {
			b.gone = append(b.gone, b.members[r])
		}
	}
}

func (s *Barriers) fates(now time.Time, failed []fault.NodeID) {
	was := s.failed
	s.failed = make(map[fault.NodeID]time.Time, len(failed))
	for _, id := range failed {
		since, ok := was[id]
		if !ok {
			since = now
		}
		s.failed[id] = since
	}
}

// settle ends the calls whose time has come, and sends Arrive again when that is due.
func (s *Barriers) settle(now time.Time, b *barrier) {
	if b.complete {
		s.endAll(now, b, Outcome{End: Complete})
	}
	if len(b.gone) > 0 {
		s.endAll(now, b, Outcome{End: Gone, Nodes: b.gone})
	}
	for _, c := range b.callers() {
		switch {
		case !c.Until.IsZero() && !now.Before(c.Until):
			s.end(now, c, Outcome{End: Late, Nodes: b.missing(), Here: len(b.here)})
		case b.silent.n >= patience && !now.Before(b.askAt):
			s.end(now, c, Outcome{End: Silent})
		case b.alone.n >= patience && !now.Before(b.askAt):
			s.end(now, c, Outcome{End: Alone})
		case !c.Until.IsZero():
			s.wakeAt(c.Until)
		}
	}
	switch {
	case len(b.waiting) == 0: // the last caller has left
		return
	case !now.Before(b.askAt):
		b.askAt = now.Add(askAgain)
		b.silent.add(now)
		s.out.Mail = append(s.out.Mail, Mail{Kind: Arrive, Key: b.key, Flag: b.arrived, Members: len(b.members), Rank: b.rank,
			Gone: s.gone(now, b)})
	}
	s.wakeAt(b.askAt)
}

// forget drops barriers without a waiting caller for keptFor. It scans all barriers only when one may be due, and
// schedules no wake-up.
func (s *Barriers) forget(now time.Time) {
	if s.sweep.IsZero() || now.Before(s.sweep) {
		return
	}
	s.sweep = time.Time{}
	for key, b := range s.all {
		switch {
		case len(b.waiting) > 0:
		case !now.Before(b.forgetAt):
			delete(s.all, key)
		default:
			s.sweep = fault.Earliest(s.sweep, b.forgetAt)
		}
	}
}

// missing returns the members that have not arrived, according to the DNP half; before its first status, all.
func (b *barrier) missing() []fault.NodeID {
	var out []fault.NodeID
	for i, id := range b.members {
		if b.has == nil || !b.has[i] {
			out = append(out, id)
		}
	}
	return out
}

// gone returns the ranks of the missing members that have been FAILED for long enough, up to a maximum. It returns
// none before the DNP half has listed the arrivals. The DNP half ends the wait for these members, here and at all
// others.
func (s *Barriers) gone(now time.Time, b *barrier) (ranks []int) {
	if b.has == nil {
		return nil
	}
	for i, id := range b.members {
		since, failed := s.failed[id]
		if !b.has[i] && failed && now.Sub(since) >= goneAfter && len(ranks) < maxGone {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

func (s *Barriers) wakeAt(t time.Time) { s.out.Wake = fault.Earliest(s.out.Wake, t) }

// use records that a job uses a barrier of those members, which are watched for a while after that.
func (s *Barriers) use(now time.Time, n Name, members []fault.NodeID) {
	j := job{n.UID, n.Job}
	was, known := s.jobs[j]
	s.stale = s.stale || !known || !slices.Equal(was.members, members)
	s.jobs[j] = watched{members, now.Add(watchFor)}
}

// rewatch gathers the members of the barriers at which callers wait, then of the jobs that had barriers recently, the
// latest first, as many as a node may watch. Jobs that expire go at the next step, without a wake-up. rewatch runs with
// every step, hundreds of times a second, and lists are long: it works only when there is a change.
func (s *Barriers) rewatch(now time.Time) {
	if !s.stale && (s.runsOut.IsZero() || now.Before(s.runsOut)) {
		return
	}
	if !s.gather.AllowN(now, 1) {
		s.wakeAt(now.Add(gatherEvery))
		return
	}
	s.stale, s.runsOut = false, time.Time{}
	watch, fits := Turns(MaxMembers, s.awaited()...)
	s.short = !fits
	all := make(map[fault.NodeID]bool)
	for _, id := range watch {
		all[id] = true
	}
	jobs := slices.SortedFunc(maps.Keys(s.jobs), func(a, b job) int {
		return cmp.Or(s.jobs[b].until.Compare(s.jobs[a].until), cmp.Compare(a.uid, b.uid), cmp.Compare(a.name, b.name))
	})
	for i, j := range jobs {
		w := s.jobs[j]
		more := 0
		for _, id := range w.members {
			if !all[id] {
				more++
			}
		}
		if !now.Before(w.until) || i >= MaxBarriers || len(all)+more > MaxMembers {
			delete(s.jobs, j)
			continue
		}
		for _, id := range w.members {
			if !all[id] {
				all[id] = true
				watch = append(watch, id)
			}
		}
		s.runsOut = fault.Earliest(s.runsOut, w.until)
	}
	if !slices.Equal(watch, s.watch) {
		s.watch, s.out.Rewatch = watch, true
	}
}

// awaited returns the members of the barriers at which each user waits, each member once, in the order of the uids.
func (s *Barriers) awaited() [][]fault.NodeID {
	lists, seen := make(map[uint32][]fault.NodeID), make(map[uint32]map[fault.NodeID]bool)
	for _, b := range ordered(s.waited) {
		if seen[b.uid] == nil {
			seen[b.uid] = make(map[fault.NodeID]bool)
		}
		for _, id := range b.members {
			if !seen[b.uid][id] {
				seen[b.uid][id] = true
				lists[b.uid] = append(lists[b.uid], id)
			}
		}
	}
	out := make([][]fault.NodeID, 0, len(lists))
	for _, uid := range slices.Sorted(maps.Keys(lists)) {
		out = append(out, lists[uid])
	}
	return out
}

package sim

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// term is one term of leadership: the work of internal/supervisor/engine, without goroutines, queues and metrics. The
// inbox, the machine, and the code that stores and restores nodes are the real ones.
type term struct {
	r         *replica
	rev       uint64 // of its election key: the fence
	started   time.Time
	machine   *awareness.Machine
	incidents *awareness.Incidents
	inbox     *servicenet.Inbox
	head      head // of the last commit that it knows of
	wake      time.Time

	open     *batch // takes changes
	inflight *batch // with the store
	waiting  map[fault.ReportID][]ackTo
	asked    []move // changes of the topology that wait for the store
	mine     copied // the map as this term has committed it

	words map[fault.Origin]spoken // of the newest whole digests
	ways  map[way]time.Time       // when the replica last forwarded a digest from the node

	watchdogs *view.Watchdogs
	stated    map[fault.NodeID]*lofamov1.HardwareWatchdog // of the nodes, as of the open batch

	witness witness
}

// way is a node and a replica to which the node reports directly.
type way struct {
	by   *replica
	node fault.NodeID
}

// maxAnswers bounds the copies of one report that are answered with one commit.
const maxAnswers = 4

// batch is the content of one commit.
type batch struct {
	changes  []timedChange
	groups   []awareness.GroupStatus
	hit      map[fault.NodeID]bool // members of these that really had the fault when the leader found it
	touched  map[fault.NodeID]bool
	origins  map[fault.Origin]bool
	reports  []fault.ReportID
	statuses []awareness.NodeStatus       // from here on set when sealed
	evidence [][]view.FaultEvidence       // of each status
	stated   []*lofamov1.HardwareWatchdog // of each status' node; nil: none
	docs     []*lofamov1.Node
	folded   awareness.IncidentOutput
	inbox    []servicenet.InboxPosition
	before   head
	head     head
	rev      uint64 // set by the store
}

// timedChange is a change and its error when it was made, which counts once the change is committed.
type timedChange struct {
	awareness.Change
	wrong string
}

func newBatch() *batch {
	return &batch{touched: make(map[fault.NodeID]bool), origins: make(map[fault.Origin]bool), hit: make(map[fault.NodeID]bool)}
}

func (b *batch) empty() bool {
	return len(b.changes)+len(b.groups)+len(b.touched)+len(b.origins)+len(b.folded.Changed)+len(b.folded.Gone) == 0
}

// awarenessConfig returns the same configuration as internal/supervisor.
func awarenessConfig(w *World, id string) awareness.Config {
	p := w.cfg.Periods
	ids := make(map[grid.Coord]fault.NodeID, len(w.nodes))
	for _, n := range w.nodes {
		ids[n.topo.Coord] = n.id()
	}
	cfg := awareness.Config{
		Dims: w.cfg.Dims, IDs: ids, Supervisor: id,
		ChallengeNode: p.ChallengeNode, ChallengeHalf: p.ChallengeHalf, ChallengeSingle: p.ChallengeSingle,
		DigestPeriod: p.DigestPeriod, DigestMisses: p.DigestMisses, Grace: p.DigestPeriod, HalfBound: p.HalfBound(),
		PauseSettle: p.PauseSettle(), HoldOff: p.LinkHoldOff, LinkGrace: p.LinkGrace, StopLimit: w.cfg.StopLimit,
		Nonce: func() (n [16]byte) {
			binary.LittleEndian.PutUint64(n[:], w.rnd.Uint64())
			binary.LittleEndian.PutUint64(n[8:], w.rnd.Uint64())
			return n
		},
	}
	if w.moves != nil {
		cfg.Revision = w.moves.revision
	}
	if len(w.cfg.Racks) > 0 {
		cfg.Labels, cfg.DomainLabels = make(map[fault.NodeID]map[string]string), []string{"rack"}
		for at, rack := range w.cfg.Racks {
			cfg.Labels[ids[at]] = map[string]string{"rack": rack}
		}
	}
	switch w.cfg.bug {
	case bugGrace:
		cfg.Grace = 0
	case bugNoStop:
		cfg.StopLimit = time.Second
	case bugHoldOff:
		cfg.HoldOff = 0
	case bugRelinked:
		cfg.RelinkBound = time.Nanosecond
	default:
	}
	return cfg
}

// newTerm loads the committed map and begins from it.
func newTerm(r *replica, rev uint64) (*term, error) {
	w, s := r.w, r.w.store
	t := &term{
		r: r, rev: rev, started: w.now, inbox: servicenet.NewInbox(slices.Collect(maps.Values(s.inbox))), head: s.head,
		open: newBatch(), waiting: make(map[fault.ReportID][]ackTo), mine: make(copied), words: make(map[fault.Origin]spoken),
		ways:    make(map[way]time.Time),
		witness: newWitness(), watchdogs: view.NewWatchdogs(), stated: make(map[fault.NodeID]*lofamov1.HardwareWatchdog),
	}
	var saved []awareness.NodeStatus
	for _, n := range w.nodes {
		doc := s.docs[n.id()]
		if doc == nil {
			continue
		}
		e, err := view.Restore(doc)
		if err != nil {
			return nil, err
		}
		if e.Status.Coord != n.topo.Coord { // as in engine: the leader before ended before it stored the node at its new place
			e.Status = awareness.AtNewPlace(awareness.NodeStatus{ID: n.id(), Coord: n.topo.Coord, State: fault.Unknown,
				Cause: fault.CauseNone}, e.Status)
			t.open.touched[n.id()] = true
		}
		saved = append(saved, e.Status)
		t.stated[n.id()] = e.Watchdog
		t.watchdogs.Restore(n.id(), e.Watchdog, e.Status.HostEpoch)
	}
	if w.cfg.bug == bugRestore {
		saved = nil
	}
	var err error
	cfg := awarenessConfig(w, r.id)
	cfg.Known = t.inbox.Knows
	if t.machine, err = awareness.New(cfg, r.clock(), saved); err != nil {
		return nil, err
	}
	placed := make(map[fault.NodeID]bool, len(w.nodes))
	for _, n := range w.nodes {
		placed[n.id()] = true
	}
	var groups []awareness.GroupStatus
	for key, doc := range s.groups {
		g, err := view.RestoreGroup(doc)
		if err != nil {
			return nil, err
		}
		// As in engine: the leader before may have ended between the topology's commit and the group's.
		g.Members = slices.DeleteFunc(g.Members, func(id fault.NodeID) bool { return !placed[id] })
		if len(g.Members) == 0 {
			delete(s.groups, key)
			continue
		}
		groups = append(groups, g)
	}
	if w.cfg.bug == bugRestore {
		groups = nil
	}
	if err := t.machine.RestoreGroups(groups); err != nil {
		return nil, err
	}
	for _, st := range t.machine.Nodes() {
		t.mine.put(st)
	}
	if err := t.restoreIncidents(saved); err != nil {
		return nil, err
	}
	w.checkRestored(t)
	w.checkRestoredGroups(t)
	return t, nil
}

// asOf returns the time at which an input is handled: an input at the time of a wake-up counts as before it, as in the
// engine.
func (t *term) asOf(now time.Time) time.Time {
	if late := now.Sub(t.wake); t.wake.IsZero() || late < 0 || late > t.r.w.cfg.Periods.ChallengeNode {
		return now
	}
	return t.wake.Add(-1)
}

// take handles one input.
func (t *term) take(in input) {
	now := t.asOf(t.r.clock())
	if in.answer != nil {
		if n := t.r.w.ids[in.answer.Origin.Node]; n.place == nil || !n.place.transfer.ofFormer(in.answer.Origin.Half, in.answer.Epoch) {
			t.witness.hears(n.id())
		}
		t.step(now, *in.answer)
		return
	}
	if o := in.reports[0].ID.Origin; in.digests() && in.path == fault.PathDirect && o.Half == fault.HalfHost {
		t.ways[way{in.to.by, o.Node}] = t.r.w.now
	}
	if in.known {
		t.takeRestated(now, in)
		return
	}
	var known, stale []fault.ReportID
	for i := range in.reports {
		rep := &in.reports[i]
		if rep.Digest && in.held > t.r.w.window() {
			continue // as the engine does
		}
		verdict := t.inbox.Accept(rep.ID, rep.Digest)
		switch verdict {
		case servicenet.Fresh:
			t.takeReport(now, in, rep)
		case servicenet.Duplicate:
			if !rep.Digest && !t.awaitCommit(rep.ID, in.to) {
				known = append(known, rep.ID)
			}
		case servicenet.StaleEpoch:
			stale = append(stale, rep.ID)
		default:
			t.r.w.violate("%s jumps in its boot epoch", rep.ID)
		}
		t.plant(now, verdict, rep, in)
	}
	t.answerCommitted(in.to, known)
	if len(stale) > 0 {
		t.answer(in.to, lofamov1.Ack_STALE_EPOCH, t.inbox.Position(stale[0].Origin).Epoch, stale...)
	}
}

// takeReport takes one that has not been seen before.
func (t *term) takeReport(now time.Time, in input, rep *fault.Report) {
	if rep.Digest {
		t.words[rep.ID.Origin] = spokenIn(rep, in.health)
	}
	waited := max(0, in.held+t.r.w.now.Sub(in.arrived))
	for i := range rep.Observations {
		rep.Observations[i].Age = max(0, rep.Observations[i].Age+waited)
	}
	if n := t.r.w.ids[rep.ID.Origin.Node]; n.place == nil || !n.place.transfer.ofFormer(rep.ID.Origin.Half, rep.ID.Epoch) {
		t.witness.takes(rep)
	}
	changed, _ := t.step(now, awareness.Evidence{Delivery: fault.Delivery{Report: *rep, Path: in.path, Hops: in.hops, Waited: waited}})
	t.doubleVotes(now, in, rep)
	changed = t.noteWatchdog(now, in, rep) || changed
	if rep.Digest && !changed {
		return // liveness is not committed
	}
	t.open.origins[rep.ID.Origin] = true
	if !rep.Digest {
		t.touch(rep.ID.Origin.Node)
		for _, o := range rep.Observations {
			t.touch(o.Node)
		}
		t.open.reports = append(t.open.reports, rep.ID)
		t.waiting[rep.ID] = []ackTo{in.to}
		if t.r.w.cfg.bug == bugEarlyAck {
			t.answerCommitted(in.to, []fault.ReportID{rep.ID})
		}
	}
	t.launch()
}

// awaitCommit has a copy that came another way answered with the commit of the report too, if that is
// still to come.
func (t *term) awaitCommit(id fault.ReportID, to ackTo) bool {
	list, ok := t.waiting[id]
	if ok && len(list) < maxAnswers && !slices.Contains(list, to) {
		t.waiting[id] = append(list, to)
	}
	return ok
}

// step feeds the machine and executes its output. It reports whether the map changed, and whether the machine could not
// apply the event because it lacks its subject.
func (t *term) step(now time.Time, ev awareness.Event) (changed, unknown bool) {
	out := t.machine.Step(now, ev)
	t.wake = out.Wake
	for _, c := range out.Challenges {
		t.witness.asks(c)
		t.r.challengeAll(c)
	}
	for _, c := range out.Changes {
		t.rosy(&c)
		t.open.changes = append(t.open.changes, timedChange{c, t.r.w.wrong(t, c)})
		t.touch(c.Node)
	}
	for _, id := range out.Settled {
		t.touch(id)
	}
	for _, g := range out.Groups {
		t.open.groups = append(t.open.groups, g)
		for _, id := range g.Members {
			if t.r.w.spared([]fault.NodeID{id}, g.Cause) == "" {
				t.open.hit[id] = true
			}
		}
	}
	t.launch()
	t.foldDue(now)
	t.r.sleepUntil(t.wakes())
	return len(out.Changes)+len(out.Groups) > 0, out.Unknown
}

func (t *term) touch(id fault.NodeID) {
	if n := t.r.w.ids[id]; n != nil && n.isPlaced() {
		t.open.touched[id] = true
	}
}

// launch starts a transaction with the open changes if the store is idle.
func (t *term) launch() {
	if t.inflight == nil {
		t.moveNext()
	}
	if t.inflight != nil || t.open.empty() {
		return
	}
	b := t.open
	t.open = newBatch()
	for _, n := range t.r.w.nodes {
		if !b.touched[n.id()] {
			continue
		}
		st, _ := t.machine.NodeToCommit(n.id())
		t.rosyStatus(&st)
		b.statuses = append(b.statuses, st)
		b.evidence = append(b.evidence, view.GatherAll(st, t.life, t.r.clock()))
		b.stated = append(b.stated, t.stated[n.id()])
		doc := view.Stored(st)
		view.PutEvidence(doc, b.evidence[len(b.evidence)-1])
		if is := t.stated[n.id()]; is != nil {
			doc.HostHealth = &lofamov1.HalfHealth{HardwareWatchdog: is}
		}
		b.docs = append(b.docs, doc)
	}
	t.fold(b)
	for o := range b.origins {
		b.inbox = append(b.inbox, t.inbox.Position(o))
	}
	if t.r.w.cfg.bug == bugInbox {
		b.inbox = nil
	}
	b.before, b.head = t.head, head{t.rev, t.head.batch + 1}
	t.inflight = b
	t.attempt(b, retryMin, attemptTime)
}

// attempt sends the transaction to the store, and again when no answer comes.
func (t *term) attempt(b *batch, backoff, limit time.Duration) {
	w, r := t.r.w, t.r
	answered := false
	retry := func(after time.Duration) {
		r.deliver(after, func() {
			if r.term == t && t.inflight == b && !answered {
				answered = true
				t.attempt(b, min(2*backoff, retryMax), min(2*limit, maxAttemptTime))
			}
		})
	}
	retry(limit + backoff)
	w.after(w.between(commitDelayMin/2, commitDelayMax)+w.store.slow, func() {
		switch {
		case !w.store.serves(r):
			return // no answer
		case w.store.full:
			retry(backoff)
			return
		}
		_, ok := w.store.commit(b)
		if !w.store.serves(r) {
			return
		}
		r.deliver(w.between(serviceDelayMin, serviceDelayMax), func() {
			if r.term != t || t.inflight != b || answered {
				return
			}
			answered = true
			if !ok {
				r.loseLease()
				return
			}
			t.finish(b)
		})
	})
}

// finish does the work after a commit.
func (t *term) finish(b *batch) {
	t.inflight, t.head = nil, b.head
	for _, st := range b.statuses {
		t.mine.put(st)
	}
	t.r.w.checkAgreement(t, b)
	type group struct {
		to     ackTo
		origin fault.Origin
	}
	var order []group
	ids := make(map[group][]fault.ReportID)
	for _, id := range b.reports {
		for _, to := range t.waiting[id] {
			g := group{to, id.Origin}
			if ids[g] == nil {
				order = append(order, g)
			}
			ids[g] = append(ids[g], id)
		}
		delete(t.waiting, id)
	}
	for _, g := range order {
		t.answerCommitted(g.to, ids[g])
	}
	t.launch()
}

// answerCommitted notifies a sender that it may forget its reports.
func (t *term) answerCommitted(to ackTo, ids []fault.ReportID) {
	for _, id := range ids {
		t.r.w.checkAcked(id)
	}
	t.answer(to, lofamov1.Ack_COMMITTED, 0, ids...)
}

// answer passes acks to the supervisor that received the reports, which sends them.
func (t *term) answer(to ackTo, status lofamov1.Ack_Status, highest fault.Epoch, ids ...fault.ReportID) {
	switch {
	case len(ids) == 0:
	case to.by == t.r:
		t.r.ack(to, status, highest, ids...)
	case t.r.w.store.connected(t.r, to.by):
		to.by.deliver(t.r.w.between(serviceDelayMin, serviceDelayMax), func() { to.by.ack(to, status, highest, ids...) })
	}
}

// copied is a copy of the fault map: by node, the compared part of its status.
type copied map[fault.NodeID]picture

// picture is the part of a node's status that must be the same everywhere.
type picture struct {
	state  [fault.NumComponents]fault.State // 0: it has none
	cause  [fault.NumComponents]fault.Cause
	single bool
}

func pictureOf(st awareness.NodeStatus) (p picture) {
	p.single = st.SingleWitness
	p.state[fault.ComponentNode], p.cause[fault.ComponentNode] = st.State, st.Cause
	for _, c := range st.Components {
		p.state[c.Component], p.cause[c.Component] = c.State, c.Cause
	}
	return p
}

func (c copied) put(st awareness.NodeStatus) { c[st.ID] = pictureOf(st) }

// differs describes the difference between two pictures of a node; "": none.
func (p picture) differs(o picture) string {
	for c := fault.ComponentNode; c.Valid(); c++ {
		if p.state[c] != o.state[c] || p.cause[c] != o.cause[c] {
			return fmt.Sprintf("%s is %s (%s) and %s (%s)", c, p.state[c], p.cause[c], o.state[c], o.cause[c])
		}
	}
	if p.single != o.single {
		return "single-witness is set in one"
	}
	return ""
}

package express

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Barrier names an all-to-all wait (seed 003 §4.2, §4.4.3): it is complete when each of its members has arrived, at
// any node. Generations of a name follow each other: when one is complete, all earlier ones count as complete. A name
// is never reused for another purpose.
type Barrier struct {
	Topic      Topic  // selects the receiver of the result at a node: TopicJob or TopicManage
	Name       string // 1 to MaxBarrierName bytes; of a job's it begins with the job
	Generation uint64
}

// String returns "topic name/generation".
func (b Barrier) String() string { return fmt.Sprintf("%s %s/%d", b.Topic, b.Name, b.Generation) }

// The paper's barrier is complete when no node objects for two Network Delays. Over links that lose packets silence
// proves nothing, so here the members that have arrived say so, and sets of arrivals only grow. Each node keeps the
// set of members that have arrived, as far as it knows, and of those that are gone. It merges the sets of its
// neighbours into its own, and sends that to each neighbour that is not known to have all its members, until the
// neighbour has answered. Since sets are merged by OR, duplicates, delays and reordering lose nothing. All nodes pass
// sets on, also those without members.
//
// So that not every arrival floods the whole torus, the name of a barrier gives it a place. News goes at once only to
// one neighbour that is nearer to the place, as long as one can be reached; the others get it after lazyPeriods,
// unless the barrier is over before. So arrivals are collected along a tree, and news that comes while a neighbour
// has not answered yet is sent together. The end of a barrier goes back along the tree at once. A waiter that does
// not learn it by that way has sent its set to others by then, and learns it from these.
//
// A node with waiters also asks its neighbours once in AskEvery, and these ask theirs. So a restarted node learns
// again the sets that it forgot, and a node that missed the end of a barrier finds one that knows. A barrier does not
// wait for a member that is gone: waiters get the member's rank, and the barrier has failed.
//
// The payload of frames of TypeBarrier, big endian:
//
//	offset  size  field
//	  0      1    kind: 1 a set, to be answered; 2 an answer: the set of who answers, merged; higher ones are ignored
//	  1      1    topic
//	  2      2    members, 1 to MaxMembers: their ranks are 0 to members-1
//	  4      8    generation
//	 12      1    n, length of the name, 1 to MaxBarrierName
//	 13      1    g, members that are gone, at most MaxGone: those of the lowest ranks
//	 14      n    name
//	       2·g    their ranks, ascending
//	  (members+7)/8  who has arrived: rank r is bit r%8, from the lowest, of byte r/8
const (
	// MaxMembers bounds the members of a barrier.
	MaxMembers = 8192
	// MaxBarrierName bounds its name, in bytes.
	MaxBarrierName = 64
	// MaxGone bounds the number of gone members that are named.
	MaxGone = 16
	// MaxBarriers is the number of barriers that a node knows at once. Beyond that, it forgets those that are over
	// first, then those without waiters here.
	MaxBarriers = 256
	// AskEvery is the time between questions of a node with a waiter.
	AskEvery = time.Second
	// lazyPeriods is the delay of news for a neighbour that is not nearer to a barrier's place, in link periods.
	lazyPeriods = 4
	// forgetOver is how long a node keeps the full state of a barrier that is over; forgetIdle is how long it keeps
	// one without waiters here and without messages.
	forgetOver, forgetIdle = time.Minute, 2 * time.Minute
	// maxPassed bounds the names remembered with the last generation that was completed.
	maxPassed = 4096
	// barrierRate bounds the sets sent by a link in a second, except for complete ones; barrierBurst bounds those
	// sent at once. Sets that are held back are merged.
	barrierRate, barrierBurst = 800, 256
	// heardRate and heardBurst bound the sets accepted from one link.
	heardRate, heardBurst = 1000, 500
)

// Events of Barriers, besides *Received (of frames of TypeBarrier), Tick and Ways.
type (
	// Arrive says that members have arrived at this node and wait; without ranks it only waits. It may be repeated. A
	// waiter must repeat it about once in a second, since this half may restart. Gone lists members that are known to
	// be gone.
	Arrive struct {
		Barrier
		Members     int // 1 to MaxMembers, the same everywhere
		Ranks, Gone []int
	}
	// Leave says that this node no longer has a waiter. Members that have arrived stay so.
	Leave struct{ Barrier }
)

func (Arrive) expressEvent() {}
func (Leave) expressEvent()  {}

// BarrierResult ends a wait. The barrier is complete if Gone is empty.
type BarrierResult struct {
	Barrier
	Gone []int // ranks that are gone and had not arrived, ascending, at most MaxGone
}

// BarrierOutput lists the actions of a step: send frames of TypeBarrier, inform waiters, call Step at Wake.
type BarrierOutput struct {
	Send    []Send
	Results []BarrierResult // each wait ends once
	Bad     bool
	Err     error // of Arrive
	Wake    time.Time
}

// ErrBarrier refuses an Arrive. Test with errors.Is.
var ErrBarrier = errors.New("not a barrier")

// BarrierStats count.
type BarrierStats struct {
	Known, Waiting               int // now
	Completed, Failed            uint64
	Sent, Repeated, Dropped, Bad uint64 // frames; dropped were more than heardRate
}

// Barriers are the barriers of one node. One goroutine owns it.
type Barriers struct {
	links   Mask
	period  time.Duration
	ways    Ways
	dims    grid.Dims // zero: not placed
	self    grid.Coord
	all     map[Barrier]*barrier
	order   []*barrier // as they began
	news    []*barrier // those with news for a neighbour, perhaps
	sweep   time.Time  // before then the node neither asks nor forgets
	passed  map[passedKey]passed
	buckets [grid.NumDirections]bucket
	heard   [grid.NumDirections]bucket
	out     BarrierOutput
	stats   BarrierStats
}

type passedKey struct {
	topic Topic
	name  string
}

// passed is the newest generation that was complete, and its members. Another number of members means another torus, or
// other users of the name: the earlier group's result says nothing about the new one.
type passed struct {
	generation uint64
	members    int
}

type barrier struct {
	of      Barrier
	members int
	arrived set
	gone    []int // ascending
	waits   bool
	over    bool
	inNews  bool
	heardAt time.Time // or arrived here
	askAt   time.Time // while this node has a waiter, or asks
	up      Mask      // the directions that lead nearer to its place
	place   bool      // it is here
	peers   [grid.NumDirections]barrierPeer
}

// barrierPeer is the known state of a neighbour's set.
type barrierPeer struct {
	has   set
	gone  []int
	tells bool // it has sent a set by itself: it is farther from the place, and waits for news from here
	asked bool // it was sent a set, and nothing has come from it since
	must  bool // ask it in any case
	again time.Time
	step  time.Duration

	lazy time.Time // deadline for news to neighbours that are not nearer to the place; zero: there is no news

	toldOver bool
}

// NewBarriers returns the barriers of a node with these links, whose heartbeats have this period. No way is open.
func NewBarriers(links Mask, period time.Duration) *Barriers {
	return &Barriers{links: links, period: period, all: map[Barrier]*barrier{}, passed: map[passedKey]passed{}}
}

// Place sets the position of the node, before the first Step; later Move does. Without a place, every neighbour gets every arrival at
// once.
func (b *Barriers) Place(dims grid.Dims, self grid.Coord) { b.dims, b.self = dims, self }

// Move changes the node's links and its position in a torus that has changed. The barriers that are known continue:
// their sets go towards their places in the new torus. Send Ways next.
func (b *Barriers) Move(links Mask, dims grid.Dims, self grid.Coord) {
	b.links = links
	b.Place(dims, self)
	for _, k := range b.order {
		k.up, k.place = b.towards(k.of)
		b.touch(k)
	}
}

// Step handles one event: Arrive, Leave, *Received, Tick or Ways.
func (b *Barriers) Step(now time.Time, ev Event) BarrierOutput {
	b.out = BarrierOutput{Send: b.out.Send[:0]}
	switch ev := ev.(type) {
	case Tick:
		b.tick(now)
	case *Received:
		b.receive(now, ev)
	case Arrive:
		b.out.Err = b.arrive(now, ev)
	case Leave:
		if k := b.all[ev.Barrier]; k != nil {
			k.waits = false
		}
	case Ways:
		b.setWays(ev)
	}
	b.tellAll(now)
	b.out.Wake = b.sweep
	if len(b.news) > 0 {
		b.out.Wake = fault.Earliest(b.sweep, now.Add(b.period))
	}
	return b.out
}

func (a *Arrive) check() error {
	switch {
	case a.Topic == 0:
		return fmt.Errorf("barrier %s: topic 0, want 1 to 255: %w", a.Barrier, ErrBarrier)
	case len(a.Name) == 0 || len(a.Name) > MaxBarrierName:
		return fmt.Errorf("barrier %s: name of %d bytes, want 1 to %d: %w", a.Barrier, len(a.Name), MaxBarrierName, ErrBarrier)
	case a.Members < 1 || a.Members > MaxMembers:
		return fmt.Errorf("barrier %s: %d members, want 1 to %d: %w", a.Barrier, a.Members, MaxMembers, ErrBarrier)
	}
	for _, r := range slices.Concat(a.Ranks, a.Gone) {
		if r < 0 || r >= a.Members {
			return fmt.Errorf("barrier %s: rank %d, want 0 to %d: %w", a.Barrier, r, a.Members-1, ErrBarrier)
		}
	}
	return nil
}

func (b *Barriers) arrive(now time.Time, a Arrive) error {
	if err := a.check(); err != nil {
		return err
	}
	k := b.all[a.Barrier]
	if k == nil && b.hasPassed(a.Barrier, a.Members) {
		b.out.Results = append(b.out.Results, BarrierResult{Barrier: a.Barrier})
		return nil
	}
	if k == nil {
		if k = b.begin(now, a.Barrier, a.Members); k == nil {
			return fmt.Errorf("barrier %s: somebody waits for %d others: %w", a.Barrier, MaxBarriers, ErrNoRoom)
		}
	}
	if k.members != a.Members {
		return fmt.Errorf("barrier %s: %d members, others say %d: %w", a.Barrier, a.Members, k.members, ErrBarrier)
	}
	if !k.waits && !k.over {
		k.askAt = now.Add(AskEvery)
		b.sweep = fault.Earliest(b.sweep, k.askAt)
	}
	k.waits, k.heardAt = true, now
	b.touch(k)
	for _, r := range a.Ranks {
		k.arrived.add(r)
	}
	k.leave(a.Gone)
	if k.over {
		b.result(k)
		return nil
	}
	b.judge(k)
	return nil
}

// leave notes gone members. It keeps the lowest ranks, so that all nodes come to keep the same.
func (k *barrier) leave(ranks []int) {
	for _, r := range ranks {
		if i, known := slices.BinarySearch(k.gone, r); !known {
			k.gone = slices.Insert(k.gone, i, r)
		}
	}
	k.gone = k.gone[:min(len(k.gone), MaxGone)]
}

// begin adds a barrier. It returns nil when there is no room.
func (b *Barriers) begin(now time.Time, of Barrier, members int) *barrier {
	if len(b.order) >= MaxBarriers {
		i := slices.IndexFunc(b.order, func(k *barrier) bool { return k.over })
		if i < 0 {
			i = slices.IndexFunc(b.order, func(k *barrier) bool { return !k.waits })
		}
		if i < 0 {
			return nil
		}
		b.forget(b.order[i])
	}
	k := &barrier{of: of, members: members, arrived: newSet(members), heardAt: now, askAt: now.Add(AskEvery)}
	for i := range k.peers {
		k.peers[i] = barrierPeer{has: newSet(members), must: true}
	}
	k.up, k.place = b.towards(of)
	b.all[of] = k
	b.order = append(b.order, k)
	b.touch(k)
	b.sweep = fault.Earliest(b.sweep, now.Add(forgetOver))
	return k
}

// towards returns the directions that lead nearer to a barrier's place, and whether it is here.
func (b *Barriers) towards(of Barrier) (up Mask, here bool) {
	if b.dims == (grid.Dims{}) {
		return b.links, false
	}
	h := fnv.New32a()
	_, _ = h.Write(append([]byte(of.Name), byte(of.Topic))) // never fails
	place := b.dims.Node(int(h.Sum32()>>1) % b.dims.Nodes())
	return Mask(b.dims.Nearer(b.self, place)) & b.links, b.self == place
}

func (b *Barriers) forget(k *barrier) {
	delete(b.all, k.of)
	b.order = slices.DeleteFunc(b.order, func(o *barrier) bool { return o == k })
}

// hasPassed reports whether this barrier, or a later generation with the same number of members, was complete.
func (b *Barriers) hasPassed(of Barrier, members int) bool {
	p, known := b.passed[passedKey{of.Topic, of.Name}]
	return known && of.Generation <= p.generation && members == p.members
}

// judge ends a barrier that is complete, or cannot become so.
func (b *Barriers) judge(k *barrier) {
	switch {
	case k.over:
	case k.complete():
		b.becomeComplete(k)
	case len(k.missing()) > 0:
		b.becomeFailed(k)
	}
}

func (b *Barriers) becomeComplete(k *barrier) {
	b.end(k)
	b.stats.Completed++
	key := passedKey{k.of.Topic, k.of.Name}
	last, known := b.passed[key]
	if !known && len(b.passed) >= maxPassed {
		b.passed = map[passedKey]passed{} // their last generations are still known in full for a minute
	}
	if !known || last.members != k.members || last.generation < k.of.Generation {
		b.passed[key] = passed{k.of.Generation, k.members}
	}
	b.result(k)
	for _, o := range b.order { // latecomers to earlier generations get the same result
		if !o.over && o.of.Topic == k.of.Topic && o.of.Name == k.of.Name && o.members == k.members &&
			o.of.Generation < k.of.Generation {
			o.arrived = fullSet(o.members)
			b.becomeComplete(o)
		}
	}
}

func (b *Barriers) becomeFailed(k *barrier) {
	b.end(k)
	b.stats.Failed++
	b.result(k)
}

func (b *Barriers) end(k *barrier) {
	k.over = true
	b.touch(k)
	b.sweep = fault.Earliest(b.sweep, k.heardAt.Add(forgetOver))
}

// missing returns the members that are gone and had not arrived.
func (k *barrier) missing() []int {
	return slices.DeleteFunc(slices.Clone(k.gone), func(r int) bool { return k.arrived.has(r) })
}

// result informs a waiter, once.
func (b *Barriers) result(k *barrier) {
	if !k.waits {
		return
	}
	k.waits = false
	res := BarrierResult{Barrier: k.of}
	if !k.complete() {
		res.Gone = k.missing()
	}
	b.out.Results = append(b.out.Results, res)
}

func (b *Barriers) receive(now time.Time, r *Received) {
	if len(r.Payload) > 0 && r.Payload[0] > setAnswer {
		return // of a later version
	}
	f, err := decodeSet(r.Payload)
	if err != nil || !b.links.Has(r.Dir) {
		b.out.Bad = true
		b.stats.Bad++
		return
	}
	i := r.Dir.Index()
	b.heard[i].settle(now, heardRate)
	if !b.heard[i].has(heardBurst) {
		b.stats.Dropped++
		return
	}
	b.heard[i].spent++
	k := b.all[f.of]
	switch {
	case k != nil:
	case b.hasPassed(f.of, f.members):
		if f.kind == setNews {
			b.send(r.Dir, setFrame{setAnswer, f.of, f.members, fullSet(f.members), nil})
		}
		return
	default:
		if k = b.begin(now, f.of, f.members); k == nil {
			b.stats.Dropped++
			return
		}
	}
	if k.members != f.members { // one of us is wrong; our own members learn that when they arrive
		b.out.Bad = true
		b.stats.Bad++
		return
	}
	k.heardAt = now
	b.touch(k)
	k.arrived.merge(f.arrived)
	k.leave(f.gone)
	p := &k.peers[i]
	p.tells = p.tells || f.kind == setNews
	crossed := p.asked && p.toldOver && k.complete() // the frame on its way there says all that an answer would
	p.has, p.gone, p.must, p.asked = f.arrived, f.gone, false, false
	b.judge(k)
	if f.kind != setNews {
		return
	}
	if !crossed {
		b.answer(k, r.Dir)
	}
	if !k.over && !k.waits && !now.Before(k.askAt) { // a neighbour's waiter waits longer than the barrier should take
		k.askAll(now)
		p.must = false
	}
}

// askAll marks all neighbours for a request, regardless of their known sets.
func (k *barrier) askAll(now time.Time) {
	k.askAt = now.Add(AskEvery)
	for i := range k.peers {
		k.peers[i].must = true
	}
}

// answer sends a neighbour the known set. If the frame is lost the neighbour asks again, so the set counts as known
// there.
func (b *Barriers) answer(k *barrier, d grid.Direction) {
	p := &k.peers[d.Index()]
	p.has, p.gone = slices.Clone(k.arrived), slices.Clone(k.gone)
	b.send(d, setFrame{setAnswer, k.of, k.members, k.arrived, k.gone})
}

func (b *Barriers) setWays(w Ways) {
	w.Open &= b.links
	opened := w.Open &^ b.ways.Open
	b.ways = Ways{Open: w.Open, Good: w.Good & w.Open}
	for _, k := range b.order {
		opened.each(func(i int) { k.peers[i].asked, k.peers[i].must = false, true })
		b.touch(k)
	}
}

// tick makes waiting barriers ask again, and forgets those that are over.
func (b *Barriers) tick(now time.Time) {
	if b.sweep.IsZero() || now.Before(b.sweep) {
		return
	}
	b.sweep = time.Time{}
	for _, k := range slices.Clone(b.order) {
		quiet := now.Sub(k.heardAt)
		switch {
		case k.over && quiet >= forgetOver, !k.waits && quiet >= forgetIdle:
			b.forget(k)
			continue
		case k.waits && !now.Before(k.askAt):
			k.askAll(now)
			b.touch(k)
		}
		if k.waits {
			b.sweep = fault.Earliest(b.sweep, k.askAt)
		}
		if k.over {
			b.sweep = fault.Earliest(b.sweep, k.heardAt.Add(forgetOver))
		} else if !k.waits {
			b.sweep = fault.Earliest(b.sweep, k.heardAt.Add(forgetIdle))
		}
	}
}

// Busy reports whether a Tick may have an effect.
func (b *Barriers) Busy() bool { return len(b.order) > 0 }

// Arrived returns the members that are known to have arrived, and false for a barrier that is not known here.
func (b *Barriers) Arrived(of Barrier) (ranks []int, ok bool) {
	k := b.all[of]
	if k == nil {
		return nil, false
	}
	for r := range k.members {
		if k.arrived.has(r) {
			ranks = append(ranks, r)
		}
	}
	return ranks, true
}

// Stats returns the counters.
func (b *Barriers) Stats() BarrierStats {
	s := b.stats
	s.Known = len(b.order)
	for _, k := range b.order {
		if k.waits {
			s.Waiting++
		}
	}
	return s
}

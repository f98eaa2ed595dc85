package servicenet

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// world is the model: an outbox with its spool, a network, and supervisors of which one leads and has
// the inbox and the store.
type world struct {
	t interface {
		Helper()
		Fatalf(format string, args ...any)
	}
	seed   uint64
	rng    *rand.Rand
	now    time.Duration
	events eventQueue
	n      int

	// The half.
	o       *Outbox
	epoch   fault.Epoch // on its disk
	life    int         // of its process: packets for an earlier one do not reach it
	wake    time.Duration
	spool   map[fault.ReportID]kept
	recent  []fault.ReportID // kept last: a lazy spool may lose these
	added   int
	want    int
	wanted  []bool          // by number: kept, so that it must arrive
	created []time.Duration // by number
	lazy    bool
	warm    bool // a life goes on from copied
	copied  OutboxSnapshot
	told    map[fault.ReportID]string // the content under each number, while warm
	changed func(fault.State)         // of the service network
	dead    bool
	crashAt int // the stage of the next output at which the process dies; 0: it does not

	// The network.
	loss, dup, corrupt float64
	silent             bool // no checksum: the signature refuses damaged messages, silently
	delay, commit      int  // at most, in ms
	cut                [2]bool
	clean              bool // torus and gossip lose nothing

	// The supervisors.
	set        func(*OutboxConfig, *Supervisors)
	slow       func(supervisor int) time.Duration // to answer; nil: they are not
	down       [3]bool
	leader     int
	term       int
	inbox      *Inbox
	pending    map[fault.ReportID]fault.Report
	committing bool
	storeDown  bool
	saved      []InboxPosition
	committed  []uint8 // by number

	trouble trouble
	quiet   bool // no more of it
	count   counts
}

// trouble is the mean time between events of each kind; 0: never.
type trouble struct{ leader, supervisor, blackout, store, agent, iface time.Duration }

type counts struct{ sent, lost, damaged, duplicates, migrations, reestablished, dead, isolated, replies int }

type kept struct {
	r  fault.Report
	at time.Duration
}

type timed struct {
	at time.Duration
	n  int
	f  func()
}

type eventQueue []timed

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].n < q[j].n
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(timed)) }
func (q *eventQueue) Pop() any {
	x := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return x
}

var modelSupervisors = []string{"s0", "s1", "s2"}

func newWorld(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, seed uint64,
) *world {
	w := &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), inbox: NewInbox(nil),
		spool: map[fault.ReportID]kept{}, told: map[fault.ReportID]string{}, pending: map[fault.ReportID]fault.Report{}}
	return w
}

func (w *world) failf(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d, at %v: %s", w.seed, w.now, fmt.Sprintf(format, args...))
}

func (w *world) at() time.Time { return epochStart.Add(w.now) }

func (w *world) after(d time.Duration, f func()) {
	w.n++
	heap.Push(&w.events, timed{w.now + d, w.n, f})
}

// alive is after for events that end with the half's process.
func (w *world) alive(d time.Duration, f func()) {
	life := w.life
	w.after(d, func() {
		if life == w.life {
			f()
		}
	})
}

// start begins a life of the half.
func (w *world) start() {
	w.life++
	if !w.warm || w.life == 1 {
		w.epoch++
	}
	cfg := DefaultOutboxConfig(fault.PathDirect, fault.PathGossip, fault.PathTorus)
	cfg.Interfaces = []string{"if0", "if1"}
	supervisors := Supervisors{Targets: modelSupervisors, Leader: "s0"}
	if w.set != nil {
		w.set(&cfg, &supervisors)
	}
	o, err := NewOutbox(origin("n0-0-0/host"), w.epoch, cfg)
	if err != nil {
		w.failf("%v", err)
	}
	w.o, w.wake, w.crashAt, w.recent, w.dead = o, -1, 0, nil, false
	var back []Kept
	for _, k := range w.spool {
		back = append(back, Kept{k.r, w.now - k.at})
	}
	slices.SortFunc(back, func(a, b Kept) int {
		return cmp.Or(cmp.Compare(a.Report.ID.Epoch, b.Report.ID.Epoch), cmp.Compare(a.Report.ID.Seq, b.Report.ID.Seq))
	})
	if w.warm && w.life > 1 {
		o.Resume(w.copied)
	}
	w.take(o.Restore(w.at(), back))
	w.step(supervisors)
	w.digest()
}

func (w *world) digest() {
	_, out := w.o.Add(w.at(), fault.Report{Digest: true})
	w.take(out)
	w.alive(500*time.Millisecond, w.digest)
}

func (w *world) step(ev Event) {
	if !w.dead {
		w.take(w.o.Step(w.at(), ev))
	}
}

// generate adds n reports as fast as the log accepts them without dropping any.
func (w *world) generate(n int) {
	w.want = n
	w.wanted, w.committed, w.created = make([]bool, n), make([]uint8, n), make([]time.Duration, n)
	w.start()
	var next func()
	next = func() {
		room := 100
		if w.storeDown {
			room = 1000
		}
		for range w.rng.IntN(4) {
			if w.added < n && !w.dead && len(w.spool) < room {
				w.add()
			}
		}
		if w.added < n {
			w.after(time.Duration(w.rng.IntN(2000))*time.Microsecond, next)
		}
	}
	next()
	w.afflict(w.trouble.leader, func() { w.lead(w.rng.IntN(3)) })
	w.afflict(w.trouble.supervisor, func() {
		i := w.rng.IntN(3)
		w.down[i] = true
		w.after(time.Duration(w.rng.IntN(1000))*time.Millisecond, func() { w.down[i] = false })
		if i == w.leader {
			w.after(300*time.Millisecond, func() { w.lead((i + 1) % 3) })
		}
	})
	w.afflict(w.trouble.blackout, func() {
		w.down = [3]bool{true, true, true}
		w.after(time.Duration(w.rng.IntN(4000))*time.Millisecond, func() { w.down = [3]bool{} })
	})
	w.afflict(w.trouble.store, func() {
		w.storeDown = true
		w.after(time.Duration(w.rng.IntN(2000))*time.Millisecond, func() { w.storeDown = false })
	})
	w.afflict(w.trouble.agent, func() { w.crashAt = 1 + w.rng.IntN(4) })
	w.afflict(w.trouble.iface, w.flap)
}

func (w *world) add() {
	number := w.added
	w.added++
	w.created[number] = w.now
	_, out := w.o.Add(w.at(), fault.Report{Observations: []fault.Observation{{
		Component: modelComponent(number), State: fault.Sick, Kind: fault.KindSelf, Detail: strconv.Itoa(number)}}})
	w.take(out)
}

func modelComponent(number int) fault.Component {
	return []fault.Component{fault.ComponentMemory, fault.ComponentPower, fault.ComponentVoltage}[number%3]
}

func (w *world) afflict(mean time.Duration, f func()) {
	if mean == 0 {
		return
	}
	w.after(mean/2+time.Duration(w.rng.Int64N(int64(mean))), func() {
		if !w.quiet {
			f()
			w.afflict(mean, f)
		}
	})
}

func (w *world) flap() {
	i := w.rng.IntN(2)
	w.cut[i] = true
	told := w.rng.IntN(2) == 0
	if told {
		w.step(RailDown{Path: fault.PathDirect, Interface: uint8(i)})
	}
	w.after(time.Duration(w.rng.IntN(500))*time.Millisecond, func() {
		w.cut[i] = false
		if told {
			w.step(RailUp{Path: fault.PathDirect, Interface: uint8(i)})
		}
	})
}

// lead makes i the leader: it begins with the content of the store.
func (w *world) lead(i int) {
	w.leader, w.term = i, w.term+1
	w.inbox, w.committing = NewInbox(w.saved), false
	clear(w.pending)
}

// finish runs until all is added, ends the trouble, and checks.
func (w *world) finish(n int) {
	for w.added < n {
		w.next()
	}
	w.quiet, w.crashAt = true, 0
	w.loss, w.dup, w.corrupt = 0, 0, 0
	for end := w.now + 10*time.Minute; len(w.spool) > 0 && w.now < end; {
		w.next()
	}
	s := w.o.Stats()
	if len(w.spool) != 0 || s.Shortened != 0 || s.Pending > s.Received+1 {
		w.failf("%d reports are still kept: %+v", len(w.spool), s)
	}
	for i, c := range w.committed {
		if c > 1 || c == 0 && w.wanted[i] {
			w.failf("report %d was committed %d times", i, c)
		}
	}
}

func (w *world) next() {
	if w.wake >= 0 && (len(w.events) == 0 || w.wake < w.events[0].at) {
		w.now = w.wake
		w.step(Tick{})
		return
	}
	ev := heap.Pop(&w.events).(timed)
	w.now = ev.at
	ev.f()
}

// crashed lets the process die at this stage of an output if its time has come. It does not where a report would be
// so many restarts old that supervisors could not distinguish it from a replay.
func (w *world) crashed(stage int) bool {
	if w.crashAt != stage {
		return false
	}
	for id := range w.spool {
		if !w.warm && w.epoch-id.Epoch >= EarlierEpochs {
			w.crashAt = 0
			return false
		}
	}
	w.crashAt = 0
	w.life++
	w.wake = -1
	if w.lazy && len(w.recent) > 0 {
		for _, id := range w.recent[w.rng.IntN(len(w.recent)):] {
			if k, ok := w.spool[id]; ok {
				w.wanted[number(k.r)] = false
				delete(w.spool, id)
			}
		}
	}
	w.dead = true
	w.after(50*time.Millisecond, w.start)
	return true
}

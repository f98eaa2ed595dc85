package servicenet

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// TestEveryReportIsCommittedOnce plays one outbox against three supervisors with a store, through
// loss, duplicates, reordering, slow commits, a store that stops, and leaders that die between
// RECEIVED and the commit. After the trouble every report must have been committed exactly once,
// unaltered, and the log must be empty.
func TestEveryReportIsCommittedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.Uint64().Draw(t, "seed"))
		w.loss = rapid.Float64Range(0, 0.8).Draw(t, "loss")
		w.dup = rapid.Float64Range(0, 0.5).Draw(t, "dup")
		w.delay = rapid.IntRange(1, 200).Draw(t, "delay ms")
		w.commit = rapid.IntRange(1, 1000).Draw(t, "commit ms")
		reports := rapid.IntRange(1, 600).Draw(t, "reports")
		span := rapid.IntRange(1, 30).Draw(t, "span s")
		w.schedule(reports, time.Duration(span)*time.Second, rapid.IntRange(0, 5).Draw(t, "leader changes"),
			rapid.Bool().Draw(t, "store outage"))
		w.run(time.Duration(span) * time.Second)
		w.loss, w.dup, w.storeDown = 0, 0, false
		w.run(time.Duration(span)*time.Second + 10*time.Minute)
		if s := w.o.Stats(); s.Pending != 0 || s.Shortened != 0 {
			t.Fatalf("the log is not empty: %+v", s)
		}
		for i := range reports {
			if n := w.committed[fmt.Sprint(i)]; n != 1 {
				t.Fatalf("report %d was committed %d times", i, n)
			}
		}
	})
}

type world struct {
	t         *rapid.T
	rng       *rand.Rand
	o         *Outbox
	now       time.Duration
	wake      time.Duration // -1: none
	events    eventQueue
	n         int
	loss, dup float64
	delay     int
	commit    int
	storeDown bool

	inbox      *Inbox // of the leader
	leader     int
	term       int
	pending    map[fault.ReportID]fault.Report
	committing bool
	done       map[fault.ReportID]bool
	saved      []InboxPosition
	committed  map[string]int
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

func newWorld(t *rapid.T, seed uint64) *world {
	o, err := NewOutbox(origin("n0-0-0/host"), 1, DefaultOutboxConfig(fault.PathDirect, fault.PathGossip, fault.PathTorus))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), o: o, wake: -1, inbox: NewInbox(nil),
		pending: map[fault.ReportID]fault.Report{}, done: map[fault.ReportID]bool{}, committed: map[string]int{}}
	w.take(o.Step(w.at(), Supervisors{Targets: []string{"s0", "s1", "s2"}, Leader: "s0"}))
	return w
}

func (w *world) at() time.Time { return epochStart.Add(w.now) }

func (w *world) after(d time.Duration, f func()) {
	w.n++
	heap.Push(&w.events, timed{w.now + d, w.n, f})
}

func (w *world) schedule(reports int, span time.Duration, changes int, outage bool) {
	for i := range reports {
		w.after(time.Duration(w.rng.Int64N(int64(span))), func() {
			_, out := w.o.Add(w.at(), fault.Report{Observations: []fault.Observation{{
				Component: fault.ComponentMemory, State: fault.Sick, Kind: fault.KindSelf, Detail: fmt.Sprint(i)}}})
			w.take(out)
		})
	}
	for d := time.Duration(0); d < span; d += 500 * time.Millisecond {
		w.after(d, func() {
			_, out := w.o.Add(w.at(), fault.Report{Digest: true})
			w.take(out)
		})
	}
	for range changes {
		w.after(time.Duration(w.rng.Int64N(int64(span))), func() {
			w.leader, w.term = w.rng.IntN(3), w.term+1
			w.inbox, w.committing = NewInbox(w.saved), false
			clear(w.pending)
		})
	}
	if outage {
		w.after(span/4, func() { w.storeDown = true })
	}
}

func (w *world) run(until time.Duration) {
	for {
		tick := w.wake >= 0 && (len(w.events) == 0 || w.wake < w.events[0].at)
		next := w.wake
		if !tick {
			if len(w.events) == 0 {
				return
			}
			next = w.events[0].at
		}
		if next > until {
			w.now = until
			return
		}
		w.now = next
		if tick {
			w.take(w.o.Step(w.at(), Tick{}))
			continue
		}
		heap.Pop(&w.events).(timed).f()
	}
}

// transmit runs f once, never or twice, after a while.
func (w *world) transmit(f func()) {
	n := 1
	if w.rng.Float64() < w.loss {
		n = 0
	} else if w.rng.Float64() < w.dup {
		n = 2
	}
	for range n {
		w.after(time.Duration(1+w.rng.IntN(w.delay*1000))*time.Microsecond, f)
	}
}

func (w *world) take(out Output) {
	w.wake = -1
	if !out.Wake.IsZero() {
		w.wake = out.Wake.Sub(epochStart)
	}
	for _, s := range out.Send {
		for i := range 3 {
			name := fmt.Sprintf("s%d", i)
			if s.Path == fault.PathDirect && s.Target != name || s.Path == fault.PathTorus && i != int(s.Reports[0].ID.Seq)%3 {
				continue
			}
			w.transmit(func() { w.arrive(i, s) })
		}
	}
}

func (w *world) arrive(i int, s Send) {
	w.ack(i, lofamov1.Ack_RECEIVED, s.Reports[0].ID, s.Path)
	w.after(time.Millisecond, func() { w.evidence(s) })
}

func (w *world) ack(i int, st lofamov1.Ack_Status, id fault.ReportID, p fault.Path) {
	a := NewAcks(st, id)[0]
	a.Leader = fmt.Sprintf("s%d", w.leader)
	if p == fault.PathGossip {
		p = fault.PathDirect
	}
	w.transmit(func() { w.take(w.o.Step(w.at(), Acked{Ack: a, Supervisor: fmt.Sprintf("s%d", i), Path: p})) })
}

// evidence is the leader's part.
func (w *world) evidence(s Send) {
	id := s.Reports[0].ID
	if s.Reports[0].Digest {
		w.inbox.Accept(id, true)
		return
	}
	switch v := w.inbox.Accept(id, false); v {
	case Fresh:
		w.pending[id] = s.Reports[0]
		w.flush()
	case Duplicate:
		if _, ok := w.pending[id]; !ok {
			if !w.done[id] {
				w.t.Fatalf("%s is a duplicate that was never committed: a lost report", id)
			}
			w.ack(w.leader, lofamov1.Ack_COMMITTED, id, s.Path)
		}
	default:
		w.t.Fatalf("%s: %s", id, v)
	}
}

// flush commits everything pending in one transaction, one at a time.
func (w *world) flush() {
	if w.committing || len(w.pending) == 0 {
		return
	}
	w.committing = true
	batch := slices.SortedFunc(maps.Values(w.pending), func(a, b fault.Report) int { return cmp.Compare(a.ID.Seq, b.ID.Seq) })
	positions, term := w.inbox.Positions(), w.term
	var commit func()
	commit = func() {
		if term != w.term {
			return // fenced
		}
		if w.storeDown {
			w.after(100*time.Millisecond, commit)
			return
		}
		w.saved, w.committing = positions, false
		for _, r := range batch {
			id := r.ID
			delete(w.pending, id)
			w.done[id] = true
			w.committed[r.Observations[0].Detail]++
			w.ack(w.leader, lofamov1.Ack_COMMITTED, id, fault.PathDirect)
		}
		w.flush()
	}
	w.after(time.Duration(1+w.rng.IntN(w.commit))*time.Millisecond, commit)
}

package bulk

import (
	"bytes"
	"container/heap"
	"crypto/ecdh"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/testing/fixedseed"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

func TestMain(m *testing.M) { os.Exit(fixedseed.Main(m)) }

var (
	start = time.Unix(0, 0)
	self  = fault.Origin{Node: "n1-0-1", Half: fault.HalfHost}
)

// fataler is a test or a property.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a sender and a receiver with links between them, in virtual time.
type world struct {
	t       fataler
	rng     *rand.Rand
	now     time.Duration
	seq     int
	events  eventHeap
	links   map[Way]*link
	object  []byte
	job     Job
	s       *Sender
	scfg    SenderConfig
	rcfg    ReceiverConfig
	sWake   time.Time
	r       *Receiver
	rWake   time.Time
	gather  time.Duration // time to gather
	sum     time.Duration
	badSums int    // the next so many checksums are wrong
	failure string // instead of gathering
	held    map[Transfer]bool

	got      []byte
	waiting  int           // delivered chunks that the consumer has not taken
	interval time.Duration // the consumer's time for a chunk; 0: none
	stopped  bool          // the consumer
	busy     bool          // it takes a chunk just now
	outcome  *Outcome
	way      Way
	last     []byte // chunk packet that arrived last
	note     func(format string, args ...any)
}

// link is one way, in both directions.
type link struct {
	loss, dup     float64
	delay, jitter time.Duration
	cut, noChunks bool
	carried       int // packets
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	x := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return x
}

func newWorld(t fataler, seed uint64, size int, ways ...Way) *world {
	w := &world{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)),
		links: make(map[Way]*link), held: make(map[Transfer]bool),
		scfg: DefaultSenderConfig(), rcfg: DefaultReceiverConfig(),
		gather: 50 * time.Millisecond, sum: 20 * time.Millisecond,
		note: func(string, ...any) {},
	}
	w.object = make([]byte, size)
	for i := range w.object {
		w.object[i] = byte(w.rng.Uint32())
	}
	for _, way := range ways {
		w.links[way] = &link{delay: time.Millisecond}
		if way.Via != "" {
			w.links[way].delay = 5 * time.Millisecond
		}
	}
	w.job = Job{Origin: self, Object: "bundle", MaxSize: MaxSize, Supervisor: "s1", ReplyTo: "10.0.0.1:7000", Ways: ways,
		Exchanges: [2]Exchange{w.exchange(), w.exchange()}}
	w.restartSender()
	return w
}

func (w *world) private() *ecdh.PrivateKey {
	b := make([]byte, 32)
	for i := range b {
		b[i] = byte(w.rng.Uint32())
	}
	k, err := ecdh.X25519().NewPrivateKey(b)
	w.must(err)
	return k
}

func (w *world) exchange() Exchange {
	e := Exchange{Private: w.private()}
	for i := range e.Transfer {
		e.Transfer[i] = byte(w.rng.Uint32())
	}
	return e
}

func (w *world) must(err error) {
	if err != nil {
		w.t.Helper()
		w.t.Fatalf("at %v: %v", w.now, err)
	}
}

func (w *world) restartSender() {
	s, err := NewSender(self, w.scfg)
	w.must(err)
	w.s, w.sWake = s, time.Time{}
	clear(w.held)
}

func (w *world) begin() {
	r, out, err := NewReceiver(w.time(), w.rcfg, w.job)
	w.must(err)
	w.r, w.way = r, w.job.Ways[0]
	w.takeReceiver(out)
}

func (w *world) time() time.Time { return start.Add(w.now) }

func (w *world) at(after time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{w.now + after, w.seq, do})
}

// run lets time pass up to the end, or up to the outcome if untilOutcome is set.
func (w *world) run(end time.Duration, untilOutcome bool) {
	for !untilOutcome || w.outcome == nil {
		at, do := end+1, func() {}
		if len(w.events) > 0 && w.events[0].at < at {
			at = w.events[0].at
			do = func() { heap.Pop(&w.events).(event).do() }
		}
		if t := w.sWake; !t.IsZero() && t.Sub(start) < at {
			at, do = max(w.now, t.Sub(start)), func() { w.stepSender(Tick{}) }
		}
		if t := w.rWake; !t.IsZero() && t.Sub(start) < at {
			at, do = max(w.now, t.Sub(start)), func() { w.stepReceiver(Tick{}) }
		}
		if at > end {
			w.now = end
			return
		}
		w.now = at
		do()
	}
}

// carry sends something over a link.
func (w *world) carry(way Way, chunk bool, arrive func()) {
	l := w.links[way]
	if l == nil {
		w.t.Fatalf("at %v: sent %v", w.now, way)
	}
	copies := 1
	if w.rng.Float64() < l.dup {
		copies = 2
	}
	for range copies {
		if l.cut || chunk && l.noChunks || w.rng.Float64() < l.loss {
			continue
		}
		w.at(l.delay+time.Duration(w.rng.Float64()*float64(l.jitter)), func() {
			if !l.cut {
				l.carried++
				arrive()
			}
		})
	}
}

func overTheWire[M proto.Message](w *world, m M) M {
	b, err := proto.Marshal(m)
	w.must(err)
	if len(b) > 800 {
		w.t.Fatalf("at %v: message of %d bytes", w.now, len(b))
	}
	got := m.ProtoReflect().New().Interface().(M)
	w.must(proto.Unmarshal(b, got))
	return got
}

func (w *world) stepSender(ev SenderEvent) {
	out := w.s.Step(w.time(), ev)
	w.sWake = out.Wake
	if !out.Wake.IsZero() && !out.Wake.After(w.time()) {
		w.t.Fatalf("at %v: the sender wakes at %v", w.now, out.Wake.Sub(start))
	}
	s := w.s
	later := func(after time.Duration, ev SenderEvent) {
		w.at(after, func() {
			if w.s == s { // not restarted meanwhile
				w.stepSender(ev)
			}
		})
	}
	for _, g := range out.Gather {
		w.held[g.Transfer] = true
		if w.failure != "" {
			later(w.gather, Failed{g.Transfer, w.failure})
			continue
		}
		sum := servicenet.ChecksumOf(g.Checksum, w.object)
		if w.badSums > 0 {
			w.badSums--
			sum ^= 1
		}
		later(w.gather, Ready{g.Transfer, "n1-0-1.tar.gz", uint64(len(w.object))})
		later(w.gather+w.sum, Summed{g.Transfer, sum})
	}
	for _, a := range out.Announce {
		m := overTheWire(w, a.Message)
		w.carry(Way{a.To.Via}, false, func() {
			w.note("announce %s: %s", Way{a.To.Via}, describe(m))
			w.stepReceiver(Announced{m, Way{a.To.Via}})
		})
	}
	for _, c := range out.Chunks {
		p, err := w.s.Seal(nil, c, w.object[c.Offset:][:c.Length])
		w.must(err)
		w.carry(Way{c.To.Via}, true, func() {
			w.last = p
			w.stepReceiver(Arrived{p, Way{c.To.Via}})
		})
	}
	for _, t := range out.Release {
		if !w.held[t] {
			w.t.Fatalf("at %v: %s released twice", w.now, t)
		}
		delete(w.held, t)
	}
	for _, t := range w.s.transfers {
		if len(t.queue) > maxQueue || len(t.queue) != len(t.queued) {
			w.t.Fatalf("at %v: %d chunks wait, %d indexed", w.now, len(t.queue), len(t.queued))
		}
	}
	if len(w.held) > w.scfg.Transfers {
		w.t.Fatalf("at %v: %d objects held", w.now, len(w.held))
	}
}

func describe(m *lofamov1.BulkAnnounce) string {
	switch {
	case m.GetError() != "":
		return "error: " + m.GetError()
	case m.GetComplete():
		return fmt.Sprintf("%d bytes, complete", m.GetSize())
	case m.GetSize() > 0:
		return fmt.Sprintf("%d bytes", m.GetSize())
	}
	return "gathering"
}

func (w *world) stepReceiver(ev ReceiverEvent) {
	if w.outcome == nil {
		w.takeReceiver(w.r.Step(w.time(), ev))
	}
}

func (w *world) takeReceiver(out ReceiverOutput) {
	w.rWake = out.Wake
	if out.Restart {
		w.note("restart")
		w.got, w.waiting = nil, 0
	}
	for _, c := range out.Deliver {
		w.got = append(w.got, c...)
		w.waiting++
	}
	w.checkReceiver()
	if len(out.Deliver) > 0 {
		w.consume()
	}
	for _, s := range out.Send {
		m := overTheWire(w, s.Message)
		switch b := m.Body.(type) {
		case *lofamov1.Message_BulkRequest:
			w.note("request %s", s.Way)
			private := w.private()
			w.carry(s.Way, false, func() { w.stepSender(Requested{b.BulkRequest, "s1", private}) })
		case *lofamov1.Message_BulkPull:
			if b.BulkPull.GetDone() {
				w.note("done %s", s.Way)
			} else if len(b.BulkPull.GetRanges()) == 0 {
				w.note("poll %s", s.Way)
			}
			w.carry(s.Way, false, func() { w.stepSender(Pulled{b.BulkPull, "s1"}) })
		}
	}
	if way := w.r.Progress().Way; way != w.way && w.outcome == nil {
		w.note("%s → %s", w.way, way)
		w.way = way
	}
	if out.Outcome != nil {
		w.outcome = out.Outcome
		w.note("%s", outcomeText(out.Outcome))
		if out.Outcome.Result == Complete && !bytes.Equal(w.got, w.object) {
			w.t.Fatalf("at %v: complete, but %d bytes differ from the %d", w.now, len(w.got), len(w.object))
		}
	} else if !out.Wake.After(w.time()) {
		w.t.Fatalf("at %v: the receiver wakes at %v", w.now, out.Wake.Sub(start))
	}
}

func outcomeText(o *Outcome) string {
	if o.Why == "" {
		return o.Result.String()
	}
	return o.Result.String() + ": " + o.Why
}

// consume processes waiting chunks, at once or one at a time.
func (w *world) consume() {
	if w.stopped || w.busy || w.waiting == 0 {
		return
	}
	n := 1
	if w.interval == 0 {
		n = w.waiting
	}
	attempt := w.r.attempt
	w.busy = true
	w.at(w.interval, func() {
		w.busy = false
		if w.r.attempt == attempt {
			w.waiting -= n
			w.stepReceiver(Consumed{n})
		}
		w.consume()
	})
}

// checkReceiver compares the window's counts with its slots, and both with the bound.
func (w *world) checkReceiver() {
	if w.r == nil || w.r.phase != pulling || w.rng.IntN(16) != 0 {
		return
	}
	win := &w.r.window
	inflight, gaps, here := 0, 0, 0
	for i := win.delivered; i < win.next; i++ {
		switch win.slot(i).state {
		case slotPulled:
			inflight++
		case slotMissing:
			gaps++
		case slotHere:
			here++
		}
	}
	if inflight != win.inflight || gaps != win.gaps || win.next > win.end() {
		w.t.Fatalf("at %v: under way %d, counted %d; missing %d, counted %d; %d to %d", w.now, inflight, win.inflight, gaps, win.gaps,
			win.next, win.end())
	}
	if held := here + int(win.delivered-win.consumed); held > w.rcfg.Buffer || w.waiting > w.rcfg.Buffer {
		w.t.Fatalf("at %v: %d chunks held, %d with the consumer", w.now, held, w.waiting)
	}
	if inflight > max(w.r.ways.limit(), w.rcfg.MinWindow, w.rcfg.MaxDirect) {
		w.t.Fatalf("at %v: %d under way", w.now, inflight)
	}
}

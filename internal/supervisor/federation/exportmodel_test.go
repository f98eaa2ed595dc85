package federation

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// modelChild is the store of a region, in memory: transactions by revision, documents, numbered events.
type modelChild struct {
	revision  uint64
	compacted uint64
	docs      map[string][]byte
	changes   []*lofamov1.UpstreamChange
	events    []*lofamov1.Event // all there ever were: number i+1
	oldest    uint64            // number of the oldest kept
	states    map[string]lofamov1.State
	store     string
	from      string // the store whose snapshot it was put back to
	first     uint64 // number of the first event unique to this store
	told      int    // events of all stores
}

func newModelChild() *modelChild {
	return &modelChild{revision: 1, docs: make(map[string][]byte), oldest: 1, states: make(map[string]lofamov1.State), store: "0", first: 1}
}

// clone is a snapshot.
func (c *modelChild) clone() *modelChild {
	out := *c
	out.docs, out.states, out.events, out.changes = maps.Clone(c.docs), maps.Clone(c.states), slices.Clone(c.events), nil
	return &out
}

func (c *modelChild) nextEvent() uint64 { return uint64(len(c.events)) + 1 }

func mustMarshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// change commits one transaction in which these nodes' hosts, each once or more, get new states.
func (c *modelChild) change(nodes []string, pick func() lofamov1.State) {
	c.revision++
	ch := &lofamov1.UpstreamChange{Revision: c.revision, FirstEvent: c.nextEvent()}
	docs := make(map[string]*lofamov1.Document)
	for _, id := range nodes {
		from, to := c.states[id], pick()
		if from == 0 {
			from = lofamov1.State_UNKNOWN
		}
		if from == to {
			continue
		}
		c.states[id] = to
		c.told++
		ev := &lofamov1.Event{Node: id, Component: "host", Kind: lofamov1.EventKind_COMPONENT_CHANGED, From: from, To: to,
			Reason: fmt.Sprint(c.told)}
		c.events = append(c.events, ev)
		ch.Events = append(ch.Events, ev)
		docs[id] = &lofamov1.Document{Key: KindNodes + id,
			Value: mustMarshal(&lofamov1.Node{Id: id, State: lofamov1.State_NORMAL, Components: []*lofamov1.Component{{Name: "host", State: to}}})}
	}
	for _, id := range slices.Sorted(maps.Keys(docs)) {
		ch.Documents = append(ch.Documents, docs[id])
		c.docs[docs[id].Key] = docs[id].Value
	}
	c.changes = append(c.changes, ch)
}

// changeDocument commits a transaction that replaces one document and has no event.
func (c *modelChild) changeDocument(id string) {
	c.revision++
	d := &lofamov1.Document{Key: KindMaintenance + id, Value: mustMarshal(&lofamov1.Maintenance{Node: id, Reason: fmt.Sprint(c.revision)})}
	c.docs[d.GetKey()] = d.GetValue()
	c.changes = append(c.changes, &lofamov1.UpstreamChange{Revision: c.revision, Documents: []*lofamov1.Document{d}})
}

// newestChange returns the revision of the newest change that is passed on.
func (c *modelChild) newestChange() uint64 {
	for _, ch := range slices.Backward(c.changes) {
		if len(ch.GetDocuments()) > 0 {
			return ch.GetRevision()
		}
	}
	return 0
}

// after returns the changes after a revision; false: compacted.
func (c *modelChild) after(rev uint64) ([]*lofamov1.UpstreamChange, bool) {
	if rev < c.compacted {
		return nil, false
	}
	var out []*lofamov1.UpstreamChange
	for _, ch := range c.changes {
		if ch.GetRevision() > rev {
			out = append(out, proto.CloneOf(ch))
		}
	}
	return out, true
}

func (c *modelChild) copy(from uint64) *lofamov1.UpstreamChange {
	first := max(from, c.oldest)
	out := &lofamov1.UpstreamChange{Revision: c.revision, FirstEvent: first, Events: c.events[first-1:]}
	for _, key := range slices.Sorted(maps.Keys(c.docs)) {
		out.Documents = append(out.Documents, &lofamov1.Document{Key: key, Value: c.docs[key]})
	}
	return proto.CloneOf(out)
}

// modelParent is the parent's store.
type modelParent struct {
	head   Position
	docs   map[string][]byte
	events []*lofamov1.Event
	lost   uint64
}

func (p *modelParent) write(w packedWrite) {
	p.head = w.After
	p.events = append(p.events, w.Events...)
	for _, d := range w.Documents {
		if d.GetDeleted() {
			delete(p.docs, d.GetKey())
		} else {
			p.docs[d.GetKey()] = d.GetValue()
		}
	}
}

// modelWorld is a region and its parent, with whoever leads on either side and the stream between them.
type modelWorld struct {
	t      *rapid.T
	child  *modelChild
	parent *modelParent
	now    time.Time
	term   uint64
	saved  *modelChild // a snapshot of the region's store
	stores int         // that there were

	feed    *feed
	reading feedRead
	from    uint64 // of the current read
	ledger  *ledger
	stream  streamID
	begin   uint64                             // the child's next event when the stream began
	newest  uint64                             // revision of the child's newest change then
	up      []*lofamov1.UpstreamReportRequest  // on their way
	down    []*lofamov1.UpstreamReportResponse // on their way
	units   []Unit                             // to be committed
}

func newModelWorld(t *rapid.T) *modelWorld {
	w := &modelWorld{t: t, child: newModelChild(), parent: &modelParent{docs: make(map[string][]byte)}, now: time.Unix(1000, 0), term: 1}
	w.newFeed()
	w.newLedger()
	return w
}

func (w *modelWorld) newFeed() {
	w.feed = newFeed(feedConfig{Region: "west", Dims: "4x1x1", Window: 3})
	w.reading = ReadNone
}

// newLedger simulates another leader of the parent, or the same one in a new term: uncommitted units are lost.
func (w *modelWorld) newLedger() {
	w.ledger = newLedger(ledgerConfig{Region: "west", Dims: "4x1x1", Beat: time.Second, Misses: 3}, w.now, w.parent.head,
		w.ledger != nil && w.ledger.Cut())
	w.units = nil
}

// obey executes the feed's orders.
func (w *modelWorld) obey(o feedOrders) {
	w.up = append(w.up, o.Send...)
	if o.Read != ReadOn {
		w.reading, w.from = o.Read, o.From
	}
}

// cut ends the stream, with all that is on its way.
func (w *modelWorld) cut() {
	w.up, w.down = nil, nil
	w.obey(w.feed.Step(feedEnded{}))
	w.take(w.ledger.Step(w.now, ledgerClosed{w.stream}))
}

func (w *modelWorld) connect() {
	w.cut()
	w.stream++
	w.begin, w.newest = w.child.nextEvent(), w.child.newestChange()
	w.obey(w.feed.Step(feedBegin{Term: w.term, Revision: w.child.revision, NextEvent: w.child.nextEvent(), Store: w.child.store,
		FirstEvent: w.child.first, From: w.child.from}))
}

// become puts another store in the place of the region's.
func (w *modelWorld) become(c *modelChild) {
	w.cut()
	c.told = w.child.told
	w.stores++
	w.child, c.store = c, fmt.Sprint(w.stores)
	w.newFeed()
	w.now = w.now.Add(w.ledger.cfg.Beat) // within it the parent does not believe that a store without a name lost its state
	w.connect()
}

// putBack restores the region's store from the snapshot: its revisions continue elsewhere, its events at the old
// number.
func (w *modelWorld) putBack() {
	c := w.saved.clone()
	c.revision += 1_000_000_000 * uint64(w.stores+1)
	c.compacted, c.first, c.from = c.revision, c.nextEvent(), c.store
	w.term += c.revision
	w.become(c)
}

// take executes the ledger's output.
func (w *modelWorld) take(o ledgerOutput) {
	if o.Apply != nil {
		w.units = append(w.units, *o.Apply)
	}
	if o.Back && w.parent.head.NextEvent < w.begin {
		w.t.Fatalf("present with events up to %d committed: the region had %d when the stream began", w.parent.head.NextEvent-1, w.begin-1)
	}
	if o.Back && w.parent.head.Revision < w.newest {
		w.t.Fatalf("present with revision %d committed: the region's newest change had %d when the stream began", w.parent.head.Revision,
			w.newest)
	}
	for _, r := range o.Replies {
		if r.Stream != w.stream {
			continue
		}
		if r.Refusal != 0 {
			w.t.Fatalf("%v: %s", r.Refusal, r.Text)
		}
		w.down = append(w.down, r.Message)
	}
}

// deliverUp and deliverDown pass on the oldest message.
func (w *modelWorld) deliverUp() {
	m := w.up[0]
	w.up = w.up[1:]
	switch b := m.GetBody().(type) {
	case *lofamov1.UpstreamReportRequest_Hello:
		w.take(w.ledger.Step(w.now, ledgerHello{w.stream, b.Hello}))
	case *lofamov1.UpstreamReportRequest_Change:
		w.take(w.ledger.Step(w.now, ledgerPart{w.stream, b.Change}))
	case *lofamov1.UpstreamReportRequest_Alive:
		w.take(w.ledger.Step(w.now, ledgerAlive{w.stream, b.Alive.GetRevision()}))
	}
}

func (w *modelWorld) deliverDown() {
	m := w.down[0]
	w.down = w.down[1:]
	switch b := m.GetBody().(type) {
	case *lofamov1.UpstreamReportResponse_Resume:
		w.obey(w.feed.Step(feedResume{b.Resume.GetRevision(), b.Resume.GetNextEvent()}))
	case *lofamov1.UpstreamReportResponse_Committed:
		w.obey(w.feed.Step(feedAcked{b.Committed.GetRevision()}))
	}
}

// read gives the feed the next item from the child's store.
func (w *modelWorld) read() bool {
	switch w.reading {
	case ReadCopy:
		w.reading = ReadNone
		w.obey(w.feed.Step(feedCopied{w.child.copy(w.from)}))
		return true
	case ReadFollow:
		list, ok := w.child.after(w.from)
		if !ok {
			w.reading = ReadNone
			w.obey(w.feed.Step(feedCompacted{}))
			return true
		}
		if len(list) > 0 {
			w.from = list[0].GetRevision()
			w.obey(w.feed.Step(feedUpdate{list[0]}))
			return true
		}
	default:
	}
	return false
}

// bookmark gives a feed that has read everything the revision of the child's store.
func (w *modelWorld) bookmark() {
	if list, ok := w.child.after(w.from); w.reading == ReadFollow && ok && len(list) == 0 {
		w.from = w.child.revision
		w.obey(w.feed.Step(feedUpdate{&lofamov1.UpstreamChange{Revision: w.child.revision}}))
	}
}

// commit writes up to n transactions of the waiting units; the parent's leader may die before the others.
func (w *modelWorld) commit(n int) bool {
	if len(w.units) == 0 {
		return false
	}
	units := w.units
	for i := range units {
		if units[i].Snapshot && i > 0 {
			units = units[:i] // its documents are compared with the stored ones at that time
			break
		}
	}
	if units[0].Snapshot {
		units = units[:1]
		if err := units[0].Complete(w.parent.docs); err != nil {
			w.t.Fatal(err)
		}
	}
	writes, err := packUnits(units, w.parent.head, writeLimits{Ops: 4, Bytes: 1 << 20})
	if err != nil {
		w.t.Fatal(err)
	}
	for i, wr := range writes {
		if i == n {
			w.newLedger()
			w.connect()
			return true
		}
		if i == 0 && units[0].Lost > 0 {
			w.parent.lost += units[0].Lost // the first transaction reports it
		}
		w.parent.write(wr)
	}
	w.units = w.units[len(units):]
	w.take(w.ledger.Step(w.now, ledgerCommitted{Revision: w.parent.head.Revision, Units: len(units)}))
	return true
}

// settle lets everything arrive.
func (w *modelWorld) settle() {
	w.connect()
	for i := 0; ; i++ {
		if i > 100_000 {
			w.t.Fatal("it does not settle")
		}
		switch {
		case len(w.up) > 0:
			w.deliverUp()
		case len(w.down) > 0:
			w.deliverDown()
		case w.read(), w.commit(1 << 30):
		default:
			w.bookmark()
			w.obey(w.feed.Step(feedBeat{}))
			w.deliverUp()
			if len(w.up)+len(w.down)+len(w.units) == 0 && !w.ledger.Cut() {
				return
			}
		}
	}
}

// check compares the two stores: equal documents, every event once and in order except lost ones, and no component
// that jumps.
func (w *modelWorld) check() {
	if !maps.EqualFunc(w.child.docs, w.parent.docs, func(a, b []byte) bool { return string(a) == string(b) }) {
		w.t.Fatalf("documents: %v, want %v", w.parent.docs, w.child.docs)
	}
	next, passed := 0, 0
	at := make(map[string]lofamov1.State)
	for _, ev := range w.parent.events {
		was := at[ev.GetNode()]
		if was == 0 {
			was = lofamov1.State_UNKNOWN
		}
		if ev.GetComponent() == "host" {
			if ev.GetFrom() != was {
				w.t.Fatalf("%s jumps from %s: %v", ev.GetNode(), was, ev)
			}
			at[ev.GetNode()] = ev.GetTo()
		}
		if ev.GetReason() == wholeReason {
			continue
		}
		var n int
		_, _ = fmt.Sscan(ev.GetReason(), &n)
		if n <= next {
			w.t.Fatalf("event %d after %d", n, next)
		}
		next = n
		passed++
	}
	if missing := uint64(len(w.child.events) - passed); w.stores == 0 && missing != w.parent.lost {
		w.t.Fatalf("%d of %d events are here, and %d are said to be lost", passed, len(w.child.events), w.parent.lost)
	}
	for _, id := range []string{"n0-0-0", "n1-0-0"} {
		want := max(w.child.states[id], lofamov1.State_UNKNOWN) // another store may lack it
		if got := max(at[id], lofamov1.State_UNKNOWN); got != want {
			w.t.Fatalf("events lead to %s %s, want %s", id, got, want)
		}
	}
}

// TestParentGetsEveryEventOnce drives a region and its parent through any order of changes, compactions, trimmed histories, cut
// streams, new leaders on both sides, parents that die between two transactions, and stores of the region that are put back
// to a snapshot or recreated: a region is present again only after
// the parent has committed the region's events and documents from before the stream. In the end the parent has every document
// and, once and in order, every event that the region still keeps, and it counts the lost ones.
func TestParentGetsEveryEventOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newModelWorld(t)
		pick := func() lofamov1.State {
			return lofamov1.State(rapid.IntRange(1, 4).Draw(t, "state"))
		}
		actions := map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				w.child.change(rapid.SliceOfN(rapid.SampledFrom([]string{"n0-0-0", "n1-0-0"}), 1, 4).Draw(t, "nodes"), pick)
			},
			"change a document": func(t *rapid.T) {
				w.child.changeDocument(rapid.SampledFrom([]string{"n0-0-0", "n1-0-0"}).Draw(t, "node"))
			},
			"quiet":   func(*rapid.T) { w.child.revision++ },
			"compact": func(*rapid.T) { w.child.compacted = w.child.revision },
			"trim":    func(*rapid.T) { w.child.oldest = max(w.child.oldest, w.child.nextEvent()/2) },
			"cut":     func(*rapid.T) { w.cut() },
			"connect": func(*rapid.T) { w.connect() },
			"region's leader dies": func(*rapid.T) {
				w.cut()
				w.term++
				w.newFeed()
				w.connect()
			},
			"snapshot": func(*rapid.T) { w.saved = w.child.clone() },
			"put back": func(*rapid.T) {
				if w.saved != nil {
					w.putBack()
				}
			},
			"made anew": func(t *rapid.T) {
				c := newModelChild()
				c.revision = rapid.Uint64Range(1, 2*w.child.revision).Draw(t, "revision")
				w.term = 1
				w.become(c)
			},
			"parent's leader dies": func(*rapid.T) { w.newLedger(); w.connect() },
			"up":                   func(*rapid.T) { repeatModel(len(w.up), w.deliverUp) },
			"down":                 func(*rapid.T) { repeatModel(len(w.down), w.deliverDown) },
			"read": func(*rapid.T) {
				for w.read() {
				}
			},
			"commit": func(*rapid.T) { w.commit(1 << 30) },
			"die between": func(t *rapid.T) {
				w.commit(rapid.IntRange(0, 3).Draw(t, "after"))
			},
			"bookmark": func(*rapid.T) { w.bookmark() },
			"beat":     func(*rapid.T) { w.obey(w.feed.Step(feedBeat{})) },
			"settle":   func(*rapid.T) { w.settle() },
			"beat before reading": func(*rapid.T) {
				w.connect()
				repeatModel(len(w.up), w.deliverUp)
				repeatModel(len(w.down), w.deliverDown)
				w.obey(w.feed.Step(feedBeat{}))
				repeatModel(len(w.up), w.deliverUp)
			},
			"time": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "s")) * time.Second)
				w.take(w.ledger.Step(w.now, ledgerTick{}))
			},
		}
		t.Repeat(actions)
		w.settle()
		w.check()
	})
}

func repeatModel(n int, do func()) {
	for range n {
		do()
	}
}

package federation

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// packedWrite is the content of one transaction of the parent's store.
type packedWrite struct {
	Events    []*lofamov1.Event
	Documents []*lofamov1.Document // each key once
	After     Position
}

// writeLimits bounds a transaction.
type writeLimits struct {
	Ops   int // events and documents
	Bytes int
}

// packUnits turns units into transactions: several units in one, or one unit in several. Each transaction is complete
// in itself. Its documents match the events so far and its position counts those events, but the position's
// revision advances only with a unit's last transaction. So a reader can resume between any two transactions, and a
// follower of the events sees none twice.
func packUnits(units []Unit, from Position, lim writeLimits) ([]packedWrite, error) {
	p := &unitPacker{lim: lim, after: from}
	p.open()
	for i := range units {
		if err := p.unit(&units[i]); err != nil {
			return nil, err
		}
	}
	return append(p.out, p.cur), nil
}

type unitPacker struct {
	lim   writeLimits
	after Position
	out   []packedWrite

	cur        packedWrite
	docs       map[string]*lofamov1.Document // of cur
	ops, bytes int
}

func (p *unitPacker) open() {
	p.cur, p.docs, p.ops, p.bytes = packedWrite{After: p.after}, make(map[string]*lofamov1.Document), 0, 0
}

// fits reports whether the transaction has room.
func (p *unitPacker) fits(ops, bytes int) bool {
	return p.ops == 0 || p.ops+ops <= p.lim.Ops && p.bytes+bytes <= p.lim.Bytes
}

func (p *unitPacker) put(d *lofamov1.Document) {
	if old := p.docs[d.GetKey()]; old != nil {
		old.Value, old.Deleted = d.GetValue(), d.GetDeleted()
		return
	}
	d = &lofamov1.Document{Key: d.GetKey(), Value: d.GetValue(), Deleted: d.GetDeleted()}
	p.docs[d.GetKey()] = d
	p.cur.Documents = append(p.cur.Documents, d)
}

// next begins another transaction.
func (p *unitPacker) next() {
	p.out = append(p.out, p.cur)
	p.open()
}

// took counts an addition, and records the position after it.
func (p *unitPacker) took(ops, bytes int) {
	p.ops, p.bytes = p.ops+ops, p.bytes+bytes
	p.cur.After = p.after
}

// unit adds a unit: its events, each with the document that it changes, then the other documents.
func (p *unitPacker) unit(u *Unit) error {
	w := newUnitDocuments(u)
	if was := p.after.Store; was != "" && was != u.After.Store {
		// A reader that resumes between two transactions knows whose events it has, and that the unit is incomplete.
		p.after = Position{Store: u.After.Store, Term: u.After.Term}
	}
	p.after.NextEvent = max(p.after.NextEvent, u.First)
	for i, ev := range u.Events {
		size := proto.Size(ev) + proto.Size(w.final[documentOf(ev)])
		if !p.fits(2, size) {
			if err := w.settle(i, p.put); err != nil {
				return err
			}
			p.next()
		}
		p.cur.Events = append(p.cur.Events, ev)
		if i >= u.Made {
			p.after.NextEvent = u.First + uint64(i-u.Made) + 1
		}
		p.took(2, size)
	}
	if err := w.settle(len(u.Events), p.put); err != nil {
		return err
	}
	for _, d := range u.Documents {
		if w.written[d.GetKey()] {
			continue
		}
		size := proto.Size(d)
		if !p.fits(1, size) {
			p.next()
		}
		p.put(d)
		p.took(1, size)
	}
	p.after = u.After
	p.took(0, 0)
	return nil
}

// unitDocuments are a unit's documents while its events are packed.
type unitDocuments struct {
	u       *Unit
	final   map[string]*lofamov1.Document
	events  map[string][]int // of a document
	written map[string]bool  // final state
	done    int              // events before it have their documents
}

func newUnitDocuments(u *Unit) *unitDocuments {
	w := &unitDocuments{
		u: u, final: make(map[string]*lofamov1.Document, len(u.Documents)), events: make(map[string][]int),
		written: make(map[string]bool),
	}
	for _, d := range u.Documents {
		w.final[d.GetKey()] = d
	}
	for i, ev := range u.Events {
		key := documentOf(ev)
		w.events[key] = append(w.events[key], i)
	}
	return w
}

// settle puts the documents that belong to the events before upTo as these have left them.
func (w *unitDocuments) settle(upTo int, put func(*lofamov1.Document)) error {
	seen := make(map[string]bool)
	for i := w.done; i < upTo; i++ {
		key := documentOf(w.u.Events[i])
		d := w.final[key]
		if d == nil || w.written[key] || seen[key] {
			continue
		}
		seen[key] = true
		var later []*lofamov1.Event
		for _, j := range w.events[key] {
			if j >= upTo {
				later = append(later, w.u.Events[j])
			}
		}
		after, err := asOf(d, later)
		if err != nil {
			return err
		}
		w.written[key] = len(later) == 0
		put(after)
	}
	w.done = upTo
	return nil
}

// documentOf is the key of the document that an event changes.
func documentOf(ev *lofamov1.Event) string {
	switch ev.GetKind() {
	case lofamov1.EventKind_GROUP_CHANGED:
		return KindGroups + ev.GetGroup().GetId()
	case lofamov1.EventKind_COMPONENT_CHANGED, lofamov1.EventKind_EVENT_KIND_UNSPECIFIED:
		return KindNodes + ev.GetNode()
	default: // needs no care: its document is independent
		return ""
	}
}

// asOf returns the document as of before the given later events of its own: each component has the initial state
// of its next event.
func asOf(d *lofamov1.Document, later []*lofamov1.Event) (*lofamov1.Document, error) {
	if len(later) == 0 || !strings.HasPrefix(d.GetKey(), KindNodes) || len(d.GetValue()) == 0 {
		return d, nil
	}
	n, err := decodeDocument(d.GetKey(), d.GetValue(), &lofamov1.Node{})
	if err != nil {
		return nil, err
	}
	if d.GetDeleted() {
		forgotten(n)
	}
	for _, ev := range slices.Backward(later) {
		if ev.GetComponent() == "node" {
			n.State = ev.GetFrom()
		}
		for _, c := range n.GetComponents() {
			if c.GetName() == ev.GetComponent() {
				c.State = ev.GetFrom()
			}
		}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(n)
	return &lofamov1.Document{Key: d.GetKey(), Value: b}, err
}

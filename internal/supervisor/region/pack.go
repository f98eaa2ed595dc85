package region

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Write is what goes into one transaction of the parent's store.
type Write struct {
	Events    []*lofamov1.Event
	Documents []*lofamov1.Document // each key once
	After     Position
}

// Limits of a transaction.
type Limits struct {
	Ops   int // events and documents
	Bytes int
}

// Pack makes transactions of units: of as many as fit, or several of one. Each is complete in itself: the
// documents are what the events so far have led to, and the position counts those events, and the revision
// only when all of it is there. So whoever stops between two of them goes on from there, and nobody who
// follows the events is told anything twice.
func Pack(units []Unit, from Position, lim Limits) ([]Write, error) {
	p := &packer{lim: lim, after: from}
	p.open()
	for i := range units {
		if err := p.unit(&units[i]); err != nil {
			return nil, err
		}
	}
	return append(p.out, p.cur), nil
}

type packer struct {
	lim   Limits
	after Position
	out   []Write

	cur        Write
	docs       map[string]*lofamov1.Document // of cur
	ops, bytes int
}

func (p *packer) open() {
	p.cur, p.docs, p.ops, p.bytes = Write{After: p.after}, make(map[string]*lofamov1.Document), 0, 0
}

// fits says whether there is room for so much.
func (p *packer) fits(ops, bytes int) bool {
	return p.ops == 0 || p.ops+ops <= p.lim.Ops && p.bytes+bytes <= p.lim.Bytes
}

func (p *packer) put(d *lofamov1.Document) {
	if old := p.docs[d.GetKey()]; old != nil {
		old.Value, old.Deleted = d.GetValue(), d.GetDeleted()
		return
	}
	d = &lofamov1.Document{Key: d.GetKey(), Value: d.GetValue(), Deleted: d.GetDeleted()}
	p.docs[d.GetKey()] = d
	p.cur.Documents = append(p.cur.Documents, d)
}

// unit adds a unit: its events, each with the document that it changes, then the other documents.
func (p *packer) unit(u *Unit) error {
	final := make(map[string]*lofamov1.Document, len(u.Documents))
	for _, d := range u.Documents {
		final[d.GetKey()] = d
	}
	events := make(map[string][]int) // of a document
	for i, ev := range u.Events {
		key := documentOf(ev)
		events[key] = append(events[key], i)
	}
	done := 0 // events before it have their documents
	written := make(map[string]bool, len(final))
	settle := func(upTo int) error {
		seen := make(map[string]bool)
		for i := upTo - 1; i >= done; i-- {
			key := documentOf(u.Events[i])
			d := final[key]
			if d == nil || written[key] || seen[key] {
				continue
			}
			seen[key] = true
			var later []*lofamov1.Event
			for _, j := range events[key] {
				if j >= upTo {
					later = append(later, u.Events[j])
				}
			}
			after, err := asOf(d, later)
			if err != nil {
				return err
			}
			written[key] = len(later) == 0
			p.put(after)
		}
		done = upTo
		return nil
	}
	p.after.NextEvent = max(p.after.NextEvent, u.First)
	for i, ev := range u.Events {
		size := proto.Size(ev) + proto.Size(final[documentOf(ev)])
		if !p.fits(2, size) {
			if err := settle(i); err != nil {
				return err
			}
			p.out = append(p.out, p.cur)
			p.open()
		}
		p.ops, p.bytes = p.ops+2, p.bytes+size
		p.cur.Events = append(p.cur.Events, ev)
		if i >= u.Made {
			p.after.NextEvent = u.First + uint64(i-u.Made) + 1
		}
		p.cur.After = p.after
	}
	if err := settle(len(u.Events)); err != nil {
		return err
	}
	for _, d := range u.Documents {
		if written[d.GetKey()] {
			continue
		}
		if size := proto.Size(d); p.fits(1, size) {
			p.ops, p.bytes = p.ops+1, p.bytes+size
		} else {
			p.out = append(p.out, p.cur)
			p.open()
			p.ops, p.bytes = 1, size
		}
		p.put(d)
	}
	p.after = u.After
	p.cur.After = p.after
	return nil
}

// documentOf is the key of the document that an event changes.
func documentOf(ev *lofamov1.Event) string {
	switch ev.GetKind() {
	case lofamov1.EventKind_GROUP_CHANGED:
		return KindGroups + ev.GetGroup().GetId()
	case lofamov1.EventKind_COMPONENT_CHANGED, lofamov1.EventKind_EVENT_KIND_UNSPECIFIED:
		return KindNodes + ev.GetNode()
	}
	return ""
}

// asOf is the document as it was before these events of its own, which are still to come: for each component, its
// state is the one that the next of them changes.
func asOf(d *lofamov1.Document, later []*lofamov1.Event) (*lofamov1.Document, error) {
	if len(later) == 0 || !strings.HasPrefix(d.GetKey(), KindNodes) || d.GetDeleted() {
		return d, nil
	}
	n, err := decode(d.GetKey(), d.GetValue(), &lofamov1.Node{})
	if err != nil {
		return nil, err
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

package federation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// Complete turns a snapshot into a change. It keeps only the documents that differ from the stored ones (have, by
// key), including deletions, and puts events in front that replace those no longer retained. So a follower of the
// events sees every component move from state to state without a jump, and ends with the snapshot's map.
func (u *Unit) Complete(have map[string][]byte) error {
	made, err := missingEvents(have, u)
	if err != nil {
		return err
	}
	u.Events, u.Made = append(made, u.Events...), len(made)
	there := make(map[string]bool, len(u.Documents))
	var docs []*lofamov1.Document
	for _, d := range u.Documents {
		there[d.GetKey()] = true
		if old, ok := have[d.GetKey()]; !ok || string(old) != string(d.GetValue()) {
			docs = append(docs, d)
		}
	}
	for key := range have {
		if !there[key] {
			// The value supplies the initial state of the final event.
			docs = append(docs, &lofamov1.Document{Key: key, Value: have[key], Deleted: true})
		}
	}
	slices.SortFunc(docs, func(a, b *lofamov1.Document) int { return cmp.Compare(a.GetKey(), b.GetKey()) })
	u.Documents = docs
	return nil
}

// nodePart is a component of a node.
type nodePart struct{ node, component string }

// missingEvents makes the events that lead from the stored state to the start of the retained events.
func missingEvents(have map[string][]byte, u *Unit) ([]*lofamov1.Event, error) {
	begins := make(map[nodePart]bool) // parts with a retained event, which gives the next state
	groups := make(map[string]bool)
	from := make(map[nodePart]lofamov1.State)
	for _, ev := range u.Events {
		switch ev.GetKind() {
		case lofamov1.EventKind_GROUP_CHANGED:
			groups[ev.GetGroup().GetId()] = true
		case lofamov1.EventKind_COMPONENT_CHANGED, lofamov1.EventKind_EVENT_KIND_UNSPECIFIED:
			p := nodePart{ev.GetNode(), ev.GetComponent()}
			if !begins[p] {
				begins[p], from[p] = true, ev.GetFrom()
			}
		default: // leads from no state to another
		}
	}
	var out []*lofamov1.Event
	for _, d := range u.Documents {
		switch {
		case strings.HasPrefix(d.GetKey(), KindNodes):
			events, err := nodeChanges(have[d.GetKey()], d, begins, from)
			if err != nil {
				return nil, err
			}
			out = append(out, events...)
		case strings.HasPrefix(d.GetKey(), KindGroups):
			ev, err := groupChange(have[d.GetKey()], d, groups)
			if err != nil {
				return nil, err
			}
			out = append(out, ev...)
		}
	}
	gone, err := goneNodes(have, u.Documents, begins, from)
	if err != nil {
		return nil, err
	}
	ended, err := endedGroups(have, u.Documents, groups)
	return slices.Concat(out, gone, ended), err
}

// absentKeys are the keys of a kind that are no longer among the documents, sorted.
func absentKeys(have map[string][]byte, docs []*lofamov1.Document, kind string) []string {
	there := make(map[string]bool)
	for _, d := range docs {
		there[d.GetKey()] = true
	}
	var out []string
	for key := range have {
		if strings.HasPrefix(key, kind) && !there[key] {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// goneNodes returns events for nodes that the region's store no longer has: they are UNKNOWN.
func goneNodes(have map[string][]byte, docs []*lofamov1.Document, begins map[nodePart]bool,
	from map[nodePart]lofamov1.State) (out []*lofamov1.Event, err error) {
	for _, key := range absentKeys(have, docs, KindNodes) {
		was, err := decodeDocument(key, have[key], &lofamov1.Node{})
		if err != nil {
			return nil, err
		}
		b, err := proto.Marshal(forgotten(proto.CloneOf(was)))
		if err != nil {
			return nil, fmt.Errorf("document %s: %w", key, err)
		}
		events, err := nodeChanges(have[key], &lofamov1.Document{Key: key, Value: b}, begins, from)
		if err != nil {
			return nil, err
		}
		out = append(out, events...)
	}
	return out, nil
}

// forgotten sets a node and all its components to UNKNOWN.
func forgotten(n *lofamov1.Node) *lofamov1.Node {
	n.State, n.Cause, n.SingleWitness = lofamov1.State_UNKNOWN, lofamov1.Cause_NONE, false
	for _, c := range n.GetComponents() {
		c.State, c.Cause = lofamov1.State_UNKNOWN, lofamov1.Cause_NONE
	}
	return n
}

func decodeDocument[M proto.Message](key string, b []byte, m M) (M, error) {
	if err := proto.Unmarshal(b, m); err != nil {
		return m, fmt.Errorf("document %s: %w", key, err)
	}
	return m, nil
}

// wholeReason of replacement events.
const wholeReason = "passed on as a whole: what led there is no longer kept"

func nodeChanges(old []byte, d *lofamov1.Document, begins map[nodePart]bool, from map[nodePart]lofamov1.State) ([]*lofamov1.Event, error) {
	was, err := decodeDocument(d.GetKey(), old, &lofamov1.Node{})
	if err != nil {
		return nil, err
	}
	is, err := decodeDocument(d.GetKey(), d.GetValue(), &lofamov1.Node{})
	if err != nil {
		return nil, err
	}
	before := make(map[string]lofamov1.State)
	before["node"] = was.GetState()
	for _, c := range was.GetComponents() {
		before[c.GetName()] = c.GetState()
	}
	var out []*lofamov1.Event
	add := func(component string, to lofamov1.State, cause lofamov1.Cause, single bool) {
		p := nodePart{is.GetId(), component}
		if begins[p] {
			to = from[p]
		}
		was := before[component]
		if was == lofamov1.State_STATE_UNSPECIFIED {
			was = lofamov1.State_UNKNOWN
		}
		if was == to || to == lofamov1.State_STATE_UNSPECIFIED {
			return
		}
		out = append(out, &lofamov1.Event{
			Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: is.GetId(), Coord: is.GetCoord(), Component: component,
			From: was, To: to, Cause: cmp.Or(cause, lofamov1.Cause_NONE), SingleWitness: single, Reason: wholeReason, Labels: is.GetLabels(),
		})
	}
	for _, c := range is.GetComponents() {
		add(c.GetName(), c.GetState(), c.GetCause(), false)
	}
	add("node", is.GetState(), is.GetCause(), is.GetSingleWitness())
	return out, nil
}

func groupChange(old []byte, d *lofamov1.Document, told map[string]bool) ([]*lofamov1.Event, error) {
	is, err := decodeDocument(d.GetKey(), d.GetValue(), &lofamov1.Group{})
	if err != nil || told[is.GetId()] || string(old) == string(d.GetValue()) {
		return nil, err
	}
	was, err := decodeDocument(d.GetKey(), old, &lofamov1.Group{})
	if err != nil {
		return nil, err
	}
	from := was.GetState()
	if old == nil {
		from = lofamov1.State_UNKNOWN
	}
	return []*lofamov1.Event{groupEvent(is, from)}, nil
}

func groupEvent(g *lofamov1.Group, from lofamov1.State) *lofamov1.Event {
	return &lofamov1.Event{Kind: lofamov1.EventKind_GROUP_CHANGED, Group: g, From: from, To: g.GetState(), Cause: g.GetCause(),
		Reason: wholeReason}
}

// endedGroups returns events for group faults that no longer exist and whose end is in no event.
func endedGroups(have map[string][]byte, docs []*lofamov1.Document, told map[string]bool) ([]*lofamov1.Event, error) {
	var out []*lofamov1.Event
	for _, key := range absentKeys(have, docs, KindGroups) {
		was, err := decodeDocument(key, have[key], &lofamov1.Group{})
		if err != nil {
			return nil, err
		}
		if told[was.GetId()] {
			continue
		}
		from := was.GetState()
		was.State = lofamov1.State_NORMAL
		out = append(out, groupEvent(was, from))
	}
	return out, nil
}

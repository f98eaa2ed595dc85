package federation

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

func marshalled(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestUnreadableDocumentIsRefused: a parent refuses a document that no term could read again, and one with another
// node's content.
func TestUnreadableDocumentIsRefused(t *testing.T) {
	node := func(id string, s lofamov1.State) []byte {
		return marshalled(t, &lofamov1.Node{Id: id, Coord: "0,0,0", State: s})
	}
	garbage := []byte{0xff}
	for name, tc := range map[string]struct {
		d    *lofamov1.Document
		text string // "": it is read
	}{
		"a node":                  {&lofamov1.Document{Key: "nodes/n0-0-0", Value: node("n0-0-0", lofamov1.State_SICK)}, ""},
		"a node that is gone":     {&lofamov1.Document{Key: "nodes/n0-0-0", Deleted: true}, ""},
		"a deleted node, bytes":   {&lofamov1.Document{Key: "nodes/n0-0-0", Value: garbage, Deleted: true}, "deleted and has a value"},
		"bytes for a node":        {&lofamov1.Document{Key: "nodes/n0-0-0", Value: garbage}, "read a node"},
		"a node without a state":  {&lofamov1.Document{Key: "nodes/n0-0-0", Value: node("n0-0-0", 0)}, "state"},
		"another node":            {&lofamov1.Document{Key: "nodes/n0-0-0", Value: node("n2-0-0", lofamov1.State_SICK)}, `node "n2-0-0"`},
		"bytes for a group":       {&lofamov1.Document{Key: "groups/row/Y=1", Value: garbage}, "proto"},
		"bytes for a warning":     {&lofamov1.Document{Key: "warnings/n0-0-0/temperature/temperature", Value: garbage}, "proto"},
		"a warning about nothing": {&lofamov1.Document{Key: "warnings/n0-0-0", Deleted: true}, "NODE/COMPONENT/QUANTITY"},
		"maintenance":             {&lofamov1.Document{Key: "maintenance/n0-0-0", Value: garbage}, ""},
	} {
		err := readable(tc.d)
		if (err == nil) != (tc.text == "") || err != nil && !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %q", name, err, tc.text)
		}
		l := newLedger(ledgerConfig{Region: "west", Readable: readable}, time.Now(), Position{Revision: 1, NextEvent: 1}, false)
		refusal, text := l.add(&lofamov1.UpstreamChange{Previous: 1, Revision: 2, FirstEvent: 1, Documents: []*lofamov1.Document{tc.d}})
		if (refusal != 0) != (tc.text != "") {
			t.Errorf("%s: refusal %d %q", name, refusal, text)
		}
	}
}

// TestOverlongValuesAreRefused: the parent's store could not take them.
func TestOverlongValuesAreRefused(t *testing.T) {
	l := func() *ledger {
		return newLedger(ledgerConfig{Region: "west", MaxBytes: 256 << 20}, time.Now(), Position{Revision: 1, NextEvent: 1}, false)
	}
	long := strings.Repeat("x", maxValue+1)
	for name, c := range map[string]*lofamov1.UpstreamChange{
		"an event":   {Events: []*lofamov1.Event{{Reason: long}}},
		"a document": {Documents: []*lofamov1.Document{{Key: "maintenance/n0-0-0", Value: []byte(long)}}},
	} {
		c.Previous, c.Revision, c.FirstEvent = 1, 2, 1
		if r, text := l().add(c); r != RefusedLong || !strings.Contains(text, "want at most") {
			t.Errorf("%s: refusal %d %q", name, r, text)
		}
	}
	for _, h := range []*lofamov1.UpstreamHello{{Store: long}, {RestoredFrom: long}} {
		var out ledgerOutput
		l().hello(time.Now(), ledgerHello{Stream: 1, UpstreamHello: h}, &out)
		if len(out.Replies) != 1 || out.Replies[0].Refusal != RefusedLong {
			t.Errorf("%+v: want a refusal of the store's name", out.Replies)
		}
	}
}

// TestLargestValuesFitTransaction: the largest accepted event, the largest document that it changes, and the head share a transaction that
// an etcd with the default limit accepts. So does the event that is made for a snapshot's document.
func TestLargestValuesFitTransaction(t *testing.T) {
	const etcdLimit, slack = 3 << 19, 64 << 10 // the slack is for the operations that every transaction has
	node := &lofamov1.Node{Id: "n0-0-0", Coord: "0,0,0", State: lofamov1.State_SICK, Labels: map[string]string{"rack": ""}}
	node.Labels["rack"] = strings.Repeat("x", maxValue-proto.Size(node)-16)
	doc := &lofamov1.Document{Key: "nodes/n0-0-0", Value: marshalled(t, node)}
	ev := &lofamov1.Event{Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: "n0-0-0", Component: "node", From: lofamov1.State_NORMAL,
		To: lofamov1.State_SICK}
	ev.Reason = strings.Repeat("x", maxValue-proto.Size(ev)-16)
	pos := Position{Revision: 5, NextEvent: 1, Term: 1, Store: strings.Repeat("s", maxStoreName)}
	l := newLedger(ledgerConfig{Region: "west", Dims: "4x1x1", Readable: readable}, time.Now(), pos, false)
	now := time.Now()
	l.Step(now, ledgerHello{1, &lofamov1.UpstreamHello{Region: "west", Dims: "4x1x1", Term: 1, Revision: 9, NextEvent: 2, Store: pos.Store}})
	var out ledgerOutput
	for _, part := range []*lofamov1.UpstreamChange{
		{Previous: 5, Revision: 9, FirstEvent: 1, Events: []*lofamov1.Event{ev}, More: true},
		{Previous: 5, Revision: 9, FirstEvent: 2, Documents: []*lofamov1.Document{doc}},
	} {
		out = l.Step(now, ledgerPart{1, part})
		if len(out.Replies) != 0 {
			t.Fatalf("refused: %s", out.Replies[0].Text)
		}
	}
	whole := Unit{Snapshot: true, First: 2, Documents: []*lofamov1.Document{doc}, After: Position{Revision: 10, NextEvent: 2}}
	if err := whole.Complete(nil); err != nil {
		t.Fatal(err)
	}
	for name, u := range map[string]Unit{"a change": *out.Apply, "a snapshot": whole} {
		writes, err := packUnits([]Unit{u}, pos, writeLimits{Ops: 100, Bytes: 896 << 10})
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range writes {
			size := 0
			for _, ev := range w.Events {
				size += proto.Size(ev)
			}
			for _, d := range w.Documents {
				size += proto.Size(d)
			}
			if size > etcdLimit-slack {
				t.Errorf("%s: transaction %d has %d bytes: want at most %d", name, i, size, etcdLimit-slack)
			}
		}
	}
}

// TestRegionRemovesOwnNodesOnly: a region's word that a node of another region is gone changes nothing. An honest region says so, too,
// when it has lost a node to the other.
func TestRegionRemovesOwnNodesOnly(t *testing.T) {
	all, now := names(), time.Unix(1_800_000_000, 0)
	tm := &term{
		e: &Parent{cfg: ParentConfig{Names: all, Region: regionOfTest, Logger: slog.New(slog.DiscardHandler)},
			now: func() time.Time { return now }},
		regions: map[string]*regionState{"west": {name: "west"}, "east": {name: "east"}},
		builder: view.NewBuilder(all, now),
	}
	n := marshalled(t, &lofamov1.Node{Id: "n2-0-0", Coord: "2,0,0", State: lofamov1.State_FAILED})
	for _, tc := range []struct {
		region  string
		deleted bool
		want    fault.State
	}{{"east", false, fault.Failed}, {"west", true, fault.Failed}, {"east", true, fault.Unknown}} {
		d := &lofamov1.Document{Key: "nodes/n2-0-0", Value: n}
		if tc.deleted {
			d = &lofamov1.Document{Key: "nodes/n2-0-0", Deleted: true}
		}
		if err := tm.show(document{region: tc.region, revision: 5, Document: d}); err != nil {
			t.Fatal(err)
		}
		if e, ok := tm.builder.At("n2-0-0"); !ok || e.Status.State != tc.want {
			t.Errorf("after %s, deleted %t: %s, want %s", tc.region, tc.deleted, e.Status.State, tc.want)
		}
	}
}

// FuzzRegionDocuments: any document of a region, and any value below a region in the parent's store, is read or
// refused. A parent shows every document that it accepts, and the next term and a replica's copy can read it again.
func FuzzRegionDocuments(f *testing.F) {
	f.Add("nodes/n0-0-0", marshalled(f, &lofamov1.Node{Id: "n0-0-0", Coord: "0,0,0", State: lofamov1.State_SICK,
		Components: []*lofamov1.Component{{Name: "host", State: lofamov1.State_FAILED, Evidence: []*lofamov1.Evidence{{Kind: "SELF"}}}}}), false)
	f.Add("groups/row/Y=0,Z=0", marshalled(f, &lofamov1.Group{Id: "row/Y=0,Z=0", Members: []string{"n0-0-0"},
		State: lofamov1.State_FAILED}), false)
	f.Add("warnings/n0-0-0/peripheral/0/power", marshalled(f, &lofamov1.Warning{Component: "peripheral/0", Quantity: "power"}), true)
	f.Add("warnings/n0-0-0/temperature/temperature", []byte{}, false)
	f.Add(keyHead, []byte(`{"revision":7,"cut":true}`), false)
	all := names()
	f.Fuzz(func(t *testing.T, key string, value []byte, deleted bool) {
		entries := []store.Entry{{Key: "west/" + key, Value: value, Revision: 5}}
		d := &lofamov1.Document{Key: key, Value: value, Deleted: deleted}
		if have, err := read(entries, 5); err == nil {
			_ = have.hide()
		}
		_, _ = nodeChanges(value, d, nil, nil)
		_, _ = groupChange(value, d, nil)
		if checkDocument(d, nil) != nil || readable(d) != nil {
			return
		}
		now := time.Unix(1_800_000_000, 0)
		tm := &term{
			e: &Parent{cfg: ParentConfig{Names: all, Region: regionOfTest, Logger: slog.New(slog.DiscardHandler)},
				now: func() time.Time { return now }},
			regions: map[string]*regionState{"west": {name: "west", groups: map[string]awareness.GroupStatus{}}},
			builder: view.NewBuilder(all, now),
		}
		if err := tm.show(document{region: "west", revision: 5, Document: d}); err != nil {
			t.Fatalf("a document that is accepted is not shown: %v", err)
		}
		tm.builder.Map(5)
		if deleted {
			return
		}
		have, err := read(entries, 5)
		if err != nil {
			t.Fatalf("a document that is accepted is not read again: %v", err)
		}
		for _, d := range have.above {
			if err := new(store.Snapshot).AddAbove(store.KV{Key: store.Prefix + d.GetKey(), Value: d.GetValue()}); err != nil {
				t.Fatalf("a document that is accepted is not copied: %v", err)
			}
		}
	})
}

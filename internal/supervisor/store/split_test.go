package store

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// bigBatch returns a batch with nodes of the given size, and two events and a position per node.
func bigBatch(nodes, bytes int) Batch {
	var b Batch
	for i := range nodes {
		id := fmt.Sprintf("n%d", i)
		for range 2 {
			b.Events = append(b.Events, &lofamov1.Event{Node: id, Component: "host"})
		}
		b.Nodes = append(b.Nodes, &lofamov1.Node{Id: id, Components: []*lofamov1.Component{
			{Name: "host", Evidence: []*lofamov1.Evidence{{Detail: strings.Repeat("x", bytes)}}}}})
		b.Inbox = append(b.Inbox, InboxPosition{Origin: fault.Origin{Node: fault.NodeID(id), Half: fault.HalfHost}})
	}
	return b
}

func TestBatchIsSplitWithinLimits(t *testing.T) {
	for _, tc := range []struct {
		nodes, bytes, limit int
		parts               int // at least
	}{
		{0, 0, 100, 1}, {1, 10, 100, 1}, {25, 10, 100, 1}, {100, 10, 100, 4},
		{5000, 5000, 16384, 24}, // a whole large torus at once: 25 MB
	} {
		b := bigBatch(tc.nodes, tc.bytes)
		parts := split(b, tc.limit)
		if len(parts) < tc.parts || tc.parts == 1 && len(parts) != 1 {
			t.Errorf("%+v: %d parts", tc, len(parts))
		}
		var all Batch
		told := make(map[string]int)
		for i, p := range parts {
			size := inboxBytes * len(p.Inbox)
			for _, ev := range p.Events {
				size += proto.Size(ev)
				told[ev.GetNode()]++
			}
			for _, n := range p.Nodes {
				size += proto.Size(n)
				if told[n.GetId()] != 2 {
					t.Errorf("%+v: node %s is written after %d of its 2 events", tc, n.GetId(), told[n.GetId()])
				}
			}
			if p.Ops() > tc.limit || size > maxBytes {
				t.Errorf("%+v: part %d of %d has %d operations, %d bytes", tc, i, len(parts), p.Ops(), size)
			}
			all.Events, all.Nodes, all.Inbox = append(all.Events, p.Events...), append(all.Nodes, p.Nodes...), append(all.Inbox, p.Inbox...)
		}
		if len(all.Events) != len(b.Events) || len(all.Nodes) != len(b.Nodes) || len(all.Inbox) != len(b.Inbox) {
			t.Errorf("%+v: %d of %d operations are left", tc, all.Ops(), b.Ops())
		}
		for i := range all.Events {
			if all.Events[i] != b.Events[i] {
				t.Fatalf("%+v: event %d is out of order", tc, i)
			}
		}
	}
}

func TestLargestInboxFitsItsBound(t *testing.T) {
	p := InboxPosition{Epoch: math.MaxUint64, Highest: math.MaxUint64, Digest: math.MaxUint64}
	for i := range servicenet.WindowWords {
		p.Window[i] = math.MaxUint64
	}
	for i := range p.Earlier {
		p.Earlier[i] = servicenet.InboxWindow{Highest: math.MaxUint64, Window: p.Window}
	}
	if b := encodeInbox(p); len(b) > inboxBytes {
		t.Errorf("%d bytes: want at most %d", len(b), inboxBytes)
	}
}

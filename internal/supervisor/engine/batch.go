package engine

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// timedChange is a change and when the machine made it.
type timedChange struct {
	awareness.Change
	at time.Time
}

// batch is what one commit will hold.
//
//	open (takes changes) ──sealed──► waiting ──► in flight ──► committed
type batch struct {
	changes []timedChange
	nodes   []fault.NodeID // whose documents are to be written, each once
	origins []fault.Origin // whose inbox positions are to be written, each once
	reports []fault.ReportID

	hasNode   map[fault.NodeID]bool
	hasOrigin map[fault.Origin]bool

	// From here on set when sealed.
	statuses   []awareness.NodeStatus
	inbox      []store.InboxPosition
	commitTime time.Duration // what a commit takes nowadays

	write *write // what an operator changes: then there is nothing else
}

func newBatch() *batch {
	return &batch{hasNode: make(map[fault.NodeID]bool), hasOrigin: make(map[fault.Origin]bool)}
}

func (b *batch) empty() bool { return b.ops() == 0 }

// ops is the number of store operations that the batch will take.
func (b *batch) ops() int { return len(b.changes) + len(b.nodes) + len(b.origins) }

// touchNode says whether the node is new to the batch.
func (b *batch) touchNode(id fault.NodeID) bool {
	if b.hasNode[id] {
		return false
	}
	b.hasNode[id] = true
	b.nodes = append(b.nodes, id)
	return true
}

func (b *batch) touchOrigin(o fault.Origin) {
	if !b.hasOrigin[o] {
		b.hasOrigin[o] = true
		b.origins = append(b.origins, o)
	}
}

// render turns a sealed batch into what the store takes. To the age of what was observed it adds
// the wait in the batch and what a commit takes nowadays, since the event is read as being of the
// commit but must be written before it.
func (b *batch) render(now time.Time, names *view.Names) store.Batch {
	if b.write != nil {
		return b.write.Batch()
	}
	out := store.Batch{Inbox: b.inbox}
	for _, c := range b.changes {
		at, _ := names.Coord(c.Node)
		ev := view.Event(c.Change, at, now)
		if c.Latency >= 0 {
			ev.AwarenessLatency = durationpb.New(c.Latency + now.Sub(c.at) + b.commitTime)
		}
		out.Events = append(out.Events, ev)
	}
	for _, st := range b.statuses {
		out.Nodes = append(out.Nodes, view.Stored(st, now))
	}
	return out
}

package engine

import (
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// timedChange is one change by the machine, with its time: a component, a group fault or a warning.
type timedChange struct {
	awareness.Change
	group   *groupChange
	warning *awareness.WarningStatus
	// recovered is a recovery of a half.
	recovered *recovered
	starved   *starvation
	at        time.Time
	merged    int // earlier uncommitted changes of the same subject
}

// groupChange is the current state of a group fault, and its previous state.
type groupChange struct {
	awareness.GroupStatus
	was fault.State
}

// subject identifies what changed: a component, a group fault or a warning.
type subject struct {
	node      fault.NodeID
	component fault.Component
	quantity  fault.Quantity // of a warning
	group     string
	recovery  fault.Half
	boot      bool
	words     bool
	starved   fault.Half
}

func (c *timedChange) subject() subject {
	switch {
	case c.group != nil:
		return subject{group: c.group.ID}
	case c.warning != nil:
		return subject{node: c.warning.Node, component: c.warning.Component, quantity: c.warning.Quantity}
	case c.recovered != nil:
		return subject{node: c.recovered.node, recovery: c.recovered.half, boot: c.recovered.boot != nil,
			words: c.recovered.last != nil}
	case c.starved != nil:
		return subject{node: c.starved.node, starved: c.starved.half}
	}
	return subject{node: c.Node, component: c.Component}
}

// batch is what one commit will hold.
//
//	open (takes changes) ──sealed──► waiting ──► in flight ──► committed
//	                                  └─merged─┘ (while the store takes nothing)
type batch struct {
	changes []timedChange
	nodes   []fault.NodeID // nodes whose documents must be written, each once
	origins []fault.Origin // origins whose inbox positions must be written, each once
	reports []fault.ReportID

	hasNode   map[fault.NodeID]bool
	hasOrigin map[fault.Origin]bool

	// The fields below are set when the batch is sealed.
	statuses   []awareness.NodeStatus
	evidence   map[fault.NodeID][]view.FaultEvidence   // only nodes with faults
	reported   map[fault.NodeID]recoveries             // only nodes that had recoveries
	traces     map[fault.NodeID]awareness.MachineTrace // only nodes that had one
	inbox      []store.InboxPosition
	commitTime time.Duration // current mean duration of a commit

	incidents map[string]*awareness.Incident // that changed, by ID; nil: no longer kept
	unread    map[string]*lofamov1.Incident  // that only another version understands, closed, by ID

	write *write // an operator's change; the batch then holds nothing else
}

// begins reports whether the batch contains only first reports of NORMAL components. No verdict and no response waits
// for such a batch.
func (b *batch) begins() bool {
	for i := range b.changes {
		c := &b.changes[i]
		if c.group != nil || c.warning != nil || c.recovered != nil || c.starved != nil || c.From != fault.Unknown || c.To != fault.Normal {
			return false
		}
	}
	return len(b.changes) > 0
}

func newBatch() *batch {
	return &batch{hasNode: make(map[fault.NodeID]bool), hasOrigin: make(map[fault.Origin]bool), reported: make(map[fault.NodeID]recoveries),
		evidence: make(map[fault.NodeID][]view.FaultEvidence), traces: make(map[fault.NodeID]awareness.MachineTrace),
		incidents: make(map[string]*awareness.Incident), unread: make(map[string]*lofamov1.Incident)}
}

func (b *batch) empty() bool { return b.ops() == 0 }

// ops returns the number of store operations in the batch.
func (b *batch) ops() int {
	return len(b.changes) + len(b.nodes) + len(b.origins) + len(b.incidents) + len(b.unread)
}

// touchNode adds a node and reports whether it is new to the batch.
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

// merge merges a later sealed batch into a sealed one. For each subject the newest state wins, and the merged changes
// of each component are counted. It returns the nodes that had a document in both.
func (b *batch) merge(later *batch) (twice []fault.NodeID) {
	at := make(map[subject]int, len(b.changes))
	for i := range b.changes {
		at[b.changes[i].subject()] = i
	}
	for _, c := range later.changes {
		i, ok := at[c.subject()]
		if !ok {
			at[c.subject()] = len(b.changes)
			b.changes = append(b.changes, c)
			continue
		}
		old := &b.changes[i]
		c.From, c.Was, c.merged = old.From, old.Was, old.merged+1+c.merged
		if c.group != nil {
			c.group.was = old.group.was
		}
		if c.recovered != nil {
			c.recovered.since += old.recovered.since
		}
		if c.starved != nil {
			c.starved.published = old.starved.published
		}
		*old = c
	}
	maps.Copy(b.reported, later.reported)
	maps.Copy(b.traces, later.traces)
	maps.Copy(b.incidents, later.incidents)
	maps.Copy(b.unread, later.unread)
	index := make(map[fault.NodeID]int, len(b.statuses))
	for i := range b.statuses {
		index[b.statuses[i].ID] = i
	}
	for _, st := range later.statuses {
		if list, ok := later.evidence[st.ID]; ok {
			b.evidence[st.ID] = list
		} else {
			delete(b.evidence, st.ID)
		}
		if i, ok := index[st.ID]; ok {
			b.statuses[i] = st
			twice = append(twice, st.ID)
			continue
		}
		b.statuses = append(b.statuses, st)
		b.touchNode(st.ID)
	}
	positions := make(map[fault.Origin]int, len(b.inbox))
	for i := range b.inbox {
		positions[b.inbox[i].Origin] = i
	}
	for _, p := range later.inbox {
		if i, ok := positions[p.Origin]; ok {
			b.inbox[i] = p
			continue
		}
		b.inbox = append(b.inbox, p)
		b.touchOrigin(p.Origin)
	}
	b.reports = append(b.reports, later.reports...)
	return twice
}

// render turns a sealed batch into a store batch. To the age of each observation it adds the wait in the batch and
// the mean duration of a commit: the event carries the time of the commit but must be written before it.
func (b *batch) render(now time.Time, names *view.Names) (store.Batch, error) {
	if b.write != nil {
		return b.write.Batch(), nil
	}
	out := store.Batch{Inbox: b.inbox, Events: make([]*lofamov1.Event, 0, len(b.changes)), Nodes: make([]*lofamov1.Node, 0, len(b.statuses))}
	above := make(map[string][]byte) // values of groups and warnings by key; nil: deleted
	for i := range b.changes {
		c := &b.changes[i]
		ev, err := c.render(now, b.commitTime, names, above)
		if err != nil {
			return store.Batch{}, err
		}
		if !c.undone() {
			out.Events = append(out.Events, ev)
		}
	}
	for key, value := range above {
		if value == nil {
			out.Deletes = append(out.Deletes, key)
		} else {
			out.Puts = append(out.Puts, store.KV{Key: key, Value: value})
		}
	}
	if err := b.renderIncidents(&out); err != nil {
		return store.Batch{}, err
	}
	for _, st := range b.statuses {
		doc := view.Stored(st)
		b.reported[st.ID].into(doc)
		view.PutEvidence(doc, b.evidence[st.ID])
		view.PutKernels(doc, b.traces[st.ID].Kernels)
		out.Nodes = append(out.Nodes, doc)
	}
	return out, nil
}

// undone reports whether the change of a component, or of a half's starvation, was merged with the one that took it back:
// readers see nothing new.
func (c *timedChange) undone() bool {
	switch {
	case c.merged == 0 || c.group != nil || c.warning != nil || c.recovered != nil:
		return false
	case c.starved != nil:
		return c.starved.published == (c.starved.time != nil)
	}
	return c.Void()
}

// render returns the event of a change. For a group or a warning it also stores the new value in above.
func (c *timedChange) render(now time.Time, commitTime time.Duration, names *view.Names, above map[string][]byte) (*lofamov1.Event, error) {
	var ev *lofamov1.Event
	var err error
	switch {
	case c.group != nil:
		ev = view.GroupEvent(c.group.GroupStatus, c.group.was, now)
		key := store.GroupKey(c.group.ID)
		above[key] = nil
		if c.group.State != fault.Normal {
			above[key], err = proto.Marshal(view.StoredGroup(c.group.GroupStatus))
		}
	case c.warning != nil:
		ev = view.WarningEvent(*c.warning, names, now)
		key := store.WarningKey(c.warning.Node, c.warning.Component, c.warning.Quantity)
		above[key] = nil
		if !c.warning.Ended {
			above[key], err = proto.Marshal(view.Warning(*c.warning))
		}
	case c.recovered != nil:
		ev = c.recovered.event(now, names)
		if !c.recovered.told() {
			ev.AwarenessLatency = durationpb.New(c.recovered.age + now.Sub(c.at) + commitTime)
		}
	case c.starved != nil:
		ev = c.starved.event(now, names)
	default:
		coord, _ := names.Coord(c.Node)
		ev = view.Event(c.Change, coord, now)
		ev.Labels = names.Labels(c.Node)
		if c.Latency >= 0 {
			ev.AwarenessLatency = durationpb.New(c.Latency + now.Sub(c.at) + commitTime)
		}
	}
	if c.merged > 0 {
		ev.Reason += fmt.Sprintf("; %d changes before it were not committed: the store took none", c.merged)
	}
	return ev, err
}

package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Change commits an operator's change of the topology or of maintenance marks, and returns the revision. The function
// change receives the current topology and returns the writes, or none. Changes run one at a time, so change always
// sees the state that it modifies: the next change waits for this one's commit even if ctx has ended. When Change
// returns after a change of the topology, the map follows the new topology. It fails with ErrNotLeading, also without a
// quorum, and with any error of change. If ctx ends, the change may still be committed.
func (e *Engine) Change(ctx context.Context, change func(store.Topology) ([]store.Write, error)) (uint64, error) {
	select {
	case e.changing <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	handed := false
	defer func() { // also if change panics
		if !handed {
			<-e.changing
		}
	}()
	at, writes, err := e.prepare(ctx, change)
	if err != nil || len(writes) == 0 {
		return at, err
	}
	handed = true
	done := make(chan written, 1)
	go func() {
		defer func() { <-e.changing }()
		done <- e.writeAll(context.WithoutCancel(ctx), at, writes)
	}()
	select {
	case r := <-done:
		return r.revision, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// prepare returns the writes of a change, for the running term only, and the revision of the state that it saw.
func (e *Engine) prepare(ctx context.Context, change func(store.Topology) ([]store.Write, error)) (uint64, []store.Write, error) {
	t := e.term.Load()
	if t == nil {
		return 0, nil, ErrNotLeading
	}
	at, err := t.confirmer.confirm(ctx)
	if err != nil {
		return 0, nil, err
	}
	writes, err := change(t.topology.get())
	if err == nil && len(writes) > 1 {
		t.topology.stage()
	}
	for i := range writes {
		if writes[i].Term == 0 {
			writes[i].Term = uint64(t.confirmer.fence.Rev)
		}
	}
	return at.Revision, writes, err
}

// Topology returns the committed topology, and waits for no change that is under way. A change whose Change has returned is in it. It
// fails with ErrNotLeading, also without a quorum.
func (e *Engine) Topology(ctx context.Context) (store.Topology, error) {
	t := e.term.Load()
	if t == nil {
		return store.Topology{}, ErrNotLeading
	}
	if _, err := t.confirmer.confirm(ctx); err != nil {
		return store.Topology{}, err
	}
	return t.topology.get(), nil
}

// writeAll commits writes one after the other, until one fails or the term ends.
func (e *Engine) writeAll(ctx context.Context, revision uint64, writes []store.Write) written {
	for _, w := range writes {
		var err error
		if revision, err = e.Write(ctx, w); err != nil {
			return written{0, err}
		}
	}
	return written{revision, nil}
}

// followWrite applies a committed write of an operator to the topology, the maintenance marks and the masks.
func (t *term) followWrite(w *write, revision uint64) error {
	if w.ChangesTopology() {
		t.followPlaces(w, revision)
	}
	if t.e.cfg.Marks != nil {
		set, ended, err := store.MaintenanceIn(w.Write)
		if err != nil {
			return err
		}
		t.e.cfg.Marks.Change(set, ended, revision)
	}
	if t.e.cfg.Masks != nil {
		set, ended, err := store.MasksIn(w.Write)
		if err != nil {
			return err
		}
		t.e.cfg.Masks.Change(set, ended, store.MaskKey, revision)
	}
	return nil
}

// reply answers the operator whose write was committed or refused.
func (t *term) reply(w *write, r result) {
	if w.moves { // also if it was refused
		t.pausing = slices.ContainsFunc(t.sealed, func(b *batch) bool { return b.write != nil && b.write.moves })
	}
	w.reply <- written{r.revision, r.err}
}

// Lead runs one term of leadership: it loads the committed map and works until the context ends or the store refuses
// a commit. It returns the reason. It applies changes of the topology without a restart: nodes at their places keep
// everything, and new ones are UNKNOWN.
func (e *Engine) Lead(ctx context.Context, fence store.Fence) error {
	t, err := e.newTerm(ctx, fence)
	if err != nil {
		return fmt.Errorf("begin term %d: %w", fence.Rev, err)
	}
	e.seen.open()
	e.cfg.Metrics.Leader.Set(1)
	e.cfg.Metrics.Terms.Inc()
	expiring, expire := context.WithCancel(ctx)
	expired := make(chan struct{})
	e.publish(t)
	if e.cfg.Revoked != nil { // Submit may have missed a list that came while the term began
		t.step(time.Now(), e.cfg.Revoked())
	}
	go func() {
		defer close(expired)
		e.expire(expiring)
	}()
	defer func() {
		e.publish(nil)
		e.commitBegan.Store(nil)
		expire()
		t.end()
		<-expired
		e.seen.close()
		e.cfg.Metrics.Leader.Set(0)
	}()
	return t.run(ctx)
}

// end releases all callers that wait for an answer of the term.
func (t *term) end() {
	close(t.done)
	t.cancel()
	t.confirmer.stop()
}

// settle makes the store and this replica agree on the topology and the marks. The first leader of a cluster stores
// its configured topology. Stored documents of a node that has another place by now, or none, are deleted: they would
// be wrong when the node returns to its old place.
func (e *Engine) settle(ctx context.Context, committer store.Committer, snap *store.Snapshot) error {
	if e.cfg.Seed == nil {
		return nil // the topology is as Names has it
	}
	commit := func(b store.Batch) error {
		rev, err := committer.Commit(ctx, b)
		if err == nil {
			snap.Revision = rev
		}
		return err
	}
	if snap.Topology.Topology == nil {
		writes, err := store.TopologyWrites(snap.Topology, e.cfg.Seed, nil)
		if err != nil {
			return err
		}
		for _, w := range writes {
			if err := commit(w.Batch()); err != nil {
				return fmt.Errorf("store the first topology: %w", err)
			}
		}
		snap.Topology = store.Topology{Topology: e.cfg.Seed.At(snap.Revision), Generation: snap.Topology.Newest + 1,
			Newest: snap.Topology.Newest + 1}
		e.cfg.Logger.Info("the topology of the configuration is stored; from now on the store's counts", "nodes", len(e.cfg.Seed.Nodes),
			"revision", snap.Revision)
	}
	e.cfg.Names.Set(snap.Topology.Topology)
	if now := e.cfg.Names.Topology(); now.Revision == snap.Topology.Revision {
		snap.Topology.Topology = now // equal revisions have equal contents: keep one copy
	}
	garbage := snap.Topology.Garbage
	var marks []*lofamov1.Maintenance
	for _, m := range store.Marks(snap.Maintenance) {
		if _, ok := snap.Topology.Node(fault.NodeID(m.GetNode())); ok {
			marks = append(marks, m)
		} else {
			garbage = append(garbage, store.MaintenanceKey(m.GetNode()))
		}
	}
	if e.cfg.Marks != nil {
		e.cfg.Marks.Replace(marks, snap.Revision)
	}
	now := time.Now()
	masks, none := keptMasks(snap.Topology.Dims, snap.Masks)
	e.cfg.Masks.Replace(masks, snap.Revision)
	garbage = append(garbage, maskKeys(none)...)
	keys, events := e.forget(snap, now)
	events = append(events, e.maskEnds(none, now)...)
	if garbage = append(garbage, keys...); len(garbage) == 0 {
		return nil
	}
	e.cfg.Logger.Info("deleting records of removed nodes and of places that nodes have left", "keys", len(garbage))
	if err := commit(store.Batch{Deletes: garbage, Events: events}); err != nil {
		return fmt.Errorf("delete records of removed nodes: %w", err)
	}
	return nil
}

// forget removes the entries of vacated places from a snapshot. It returns their keys and the events that end their
// faults. It leaves group faults of remaining nodes to the machine.
func (e *Engine) forget(snap *store.Snapshot, now time.Time) (keys []string, events []*lofamov1.Event) {
	left := make(map[string]bool)
	snap.Nodes = slices.DeleteFunc(snap.Nodes, func(doc *lofamov1.Node) bool {
		n, ok := snap.Topology.Node(fault.NodeID(doc.GetId()))
		if ok && !n.Spare && n.Coord.String() == doc.GetCoord() {
			return false
		}
		left[doc.GetId()] = true
		if ok && !n.Spare {
			return false // newTerm needs the boot epochs of the former place
		}
		keys = append(keys, store.NodeKey(doc.GetId()))
		return true
	})
	placed := func(id string) bool {
		n, ok := snap.Topology.Node(fault.NodeID(id))
		return ok && !n.Spare
	}
	const why = "the topology has changed: "
	snap.Groups = slices.DeleteFunc(snap.Groups, func(g *lofamov1.Group) bool {
		if slices.ContainsFunc(g.GetMembers(), placed) {
			return false
		}
		keys = append(keys, store.GroupKey(g.GetId()))
		if st, err := view.RestoreGroup(g); err == nil {
			was := st.State
			st.State, st.Rule = fault.Normal, why+"its members are gone"
			events = append(events, view.GroupEvent(st, was, now))
		}
		return true
	})
	snap.Warnings = slices.DeleteFunc(snap.Warnings, func(w store.Warning) bool {
		st, err := view.RestoreWarning(w.Node, w.Warning)
		gone := "the node has left its place"
		if id := string(w.Node); placed(id) && !left[id] {
			if err != nil || !linkGone(snap.Topology.Topology, st) {
				return false
			}
			gone = "the node has no such link any more"
		}
		if err == nil {
			keys = append(keys, store.WarningKey(st.Node, st.Component, st.Quantity))
			st.Ended, st.Rule = true, why+gone
			events = append(events, view.WarningEvent(st, e.cfg.Names, now))
		}
		return true
	})
	return keys, events
}

// linkGone reports whether a warning is of a link that its node does not have.
func linkGone(top *topology.Topology, w awareness.WarningStatus) bool {
	d, link := w.Component.LinkDirection()
	n, ok := top.Node(w.Node)
	if !link || !ok {
		return false
	}
	_, has := top.Dims.Neighbour(n.Coord, d)
	return !has
}

// awareness returns the machine's configuration for a topology (nil: as configured) and the border of the region.
func (e *Engine) awareness(t *topology.Topology) awareness.Config {
	c := e.cfg.Awareness
	if t == nil {
		return c
	}
	ids := t.IDs()
	for at, id := range c.IDs {
		if c.Foreign[id] {
			ids[at] = id
		}
	}
	c.Dims, c.IDs, c.Labels, c.DomainLabels, c.Revision = t.Dims, ids, t.Labels(), t.DomainLabels, t.Revision
	return c
}

// expire removes expired maintenance marks until the context ends.
func (e *Engine) expire(ctx context.Context) {
	if e.cfg.Marks == nil {
		return
	}
	var x expiry
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		marks, changed := e.cfg.Marks.All()
		over, wake := x.step(time.Now(), marks)
		if len(over) > 0 {
			if err := e.endMarks(ctx, over); err == nil {
				continue
			} else if ctx.Err() == nil {
				e.cfg.Logger.Warn("maintenance whose time is over is not ended yet", "nodes", len(over), "err", err)
			}
			wake = time.Now().Add(time.Second)
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-timer.C:
		}
	}
}

// maxEnded is how many marks one commit ends. With one event each they fit every store's transaction limit.
const maxEnded = 48

// endMarks ends expired marks, unless they have changed meanwhile.
func (e *Engine) endMarks(ctx context.Context, over []mark) error {
	for len(over) > 0 {
		n := min(len(over), maxEnded)
		_, err := e.Change(ctx, func(store.Topology) ([]store.Write, error) {
			var w store.Write
			for _, m := range over[:n] {
				if e.cfg.Marks.Of(fault.NodeID(m.GetNode())) != m {
					continue
				}
				e.cfg.Logger.Info("maintenance has ended: its time is over", "node", m.GetNode(), "reason", m.GetReason(), "by", m.GetBy())
				w.Deletes = append(w.Deletes, store.MaintenanceKey(m.GetNode()))
				w.Events = append(w.Events, view.MaintenanceEvent(m, true, "the time set for it is over", "supervisor/"+e.cfg.Awareness.Supervisor,
					e.cfg.Names, time.Now()))
			}
			if len(w.Deletes) == 0 {
				return nil, nil
			}
			return []store.Write{w}, nil
		})
		if err != nil {
			return err
		}
		over = over[n:]
	}
	return nil
}

// keptMasks returns the masks of links that a torus has, and the others. Masks for links of another torus mean nothing.
func keptMasks(dims grid.Dims, all []*lofamov1.LinkMask) (masks, none []*lofamov1.LinkMask) {
	for _, m := range all {
		l, ok := view.LinkOf(m)
		ok = ok && dims.Contains(l.Node)
		if ok {
			var peer grid.Coord
			peer, ok = dims.Neighbour(l.Node, l.Dir)
			ok = ok && (m.GetPeerCoord() == "" || m.GetPeerCoord() == peer.String())
		}
		if ok {
			masks = append(masks, m)
		} else {
			none = append(none, m)
		}
	}
	return masks, none
}

// maskKeys returns the keys of masks in the store.
func maskKeys(masks []*lofamov1.LinkMask) []string {
	var keys []string
	for _, m := range masks {
		keys = append(keys, store.MaskKey(m))
	}
	return keys
}

// maskEnds returns an event for each mask of a link that a change of the torus removed.
func (e *Engine) maskEnds(none []*lofamov1.LinkMask, now time.Time) []*lofamov1.Event {
	var events []*lofamov1.Event
	for _, m := range none {
		events = append(events, view.MaskEvent(m, true, "the torus no longer has this link", "supervisor/"+e.cfg.Awareness.Supervisor,
			e.cfg.Names, now))
	}
	return events
}

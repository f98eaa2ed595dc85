package engine

import (
	"context"
	"slices"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// newTerm loads the committed map and begins from it.
func (e *Engine) newTerm(ctx context.Context, fence store.Fence) (_ *term, err error) {
	snap, err := e.store.Load(ctx)
	if err != nil {
		return nil, err
	}
	committer, err := e.store.Writer(fence, e.cfg.Meta, snap)
	if err != nil {
		return nil, err
	}
	if err := e.settle(ctx, committer, &snap); err != nil {
		return nil, err
	}
	now := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	t := &term{
		topology: known{now: snap.Topology}, cancel: cancel,
		e: e, committer: committer, inbox: servicenet.NewInbox(snap.Inbox),
		committed: view.NewBuilder(e.cfg.Names, now), touched: make(map[fault.NodeID]int),
		confirmer: &confirmer{ctx: ctx, store: e.store, fence: fence},
		log:       newReportLog(reportsKept(len(e.cfg.Names.All()))), trace: newTracer(e.cfg.Logger, fence),
		senders: make(map[fault.NodeID]Sender), health: make(map[fault.NodeID][2]health), reported: make(map[fault.NodeID]recoveries),
		watchdogs: view.NewWatchdogs(), hostBegan: make(map[fault.NodeID]hostBegin), traced: make(map[fault.NodeID]bool),
		wordsOf:       make(map[fault.Origin][servicenet.MaxLastWords]wordsID),
		wordsIn:       make(map[fault.Origin]fault.ReportID),
		publishedLast: make(map[fault.NodeID][2]time.Time), began: now,
		words: make(map[fault.Origin]spoken), groups: make(map[string]fault.State),
		open: newBatch(), waiting: make(map[fault.ReportID][]answerTo), questions: newQuestions(), done: make(chan struct{}),
	}
	for v := servicenet.Fresh; int(v) < len(t.verdicts); v++ {
		t.verdicts[v] = e.cfg.Metrics.Verdicts.WithLabelValues(v.String())
	}
	t.trace.begins(snap)
	saved, moved, err := t.restoreNodes(snap)
	if err != nil {
		return nil, err
	}
	if t.machine, err = awareness.New(t.awareness(), now, saved); err != nil {
		return nil, err
	}
	if err := t.restoreAbove(snap); err != nil {
		return nil, err
	}
	if err := t.restoreIncidents(snap, now, saved); err != nil {
		return nil, err
	}
	t.published = newPublished(t.committed.Map(snap.Revision))
	e.cfg.Metrics.Revision.Set(float64(snap.Revision))
	if e.cfg.Revoked != nil {
		t.step(now, e.cfg.Revoked())
	}
	t.step(now, awareness.Tick{}) // sets the first wake-up
	for _, id := range moved {
		t.touch(id)
	}
	for id := range t.reported {
		if st, ok := t.machine.Node(id); ok {
			t.noteTrace(t.open, st)
		}
	}
	t.foldIncidents(t.open, now)
	t.closeUnread(t.open, now)
	t.strays = newStrays(maxStrays, snap.Inbox, snap.Topology.Topology)
	t.collect(t.dropPositions(t.strays.surplus()))
	return t, nil
}

// awareness returns the configuration of the term's machine.
func (t *term) awareness() awareness.Config {
	cfg := t.e.awareness(t.topology.get().Topology)
	cfg.Known = t.inbox.Knows
	return cfg
}

// restoreNodes restores the committed map. moved are the nodes with another place than in the map: the earlier leader ended
// before it committed them at their new places.
func (t *term) restoreNodes(snap store.Snapshot) (saved []awareness.NodeStatus, moved []fault.NodeID, err error) {
	for _, doc := range snap.Nodes {
		entry, err := view.Restore(doc)
		if err != nil {
			return nil, nil, err
		}
		if fresh, ok := t.committed.At(entry.Status.ID); ok && fresh.Status.Coord != entry.Status.Coord {
			entry = view.Entry{Status: awareness.AtNewPlace(fresh.Status, entry.Status), Revision: entry.Revision}
			doc, moved = nil, append(moved, entry.Status.ID)
		}
		if !t.committed.Set(entry) {
			t.e.cfg.Logger.Warn("stored node is not in the configured torus: left out", "node", entry.Status.ID, "coord", entry.Status.Coord)
			continue
		}
		saved = append(saved, entry.Status)
		switch id, epoch := entry.Status.ID, entry.Status.HostEpoch; {
		case !stillAnnounced(entry, t.began):
		case entry.Status.Stop.Reason != 0:
			t.watchdogs.RestoreStop(id, epoch)
		default:
			t.watchdogs.RestoreRestart(t.began, id, epoch)
		}
		if r := recoveriesOf(doc); r != (recoveries{}) {
			r[halfOf(fault.HalfHost)].wordsAt = t.began
			t.reported[entry.Status.ID] = r
			t.watchdogs.Restore(entry.Status.ID, r[halfOf(fault.HalfHost)].watchdog, entry.Status.HostEpoch)
		}
	}
	return saved, moved, nil
}

// stillAnnounced reports whether a stored stop of a node, or a stored restart of its host half, may still be in progress. A notice deletes
// the statement that the watchdog is armed. So a stored armed watchdog is newer than the notice, and the stop or restart is over. If the
// node never reported the end of a restart, the mark stays in the document. stillAnnounced ignores it after awareness.LeaderClocks.
func stillAnnounced(e view.Entry, now time.Time) bool {
	if e.Watchdog.GetArmed() {
		return false
	}
	end := e.Status.Restart.Ends(fault.HalfHost)
	return e.Status.Stop.Reason != 0 || !end.IsZero() && now.Sub(end).Abs() <= awareness.LeaderClocks
}

// restoreAbove restores the group faults and warnings. It skips those of nodes that the torus no longer has.
func (t *term) restoreAbove(snap store.Snapshot) error {
	var groups []awareness.GroupStatus
	for _, doc := range snap.Groups {
		g, err := view.RestoreGroup(doc)
		if err != nil {
			return err
		}
		n := len(g.Members)
		g.Members = slices.DeleteFunc(g.Members, func(id fault.NodeID) bool { return !t.committed.Has(id) })
		if len(g.Members) < n {
			t.e.cfg.Logger.Warn("members of a stored group fault are not in the configured torus: left out", "group", g.ID, "members",
				n-len(g.Members))
		}
		if len(g.Members) == 0 {
			continue
		}
		groups = append(groups, g)
		t.groups[g.ID] = g.State
		t.committed.SetGroup(g)
	}
	for _, stored := range snap.Warnings {
		w, err := view.RestoreWarning(stored.Node, stored.Warning)
		if err == nil {
			err = t.machine.RestoreWarning(w)
		}
		if err != nil { // it comes back with the node's readings, and must not keep this term from its begin
			t.e.cfg.Logger.Warn("restore warning: left out", "node", stored.Node, "component", stored.Warning.GetComponent(), "quantity",
				stored.Warning.GetQuantity(), "err", err)
			continue
		}
		t.committed.SetWarning(w)
	}
	return t.machine.RestoreGroups(groups)
}

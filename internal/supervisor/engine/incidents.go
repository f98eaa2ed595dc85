package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
)

// restoreIncidents restores the incidents on the committed map. It leaves those that only another version understands
// to closeUnread. The first update closes the incidents of nodes that are no longer in the torus.
func (t *term) restoreIncidents(snap store.Snapshot, now time.Time, nodes []awareness.NodeStatus) error {
	var saved []awareness.Incident
	for _, doc := range snap.Incidents {
		in, err := view.RestoreIncident(doc)
		if err != nil {
			t.e.cfg.Logger.Warn("stored incident is of another version: closing it, and opening another one for its fault", "err", err)
			t.unread = append(t.unread, doc)
			continue
		}
		saved = append(saved, in)
	}
	cfg := awareness.IncidentsOf(t.e.cfg.Meta.Cluster, t.e.awareness(snap.Topology.Topology))
	cfg.KeepClosed = cmp.Or(t.e.cfg.KeepIncidents, cfg.KeepClosed)
	incidents, err := awareness.NewIncidents(cfg, now, saved, nodes)
	t.incidents, t.keepFor = incidents, cfg.KeepFor
	return err
}

// foldIncidents folds the changes of a batch into incidents, which the batch then commits as well.
func (t *term) foldIncidents(b *batch, now time.Time) {
	u := awareness.IncidentUpdate{Nodes: b.statuses, Groups: t.machine.Groups(), Status: t.machine.Node, Traces: b.traces}
	for i := range b.changes {
		if c := &b.changes[i]; c.Component.Valid() {
			u.Changes = append(u.Changes, c.Change)
		}
	}
	out := t.incidents.Update(now, u)
	for _, in := range out.Changed {
		b.incidents[in.ID] = in
	}
	for _, id := range out.Gone {
		b.incidents[id] = nil
	}
}

// closeUnread closes the stored incidents that only another version understands: no update of this version would ever
// close them. The fold has opened other incidents for faults in this version's map. Incidents that were CLOSED long ago
// are deleted.
func (t *term) closeUnread(b *batch, now time.Time) {
	for _, doc := range t.unread {
		id := doc.GetId()
		if _, replaced := b.incidents[id]; replaced {
			continue
		}
		if doc.GetState() != lofamov1.IncidentState_CLOSED {
			doc.State, doc.Until = lofamov1.IncidentState_CLOSED, timestamppb.New(now)
			doc.Version++
			b.unread[id] = doc
		} else if doc.GetUntil().AsTime().Add(t.keepFor).Before(now) {
			b.incidents[id] = nil
		}
	}
	t.unread = nil
}

// renderIncidents adds the changed incidents to a store batch.
func (b *batch) renderIncidents(out *store.Batch) error {
	for _, id := range slices.Sorted(maps.Keys(b.unread)) {
		kv, err := store.IncidentPut(b.unread[id])
		if err != nil {
			return err
		}
		out.Puts = append(out.Puts, kv)
	}
	for _, id := range slices.Sorted(maps.Keys(b.incidents)) {
		in := b.incidents[id]
		if in == nil {
			record, notes, responses := store.IncidentKeys(id)
			out.Deletes = append(out.Deletes, record, notes, responses)
			continue
		}
		kv, err := store.IncidentPut(view.Incident(in))
		if err != nil {
			return err
		}
		out.Puts = append(out.Puts, kv)
	}
	return nil
}

package sim

import (
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// restoreIncidents restores the committed incidents, as internal/supervisor/engine does.
func (t *term) restoreIncidents(nodes []awareness.NodeStatus) (err error) {
	var saved []awareness.Incident
	for _, doc := range t.r.w.store.incidents {
		in, err := view.RestoreIncident(doc)
		if err != nil {
			return err
		}
		saved = append(saved, in)
	}
	t.incidents, err = awareness.NewIncidents(awareness.IncidentsOf("sim", awarenessConfig(t.r.w, t.r.id)), t.r.clock(), saved, nodes)
	return err
}

// fold folds the changes of a batch into incidents.
func (t *term) fold(b *batch) {
	u := awareness.IncidentUpdate{Nodes: b.statuses, Groups: t.machine.Groups(), Status: t.machine.Node}
	for _, c := range b.changes {
		u.Changes = append(u.Changes, c.Change)
	}
	out := t.incidents.Update(t.r.clock(), u)
	b.folded.Changed = append(b.folded.Changed, out.Changed...) // of one incident the last one counts
	b.folded.Gone = append(b.folded.Gone, out.Gone...)
	t.r.sleepUntil(t.wakes())
}

// foldDue folds the incidents of the open batch when a recovering one is due.
func (t *term) foldDue(now time.Time) {
	if due := t.incidents.Wake(); !due.IsZero() && !now.Before(due) {
		t.fold(t.open)
		t.launch()
	}
}

// wakes returns when the next step is due.
func (t *term) wakes() time.Time { return fault.Earliest(t.wake, t.incidents.Wake()) }

// committedIncidents stores the incidents of a transaction.
func (w *World) committedIncidents(b *batch) {
	for _, in := range b.folded.Changed {
		w.store.incidents[in.ID] = view.Incident(in)
	}
	for _, id := range b.folded.Gone {
		delete(w.store.incidents, id)
	}
	if len(b.folded.Changed) == 0 {
		return
	}
	standing := 0
	for _, in := range w.store.incidents {
		if in.GetState() != lofamov1.IncidentState_CLOSED {
			standing++
		}
	}
	w.store.mostIncidents = max(w.store.mostIncidents, standing)
}

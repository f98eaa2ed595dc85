package store

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// feedRetry is the pause before a feed that broke off begins again.
const feedRetry = 200 * time.Millisecond

// IncidentFeed is this replica's copy of the incidents. It follows the store once for all its readers. It is safe for
// concurrent use.
type IncidentFeed struct {
	store  *Etcd
	logger *slog.Logger

	mu      sync.Mutex
	set     *IncidentSet // nil: not read yet
	view    IncidentView // as last asked for
	changed chan struct{}
}

// IncidentView is the state of a feed at one moment.
type IncidentView struct {
	Ready     bool              // false: the feed has not read the store yet
	Revision  uint64            // of the store
	Trimmed   uint64            // no incident that is no longer kept has changed after this revision; 0: unknown
	Incidents []*StoredIncident // in order of their revisions, then of their ids; read-only
	Changed   <-chan struct{}   // closed by the next change
}

// NewIncidentFeed returns a feed that is empty until Run has read the store.
func NewIncidentFeed(s *Etcd, logger *slog.Logger) *IncidentFeed {
	return &IncidentFeed{store: s, logger: logger, changed: make(chan struct{})}
}

// Run follows the store until the context ends.
func (f *IncidentFeed) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.follow(ctx); ctx.Err() == nil {
			f.logger.Debug("incident feed broke off", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(feedRetry):
		}
	}
}

func (f *IncidentFeed) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	set, err := f.Read(ctx)
	if err != nil {
		return err
	}
	_ = f.change(true, func() error { f.set = set; return nil })
	for u := range f.store.FollowIncidents(ctx, set.Revision) {
		if u.Err != nil {
			return u.Err
		}
		if err := f.change(len(u.events) > 0, func() error { return f.set.Apply(u) }); err != nil {
			return err
		}
	}
	return errors.New("no more updates")
}

// change applies a change, and wakes the readers if it concerns incidents.
func (f *IncidentFeed) change(incidents bool, do func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := do()
	if incidents {
		f.view = IncidentView{}
		close(f.changed)
		f.changed = make(chan struct{})
	}
	return err
}

// View returns the present state. All readers share one list of a state.
func (f *IncidentFeed) View() IncidentView {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set == nil {
		return IncidentView{Changed: f.changed}
	}
	if !f.view.Ready {
		f.view = IncidentView{Ready: true, Incidents: f.set.All(), Changed: f.changed}
		slices.SortFunc(f.view.Incidents, byRevision)
	}
	f.view.Revision, f.view.Trimmed = f.set.Revision, f.set.trimmed
	return f.view
}

// Standing is View for readers of the incidents that are not CLOSED, which are few. It returns only these, in no order.
func (f *IncidentFeed) Standing() IncidentView {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := IncidentView{Ready: f.set != nil, Changed: f.changed}
	if !v.Ready {
		return v
	}
	v.Revision, v.Trimmed = f.set.Revision, f.set.trimmed
	for _, in := range f.set.of {
		if in.GetState() != lofamov1.IncidentState_CLOSED {
			v.Incidents = append(v.Incidents, in)
		}
	}
	return v
}

func byRevision(a, b *StoredIncident) int {
	return cmp.Or(cmp.Compare(a.GetRevision(), b.GetRevision()), strings.Compare(a.GetId(), b.GetId()))
}

// After returns the incidents that changed after a revision.
func (v IncidentView) After(revision uint64) []*StoredIncident {
	i, _ := slices.BinarySearchFunc(v.Incidents, revision+1, func(in *StoredIncident, r uint64) int {
		return cmp.Compare(in.GetRevision(), r)
	})
	return v.Incidents[i:]
}

// Of returns an incident in its newest form; nil: it is not kept, or the feed has not read the store.
func (f *IncidentFeed) Of(id string) *StoredIncident {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set == nil {
		return nil
	}
	return f.set.Of(id)
}

// Read returns all incidents as the replica's store has them now. It decodes only those that the feed does not have in this
// form.
func (f *IncidentFeed) Read(ctx context.Context) (*IncidentSet, error) {
	return f.store.incidents(ctx, f.Of)
}

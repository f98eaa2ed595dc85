package replica

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/topology"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/fault"
)

// MapStore is the source of a copy.
type MapStore interface {
	// MapNow and FollowMap answer from the replica's own etcd: no quorum is needed.
	MapNow(ctx context.Context) (store.Snapshot, error)
	FollowMap(ctx context.Context, after uint64) <-chan store.MapUpdate
}

// CopyConfig of a copy.
type CopyConfig struct {
	Store  MapStore
	Names  *view.Names
	Logger *slog.Logger
	// OnChange receives every version, with the nodes that changed. The list is empty if only group faults changed;
	// nil: any node may have changed. It must return quickly. May be nil itself.
	OnChange func(m view.Map, changed []fault.NodeID)
}

// Copy is this replica's own copy of the committed map, at the revision of its etcd. It answers without a leader
// and without a quorum. A change costs time in proportion to its own size, not to the map's.
type Copy struct {
	cfg CopyConfig
	now atomic.Pointer[view.Map]
}

// NewCopy returns an empty copy; Run fills it.
func NewCopy(cfg CopyConfig) *Copy { return &Copy{cfg: cfg} }

// Map returns the copy; false: not read yet. It says nothing about its age.
func (c *Copy) Map() (view.Map, bool) {
	m := c.now.Load()
	if m == nil {
		return view.Map{}, false
	}
	return *m, true
}

// Run keeps the copy until the context ends.
func (c *Copy) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.follow(ctx); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Info("reading the copy of the map again", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// topologyCheck is the interval between checks for a changed topology.
const topologyCheck = time.Second

// follow reads the copy and keeps it until the feed breaks, or the topology changes (nil).
func (c *Copy) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	renamed, topo := c.cfg.Names.Changed(), c.cfg.Names.Topology()
	if _, begun := c.Map(); begun {
		renamed = nil // the next check suffices
	}
	snap, err := c.cfg.Store.MapNow(ctx)
	if err != nil {
		return err
	}
	b := view.NewBuilder(c.cfg.Names, time.Time{})
	if err := fill(b, &snap); err != nil {
		return err
	}
	c.publish(b, snap.Revision, nil)
	check := time.NewTicker(topologyCheck)
	defer check.Stop()
	updates := c.cfg.Store.FollowMap(ctx, snap.Revision)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-renamed: // at the start, the stored topology takes the place of the configured one
			return nil
		case <-check.C:
			if c.cfg.Names.Topology() != topo {
				return nil
			}
		case u, ok := <-updates:
			if !ok {
				return ctx.Err()
			}
			if err := c.update(b, topo, u); err != nil {
				return err
			}
		}
	}
}

// update applies one transaction.
func (c *Copy) update(b *view.Builder, topo *topology.Topology, u store.MapUpdate) error {
	if u.Err != nil {
		return u.Err
	}
	changed, err := apply(b, u)
	if err != nil {
		return err
	}
	if c.cfg.Names.Topology() == topo { // else the map is about to be read again
		c.publish(b, u.Revision, changed)
	}
	return nil
}

func (c *Copy) publish(b *view.Builder, revision uint64, changed []fault.NodeID) {
	m := b.Map(revision)
	c.now.Store(&m)
	if c.cfg.OnChange != nil {
		c.cfg.OnChange(m, changed)
	}
}

// fill puts a whole map into a builder. It ignores nodes outside the torus.
func fill(b *view.Builder, snap *store.Snapshot) error {
	if _, err := setNodes(b, snap.Nodes); err != nil {
		return err
	}
	return setAbove(b, snap)
}

func setNodes(b *view.Builder, docs []*lofamov1.Node) ([]fault.NodeID, error) {
	ids := make([]fault.NodeID, 0, len(docs))
	for _, doc := range docs {
		e, err := view.Restore(doc)
		if err != nil {
			return nil, err
		}
		if b.Set(e) {
			ids = append(ids, e.Status.ID)
		}
	}
	return ids, nil
}

func setAbove(b *view.Builder, snap *store.Snapshot) error {
	for _, doc := range snap.Groups {
		g, err := view.RestoreGroup(doc)
		if err != nil {
			return err
		}
		b.SetGroup(g)
	}
	for _, stored := range snap.Warnings {
		w, err := view.RestoreWarning(stored.Node, stored.Warning)
		if err != nil {
			return err
		}
		b.SetWarning(w)
	}
	return nil
}

// apply applies one transaction to a builder, and returns the changed nodes; never nil.
func apply(b *view.Builder, u store.MapUpdate) ([]fault.NodeID, error) {
	changed, err := setNodes(b, u.Nodes)
	if err != nil {
		return nil, err
	}
	var above store.Snapshot
	for _, kv := range u.Above {
		if err := above.AddAbove(kv); err != nil {
			return nil, err
		}
	}
	if err := setAbove(b, &above); err != nil {
		return nil, err
	}
	for _, w := range above.Warnings {
		changed = append(changed, w.Node)
	}
	for _, key := range u.Gone {
		if id, ok := strings.CutPrefix(key, store.GroupKey("")); ok {
			b.DropGroup(id)
		} else if node, component, quantity, ok := store.ParseWarningKey(key); ok {
			b.DropWarning(node, component, quantity)
			changed = append(changed, node)
		} else if id, ok := store.ParseNodeKey(key); ok {
			b.Reset(id, time.Time{})
			changed = append(changed, id)
		}
	}
	return changed, nil
}

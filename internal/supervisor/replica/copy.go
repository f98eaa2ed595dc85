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

// MapStore is what a copy is made from.
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
	// OnChange hears of every version, with the nodes that it changed, which are none when only group faults
	// have; nil: all may have changed. It must not dawdle. May be nil itself.
	OnChange func(m view.Map, changed []fault.NodeID)
}

// Copy is this replica's own copy of the committed map, as far as its etcd has come: it answers when neither
// a leader nor a quorum can be had. A change costs what has changed, not what there is.
type Copy struct {
	cfg CopyConfig
	now atomic.Pointer[view.Map]
}

// NewCopy returns a copy that knows of nothing yet; Run makes it know.
func NewCopy(cfg CopyConfig) *Copy { return &Copy{cfg: cfg} }

// Map returns the copy; false: nothing was read since the start. It says nothing of how old it is.
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
			c.cfg.Logger.Info("the copy of the map is read anew", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
}

// topologyCheck is how often the copy looks whether the torus is another one now.
const topologyCheck = time.Second

// follow reads the copy and keeps it until the feed breaks, or the topology changes (nil).
func (c *Copy) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	topo := c.cfg.Names.Topology()
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

// update takes one transaction.
func (c *Copy) update(b *view.Builder, topo *topology.Topology, u store.MapUpdate) error {
	if u.Err != nil {
		return u.Err
	}
	changed, err := apply(b, u)
	if err != nil {
		return err
	}
	if c.cfg.Names.Topology() == topo { // else it is about to be read anew
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

// fill puts a whole map into a builder. What the torus does not have is passed over.
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

// apply puts one transaction into a builder, and returns the nodes that it changed; never nil.
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

package federation

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/store"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// Copy reads the regions from a replica's own copy of the parent's store.
type Copy struct{ *store.Etcd }

// Regions returns the state of the regions when the copy was written, without ages.
func (c Copy) Regions(ctx context.Context, names []string) ([]*lofamov1.Region, error) {
	entries, rev, err := c.Tree(ctx, prefix, true)
	if err != nil {
		return nil, err
	}
	have, err := read(entries, rev)
	if err != nil {
		return nil, err
	}
	nodes := make(map[string]uint32)
	for _, n := range have.nodes {
		nodes[n.GetRegion()]++
	}
	var out []*lofamov1.Region
	for _, name := range names {
		h, known := have.heads[name]
		if !known {
			h.Cut = true
		}
		out = append(out, &lofamov1.Region{Name: name, State: h.state(), Revision: h.Revision, Nodes: nodes[name]})
	}
	return out, nil
}

// Nodes returns the nodes of all regions for display: those of regions that were cut off when the copy was written
// are UNKNOWN.
func (c Copy) Nodes(ctx context.Context) ([]*lofamov1.Node, uint64, error) {
	entries, rev, err := c.Tree(ctx, prefix, true)
	if err != nil {
		return nil, 0, err
	}
	have, err := read(entries, rev)
	if err != nil {
		return nil, 0, err
	}
	return have.nodes, rev, have.hide()
}

// Kept returns the last reported state of a node, even while its region is cut off. It returns nil if none is
// stored.
func (c Copy) Kept(ctx context.Context, name string, id fault.NodeID) (*lofamov1.Node, error) {
	below := name + "/" + KindNodes + string(id)
	entries, rev, err := c.Tree(ctx, prefix+below, true)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Key != "" {
			continue // another node, whose name begins with this one's
		}
		e.Key = below
		have, err := read([]store.Entry{e}, rev)
		if err != nil {
			return nil, err
		}
		return have.nodes[0], nil
	}
	return nil, nil
}

// FollowSet calls each with the operators' settings in the regions, in the order of the names. It does so first at
// once and then after every change, until the context ends or a watch breaks.
func (c Copy) FollowSet(ctx context.Context, names []string, each func([]store.Below)) error {
	prefixes := make([]string, len(names))
	for i, name := range names {
		prefixes[i] = prefix + name + "/"
	}
	return c.FollowBelow(ctx, prefixes, each)
}

// hide makes the nodes of regions that are cut off UNKNOWN.
func (have *stored) hide() error {
	for i, n := range have.nodes {
		h := have.heads[n.GetRegion()]
		if !h.Cut {
			continue
		}
		entry, err := view.Restore(n)
		if err != nil {
			return fmt.Errorf("region %s: %w", n.GetRegion(), err)
		}
		entry = cutOff(entry, h.Since)
		have.nodes[i] = view.Stored(entry.Status)
		have.nodes[i].Region, have.nodes[i].Revision = n.GetRegion(), n.GetRevision()
	}
	return nil
}

// MapNow returns the copy as a snapshot: the nodes of all regions, with their group faults and warnings.
func (c Copy) MapNow(ctx context.Context) (store.Snapshot, error) {
	entries, rev, err := c.Tree(ctx, prefix, true)
	if err != nil {
		return store.Snapshot{}, err
	}
	have, err := read(entries, rev)
	if err != nil {
		return store.Snapshot{}, err
	}
	if err := have.hide(); err != nil {
		return store.Snapshot{}, err
	}
	snap := store.Snapshot{Revision: rev, Nodes: have.nodes}
	for _, d := range have.above {
		if err := snap.AddAbove(store.KV{Key: store.Prefix + d.GetKey(), Value: d.GetValue()}); err != nil {
			return store.Snapshot{}, fmt.Errorf("region %s: %w", d.region, err)
		}
		if n := len(snap.Groups); n > 0 && strings.HasPrefix(d.GetKey(), KindGroups) {
			g := snap.Groups[n-1]
			g.Id = groupID(d.region, g.GetId())
			if h := have.heads[d.region]; h.Cut {
				g.State, g.Since, g.Reason = lofamov1.State_UNKNOWN, timestamppb.New(h.Since), awareness.RuleCutOff
			}
		}
	}
	return snap, nil
}

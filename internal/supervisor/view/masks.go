package view

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Masks are the links that the supervisors mask, as they are now. Its methods may be called from any goroutine; those of a nil
// *Masks, which has none, too.
type Masks struct {
	mu       sync.RWMutex
	revision uint64                               // at which they are so
	of       map[chanmask.Link]*lofamov1.LinkMask // not changed once it is here
	changed  chan struct{}                        // closed when there are others
}

// NewMasks returns the masks of a store in which there are none.
func NewMasks() *Masks {
	return &Masks{of: make(map[chanmask.Link]*lofamov1.LinkMask), changed: make(chan struct{})}
}

// LinkOf is the link that a mask is on; false for one that names none.
func LinkOf(m *lofamov1.LinkMask) (chanmask.Link, bool) {
	at, err := grid.ParseCoord(m.GetCoord())
	d, err2 := grid.ParseDirection(m.GetDirection())
	return chanmask.Link{Node: at, Dir: d}, err == nil && err2 == nil && d.Positive()
}

// Of returns a link's mask, nil when it has none. It is not to be changed.
func (m *Masks) Of(l chanmask.Link) *lofamov1.LinkMask {
	if m == nil {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.of[l]
}

// All returns the masks by link, the revision at which they are so, and a channel that is closed when they are others.
func (m *Masks) All() ([]*lofamov1.LinkMask, uint64, <-chan struct{}) {
	if m == nil {
		return nil, 0, nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := slices.SortedFunc(maps.Values(m.of), func(a, b *lofamov1.LinkMask) int {
		return cmp.Or(cmp.Compare(a.GetCoord(), b.GetCoord()), cmp.Compare(a.GetDirection(), b.GetDirection()))
	})
	return all, m.revision, m.changed
}

// Replace follows the store: these are all masks as of a revision. What is not newer is passed over.
func (m *Masks) Replace(all []*lofamov1.LinkMask, revision uint64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision <= m.revision {
		return
	}
	of := make(map[chanmask.Link]*lofamov1.LinkMask, len(all))
	for _, mask := range all {
		if l, ok := LinkOf(mask); ok {
			of[l] = mask
		}
	}
	same := maps.EqualFunc(m.of, of, func(a, b *lofamov1.LinkMask) bool { return proto.Equal(a, b) })
	m.revision = revision
	if !same {
		m.of = of
		m.tell()
	}
}

// Change follows a commit: masks that were set, and keys of those that were taken away, as key gives them.
func (m *Masks) Change(set []*lofamov1.LinkMask, ended []string, key func(*lofamov1.LinkMask) string, revision uint64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if revision <= m.revision || len(set)+len(ended) == 0 {
		return
	}
	of := maps.Clone(m.of)
	maps.DeleteFunc(of, func(_ chanmask.Link, mask *lofamov1.LinkMask) bool { return slices.Contains(ended, key(mask)) })
	for _, mask := range set {
		if l, ok := LinkOf(mask); ok {
			of[l] = mask
		}
	}
	m.revision, m.of = revision, of
	m.tell()
}

func (m *Masks) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// MaskEvent tells that a link was masked or, when ended, restored.
func MaskEvent(m *lofamov1.LinkMask, ended bool, reason, by string, names *Names, at time.Time) *lofamov1.Event {
	id, coord, direction := fault.NodeID(m.GetNode()), m.GetCoord(), m.GetDirection()
	if d, err := grid.ParseDirection(direction); err == nil && !names.Known(id) && names.Known(fault.NodeID(m.GetPeer())) {
		id, coord, direction = fault.NodeID(m.GetPeer()), m.GetPeerCoord(), d.Opposite().String() // the lower end is another region's
	}
	return &lofamov1.Event{
		Kind: lofamov1.EventKind_MASK_CHANGED, Node: string(id), Coord: coord, Component: "link/" + direction, Mask: m, Ended: ended,
		Labels: names.Labels(id), Time: timestamppb.New(at), Observer: by, Reason: reason,
	}
}

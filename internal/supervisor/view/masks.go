package view

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/chanmask"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Masks are the links that the supervisors currently mask. Its methods may be called from any goroutine, and also
// on a nil *Masks, which has none.
type Masks struct {
	current[chanmask.Link, *lofamov1.LinkMask]
}

// NewMasks returns Masks without any mask.
func NewMasks() *Masks { return &Masks{newCurrent[chanmask.Link, *lofamov1.LinkMask]()} }

func (m *Masks) set() *current[chanmask.Link, *lofamov1.LinkMask] {
	if m == nil {
		return nil
	}
	return &m.current
}

// LinkOf returns the link of a mask; false if the mask names none.
func LinkOf(m *lofamov1.LinkMask) (chanmask.Link, bool) {
	at, err := grid.ParseCoord(m.GetCoord())
	d, err2 := grid.ParseDirection(m.GetDirection())
	return chanmask.Link{Node: at, Dir: d}, err == nil && err2 == nil && d.Positive()
}

// Of returns a link's mask, or nil. The mask is read-only.
func (m *Masks) Of(l chanmask.Link) *lofamov1.LinkMask { return m.set().get(l) }

// All returns the masks by link, their revision, and a channel that is closed on the next change.
func (m *Masks) All() ([]*lofamov1.LinkMask, uint64, <-chan struct{}) {
	return m.set().all(func(a, b *lofamov1.LinkMask) int {
		return cmp.Or(cmp.Compare(a.GetCoord(), b.GetCoord()), cmp.Compare(a.GetDirection(), b.GetDirection()))
	})
}

// Replace sets all masks, as of a revision of the store. It ignores a revision that is not newer.
func (m *Masks) Replace(all []*lofamov1.LinkMask, revision uint64) {
	of := make(map[chanmask.Link]*lofamov1.LinkMask, len(all))
	for _, mask := range all {
		if l, ok := LinkOf(mask); ok {
			of[l] = mask
		}
	}
	m.set().replace(of, revision)
}

// Change applies a commit: new or changed masks, and the keys of removed ones, as key returns them.
func (m *Masks) Change(set []*lofamov1.LinkMask, ended []string, key func(*lofamov1.LinkMask) string, revision uint64) {
	if len(set)+len(ended) == 0 {
		return
	}
	m.set().change(revision, func(of map[chanmask.Link]*lofamov1.LinkMask) {
		maps.DeleteFunc(of, func(_ chanmask.Link, mask *lofamov1.LinkMask) bool { return slices.Contains(ended, key(mask)) })
		for _, mask := range set {
			if l, ok := LinkOf(mask); ok {
				of[l] = mask
			}
		}
	})
}

// MaskEvent reports that a link was masked or, when ended, restored.
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

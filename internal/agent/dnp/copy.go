package dnp

import (
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/storage"
)

// linkCopy is the links' state in the DNP half's copy.
type linkCopy struct {
	resume   dnpcore.Resume
	sessions [grid.NumDirections]*torus.Session
	stored   [grid.NumDirections]torus.LinkSnapshot
}

// storeLinks stores changed link state. It must run before frames are sent: a number that a neighbour has seen must not
// be used again, and an acknowledged number must not be accepted twice.
func (d *dnpHalf) storeLinks() {
	for _, dir := range grid.Directions() {
		i := dir.Index()
		s := d.core.LinkSnapshot(dir)
		if s != d.linkCopy.stored[i] {
			d.linkCopy.stored[i] = s
			d.Copy.Note(d.Log, d.Copy.File.StoreCounters(dir, &s))
		}
	}
}

// storeSession comes before the session's first frame.
func (d *dnpHalf) storeSession(dir grid.Direction, s *torus.Session) {
	tx, rx := s.Keys()
	d.Copy.Note(d.Log, d.Copy.File.StoreSession(dir, storage.Session{ID: s.ID(), Tx: tx, Rx: rx}))
}

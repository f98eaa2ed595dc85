package dnp

import (
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
	"github.com/lofamo/lofamo/internal/agent/storage/backup"
)

// linkCopy is what the DNP half's copy holds of the links.
type linkCopy struct {
	resume   dnpcore.Resume
	sessions [grid.NumDirections]*torus.Session
	stored   [grid.NumDirections]torus.LinkSnapshot
}

// storeLinks stores what has changed of the links. It comes before frames are sent: a number that was seen must not be used
// again, nor one be taken twice that was acknowledged.
func (d *dnpHalf) storeLinks() {
	for _, dir := range d.Topo.Links {
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
	d.Copy.Note(d.Log, d.Copy.File.StoreSession(dir, backup.Session{ID: s.ID(), Tx: tx, Rx: rx}))
}

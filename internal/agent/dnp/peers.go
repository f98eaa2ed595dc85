package dnp

import (
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// goOver switches a link to the peer that the machine now knows. It removes all state of the former peer, here and in
// the copy: a half that resumes from the copy must not talk to the new peer in a session of the old one.
func (d *dnpHalf) goOver(dir grid.Direction) {
	p := d.core.PeerAt(dir)
	d.Log.Info("link changes to another peer", "link", dir.String(), "peer", p.Node, "address", p.Address.String())
	d.newSession(dir)
}

package dnp

import (
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/peerfile"
	"github.com/lofamo/lofamo/internal/agent/peers"
)

// goOver has a link speak with the peer that the machine knows now. Of the one before nothing is left, neither here nor in the copy: a half
// that goes on from that must not speak to the new one in a session of the old.
func (d *dnpHalf) goOver(dir grid.Direction) {
	p := d.core.PeerAt(dir)
	d.Log.Info("link goes over to another peer", "link", dir.String(), "peer", p.Node, "address", p.Address.String())
	d.newSession(dir)
}

func (d *dnpHalf) keepPeers(word peers.State) {
	if err := peerfile.Save(d.StatePath(peerfile.Name), word); err != nil {
		d.Log.Error("peers not kept: they are lost with the next restart", "err", err)
	}
}

package dnp

import (
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/peerfile"
	"github.com/lofamo/lofamo/internal/agent/peers"
)

// goOver switches a link to the peer that the machine now knows. It removes all state of the former peer, here and in
// the copy: a half that resumes from the copy must not talk to the new peer in a session of the old one.
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

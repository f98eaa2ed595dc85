package dnp

import (
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/pki"
)

// trustChanged ends the link sessions with peers whose certificates are revoked. A peer with a newer certificate makes
// another session at once.
func (d *dnpHalf) trustChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range d.Topo.Links {
		if p := d.core.PeerAt(dir); d.Trust.Registry.Denies(pki.NodeIdentity(d.Config.Cluster, p.Node, fault.HalfDNP)) {
			d.Log.Warn("link session ended: certificates of the peer are revoked", "link", dir.String(), "peer", p.Node)
			d.newSession(dir)
		}
	}
}

// newSession forgets a link's session, here and in the copy, and requests another one.
func (d *dnpHalf) newSession(dir grid.Direction) {
	p := d.core.PeerAt(dir)
	d.keys[dir.Index()] = torus.Keyring{}
	d.Copy.Note(d.Log, d.Copy.File.StoreSession(dir, storage.Session{}))
	l := d.links[dir.Index()]
	if err := l.SetPeer(p.Address, pki.VerifyPeerIdentity(pki.NodeIdentity(d.Config.Cluster, p.Node, fault.HalfDNP))); err != nil {
		d.Log.Error("link cannot communicate with its peer", "link", dir.String(), "peer", p.Node, "err", err)
		return
	}
	l.Redial()
}

package dnp

import (
	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/pki"
)

// trustChanged ends the link sessions with peers whose certificates are revoked. A peer with a newer certificate makes
// another session at once.
func (d *dnpHalf) trustChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range d.core.Links() {
		if p := d.core.PeerAt(dir); d.Trust.Registry.Denies(pki.NodeIdentity(d.Config.Cluster, p.Node, fault.HalfDNP)) {
			d.Log.Warn("link session ended: certificates of the peer are revoked", "link", dir.String(), "peer", p.Node)
			d.newSession(dir)
		}
	}
}

package dnp

import (
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/pki"
)

// goOver switches a link to the peer that the machine now knows. It removes all state of the former peer, here and in
// the copy: a half that resumes from the copy must not talk to the new peer in a session of the old one. A link that the
// node did not have is opened, and one that leads nowhere any more stays open without a peer.
func (d *dnpHalf) goOver(dir grid.Direction) {
	d.unopened[dir.Index()] = nil // the failure was with the former peer
	if _, linked := d.core.LinkTo(dir); !linked {
		d.Log.Info("link removed: no other node is on its line", "link", dir.String())
		d.forgetSession(dir)
		d.Copy.Note(d.Log, d.Copy.File.StoreHop(dir, nil))
		if l := d.links[dir.Index()]; l != nil {
			l.Leave()
		}
		return
	}
	p := d.core.PeerAt(dir)
	d.Log.Info("link changes to another peer", "link", dir.String(), "peer", p.Node, "address", p.Address.String())
	d.newSession(dir)
}

// forgetSession forgets a link's session, here and in the copy.
func (d *dnpHalf) forgetSession(dir grid.Direction) {
	d.keys[dir.Index()] = torus.Keyring{}
	d.Copy.Note(d.Log, d.Copy.File.StoreSession(dir, storage.Session{}))
}

// newSession forgets a link's session, and requests another one with its peer.
func (d *dnpHalf) newSession(dir grid.Direction) {
	d.forgetSession(dir)
	d.connect(dir)
}

// connect makes a link speak with its peer, and opens the link if necessary. If it fails, openMissing tries again.
func (d *dnpHalf) connect(dir grid.Direction) {
	i := dir.Index()
	to, _ := d.core.LinkTo(dir)
	p, l := d.core.PeerAt(dir), d.links[i]
	if l == nil {
		d.openLink(dir)
		return
	}
	if err := l.SetPeer(to, p.Address, pki.VerifyPeerIdentity(pki.NodeIdentity(d.Config.Cluster, p.Node, fault.HalfDNP))); err != nil {
		if d.failed(dir, p.Node, "link cannot communicate with its peer", err) {
			l.Leave() // its sockets must not stay with the former peer
		}
		return
	}
	d.unopened[i] = nil
	l.Redial()
}

// openLink opens a link that the node has got while it runs. The socket is that of the daemon, if the half has a daemon.
func (d *dnpHalf) openLink(dir grid.Direction) {
	if d.runLink == nil {
		return // not serving yet
	}
	i := dir.Index()
	to, _ := d.core.LinkTo(dir)
	p := d.core.PeerAt(dir)
	d.linkCopy.resume.Has[i] = false // an earlier process may have had a session with another peer
	l, err := d.listen(dir, to, p)
	if err != nil {
		d.failed(dir, p.Node, cannotOpen, err)
		return
	}
	d.links[i], d.unopened[i] = l, nil
	d.runLink(l)
}

const cannotOpen = "link cannot be opened"

// failed records why a link cannot be opened or connected. It logs the first failure, and reports whether this is the first one.
// openMissing tries again.
func (d *dnpHalf) failed(dir grid.Direction, peer fault.NodeID, problem string, err error) (first bool) {
	at := &d.unopened[dir.Index()]
	if first = *at == nil; first {
		d.Log.Error(problem+": trying again", "link", dir.String(), "peer", peer, "err", err)
	}
	*at = err
	return first
}

// openMissing tries again to open links, and to connect them with their peers, where that failed before.
func (d *dnpHalf) openMissing() {
	for _, dir := range grid.Directions() {
		i := dir.Index()
		if _, linked := d.core.LinkTo(dir); linked && (d.links[i] == nil || d.unopened[i] != nil) {
			d.connect(dir)
		}
	}
}

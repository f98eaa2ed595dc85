package dnp

import (
	"slices"
	"strconv"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/durable"
	"github.com/lofamo/lofamo/internal/pki"
)

// appliedListFile holds the version of the last list of revoked certificates that this half applied to its sessions. A restarted
// half keeps the sessions of its copy if that version is still in force.
const appliedListFile = "dnp.revocations-applied"

// trustChanged ends the link sessions with peers for which the list has new denials. Earlier denials end no session,
// because the half checked every later handshake against them. So a peer with new keys keeps its sessions, although the revocation of its
// old keys stays in the list. Only the half that dials can request another session at once, so ending a session may
// break the link for a while.
func (d *dnpHalf) trustChanged() {
	denied, version, applied := d.Trust.Registry.Denied(), d.Trust.Version.Load(), d.appliedList()
	if !d.judged && version > 0 && version == applied {
		d.denied = denied
	}
	d.judged = true // a list that was not read at the start is news when it comes
	d.endSessions(denied)
	d.denied = denied
	if version == applied {
		return
	}
	if err := durable.Replace(d.StatePath(appliedListFile), strconv.AppendUint(nil, version, 10)); err != nil {
		d.Log.Warn("version of the list of revoked certificates not stored: the next start ends the sessions of all listed peers", "err", err)
	}
}

// appliedList returns the version in appliedListFile; 0: none is known.
func (d *dnpHalf) appliedList() uint64 {
	version, _ := durable.Load(d.StatePath(appliedListFile), "version of a list", 20, 0, func(b []byte) (uint64, error) {
		return strconv.ParseUint(string(b), 10, 64)
	})
	return version
}

func (d *dnpHalf) endSessions(denied map[pki.Identity][]pki.Denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range d.core.Links() {
		p := d.core.PeerAt(dir)
		if id := pki.NodeIdentity(d.Config.Cluster, p.Node, fault.HalfDNP); refusesMore(d.denied[id], denied[id]) {
			d.Log.Warn("link session ended: certificates of the peer are revoked", "link", dir.String(), "peer", p.Node)
			d.newSession(dir)
		}
	}
}

// refusesMore reports whether some denial of an identity is new.
func refusesMore(before, now []pki.Denial) bool {
	return slices.ContainsFunc(now, func(n pki.Denial) bool {
		return !slices.ContainsFunc(before, func(b pki.Denial) bool { return b.Serial == n.Serial && b.Before.Equal(n.Before) })
	})
}

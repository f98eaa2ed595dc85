package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/backup"
	"github.com/lofamo/lofamo/internal/denylist"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// trust keeps a half's certificate and the list of revoked certificates current while the half runs. Both halves of a node share the list's file: the
// host half writes it.
type trust struct {
	registry *pki.Registry
	signer   *pki.Signer
	log      *slog.Logger
	keeper   *denylist.Keeper // owned by run
	file     watchedFile // the list's
	failed   condition
	renewal  condition
	renewAt  time.Time
	renewals *renewing           // owned by run, as are:
	carry    func()              // exchanges requests and answers with the other half
	pass     func(renewalAnswer) // hands an answer over; nil in the DNP half
	answers  chan renewalAnswer

	parts   chan denyPart
	look    chan struct{} // receives once a second
	version atomic.Uint64 // of the list in force
}

// watchedFile is a file that somebody else replaces. One goroutine uses it.
type watchedFile struct {
	path string
	seen fileState
}

// fileState identifies one state of a file.
type fileState struct {
	at   time.Time
	size int64
}

// watch returns a file whose present state counts as seen.
func watch(path string) watchedFile { return watchedFile{path, stateOf(path)} }

// changed reports whether the file has changed since the call before.
func (f *watchedFile) changed() bool {
	now := stateOf(f.path)
	was := f.seen
	f.seen = now
	return now != was
}

// Limits and periods of trust.
const (
	// trustQueue limits the waiting parts of a list; supervisors repeat dropped ones.
	trustQueue = 64
	// renewEvery is the interval between checks for a new certificate and key in the half's files.
	renewEvery = time.Second
)

func newTrust(c *common, r *pki.Registry) *trust {
	t := &trust{
		registry: r, signer: c.signer, log: c.log, file: watch(filepath.Join(c.cfg.StateDir, denylist.File)),
		parts: make(chan denyPart, trustQueue), look: make(chan struct{}, 1), answers: make(chan renewalAnswer, 4),
		renewals: newRenewing(c.log, c.self(), c.cfg.StateDir, c.signer, c.verifier), carry: func() {},
	}
	var lost error
	if t.keeper, lost = denylist.NewKeeper(c.cfg.StateDir, c.cfg.Cluster, c.verifier, r); lost != nil {
		c.log.Error("list of revoked certificates not read: none is refused until a supervisor sends it again", "err", lost)
	}
	t.version.Store(t.keeper.List().GetVersion())
	return t
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	return fileState{info.ModTime(), info.Size()}
}

// wake makes run check the files. It does not block.
func (t *trust) wake() {
	select {
	case t.look <- struct{}{}:
	default: // the disk hangs
	}
}

// denyPart is a part of a list, and the supervisor that sent it.
type denyPart struct {
	supervisor string
	*lofamov1.DenyPart
}

// take queues a part of a list that a supervisor has signed. It does not block.
func (t *trust) take(supervisor string, p *lofamov1.DenyPart) {
	select {
	case t.parts <- denyPart{supervisor, p}:
	default:
	}
}

// answer queues a supervisor's answer to a request for a certificate. It does not block; a half repeats its request.
func (t *trust) answer(a renewalAnswer) {
	select {
	case t.answers <- a:
	default:
	}
}

// run applies new files and messages from supervisors until ctx ends. It calls changed at the start and after every new list.
func (t *trust) run(ctx context.Context, changed func()) {
	if t.version.Load() > 0 {
		changed()
	}
	for {
		taken, err := false, error(nil)
		select {
		case <-ctx.Done():
			return
		case a := <-t.answers:
			t.pass(a)
		case p := <-t.parts:
			taken, err = t.keeper.Part(p.supervisor, p.DenyPart)
		case <-t.look:
			t.renew(time.Now())
			t.carry()
			t.renewals.tick(time.Now())
			if t.file.changed() {
				taken, err = t.keeper.Reload()
			}
		}
		t.failed.set(t.log, "loading the list of revoked certificates", err)
		if taken {
			l := t.keeper.List()
			t.version.Store(l.GetVersion())
			t.log.Info("list of revoked certificates loaded", "version", l.GetVersion(), "denials", len(l.GetDenials()), "signed_by", l.Signer.Name)
			changed()
		}
	}
}

// renew loads a new certificate and key, from the half's files or its last renewal, whichever the signer prefers.
func (t *trust) renew(now time.Time) {
	if now.Before(t.renewAt) {
		return
	}
	t.renewAt = now.Add(renewEvery)
	renewed, err := t.signer.Renew()
	t.renewal.set(t.log, "loading a new certificate and key", err)
	if renewed {
		t.log.Info("new certificate in use", "expires", t.signer.Expires())
	}
}

// trustChanged ends the sessions of revoked supervisors and shuts revoked members out of gossip.
func (h *hostHalf) trustChanged() {
	var gone []string
	for id := range h.trust.registry.Denied() {
		if id.Role == pki.RoleSupervisor {
			h.keys.table.Drop(id.Name)
			gone = append(gone, "supervisor/"+id.Name)
		} else if o, ok := id.Origin(); ok && o.Half == fault.HalfHost && o.Node != h.cfg.Node {
			gone = append(gone, string(o.Node))
		}
	}
	h.mu.Lock()
	g := h.gossip
	h.mu.Unlock()
	if g != nil {
		g.Refuse(gone)
	}
}

// trustChanged ends the link sessions with peers whose certificates are revoked. A peer with a newer certificate makes another session at once.
func (d *dnpHalf) trustChanged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range d.topo.Links {
		if p := d.core.PeerAt(dir); d.trust.registry.Denies(pki.NodeIdentity(d.cfg.Cluster, p.Node, fault.HalfDNP)) {
			d.log.Warn("link session ended: certificates of the peer are revoked", "link", dir.String(), "peer", p.Node)
			d.newSession(dir)
		}
	}
}

// newSession forgets a link's session, here and in the copy, and requests another one.
func (d *dnpHalf) newSession(dir grid.Direction) {
	p := d.core.PeerAt(dir)
	d.keys[dir.Index()] = torus.Keyring{}
	d.copy.note(d.log, d.copy.file.StoreSession(dir, backup.Session{}))
	l := d.links[dir.Index()]
	if err := l.SetPeer(p.Address, pki.VerifyPeerIdentity(pki.NodeIdentity(d.cfg.Cluster, p.Node, fault.HalfDNP))); err != nil {
		d.log.Error("link cannot communicate with its peer", "link", dir.String(), "peer", p.Node, "err", err)
		return
	}
	l.Redial()
}

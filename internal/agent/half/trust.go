package half

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"

	"github.com/lofamo/lofamo/internal/pki"
)

// trust keeps a half's certificate and the list of revoked certificates current while the half runs. Both halves of a
// node share the list's file: the host half writes it. With a window each half writes its own.
type trust struct {
	Registry *pki.Registry
	signer   *pki.Signer
	log      *slog.Logger
	keeper   *pki.DenyListKeeper // owned by run
	file     WatchedFile         // the list's
	unread   bool                // the last try to read it failed
	failed   Condition
	renewal  Condition
	renewAt  time.Time
	Renewals *Renewer            // owned by run, as are:
	Carry    func()              // exchanges requests and answers with the other half
	Pass     func(RenewalAnswer) // hands an answer over; nil in the DNP half
	answers  chan RenewalAnswer

	parts   chan denyPart
	lists   chan pki.DenyList // verified
	look    chan struct{}     // receives once a second
	Version atomic.Uint64     // of the list in force
	Stored  atomic.Uint64     // of the list in force, if it is on disk too
}

// Limits and periods of trust.
const (
	// trustQueue limits the waiting parts of a list; supervisors repeat dropped ones.
	trustQueue = 64
	// renewEvery is the interval between checks for a new certificate and key in the half's files.
	renewEvery = time.Second
)

func newTrust(c *Common, r *pki.Registry) *trust {
	t := &trust{
		Registry: r, signer: c.Signer, log: c.Log, file: Watch(filepath.Join(c.Config.StateDir, pki.DenyListFile)),
		parts: make(chan denyPart, trustQueue), lists: make(chan pki.DenyList, 1), look: make(chan struct{}, 1),
		answers:  make(chan RenewalAnswer, 4),
		Renewals: NewRenewer(c.Log, c.Origin(), c.Config.StateDir, c.Signer, c.Verifier), Carry: func() {},
	}
	var lost error
	if t.keeper, lost = pki.NewDenyListKeeper(c.Config.StateDir, c.Config.Cluster, c.Verifier, r); lost != nil {
		c.Log.Error("list of revoked certificates not read: none is refused until a supervisor sends it again", "err", lost)
		t.unread = true
	}
	t.Version.Store(t.keeper.List().GetVersion())
	t.Stored.Store(t.Version.Load())
	return t
}

// Wake makes run check the files. It does not block.
func (t *trust) Wake() {
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

// Take queues a part of a list that a supervisor has signed. It does not block.
func (t *trust) Take(supervisor string, p *lofamov1.DenyPart) {
	select {
	case t.parts <- denyPart{supervisor, p}:
	default:
	}
}

// TakeList queues a verified list, also one that is in force but not on disk. It does not block.
func (t *trust) TakeList(l pki.DenyList) {
	select {
	case t.lists <- l:
	default:
	}
}

// Answer queues a supervisor's answer to a request for a certificate. It does not block; a half repeats its request.
func (t *trust) Answer(a RenewalAnswer) {
	select {
	case t.answers <- a:
	default:
	}
}

// Run applies new files and messages from supervisors until ctx ends. It calls changed at the start and after every new list.
func (t *trust) Run(ctx context.Context, changed func()) {
	changed()
	for {
		taken, err := false, error(nil)
		select {
		case <-ctx.Done():
			return
		case a := <-t.answers:
			t.Pass(a)
		case p := <-t.parts:
			taken, err = t.keeper.Part(p.supervisor, p.DenyPart)
		case l := <-t.lists:
			if taken, err = t.keeper.TakeList(l); !taken {
				err = t.keeper.Persist()
			}
		case <-t.look:
			t.renew(time.Now())
			t.Carry()
			t.Renewals.Tick(time.Now())
			if t.file.Changed() || t.unread { // only the host half gets the list again
				taken, err = t.keeper.Reload()
				t.unread = err != nil
			}
			if !taken && t.Stored.Load() != t.Version.Load() {
				if kept := t.keeper.Persist(); kept == nil {
					t.Stored.Store(t.Version.Load())
				} else {
					err = errors.Join(err, kept)
				}
			}
		}
		if err != nil || !t.unread {
			t.failed.Set(t.log, "loading the list of revoked certificates", err)
		}
		if err == nil && taken {
			t.Stored.Store(t.keeper.List().GetVersion())
		}
		if taken {
			l := t.keeper.List()
			t.Version.Store(l.GetVersion())
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
	t.renewal.Set(t.log, "loading a new certificate and key", err)
	if renewed {
		t.log.Info("new certificate in use", "expires", t.signer.Expires())
	}
}

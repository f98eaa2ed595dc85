package supervisor

import (
	"context"
	"sync"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor/api"
	"github.com/lofamo/lofamo/internal/supervisor/engine"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// trust holds this replica's list of revoked certificates.
type trust struct {
	registry *pki.Registry

	mu     sync.Mutex
	keeper *pki.DenyListKeeper
	list   pki.DenyList
	stored []byte // list in the store, including a refused one; nil: none
	at     uint64 // revision of that list
}

func (t *trust) now() pki.DenyList {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list
}

// use notes a verified list that the store holds since a revision, and puts it in force if it is newer. It does both at
// once: a caller that replaces the stored list compares its own with the list in force.
func (t *trust) use(l pki.DenyList, revision uint64) (taken bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storedSince(l.Raw, revision)
	taken, err = t.keeper.TakeList(l)
	t.list = t.keeper.List()
	return taken, err
}

// sees notes a refused list that the store holds since a revision.
func (t *trust) sees(raw []byte, revision uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.storedSince(raw, revision)
}

// storedSince notes the stored list, unless a later revision replaced it. The caller holds mu.
func (t *trust) storedSince(raw []byte, revision uint64) {
	if revision >= t.at {
		t.stored, t.at = raw, revision
	}
}

func (t *trust) inStore() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stored
}

// newTrust revokes no certificate until the store has a list.
func (s *Supervisor) newTrust() {
	k, _ := pki.NewDenyListKeeper("", s.cfg.Cluster, s.verify, s.trust.registry)
	s.trust.keeper, s.trust.list = k, k.List()
}

// followDenied applies the stored list of revoked certificates until ctx ends.
func (s *Supervisor) followDenied(ctx context.Context) {
	s.again(ctx, "following the list of revoked certificates", func() error { return s.store.FollowDenied(ctx, s.takeDenied) })
}

// takeDenied puts the stored list in force, if it is valid and newer.
func (s *Supervisor) takeDenied(raw []byte, revision uint64) {
	l, err := pki.OpenDenyList(raw, s.verify, s.cfg.Cluster)
	if err == nil {
		s.useDenied(l, revision)
		return
	}
	s.logger.Error("stored list of revoked certificates refused", "err", err)
	s.trust.sees(raw, revision)
}

// useDenied puts a verified list that the store has since a revision in force, if it is newer.
func (s *Supervisor) useDenied(l pki.DenyList, revision uint64) {
	taken, err := s.trust.use(l, revision)
	if err != nil {
		s.logger.Error("list of revoked certificates not kept", "err", err)
	}
	if !taken {
		return
	}
	s.logger.Info("list of revoked certificates loaded", "version", l.GetVersion(), "denials", len(l.GetDenials()), "signed_by", l.Signer.Name)
	s.metrics.DenyVersion.Set(float64(l.GetVersion()))
	s.metrics.Denials.Set(float64(len(l.GetDenials())))
	if s.cfg.Parent() {
		return
	}
	for id := range s.trust.registry.Denied() {
		if o, node := id.Origin(); node {
			s.ingest.exchanges.Drop(o)
		}
	}
	s.notifier.Denied(l)
}

// refuseMembers shuts members with revoked certificates out of gossip until ctx ends.
func (s *Supervisor) refuseMembers(ctx context.Context) {
	for {
		changed := s.trust.registry.Changed()
		var names []string
		for id := range s.trust.registry.Denied() {
			switch o, node := id.Origin(); {
			case node && o.Half == fault.HalfHost:
				names = append(names, string(o.Node))
			case id.Role == pki.RoleSupervisor && id.Name != s.cfg.ID:
				names = append(names, "supervisor/"+id.Name)
			}
		}
		s.gossip.Refuse(names)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// revokedNodes returns the nodes with revoked certificates, for the engine.
func (s *Supervisor) revokedNodes() awareness.Revoked {
	out := awareness.Revoked{Nodes: make(map[fault.NodeID]time.Time)}
	for _, d := range s.trust.now().GetDenials() {
		id := pki.Identity{Cluster: s.cfg.Cluster, Role: pki.Role(d.GetRole()), Name: d.GetName()}
		if o, ok := id.Origin(); ok {
			if at := d.GetRevoked().AsTime(); at.After(out.Nodes[o.Node]) {
				out.Nodes[o.Node] = at
			}
		}
	}
	return out
}

// engineRetry is the pause between attempts to pass a new list to the engine.
const engineRetry = 100 * time.Millisecond

// tellEngine passes every new list to the engine while this replica leads, until ctx ends.
func (s *Supervisor) tellEngine(ctx context.Context) {
	for {
		changed := s.trust.registry.Changed()
		for s.engine.Leading() && !s.engine.Submit(engine.Input{Revoked: true, Arrived: time.Now()}) && ctx.Err() == nil {
			time.Sleep(engineRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Pauses of sending the list to the executor process.
const (
	denyRetry = 30 * time.Second // bounds the pause between two attempts
	// denyAgain follows a success: the process may have been replaced, by a later version or with an empty disk.
	denyAgain = time.Minute
)

// tellExecutor sends the newest list to the executor process until ctx ends.
func (s *Supervisor) tellExecutor(ctx context.Context, deny func(ctx context.Context, signed []byte) error) {
	retry := time.Second
	for {
		changed, pause := s.trust.registry.Changed(), denyAgain
		if l := s.trust.now(); l.GetVersion() > 0 {
			if err := deny(ctx, l.Raw); err == nil {
				retry = time.Second
			} else {
				s.logger.Warn("the executor process does not accept the list of revoked certificates", "version", l.GetVersion(), "err", err)
				pause, retry = retry, min(2*retry, denyRetry)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(pause):
		}
	}
}

// certificates returns the service that shows and changes the list.
func (s *Supervisor) certificates() lofamov1.CertificatesServer {
	highest := func() uint64 { return 0 }
	if s.notifier != nil {
		highest = s.notifier.HighestDenied
	}
	return api.NewCertificates(api.CertificatesConfig{
		Cluster: s.cfg.Cluster, Registry: s.trust.registry, Verifier: s.verify, List: s.trust.now, Highest: highest, Stored: s.trust.inStore,
		Store: s.store.Etcd, Taken: s.useDenied, Logger: s.logger,
	})
}
